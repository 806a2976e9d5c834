"""Keys of several columns: builders, clients and ``lookupdb.open`` join them alike, whatever generation answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.clients import KINDS, Kind, blocking
from support.fleets import fleet, fleet_entry
from support.http import ScriptedLookups
from support.http import serving as in_this_process
from support.mapped import SyncedDataset
from support.routers import routing
from support.routing import mixed, table_file
from support.shards import serving, write_generation
from support.waiting import until

import lookupdb
from lookupdb import native
from lookupdb.builder.rows import RowRejected, join_key
from lookupdb.client import Client, Unavailable, UnknownGeneration
from lookupdb.client.wire import KeyColumns
from lookupdb.keys import InvalidKey, make_columns_encoder
from lookupdb.mapped import generation as mapped_generation
from lookupdb.mapped.python_generation import PythonGeneration, PythonView
from lookupdb.records import join_key as join_readers_key

pytest_plugins = ["support.client_fixtures"]

COLUMNS = ("country", "id")
RECORDS = {"de:1": b'"one"', "de:2:b": b'"two"'}
MADE: dict[str, Any] = {"value_format": "json", "key_columns": COLUMNS, "separator": ":", "normalize": ["lowercase"]}


@pytest.mark.parametrize("parts", [("DE", "1"), ("DE", "2:b"), ("D:E", "1"), ("", "1"), ("DE", "")])
def test_readers_join_columns_as_builders_do(parts: tuple[str, ...]) -> None:
    encode = make_columns_encoder((), COLUMNS, ":")
    try:
        built = join_key(COLUMNS, parts, ":")
    except RowRejected as reason:
        with pytest.raises(ValueError, match=str(reason)):
            join_readers_key(COLUMNS, parts, ":")
        with pytest.raises(InvalidKey, match=str(reason)):
            encode(parts)
    else:
        assert join_readers_key(COLUMNS, parts, ":") == built
        assert encode(parts) == built.encode()


def test_a_column_is_text_or_an_integer() -> None:
    assert join_readers_key(COLUMNS, ("DE", -7), ":") == "DE:-7"
    for wrong in (1.0, True, None, b"DE"):
        with pytest.raises(TypeError, match="a key column must be a str or an int"):
            join_readers_key(COLUMNS, ("DE", wrong), ":")
    with pytest.raises(TypeError, match="a key has 2 columns, country, id; found 3"):
        join_readers_key(COLUMNS, ("DE", 1, 2), ":")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    values = RECORDS | {key.replace("de", "DE"): value for key, value in RECORDS.items()}  # it normalizes nothing
    lookups = ScriptedLookups(values=values, keys={"g1": {"columns": COLUMNS, "separator": ":"}})
    with in_this_process(lookups) as router:
        yield f"http://127.0.0.1:{router.port}"


def test_a_key_is_given_by_its_columns(kind: Kind, url: str) -> None:
    with blocking(kind, url) as client:
        assert client["DE", 1] == "one"
        assert client.get(("DE", "2:b")) == "two"
        assert client.get(("DE", "9"), 7) == 7
        assert client.has(("D:E", "1")) is False
        assert tuple(client.lookup(("DE", "1"))) == ("one", True, "g1")
        assert client.at("g1").get(("DE", "1")) == "one"
        with pytest.raises(KeyError, match="'DE', 'nothing'"):
            client["DE", "nothing"]
        with pytest.raises(TypeError, match="a key has 2 columns"):
            client.get(("DE",))
        with pytest.raises(UnknownGeneration, match="has no generation g7 now; active is g1"):
            client.at("g7").get(("DE", "1"))
        assert client.dataset().keys == {"g1": (COLUMNS, ":")}


def test_many_keys_are_found_as_requested(kind: Kind, url: str) -> None:
    with blocking(kind, url, max_keys=2, cache_bytes=1 << 20) as client:
        for _ in range(2):  # the second time from the cache
            results = client.get_many([("DE", 1), ("DE", "1"), "de:2:b", ("D:E", "1"), ("DE", 9), ("DE", 1)])
            assert results.found == {("DE", 1): "one", ("DE", "1"): "one", "de:2:b": "two"}
            assert results.missing == [("D:E", "1"), ("DE", 9)]
            assert (results.unavailable, results.generation) == ([], "g1")


def test_in_asks_by_columns(url: str) -> None:
    with Client(url) as client:
        assert ("DE", 1) in client
        assert ("DE", 3) not in client


def test_a_cutover_to_another_separator_is_never_a_wrong_answer(tmp_path: Path) -> None:
    old = write_generation(tmp_path, {"de:1": b'"old"'}, **MADE)
    changed = {**MADE, "separator": "|", "generation": "g2"}
    new = write_generation(tmp_path, {"de|1": b'"new"', "de:1": b'"wrong"'}, **changed)
    with fleet(old) as old_shards, fleet(new) as new_shards:
        entries = [fleet_entry(old, old_shards), fleet_entry(new, new_shards)]
        table = tmp_path / "table.json"
        table.write_bytes(table_file(*entries))
        with (
            routing(table) as router,
            blocking("sync", f"http://127.0.0.1:{router.port}") as sync_client,
            blocking("async", f"http://127.0.0.1:{router.port}") as async_client,
        ):
            clients = (sync_client, async_client)
            for client in clients:
                assert client["DE", 1] == "old"
                assert client.at("g2")["DE", 1] == "new"
            table.write_bytes(table_file(*reversed(entries), version=2))
            until(lambda: all(client.get("de|1") == "new" for client in clients), "the cutover")
            for client in clients:
                assert client["DE", 1] == "new"
                assert client.get_many([("DE", 1)]).found == {("DE", 1): "new"}
                assert client.at("g1")["DE", 1] == "old"
            table.write_bytes(table_file(*entries, version=3))
            until(lambda: all(client.get("de|1") is None for client in clients), "the cutover back")
            for client in clients:
                assert client.get_many([("DE", 1)]).found == {("DE", 1): "old"}


@pytest.mark.parametrize("knows_old", [True, False])
def test_an_answer_of_a_router_that_cuts_over_later_is_not_believed(
    knows_old: bool, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other routers describe g2, where "DE" and "1" are joined by "|": "de|1" is missing in g1, ("DE", "1") is not."""
    with Client(url) as client:
        if knows_old:
            assert client["DE", 1] == "one"
        keys = {"g2": KeyColumns(COLUMNS, "|")}
        newer = client.dataset()._replace(generation="g2", candidates=(), keys=keys)
        client._link.core.learn_dataset(newer, None)
        monkeypatch.setattr(Client, "_describe", lambda *_: newer)
        for ask in (client.get, lambda key: client.get_many([key]).found[key]):
            if knows_old:
                assert ask(("DE", 1)) == "one"
            else:
                with pytest.raises(Unavailable, match="the key columns changed again and again"):
                    ask(("DE", 1))


