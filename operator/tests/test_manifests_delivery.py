"""Delivery of a shard's file: what the server's pod has for it, and what it does not have."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from manifest_samples import (
    CONFIG,
    FULL_CONFIG,
    GATEWAY_CONFIG,
    airports,
    everything,
    from_images,
    from_volume,
    generation,
    rendered,
    rollout,
)
from support.shards import write_generation
from support.waiting import until

from lookupdb.cli.copy import push_images as push_verb
from lookupdb.image.artifact import shard_tag
from lookupdb_operator import manifests, names
from lookupdb_operator.manifests import pods
from lookupdb_operator.manifests.shards import WAIT_SECONDS
from lookupdb_operator.model import ObservedDataset

Json = dict[str, Any]
FOLDER = "c1/default/airports-8d3f6b1a/g12"
CONFIGS = pytest.mark.parametrize("config", [CONFIG, FULL_CONFIG, GATEWAY_CONFIG], ids=["plain", "full", "gateway"])


def pod(of: ObservedDataset, config: Any = CONFIG) -> Json:
    (shard_set,) = (manifest for manifest in rendered(of, config)["shards"] if manifest["kind"] == "StatefulSet")
    spec: Json = shard_set["spec"]["template"]["spec"]
    return spec


def words(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, nested in value.items():
            yield str(name)
            yield from words(nested)
    elif isinstance(value, list | tuple):
        for nested in value:
            yield from words(nested)
    else:
        yield str(value)


@CONFIGS
def test_a_server_of_a_volume_has_nothing_that_reaches_the_store(config: Any) -> None:
    spec = pod(from_volume(), config)
    assert "initContainers" not in spec
    assert {volume["name"] for volume in spec["volumes"]} == {"data", "tmp"}
    (server,) = spec["containers"]
    assert "envFrom" not in server
    said = " ".join(words({name: value for name, value in spec.items() if name != "imagePullSecrets"}))
    assert "secret" not in said.lower()
    assert "s3://" not in said
    assert "gateway" not in said


@CONFIGS
def test_the_volume_is_mounted_for_reading_and_stays_as_it_is(config: Any) -> None:
    spec = pod(from_volume(), config)
    assert spec["volumes"][0] == {
        "name": "data",
        "persistentVolumeClaim": {"claimName": "lookups", "readOnly": True},
    }
    (server,) = spec["containers"]
    assert {"name": "data", "mountPath": "/data", "readOnly": True} in server["volumeMounts"]
    assert "fsGroup" not in spec["securityContext"], "its files are not handed to our group"


@pytest.mark.parametrize(("path", "folder"), [("", f"/data/{FOLDER}"), ("lookups/eu", f"/data/lookups/eu/{FOLDER}")])
def test_it_serves_the_generations_own_folder(path: str, folder: str) -> None:
    (server,) = pod(from_volume(path))["containers"]
    assert server["args"][:2] == ["serve", folder]


def test_it_waits_for_less_than_its_startup_probe_gives_it() -> None:
    (server,) = pod(from_volume())["containers"]
    probe = server["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] / 2 >= WAIT_SECONDS


def test_nothing_of_a_nodes_disk_is_requested_for_the_shard() -> None:
    of = from_volume()
    assert pods.server(of.spec, 1 << 40)["requests"]["ephemeral-storage"] == pods.TMP_STORAGE


def test_what_is_fetched_is_as_it_was_before_there_was_a_choice() -> None:
    chosen = airports(serving={"delivery": {"type": "Fetch"}})
    built = generation(chosen)
    assert manifests.template_digest(chosen, built, CONFIG) == manifests.template_digest(airports(), built, CONFIG)
    assert everything().spec["serving"]["delivery"] == {"type": "Fetch"}


def test_a_claim_or_a_path_is_part_of_the_template() -> None:
    built = generation(from_volume())
    digests = {
        manifests.template_digest(of, built, CONFIG) for of in (airports(shards=1), from_volume(), from_volume("us"))
    }
    assert len(digests) == 3


def test_the_servers_command_serves_what_the_volume_shows(tmp_path: Path) -> None:
    """Run the container's own command on a folder in place of the mount."""
    (server,) = pod(from_volume())["containers"]
    place = tmp_path / "lookups" / "eu" / FOLDER
    words = [word.replace(names.DATA_PATH, str(tmp_path), 1) for word in server["args"]]
    words[words.index("--termination-log") + 1] = str(tmp_path / "termination-log")
    for flag in ("--port", "--admin-port"):
        words[words.index(flag) + 1] = "0"
    words[words.index("--host") + 1] = "127.0.0.1"
    ready = tmp_path / "ready.json"
    process = subprocess.Popen([sys.executable, "-m", "lookupdb", *words, "--ready-file", str(ready)])
    try:
        place.parent.mkdir(parents=True)
        write_generation(tmp_path / "written", {"a": b"1"}, shards=1).rename(place)
        until(ready.exists, "it serves what has appeared")
    finally:
        process.terminate()
        assert process.wait(60) == 0


