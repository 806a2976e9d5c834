"""The arguments of pods are those that the verbs accept: flags, the dataset's file, the store's variables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from manifest_samples import (
    BUILD,
    CONFIG,
    FULL_CONFIG,
    airports,
    everything,
    from_config_map,
    rendered,
    with_own_store,
)

from lookupdb.cli import cli
from lookupdb.dataset.spec import read_manifest
from lookupdb.store import objects as store_objects
from lookupdb_operator import manifests, names
from lookupdb_operator.manifests import objects
from lookupdb_operator.model import ObservedDataset


def _commands(of: ObservedDataset) -> list[list[str]]:
    pods = [
        manifest["spec"]["template"]["spec"]
        for objects in rendered(of, FULL_CONFIG).values()
        for manifest in objects
        if "template" in manifest.get("spec", {})
    ]
    return [one["args"] for pod in pods for one in (*pod.get("initContainers", ()), *pod["containers"])]


def _options(words: list[str]) -> dict[str, Any]:
    """Return the options of a verb's command line. Raises click's errors for unknown ones."""
    command = cli.get_command(click.Context(cli), words[0])
    assert command is not None
    options, rest, _ = command.make_parser(click.Context(command)).parse_args(words[1:])
    assert rest == []
    return dict(options)


@pytest.mark.parametrize("of", [airports(), everything(), from_config_map(), with_own_store()], ids=lambda of: of.name)
def test_every_verb_understands_its_flags(of: ObservedDataset) -> None:
    told = {words[0]: _options(words) for words in _commands(of)}
    assert told["build"]["generation"] == told["fetch"]["generation"] == "g12"
    assert told["fetch"]["folder"] == told["serve"]["path"] == names.DATA_PATH
    assert told["route"]["deadline_ms"] == str(of.spec["router"]["deadlineMilliseconds"])


@pytest.mark.parametrize("of", [airports(), everything(), from_config_map()], ids=lambda of: of.name)
def test_a_builder_reads_the_dataset_that_the_operator_parsed(of: ObservedDataset, tmp_path: Path) -> None:
    config_map, _ = manifests.render_builder(of, BUILD, CONFIG)
    path = tmp_path / names.DATASET_FILE
    path.write_text(config_map["data"][names.DATASET_FILE], encoding="utf-8")
    read = read_manifest(path)
    assert of.parsed is not None
    assert read.content_hash() == of.parsed.content_hash()
    assert (read.namespace, read.name, read.uid, read.gates) == (of.namespace, of.name, of.uid, of.parsed.gates)


def test_a_builder_knows_what_it_is_to_remove_and_what_not() -> None:
    _, job = manifests.render_builder(with_own_store(), replace(BUILD, protect=("g9", "g11")), CONFIG)
    told = _options(job["spec"]["template"]["spec"]["containers"][0]["args"])
    assert (told["keep"], told["protect"]) == ("3", ["g9", "g11"])


def test_the_secret_of_an_own_store_is_for_the_store_and_for_no_source() -> None:
    _, job = manifests.render_builder(with_own_store(), BUILD, CONFIG)
    source, own = job["spec"]["template"]["spec"]["containers"][0]["envFrom"]
    environment = {
        source.get("prefix", "") + "AWS_ACCESS_KEY_ID": "of the source",
        source.get("prefix", "") + "AWS_SESSION_TOKEN": "of the source",
        own["prefix"] + "AWS_ACCESS_KEY_ID": "of the store",
    }
    assert store_objects.store_variables("s3", environment) == {"AWS_ACCESS_KEY_ID": "of the store"}
    assert environment["AWS_ACCESS_KEY_ID"] == "of the source"


def test_the_stores_variables_are_called_as_the_data_plane_looks_for_them() -> None:
    assert objects.PREFIX == store_objects.PREFIX
