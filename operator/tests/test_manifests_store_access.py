"""How builders and fetchers reach the store: with a token that they show to the gateway, or with its credentials."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from manifest_samples import CONFIG, GATEWAY_CONFIG, airports, everything, from_config_map, generation, rendered

from lookupdb.store import gateway_wire
from lookupdb_operator import manifests, names
from lookupdb_operator.config import Config
from lookupdb_operator.model import ObservedDataset

SAMPLES = [
    pytest.param(airports(), id="airports"),
    pytest.param(everything(), id="everything"),
    pytest.param(from_config_map(), id="from a ConfigMap"),
]
TOKEN = {"audience": "lookupdb-store:lookupdb/lookupdb", "expirationSeconds": 600, "path": "token"}
FOLDER = "/var/run/secrets/lookupdb.dev/store"


def _pods(of: ObservedDataset, config: Config) -> Iterator[dict[str, Any]]:
    for part in ("build", "shards", "router"):
        for manifest in rendered(of, config)[part]:
            if "template" in manifest.get("spec", {}):
                yield manifest["spec"]["template"]["spec"]


def _containers(of: ObservedDataset, config: Config) -> Iterator[dict[str, Any]]:
    for pod in _pods(of, config):
        yield from (*pod.get("initContainers", ()), *pod["containers"])


@pytest.mark.parametrize("of", SAMPLES)
class TestBehindAGateway:
    def test_a_pod_that_needs_the_store_has_a_token_for_that_gateway_alone(self, of: ObservedDataset) -> None:
        for pod in _pods(of, GATEWAY_CONFIG):
            tokens = [volume for volume in pod["volumes"] if "projected" in volume]
            needs_store = {"build", "fetch"} & {
                container["name"] for container in (*pod.get("initContainers", ()), *pod["containers"])
            }
            expected = {"name": "store-token", "projected": {"sources": [{"serviceAccountToken": TOKEN}]}}
            assert tokens == ([expected] if needs_store else [])
            assert pod["automountServiceAccountToken"] is False, "of the API server it has none"

    def test_only_builder_and_fetcher_can_read_it(self, of: ObservedDataset) -> None:
        readers = {
            container["name"]
            for container in _containers(of, GATEWAY_CONFIG)
            if any(mount["name"] == names.STORE_TOKEN_VOLUME for mount in container["volumeMounts"])
        }
        assert readers == {"build", "fetch"}
        for container in _containers(of, GATEWAY_CONFIG):
            variables = {variable["name"]: variable.get("value") for variable in container["env"]}
            mounts = [mount for mount in container["volumeMounts"] if mount["mountPath"].startswith("/var/run/secrets")]
            if container["name"] in readers:
                assert variables[gateway_wire.TOKEN_FILE_VARIABLE] == f"{FOLDER}/token"
                assert mounts == [{"name": "store-token", "mountPath": FOLDER, "readOnly": True}]
            else:
                assert gateway_wire.TOKEN_FILE_VARIABLE not in variables
                assert mounts == []

    def test_the_store_is_the_gateway(self, of: ObservedDataset) -> None:
        told = [
            container["args"][container["args"].index("--store") + 1]
            for container in _containers(of, GATEWAY_CONFIG)
            if "--store" in container["args"]
        ]
        assert set(told) == {GATEWAY_CONFIG.gateway}

    def test_no_secret_of_the_store_is_referred_to(self, of: ObservedDataset) -> None:
        secret = names.store_secret(of.name, of.uid)
        assert all(secret.encode() not in orjson.dumps(pod) for pod in _pods(of, GATEWAY_CONFIG))
        assert any(secret.encode() in orjson.dumps(pod) for pod in _pods(of, CONFIG)), "without a gateway, it is"


def test_the_token_is_for_the_gateway_of_ones_own_installation() -> None:
    config = dataclasses.replace(GATEWAY_CONFIG, identity="data/second")
    volumes = [volume for pod in _pods(airports(), config) for volume in pod["volumes"] if "projected" in volume]
    audiences = {volume["projected"]["sources"][0]["serviceAccountToken"]["audience"] for volume in volumes}
    assert audiences == {"lookupdb-store:data/second"}


def test_what_the_secret_of_a_source_says_of_the_token_counts_less() -> None:
    (container,) = (each for each in _containers(everything(), GATEWAY_CONFIG) if each["name"] == "build")
    assert container["envFrom"] == [{"secretRef": {"name": everything().spec["source"]["secretName"]}}]
    assert gateway_wire.TOKEN_FILE_VARIABLE in {variable["name"] for variable in container["env"]}, "which comes first"


def test_a_gateway_is_another_template_and_another_build() -> None:
    of = airports()
    assert manifests.template_digest(of, generation(of), CONFIG) != manifests.template_digest(
        of, generation(of), GATEWAY_CONFIG
    )
    assert manifests.build_digest(of, CONFIG) != manifests.build_digest(of, GATEWAY_CONFIG)