class TestImages:
    def objects(self, config: Any = CONFIG, of: ObservedDataset | None = None) -> list[Json]:
        return list(rendered(of or from_images(), config)["shards"])

    def push(self, config: Any = CONFIG) -> Json:
        (job,) = (manifest for manifest in self.objects(config) if manifest["kind"] == "Job")
        return job

    def test_each_shard_mounts_its_own_tag_as_it_is_pushed(self) -> None:
        sets = [manifest for manifest in self.objects() if manifest["kind"] == "StatefulSet"]
        images = [manifest["spec"]["template"]["spec"]["volumes"][0] for manifest in sets]
        tags = [shard_tag("airports", "8d3f6b1a", "g12", shard) for shard in range(2)]
        assert [image["image"]["reference"] for image in images] == [
            f"registry.example/team/lookups:{tag}" for tag in tags
        ]
        (server,) = sets[1]["spec"]["template"]["spec"]["containers"]
        assert server["args"][:4] == ["serve", "/data", "--shard", "1"]
        assert {"name": "data", "mountPath": "/data", "readOnly": True} in server["volumeMounts"]

    @CONFIGS
    def test_a_server_has_the_secret_to_pull_and_nothing_else(self, config: Any) -> None:
        (spec, _) = (
            manifest["spec"]["template"]["spec"]
            for manifest in self.objects(config)
            if manifest["kind"] == "StatefulSet"
        )
        assert {"name": "lookups-pull"} in spec["imagePullSecrets"]
        assert "initContainers" not in spec
        rest = {name: value for name, value in spec.items() if name != "imagePullSecrets"}
        said = " ".join(words(rest))
        assert "lookups-push" not in said
        assert "store" not in said
        assert "ecret" not in said

    @CONFIGS
    def test_what_pushes_has_the_secret_to_push_as_a_file_and_reaches_the_store(self, config: Any) -> None:
        spec = self.push(config)["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        (volume,) = (volume for volume in spec["volumes"] if volume["name"] == "registry")
        assert volume["secret"]["secretName"] == "lookups-push"
        assert "lookups-push" not in " ".join(words(container)), "no variable has it"
        assert "/etc/lookupdb/registry/config.json" in container["args"]
        assert ("envFrom" in container) != ("store-token" in " ".join(words(container["volumeMounts"])))
        assert {"name": "lookups-pull"} not in spec.get("imagePullSecrets", [])

    def test_what_pushes_understands_its_words(self) -> None:
        (container,) = self.push()["spec"]["template"]["spec"]["containers"]
        verb, push, *rest = container["args"]
        assert (verb, push) == ("image", "push")
        options, left, _ = push_verb.make_parser(click.Context(push_verb)).parse_args(rest)
        assert left == []
        assert (options["target"], options["repository"]) == ("g12", "registry.example/team/lookups")
        assert options["dataset"] == "default/airports"

    def test_what_a_gate_has_refused_is_pushed_if_that_was_overridden(self) -> None:
        """The manifest in the store still says that it was refused."""
        of = from_images()
        for overridden, said in (("", False), ("minRecords is 2", True)):
            made = replace(generation(of), overridden=overridden)
            (job,) = (one for one in manifests.render_shards(of, rollout(), made, 1, CONFIG) if one["kind"] == "Job")
            arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
            assert ("--override-gates" in arguments) == said
            if said:
                options, _, _ = push_verb.make_parser(click.Context(push_verb)).parse_args(arguments[2:])
                assert (options["target"], options["overridden"]) == ("g12", "g12")

    def test_a_registry_that_asks_nobody_needs_no_secret(self) -> None:
        of = from_images(repository="registry.example/lookups")
        (job,) = (manifest for manifest in self.objects(of=of) if manifest["kind"] == "Job")
        assert "registry" not in {volume["name"] for volume in job["spec"]["template"]["spec"]["volumes"]}
        assert "--docker-config" not in job["spec"]["template"]["spec"]["containers"][0]["args"]

    @pytest.mark.parametrize(
        ("ca", "source"),
        [
            ({"configMapName": "ours", "key": "ca.pem"}, {"configMap": {"name": "ours"}}),
            ({"secretName": "ours", "key": "ca.pem"}, {"secret": {"secretName": "ours"}}),
        ],
    )
    def test_what_pushes_alone_has_the_registrys_authorities_and_no_key(self, ca: Json, source: Json) -> None:
        objects = self.objects(of=from_images(repository="r.example/lookups", registryCA=ca))
        (job,) = (manifest for manifest in objects if manifest["kind"] == "Job")
        spec = job["spec"]["template"]["spec"]
        (volume,) = (volume for volume in spec["volumes"] if volume["name"] == "registry-ca")
        ((kind, held),) = source.items()
        assert volume[kind] == held | {"items": [{"key": "ca.pem", "path": "ca.crt"}]}
        (container,) = spec["containers"]
        assert {
            "name": "registry-ca",
            "mountPath": "/etc/lookupdb/registry-ca",
            "readOnly": True,
        } in container["volumeMounts"]
        options, _, _ = push_verb.make_parser(click.Context(push_verb)).parse_args(container["args"][2:])
        assert options["ca_file"] == "/etc/lookupdb/registry-ca/ca.crt"
        assert all("ours" not in words(manifest) for manifest in objects if manifest["kind"] != "Job")

    def test_nobody_may_connect_to_what_pushes(self) -> None:
        policies = rendered(from_images())["network-policy"]
        (policy,) = (one for one in policies if one["metadata"]["name"] == "airports-pusher")
        assert "ingress" not in policy["spec"]

    def test_another_repository_or_secret_is_another_template(self) -> None:
        built = generation(from_images())
        choices: list[Json] = [
            {"repository": "r.example/a"},
            {"repository": "r.example/b"},
            {"repository": "r.example/a", "pushSecretName": "s"},
            {"repository": "r.example/a", "pullSecretName": "s"},
            {"repository": "r.example/a", "registryCA": {"configMapName": "c"}},
        ]
        digests = {manifests.template_digest(from_images(**choice), built, CONFIG) for choice in choices}
        assert len(digests) == len(choices)
