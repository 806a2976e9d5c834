"""A user's program is checked by mypy --strict: the package is typed (py.typed), and its types are what one expects."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
from pathlib import Path

import lookupdb
from lookupdb.client import AsyncClient, Client, DatasetDescription, Lookup, LookupResults
from lookupdb.mapped import MappedDataset
from lookupdb.testing import Serve, ServedDataset, serve


class Frame: ...


def look_up(url: str, frame: Frame) -> None:
    with Client(url, timeout=1.0) as people:
        name: object = people["ada"]["name"]
        people["DE", 1], people.get(("DE", "1"), None), people.has("ada"), ("DE", "1") in people
        lookup: Lookup = people.lookup(("DE", "1"))
        results: LookupResults = people.get_many(["ada", ("DE", 1)], partial=True)
        generation: str | None = results.generation
        dataset: DatasetDescription = people.dataset()
        enriched: Frame = people.lookup_frame(frame, on=["country", "id"], columns=["name"], missing="error")


async def look_up_by_coroutine(url: str, frame: Frame) -> Frame:
    async with AsyncClient(url) as people:
        await people["DE", "1"]
        (await people.get_many([("DE", 1)])).found[("DE", 1)]
        return await people.at("g2").lookup_frame(frame, "code", prefix="x")


def map_it(path: Path, frame: Frame) -> Frame:
    people: MappedDataset = lookupdb.open(path)
    people["DE", "1"], people.get(("DE", 1)), people.get("ada", 7), people.raw("ada")
    by_columns: dict[tuple[str, int], object] = people.get_many([("DE", 1)])
    for key in people:
        key.upper()
    return people.lookup_frame(frame, "code", "name")


def test_it(lookupdb_serve: Serve) -> None:
    served: ServedDataset = lookupdb_serve({"ada": 1}, shards=2)
    served.client.get("ada")
    with serve({("DE", 1): b"1"}, normalize=["strip"]) as other:
        print(other.url, other.path.name)
"""
WRONG = """
from lookupdb.client import Client

client = Client("http://router", time_out=1.0)
client.get(1)
client.get_many([("DE", 1.5)])
client.lookup_frame(object(), "code", missing="drop")
number: int = client.lookup_frame("frame", "code")
"""


def test_a_program_is_typed_and_wrong_ones_are_found(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "wrong.py").write_text(WRONG)
    words = ["--strict", "--config-file=", f"--cache-dir={os.devnull}", "--no-error-summary", "program.py", "wrong.py"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
    )
    assert not done.stderr, done.stderr
    found = [line.split(":")[:2] for line in done.stdout.splitlines() if ": error:" in line]
    assert found == [["wrong.py", line] for line in ("4", "5", "6", "7", "8")]
