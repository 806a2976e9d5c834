"""docs/operations/delivery.md: its manifests are valid, and the paths that it names are the store's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from lookupdb import keys
from lookupdb.dataset import schema
from lookupdb.store.dataset import dataset_path

TEXT = (Path(__file__).parents[2] / "docs" / "operations" / "delivery.md").read_text()


def _deliveries() -> list[dict[str, Any]]:
    blocks = re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    completed = [schema.complete_resource(yaml.safe_load(block)) for block in blocks]
    return [resource["spec"]["serving"]["delivery"] for resource in completed]


def test_its_manifests_are_valid_and_there_is_one_of_each_type_but_the_default() -> None:
    types = schema.resource_schema()["properties"]["spec"]["properties"]["serving"]["properties"]["delivery"]
    assert [delivery["type"] for delivery in _deliveries()] == types["properties"]["type"]["enum"][1:]


def test_every_type_has_a_column() -> None:
    types = schema.resource_schema()["properties"]["spec"]["properties"]["serving"]["properties"]["delivery"]
    header = next(line for line in TEXT.splitlines() if line.startswith("| | "))
    assert re.findall(r"`(\w+)`", header) == types["properties"]["type"]["enum"]


def test_the_path_that_it_shows_is_where_the_store_keeps_a_shard() -> None:
    folder = dataset_path("<cluster id>", "<namespace>", "people", "xxxxxxxx").replace(
        "xxxxxxxx", "<first 8 of the uid>"
    )
    assert f"`<path>/{folder}/g12/{keys.file_name(3, 8)}`" in TEXT
