"""``lookup_frame``: a DataFrame of pandas or polars gets the values of its rows' keys as columns."""

from __future__ import annotations

import asyncio
import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.http import ScriptedLookups, serving
from support.mapped import SyncedDataset

import lookupdb
from lookupdb.client import AsyncClient, Client, Lookups, UnknownGeneration
from lookupdb.client.frames import FrameLookup
from lookupdb.errors import KeyMissing, UsageError

MakeFrame = Callable[[dict[str, list[Any]]], Any]
AIRPORTS = {f"k{number}": b'{"name":"n%d","rank":%d}' % (number, number) for number in range(25)}


def frame_type(library: str) -> Any:
    """Its DataFrame. The libraries are slow to import, and every process that runs tests imports this module."""
    return importlib.import_module(library).DataFrame


@pytest.fixture(params=["pandas", "polars"])
def make(request: pytest.FixtureRequest) -> MakeFrame:
    """A frame of each library, in turn."""
    found: MakeFrame = frame_type(request.param)
    return found


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(ScriptedLookups(values=dict(AIRPORTS))) as router:
        yield f"http://127.0.0.1:{router.port}"


def rows(frame: Any, name: str) -> list[Any]:
    """A column's items, None for a null."""
    if isinstance(frame, frame_type("polars")):
        return list(frame[name].to_list())
    return [None if item is importlib.import_module("pandas").NA else item for item in frame[name].astype(object)]


def enrich(
    frame: Any,
    found: dict[Any, Any],
    on: str | Sequence[str] = "key",
    columns: Sequence[str] | None = None,
    missing: str = "null",
) -> Any:
    """Return the result of ``lookup_frame`` for a dataset that has only the records ``found``."""
    work = FrameLookup(frame, on, columns, prefix="", suffix="", missing=missing)
    while not work.is_done:
        keys = work.next_keys(2)
        assert len(keys) <= 2
        work.take({key: found[key] for key in keys if key in found})
    return work.finish()


def test_members_of_values_become_columns(make: MakeFrame, url: str) -> None:
    keys = [f"k{number % 30}" for number in range(100)] + [None]
    frame = make({"code": keys, "rank": [*range(101)]})
    with Client(url, max_keys=7) as client:
        enriched = client.lookup_frame(frame, "code", ["name", "rank"], prefix="airport_")
    assert list(enriched.columns) == ["code", "rank", "airport_name", "airport_rank"]
    expected = [number % 30 if number % 30 < 25 else None for number in range(100)] + [None]
    assert rows(enriched, "airport_rank") == expected
    assert rows(enriched, "airport_name") == [None if rank is None else f"n{rank}" for rank in expected]
    assert list(frame.columns) == ["code", "rank"], "the frame that was given stays"


def test_the_client_for_asyncio_and_a_mapping_do_the_same(make: MakeFrame, url: str, tmp_path: Path) -> None:
    frame = make({"code": ["k3", "nowhere", "k4"]})

    async def enrich_by_coroutine() -> Any:
        async with AsyncClient(url, max_keys=2) as client:
            return await client.lookup_frame(frame, on="code", columns="name", suffix="_of_airport")

    dataset = SyncedDataset(tmp_path)
    dataset.publish("g1", AIRPORTS, value_format="json")
    with lookupdb.open(dataset.path) as airports:
        for enriched in (
            asyncio.run(enrich_by_coroutine()),
            airports.lookup_frame(frame, on="code", columns="name", suffix="_of_airport"),
        ):
            assert rows(enriched, "name_of_airport") == ["n3", None, "n4"]
        with pytest.raises(UsageError, match=r"on=\('a', 'b'\) has 2 columns, a key has key"):
            airports.lookup_frame(make({"a": ["k3"], "b": ["k4"]}), on=["a", "b"])


def test_keys_of_several_columns(make: MakeFrame) -> None:
    frame = make({"country": ["DE", "DE", None, "FR"], "id": [1, 2, 1, 1]})
    enriched = enrich(frame, {("DE", "1"): "one", ("FR", "1"): "un"}, ["country", "id"])
    assert rows(enriched, "value") == ["one", None, None, "un"]


@pytest.mark.parametrize(
    ("items", "pandas_type", "polars_type"),
    [
        ([1, None, 2**53 + 1], "Int64", "Int64"),
        ([2**63, None], "object", "Object"),
        ([True, None], "boolean", "Boolean"),
        ([1.5, None, 2], "Float64", "Float64"),
        ([1.5, 2**53 + 1], "object", "Object"),
        (["a", None], "string", "String"),
        ([b"\xff", None], "object", "Binary"),
        ([[1, 2], None], "object", "List(Int64)"),
        ([{"a": 1}, {"a": None}], "object", "Struct({'a': Int64})"),
        ([{"a": 1}, {"b": 1}], "object", "Object"),
        ([[1, "a"]], "object", "Object"),
        ([[True], [1]], "object", "Object"),
        ([[{"a": 1}], [{"a": True}]], "object", "Object"),
        ([{"a": [False]}, {"a": [True, None]}], "object", "Struct({'a': List(Boolean)})"),
        ([1, "a", True], "object", "Object"),
        ([1.5, 10**400], "object", "Object"),
        ([None], "object", "Null"),
    ],
)
def test_a_column_has_a_type_that_changes_no_value(items: list[Any], pandas_type: str, polars_type: str) -> None:
    found = {str(number): item for number, item in enumerate(items)}
    for library, kind in (("pandas", pandas_type), ("polars", polars_type)):
        enriched = enrich(frame_type(library)({"key": [*found]}), found)
        assert rows(enriched, "value") == items
        assert str(enriched["value"].dtype) == kind


