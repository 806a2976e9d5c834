"""The examples of docs/how-to/in-process.md, run as they stand there: each line gives what its comment says."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from support.mapped import SyncedDataset
from support.shards import write_generation

from lookupdb.cli.addressing import DEFAULT_STORE
from lookupdb.dataset.spec import LOCAL
from lookupdb.mapped import generation
from lookupdb.mapped.dataset import REFRESH_SECONDS
from lookupdb.mapped.generation import SYNC_DIR_VARIABLE

TEXT = (Path(__file__).parents[2] / "docs" / "how-to" / "in-process.md").read_text()
(DEMO,) = re.findall(r"^```python demo\n(.*?)^```$", TEXT, re.M | re.S)
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", TEXT, re.M | re.S)
PEOPLE = {name: b'{"team":"%b"}' % team for name, team in (("ada", b"engines"), ("bob", b"bridges"), ("eve", b"x"))}
ROWS = {str(number): value for number, value in enumerate((b"first", b"second", b"third"))}


@pytest.fixture
def names(tmp_path: Path) -> dict[str, Any]:
    """The namespace of all examples: a later one uses the names of earlier ones."""
    SyncedDataset(tmp_path, "people").publish("g1", PEOPLE, shards=2, value_format="json", compression="zstd")
    SyncedDataset(tmp_path, "rows").publish("g1", ROWS, shards=2)
    return {}


def run(example: str, names: dict[str, Any], root: Path) -> int:
    """Run an example whose data are in ``root``. Returns how many lines were compared with their comments."""
    source = example.replace("/data/", f"{root}/")
    compared = 0
    for node in ast.parse(source).body:
        last = source.splitlines()[(node.end_lineno or node.lineno) - 1]
        comment = last.partition("  # ")[2].strip()
        if isinstance(node, ast.Expr):
            value = eval(compile(ast.Expression(node.value), "example", "eval"), names)
            assert comment == repr(value), last
            compared += 1
        else:
            exec(compile(ast.Module([node], []), "example", "exec"), names)
    return compared


def test_each_line_gives_what_its_comment_says(names: dict[str, Any], tmp_path: Path) -> None:
    assert [run(example, names, tmp_path) for example in EXAMPLES] == [8, 0, 2]
    assert names["pairs"] == [("ada", {"team": "engines"}), ("bob", {"team": "bridges"})]


def test_the_program_beside_the_demo_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run the examples on a dataset like the demo's: in the default store of `lookupdb up`, normalised alike."""
    place = tmp_path / DEFAULT_STORE / LOCAL / "default" / "airports-local"
    airports = {"KJFK": b'{"name":"Kennedy"}', "EGLL": b'{"name":"Heathrow"}'}
    write_generation(place, airports, name="airports", normalize=["strip", "lowercase"], value_format="json")
    monkeypatch.chdir(tmp_path)
    exec(compile(DEMO, "demo", "exec"), {})
    assert capsys.readouterr().out == "Kennedy False 2 g1\n"


def test_its_figures_are_those_of_the_code() -> None:
    assert f"every `refresh_seconds` ({REFRESH_SECONDS})" in TEXT
    assert f"after {generation.RETRY_SECONDS[0]} to {generation.RETRY_SECONDS[-1]:.0f} seconds" in TEXT
    assert f"`{SYNC_DIR_VARIABLE}`" in TEXT
    assert f"`{generation.log.name}`" in TEXT
