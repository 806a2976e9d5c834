"""``lookupdb operator``: its options, and its process from start to SIGTERM."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import aiohttp
import pytest
from click.testing import CliRunner
from operator_support.kube import serving
from operator_support.running import until
from support.ports import free_port

from lookupdb.errors import UsageError
from lookupdb_operator import command as module
from lookupdb_operator.command import command
from lookupdb_operator.main import OperatorOptions

NEEDED = ["--image", "lookupdb:1", "--store", "s3://bucket/path", "--namespace", "lookupdb"]


def parsed(
    *arguments: str, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str] | None = None
) -> OperatorOptions:
    """Parse the command line as the command does."""
    ran: list[OperatorOptions] = []

    async def run(chosen: OperatorOptions) -> None:
        ran.append(chosen)

    monkeypatch.setattr("lookupdb_operator.main.run", run)
    result = CliRunner().invoke(command, list(arguments), env=environment, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return ran[0]


def test_what_every_option_means(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = parsed(
        *NEEDED,
        *("--store-secret", "store", "--create-store-secret", "--store-env", "AWS_REGION=eu", "--store-env", "A=b=c"),
        *("--cluster-id", "c1", "--namespaces", "a, b", "--identity", "x/y", "--living-list", "living"),
        *("--image-pull-policy", "Never", "--image-pull-secrets", "p,q", "--no-network-policies", "--no-router-resp"),
        *("--router-clients", '[{"namespaceSelector": {}}]', "--admin-clients", "[]", "--pod-labels", '{"team": "a"}'),
        *("--pod-security", '{"runAsUser": 1000}', "--pod-host", "::"),
        *("--host", "127.0.0.1", "--port", "9999", "--resync-seconds", "60", "--workers", "2"),
        *("--max-concurrent-builds", "3", "--max-concurrent-rollouts", "5"),
        *("--gateway", "http://gateway.lookupdb.svc:7071/"),
        *("--tracing-env", '[{"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://c:4318"}]'),
        monkeypatch=monkeypatch,
    )
    assert chosen.store_environment == {"AWS_REGION": "eu", "A": "b=c"}
    assert chosen.namespaces == ("a", "b")
    assert (chosen.host, chosen.port, chosen.resync_seconds, chosen.workers) == ("127.0.0.1", 9999, 60, 2)
    assert (chosen.store_secret, chosen.create_store_secret, chosen.living_list) == ("store", True, "living")
    assert (chosen.max_concurrent_builds, chosen.max_concurrent_rollouts) == (3, 5)
    config = chosen.config
    assert (config.image, config.store, config.cluster, config.identity) == ("lookupdb:1", NEEDED[3], "c1", "x/y")
    assert (config.image_pull_policy, config.image_pull_secrets) == ("Never", ("p", "q"))
    assert not config.network_policies
    assert not config.router_resp
    assert config.router_clients == ({"namespaceSelector": {}},)
    assert config.pod_labels == {"team": "a"}
    assert config.tracing_env == ({"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://c:4318"},)
    assert config.gateway == "http://gateway.lookupdb.svc:7071"
    assert (config.pod_security, config.pod_host) == ({"runAsUser": 1000}, "::")


def test_pods_run_as_the_images_user_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    config = parsed(*NEEDED, monkeypatch=monkeypatch).config
    assert config.pod_security == {"runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 10001}
    assert config.router_resp
    assert parsed(*NEEDED, "--pod-security", "{}", monkeypatch=monkeypatch).config.pod_security == {}


@pytest.mark.parametrize(
    "text", ["[]", '{"runAsRoot": 1}', '{"runAsUser": 0}', '{"fsGroup": true}', '{"fsGroup": "5"}']
)
def test_nobody_runs_as_root_or_as_nobody_knows_whom(text: str) -> None:
    result = CliRunner().invoke(command, [*NEEDED, "--pod-security", text])
    assert result.exit_code == 2, result.output
    assert "expected a number" in result.output or "is none of" in result.output or "JSON object" in result.output


def test_every_option_is_an_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {
        "LOOKUPDB_IMAGE": "lookupdb:1",
        "LOOKUPDB_STORE": "gs://bucket",
        "LOOKUPDB_NAMESPACE": "lookupdb",
        "LOOKUPDB_NAMESPACES": "a,b",
        "LOOKUPDB_STORE_ENV": "AWS_REGION=eu A=b",
        "LOOKUPDB_NETWORK_POLICIES": "false",
        "LOOKUPDB_GATEWAY": "https://gateway:7071",
        "LOOKUPDB_ADMIN_CLIENTS": '[{"podSelector": {}}]',
    }
    chosen = parsed(monkeypatch=monkeypatch, environment=environment)
    assert chosen.namespaces == ("a", "b")
    assert chosen.store_environment == {"AWS_REGION": "eu", "A": "b"}
    assert not chosen.config.network_policies
    assert chosen.config.gateway == "https://gateway:7071"
    assert chosen.config.admin_clients == ({"podSelector": {}},)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["--store", "/srv/store"], "not a store that pods share", id="a directory"),
        pytest.param(["--create-store-secret"], "--create-store-secret needs --store-secret", id="nameless Secret"),
        pytest.param(["--store-env", "AWS_REGION"], "is not NAME=VALUE", id="no value"),
        pytest.param(["--gateway", "gateway:7071"], "not the URL of a gateway", id="a gateway without a scheme"),
        pytest.param(["--gateway", "http://me:geheim@gateway"], "not the URL of a gateway", id="a gateway's password"),
        pytest.param(["--gateway", "http://gateway/v1"], "not the URL of a gateway", id="a gateway with a path"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        CliRunner().invoke(command, [*NEEDED, *arguments], catch_exceptions=False)


@pytest.mark.parametrize("text", ["{", '{"a": 1}'])
def test_peers_are_a_json_list(text: str) -> None:
    result = CliRunner().invoke(command, [*NEEDED, "--router-clients", text])
    assert result.exit_code == 2
    assert "JSON" in result.output


def test_help_teaches() -> None:
    text = " ".join(CliRunner().invoke(command, ["--help"]).output.split())
    for part in ("KUBECONFIG", "/healthz", "LOOKUPDB_STORE_SECRET", "LOOKUPDB_RESYNC_SECONDS", "AWS_ACCESS_KEY_ID"):
        assert part in text
    assert module.__doc__


@pytest.mark.timeout(240)
async def test_the_process_works_until_sigterm_and_ends_well(tmp_path: Path) -> None:
    port = free_port()
    async with serving(tmp_path) as kube:
        environment = {**os.environ, "KUBECONFIG": str(tmp_path / "kubeconfig"), "LOOKUPDB_PORT": str(port)}
        main = "import sys; from lookupdb_operator.command import command; sys.exit(command())"
        log = (tmp_path / "log").open("wb")
        process = await asyncio.create_subprocess_exec(
            # It listens on IPv6; on a dual-stack cluster the kubelet may use IPv4.
            *(sys.executable, "-c", main, *NEEDED, "--host", "::"),
            env=environment,
            stderr=log,
        )
        try:

            async def healthy() -> bool:
                assert process.returncode is None, (tmp_path / "log").read_text()
                async with aiohttp.ClientSession() as session:
                    try:
                        async with session.get(f"http://127.0.0.1:{port}/healthz") as response:
                            return response.status == 200
                    except aiohttp.ClientError:
                        return False

            await until(healthy, "a healthy operator", (tmp_path / "log").read_text)
            pods = ("WATCH", "/api/v1/pods")
            await until(lambda: pods in kube.reads, "a watch", (tmp_path / "log").read_text)
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(60):
                assert await process.wait() == 0, (tmp_path / "log").read_text()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            log.close()
    text = (tmp_path / "log").read_text()
    assert "operating cluster cluster-uid as lookupdb/lookupdb" in text
    assert "Traceback" not in text
