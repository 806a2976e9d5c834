"""Store access of builders and fetchers: by a token for the gateway, or by the store's credentials; and a dataset's own
store, with the Secret that it names."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from manifest_samples import (
    BUILD,
    CONFIG,
    GATEWAY_CONFIG,
    airports,
    everything,
    from_config_map,
    generation,
    rendered,
    with_own_store,
)

from lookupdb.store import objects
from lookupdb_operator import manifests, names
from lookupdb_operator.model import Config, ObservedDataset

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
                assert variables[objects.TOKEN_FILE_VARIABLE] == f"{FOLDER}/token"
                assert mounts == [{"name": "store-token", "mountPath": FOLDER, "readOnly": True}]
            else:
                assert objects.TOKEN_FILE_VARIABLE not in variables
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
    assert objects.TOKEN_FILE_VARIABLE in {variable["name"] for variable in container["env"]}, "which comes first"


def test_a_gateway_is_another_template_and_another_build() -> None:
    of = airports()
    assert manifests.template_digest(of, generation(of), CONFIG) != manifests.template_digest(
        of, generation(of), GATEWAY_CONFIG
    )
    assert manifests.build_digest(of, CONFIG) != manifests.build_digest(of, GATEWAY_CONFIG)


@pytest.mark.parametrize("config", [CONFIG, GATEWAY_CONFIG], ids=["without a gateway", "with a gateway"])
class TestOwnStore:
    def test_builder_and_fetcher_go_there(self, config: Config) -> None:
        told = {
            container["name"]: container["args"][container["args"].index("--store") + 1]
            for container in _containers(with_own_store(), config)
            if "--store" in container["args"]
        }
        assert told == {"build": "s3://team-lookups/airports", "fetch": "s3://team-lookups/airports"}

    def test_with_the_secret_that_the_dataset_names_for_the_store_alone(self, config: Config) -> None:
        own = {"prefix": "LOOKUPDB_STORE_", "secretRef": {"name": "airports-store"}}
        given = {container["name"]: container.get("envFrom", []) for container in _containers(with_own_store(), config)}
        source = {"secretRef": {"name": "airports-source"}}
        assert given == {"build": [source, own], "fetch": [own], "serve": [], "route": []}, "the store's comes last"

    def test_no_token_of_the_gateway_and_no_secret_of_the_operator_is_there(self, config: Config) -> None:
        of = with_own_store()
        for pod in _pods(of, config):
            assert [volume for volume in pod["volumes"] if "projected" in volume] == []
            text = orjson.dumps(pod)
            assert objects.TOKEN_FILE_VARIABLE.encode() not in text
            assert names.store_secret(of.name, of.uid).encode() not in text

    def test_without_a_secret_it_is_the_identity_of_the_pods(self, config: Config) -> None:
        of = with_own_store(url="gs://team-lookups")
        given = {container["name"]: container.get("envFrom", []) for container in _containers(of, config)}
        assert given["fetch"] == []
        assert given["build"] == [{"secretRef": {"name": "airports-source"}}]

    def test_its_builder_removes_what_no_sweep_would_and_others_remove_nothing(self, config: Config) -> None:
        build = dataclasses.replace(BUILD, protect=("g9", "g11"))
        for of, flags in ((with_own_store(), "--keep 3 --protect g9 --protect g11"), (airports(), "")):
            (_, job) = manifests.render_builder(of, build, config)
            words = " ".join(job["spec"]["template"]["spec"]["containers"][0]["args"])
            assert (flags in words, "--keep" in words, "--protect" in words) == (True, bool(flags), bool(flags))


def test_the_store_of_the_release_is_nothing_to_who_has_a_store_of_its_own() -> None:
    """Another bucket, or a gateway that comes or goes, rolls nothing out and builds nothing."""
    of = with_own_store()
    elsewhere = dataclasses.replace(CONFIG, store="s3://other")
    for config in (GATEWAY_CONFIG, elsewhere):
        assert manifests.template_digest(of, generation(of), config) == manifests.template_digest(
            of, generation(of), CONFIG
        )
        assert manifests.build_digest(of, config) == manifests.build_digest(of, CONFIG)


def test_another_secret_is_another_template_and_another_build() -> None:
    before, after = (with_own_store(url="s3://team-lookups", secretName=name) for name in ("old", "new"))
    assert manifests.template_digest(before, generation(before), CONFIG) != manifests.template_digest(
        after, generation(after), CONFIG
    )
    assert manifests.build_digest(before, CONFIG) != manifests.build_digest(after, CONFIG)


def test_what_pods_reach_is_not_limited() -> None:
    """The policies limit who reaches the pods: a bucket may be anywhere."""
    for policy in rendered(with_own_store(), GATEWAY_CONFIG)["network-policy"]:
        assert policy["spec"]["policyTypes"] == ["Ingress"]
