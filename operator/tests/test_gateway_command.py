"""``lookupdb gateway``: its options, and its process from start to SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner
from docs_tools import reference
from operator_support.gateways import CLUSTER, head, standing
from operator_support.kube import serving
from operator_support.running import until
from support.buckets import create_bucket, new_bucket, s3_server, variables
from support.ports import free_port
from support.signers import AUDIENCE, jwks, rsa_signer

from lookupdb.errors import StoreError, UsageError
from lookupdb_operator.gateway.credentials import StoreClient, read_variables
from lookupdb_operator.gateway.service import command

NEEDED = ["--store", "s3://bucket/path", "--audience", AUDIENCE]
OBJECT = f"/v1/object/{CLUSTER}/team/people-1a2b3c4d/x"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--store", "/srv/store"], "not a store that pods share"),
        (["--audience", ""], "--audience is empty"),
        (["--announcer", "lookupdb"], "is not a service account"),
        (["--announcer", "lookupdb/"], "is not a service account"),
        (["--announcer", "system:serviceaccount:lookupdb:lookupdb"], "is not a service account"),
        (["--announcer", "a/b/c"], "is not a service account"),
        (["--cluster-id", "../other"], "cannot be part of a store's path"),
        (["--body-memory", "1MiB"], "expected at least"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        CliRunner().invoke(command, [*NEEDED, *arguments], catch_exceptions=False)


def test_an_audience_has_to_be_given() -> None:
    assert CliRunner().invoke(command, NEEDED[:2]).exit_code == 2


@contextlib.asynccontextmanager
async def running(
    folder: Path, environment: dict[str, str], *arguments: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a gateway process, and kill it if it does not end; its log is in ``folder``."""
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "lookupdb", "gateway", *arguments),
            env={**os.environ, "KUBECONFIG": str(folder / "kubeconfig"), **environment},
            stderr=log,
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def test_the_process_finishes_what_is_in_flight_after_sigterm(tmp_path: Path) -> None:
    port, admin_port = free_port(), free_port()
    with s3_server() as url:
        store = create_bucket(url)
        arguments = ["--store", store, "--audience", AUDIENCE, "--port", str(port), "--admin-port", str(admin_port)]
        async with (
            serving(tmp_path) as kube,
            aiohttp.ClientSession() as session,
            running(tmp_path, variables(url), *arguments) as process,
        ):

            async def answer(path: str) -> int:
                assert process.returncode is None, (tmp_path / "log").read_text()
                try:
                    async with session.get(f"http://127.0.0.1:{admin_port}{path}") as response:
                        return response.status
                except (aiohttp.ClientError, OSError):
                    return 0

            async def is_unready() -> bool:
                return await answer("/readyz") == 503

            async def is_ready() -> bool:
                return await answer("/readyz") == 200

            await until(is_unready, "an admin port", (tmp_path / "log").read_text)  # the API server has no keys yet
            kube.jwks = jwks(rsa_signer())
            await until(is_ready, "a gateway that is ready", (tmp_path / "log").read_text)
            assert await answer("/healthz") == 200
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            token = rsa_signer().token()
            writer.write(head("PUT", OBJECT, "Content-Length: 4", token=token) + b"ab")
            await writer.drain()
            process.send_signal(signal.SIGTERM)
            await until(is_unready, "a drain", (tmp_path / "log").read_text)
            writer.write(b"cd")
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
            writer.close()
            async with asyncio.timeout(60):
                assert await process.wait() == 0
    text = (tmp_path / "log").read_text()
    assert "serving the store" in text
    assert "Traceback" not in text
    assert token not in text


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with s3_server() as url:
        yield url


def write_secret(folder: Path, number: int, values: dict[str, Any]) -> None:
    """Write all files at once, by a link, as the kubelet does."""
    current = folder / f"..{number}"
    current.mkdir(parents=True)
    for name, value in values.items():
        (current / name).write_bytes(value if isinstance(value, bytes) else value.encode())
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    (folder / "..next").symlink_to(current.name)
    (folder / "..next").rename(folder / "..data")