def test_an_index_stays_as_it_is() -> None:
    frame = frame_type("pandas")({"key": ["a", "b", "c"]}, index=[7, 7, 3])
    enriched = enrich(frame, {"a": 1, "c": 3})
    assert list(enriched.index) == [7, 7, 3]
    assert rows(enriched, "value") == [1, None, 3]


def test_an_empty_frame_gets_empty_columns(make: MakeFrame) -> None:
    assert list(enrich(make({"key": []}), {}, columns=["a", "b"]).columns) == ["key", "a", "b"]


def test_integers_are_keys_and_fractions_are_not(make: MakeFrame) -> None:
    assert rows(enrich(make({"key": [1, -2]}), {"1": "a", "-2": "b"}), "value") == ["a", "b"]
    with pytest.raises(UsageError, match=r"a key column holds text or integers, key holds 1\.0 \(float\)"):
        enrich(make({"key": [1.0, None]}), {})
    with pytest.raises(UsageError, match="holds True"):
        enrich(make({"key": [True]}), {})


def test_a_member_that_no_value_has_is_an_error(make: MakeFrame) -> None:
    found = {"a": {"name": 1}, "b": {"name": 2, "rank": 3}}
    with pytest.raises(UsageError, match=r"columns= names \['nmae'\], which no value found has; they have"):
        enrich(make({"key": ["a", "b", "c"]}), found, columns=["name", "nmae"])
    assert rows(enrich(make({"key": ["a", "b"]}), found, columns=["rank"]), "rank") == [None, 3]
    assert rows(enrich(make({"key": ["c"]}), found, columns=["name"]), "name") == [None]


def test_a_missing_key_is_an_error_on_request(make: MakeFrame) -> None:
    with pytest.raises(KeyMissing, match=r"no record for 'c' \(column key, in row 2 or later\)"):
        enrich(make({"key": ["a", "b", "c"]}), {"a": 1, "b": 2}, missing="error")
    with pytest.raises(KeyMissing, match="no record for None"):
        enrich(make({"key": ["a", None]}), {"a": 1}, missing="error")


def test_what_cannot_be_done_is_refused_at_once(make: MakeFrame) -> None:
    frame = make({"key": ["a"], "name": ["b"]})
    for options, words in (
        ({"columns": ["name"]}, r"would have these columns twice: \['name'\]"),
        ({"columns": ["a", "a"]}, "twice"),
        ({"columns": []}, "names no member"),
        ({"on": "code"}, "must name columns that the frame has once"),
        ({"on": []}, "must name columns"),
        ({"missing": "drop"}, "expected 'null' or 'error'"),
        ({"columns": ["x"]}, "columns= names members of values that are objects; the value of 'a' is 'text'"),
    ):
        with pytest.raises(UsageError, match=words):
            enrich(frame, {"a": "text"}, **options)


def test_only_a_frame_is_one() -> None:
    for other in (
        {"key": ["a"]},
        frame_type("polars")({"key": ["a"]}).lazy(),
        frame_type("pandas")({"key": ["a"]})["key"],
        None,
    ):
        with pytest.raises(UsageError, match=r"expected a DataFrame of pandas or polars, found"):
            enrich(other, {})


def test_a_subclass_is_a_frame() -> None:
    class Cities(frame_type("pandas")):  # type: ignore[misc]
        pass

    assert rows(enrich(Cities({"key": ["a"]}), {"a": 1}), "value") == [1]


def test_all_rows_are_of_one_generation(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the generation of the first batch ends, all rows are looked up again."""
    names: list[str] = []
    ended = [UnknownGeneration("g1 has ended", generation="g1")]

    def at(self: Lookups, generation: str) -> Lookups:
        names.append(generation)
        other = Lookups(self._link, generation)
        if ended:
            error = ended.pop()
            monkeypatch.setattr(other, "get_many", lambda _keys: (_ for _ in ()).throw(error), raising=False)
        return other

    monkeypatch.setattr(Lookups, "at", at)
    with Client(url, max_keys=2) as client:
        enriched = client.lookup_frame(frame_type("polars")({"code": ["k1", "k2", "k3", "k4"]}), "code", "rank")
        assert enriched["rank"].to_list() == [1, 2, 3, 4]
        assert names == ["g1", "g1"]
        with pytest.raises(UnknownGeneration):
            Lookups(client._link, "g7").lookup_frame(frame_type("polars")({"code": ["k1"]}), "code")


def test_neither_library_is_imported_without_a_frame(url: str) -> None:
    code = (
        "import sys; from lookupdb.client import Client; import lookupdb.client.frames\n"
        f"with Client({url!r}) as client: client.get_many(['k1'])\n"
        "print([name for name in ('pandas', 'polars', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
