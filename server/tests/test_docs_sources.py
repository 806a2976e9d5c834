"""The recipes of docs/how-to/sources.md: each spec reads the file above it, and a lookup returns what
follows."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.sources import read

from lookupdb import keys
from lookupdb.dataset.spec import parse_resource

TEXT = (Path(__file__).parents[2] / "docs" / "how-to" / "sources.md").read_text()
RECIPES = re.findall(r"^```text (\S+)\n(.*?)^```\n+```yaml\n(.*?)^```\n+```json\n(.*?)^```$", TEXT, re.M | re.S)
SPECS = re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.M | re.S)


def resource(spec: str) -> dict[str, Any]:
    return {
        "apiVersion": "lookupdb.dev/v1alpha1",
        "kind": "LookupDataset",
        "metadata": {"name": "recipe"},
        "spec": yaml.safe_load(spec),
    }


def test_there_are_recipes_for_all_formats_that_are_text() -> None:
    assert [name for name, *_ in RECIPES] == [
        *("prices.csv", "rates.csv", "contacts.csv", "reviews.csv"),
        *("users.jsonl", "features.json"),
    ]


@pytest.mark.parametrize(("name", "content", "spec", "answers"), RECIPES, ids=[name for name, *_ in RECIPES])
def test_a_recipe_answers_what_the_page_says(tmp_path: Path, name: str, content: str, spec: str, answers: str) -> None:
    (tmp_path / name).write_text(content)
    dataset = parse_resource(resource(spec), tmp_path)
    values = {key: json.loads(value) for key, value in read(dataset, tmp_path / "scratch").values.items()}
    encode = keys.make_key_encoder(dataset.key.normalize)
    expected = json.loads(answers)
    assert len(values) == len(expected)
    assert {key: values[encode(key).decode()] for key in expected} == expected


COMMANDS = re.findall(r"^```sh\n(export-people .*?)^```$", TEXT, re.M | re.S)


@pytest.fixture
def export(tmp_path: Path) -> Callable[[str, int], int]:
    """Runs the commands ``script`` of the page with an export that says a line and ends with ``code``."""

    def run(script: str, code: int) -> int:
        program = f"export-people() {{ echo new; return {code}; }}\n{script}"
        return subprocess.run(["bash", "-c", program], cwd=tmp_path, check=False).returncode

    (tmp_path / "people.csv").write_text("old\n")
    return run


def test_a_file_that_is_renamed_into_place_is_the_old_one_or_the_new_one(
    tmp_path: Path, export: Callable[[str, int], int]
) -> None:
    script, _ = COMMANDS
    before = (tmp_path / "people.csv").stat().st_ino
    assert export(script, 1) != 0
    assert (tmp_path / "people.csv").read_text() == "old\n", "an export that fails leaves the old one"
    assert export(script, 0) == 0
    assert (tmp_path / "people.csv").read_text() == "new\n"
    assert (tmp_path / "people.csv").stat().st_ino != before, "it was written under another name"


def test_a_success_file_is_written_last(tmp_path: Path, export: Callable[[str, int], int]) -> None:
    _, script = COMMANDS
    (spec,) = [spec for spec in SPECS if "successFile: people.csv.done" in spec]
    named = parse_resource(resource(spec), tmp_path).refresh.success_file
    assert export(script, 1) != 0
    assert not (tmp_path / str(named)).exists()
    assert export(script, 0) == 0
    assert (tmp_path / str(named)).exists()


@pytest.mark.parametrize("spec", SPECS)
def test_every_spec_is_valid(tmp_path: Path, spec: str) -> None:
    assert parse_resource(resource(spec), tmp_path).name == "recipe"