def test_during_a_rollout_shard_by_shard(tmp_path: Path) -> None:
    records = {f"de:{number}": b"%d" % number for number in range(20)}
    old = write_generation(tmp_path, records, shards=2, **MADE)
    new = write_generation(tmp_path, records, shards=2, generation="g2", **MADE)
    with serving(new, shard=0) as first, serving(old, shard=1) as second:
        shards = [[first], [second]]
        entries = fleet_entry(new, shards), fleet_entry(old, shards)
        (tmp_path / "table.json").write_bytes(table_file(mixed(*entries, {1})))
        with routing(tmp_path / "table.json") as router:
            for kind in KINDS:
                with blocking(kind, f"http://127.0.0.1:{router.port}") as client:
                    results = client.get_many([("DE", number) for number in range(21)])
                    assert results.found == {("DE", number): number for number in range(20)}
                    assert (results.missing, results.generations) == ([("DE", 20)], ("g1", "g2"))
                    assert {client.lookup(("DE", number)).generation for number in range(20)} == {"g1", "g2"}
                    assert client.get(("D:E", 1)) is None


@pytest.mark.parametrize("kernels", ["native", "Python"] if native.kernels() else ["Python"])
def test_a_mapping_joins_them_too(kernels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if kernels == "Python":
        monkeypatch.setattr(mapped_generation, "choose_make_files", lambda: PythonGeneration)
        monkeypatch.setattr(lookupdb.mapped.dataset, "choose_make_files", lambda: PythonGeneration)
    dataset = SyncedDataset(tmp_path)
    dataset.publish("g1", RECORDS, shards=2, **MADE)
    with lookupdb.open(dataset.path) as people:
        assert isinstance(people, PythonView) == (kernels == "Python")
        assert people["DE", 1] == "one"
        assert people.get(("DE", "2:b")) == "two"
        assert ("DE", "1") in people
        assert people.raw(("DE", "1")) == b'"one"'
        for lost in (("D:E", "1"), ("DE", 9), ("DE",), ("DE", 1.0), ()):
            assert lost not in people
            assert people.get(lost, 7) == 7
        assert people.get_many([("DE", 1), "de:2:b", ("D:E", "1")]) == {("DE", 1): "one", "de:2:b": "two"}
        dataset.publish("g2", {"de|1": b'"new"'}, shards=2, **MADE | {"separator": "|"})
        people.reload()
        assert people["DE", "1"] == "new"
