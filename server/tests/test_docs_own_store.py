"""docs/operations/own-store.md: its manifest is valid, and its headings are where other pages point."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from lookupdb.dataset import schema
from lookupdb.store import objects

TEXT = (Path(__file__).parents[2] / "docs" / "operations" / "own-store.md").read_text()


def test_its_manifest_is_valid_and_names_what_the_text_makes() -> None:
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    completed = schema.complete_resource(yaml.safe_load(block))
    store = completed["spec"]["store"]
    assert f"kubectl create secret generic {store['secretName']} -n {completed['metadata']['namespace']}" in TEXT
    assert f"{store['url']}/<cluster id>/people/people-" in TEXT


def test_the_variables_that_it_names_are_ones_that_a_store_takes() -> None:
    named = set(re.findall(r"\bAWS_[A-Z_]+\b", TEXT))
    given = {f"{objects.PREFIX}{name}": "x" for name in named}
    assert objects.store_variables("s3", given).keys() == named
    assert len(named) >= 5