async def test_a_rotated_secret_needs_no_restart(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_bucket(url, monkeypatch).url
    secret = tmp_path / "secret"
    for name in variables(url):
        monkeypatch.delenv(name)
    write_secret(secret, 1, {**variables(url), "AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_REGION": "us-east-1\n"})
    environment = dict(os.environ)
    async with standing(tmp_path, store, credentials=secret, look_seconds=0.05) as gateway:
        write_secret(secret, 2, variables(url))

        async def is_put() -> bool:
            return (await gateway.ask("PUT", OBJECT, body=b"x")).status == 200

        await until(is_put, "the new credentials to count")
    for name in os.environ.keys() - environment.keys():
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("AWS_ENDPOINT_URL", url) for url in (b"no url", b"http://[::1", b"http://:::")],
        *[("AWS_ENDPOINT_URL", url) for url in (b"http://[]", b"http://[]:80", b"https://:443", b"http://a:0")],
        *[("AWS_REGION", b"a\x00b"), ("AWS_REGION", b"\xff")],
    ],
)
async def test_a_secret_that_cannot_be_used_leaves_the_last_one_and_refuses_a_start(
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    value: bytes,
) -> None:
    store = new_bucket(url, monkeypatch).url
    secret = tmp_path / "secret"
    write_secret(secret, 1, variables(url))
    async with standing(tmp_path, store, credentials=secret, look_seconds=0.05) as gateway:
        write_secret(secret, 2, {**variables(url), name: value})
        await until(lambda: "using the last ones" in caplog.text, "a word about it")
        assert (await gateway.ask("PUT", OBJECT, body=b"x")).status == 200
    with pytest.raises(StoreError, match=r"credentials in .* cannot be read"):
        StoreClient(store, secret)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9000", "https://s3.eu.example.com/path", "http://[::1]:9000", "http://s3"]
)
def test_an_endpoint_is_a_url(tmp_path: Path, url: str) -> None:
    (tmp_path / "AWS_ENDPOINT_URL").write_text(url)
    assert read_variables(tmp_path) == {"AWS_ENDPOINT_URL": url}


def test_an_empty_value_says_nothing(tmp_path: Path) -> None:
    """An empty address would be used as one, and each request would panic."""
    write_secret(tmp_path, 1, {"AWS_ENDPOINT_URL": "", "AWS_REGION": "\n", "AWS_ACCESS_KEY_ID": "key"})
    assert read_variables(tmp_path) == {"AWS_ACCESS_KEY_ID": "key"}


def test_a_key_of_google_may_have_lines(tmp_path: Path) -> None:
    key = json.dumps({"type": "service_account", "private_key": "-----BEGIN\nx\n-----END\n"}, indent=2)
    (tmp_path / "GOOGLE_SERVICE_ACCOUNT_KEY").write_text(key + "\n")
    assert read_variables(tmp_path) == {"GOOGLE_SERVICE_ACCOUNT_KEY": key}


def test_what_is_replaced_while_it_is_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_secret(tmp_path, 1, {"AWS_ACCESS_KEY_ID": "old", "AWS_SECRET_ACCESS_KEY": "old"})
    read_bytes = Path.read_bytes

    def read_and_replace(file: Path) -> bytes:
        data = read_bytes(file)
        if data == b"old" and file.name == "AWS_ACCESS_KEY_ID":
            write_secret(tmp_path, 2, {"AWS_ACCESS_KEY_ID": "new", "AWS_SECRET_ACCESS_KEY": "new"})
            (file.parent / "AWS_SECRET_ACCESS_KEY").unlink()
        return data

    monkeypatch.setattr(Path, "read_bytes", read_and_replace)
    with pytest.raises((ValueError, OSError)):
        read_variables(tmp_path)
    assert set(read_variables(tmp_path).values()) == {"new"}


async def test_every_metric_is_documented(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with standing(tmp_path, new_bucket(url, monkeypatch).url) as gateway:
        await gateway.ask("GET", OBJECT, token="")
        text = (await gateway.admin("/metrics"))[1]
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) > 8
    page = reference.page("reference/metrics.md")
    assert [name for name in names if not re.search(f"[|] `{name}(_bucket)?` [|]", page)] == []
