"""Routing tables: what is accepted, what is refused and why, and how a changed file is noticed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import orjson
import pytest
from support.routing import entry, table, table_file
from support.waiting import soon

from lookupdb.route.servers.address import ServerAddress
from lookupdb.route.table.routing_table import (
    MAX_BYTES,
    InvalidTable,
    RoutingTable,
    may_take_over,
    parse,
    refusal,
)
from lookupdb.route.table.watcher import TableWatcher

A, B = "10.0.0.1:7000", "10.0.0.2:7000"


def test_a_table_names_the_active_generation_and_its_endpoints() -> None:
    parsed = table(entry([[A, B], [B]]), entry([["[fd00::1]:7001"]], "g2"), version=12)
    assert (parsed.version, str(parsed.dataset), parsed.active) == (12, "default/sample", "g1")
    assert parsed.active_entry.shards == (
        (ServerAddress("10.0.0.1", 7000), ServerAddress("10.0.0.2", 7000)),
        (ServerAddress("10.0.0.2", 7000),),
    )
    assert parsed.entries[1].shards == ((ServerAddress("fd00::1", 7001),),)
    assert str(parsed.entries[1].shards[0][0]) == "[fd00::1]:7001"


def test_members_of_a_later_revision_are_ignored() -> None:
    assert table(entry([[A]], weight=3), note="…") == table(entry([[A]]))


def changed(path: list[str | int], value: Any) -> bytes:
    document = orjson.loads(table_file(entry([[A], [B]])))
    place = document
    for step in path[:-1]:
        place = place[step]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return orjson.dumps(document)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "a routing table is JSON, found 0 bytes that are not"),
        (table_file(entry([[A]]))[:-20], "bytes that are not"),
        (b"[]", "a routing table must be an object, found list"),
        (b" " * (MAX_BYTES + 1), f"at most {MAX_BYTES} bytes"),
        (changed(["formatVersion"], 2), "has format version 2, this lookupdb reads 1"),
        (changed(["formatVersion"], ...), "has format version None, this lookupdb reads 1"),
        (changed(["version"], ...), "the routing table must have 'version', it has formatVersion, dataset"),
        (changed(["version"], "12"), "version must be a whole number, found str"),
        (changed(["version"], True), "version must be a whole number, found bool"),
        (changed(["version"], -1), "version must not be negative, found -1"),
        (changed(["dataset", "uid"], ""), "dataset: uid must not be empty"),
        (changed(["active"], "g7"), "active generation 'g7' is none of its generations (g1)"),
        (changed(["generations"], []), "generations must have 1 to 16 entries, found 0"),
        (changed(["generations"], [entry([[A]]), entry([[B]])]), "names a generation twice: g1, g1"),
        (changed(["generations", 0, "generation"], "G1"), "generations[0].generation must be g1, g2, …, found 'G1'"),
        (changed(["generations", 0, "valueFormat"], "xml"), "valueFormat must be json or raw, found 'xml'"),
        (changed(["generations", 0, "builtAt"], "yesterday"), "builtAt must be an ISO 8601 time, found 'yesterday'"),
        (changed(["generations", 0, "builtAt"], "2026-11-20T00:00:00"), "builtAt must name its time zone"),
        (changed(["generations", 0, "normalize"], ["upper"]), "normalize must be steps of strip, lowercase"),
        (changed(["generations", 0, "shards"], []), "generations[0].shards must have 1 to 1024 entries, found 0"),
        (changed(["generations", 0, "shards", 1, "endpoints"], []), "generations[0].shards[1] must have 1 to 4096"),
        (changed(["generations", 0, "shards", 1, "endpoints"], ["nowhere"]), "endpoints[0] must be host:port, found"),
        (changed(["generations", 0, "shards", 1, "endpoints"], ["a:0"]), "must be host:port, found 'a:0'"),
        (changed(["generations", 0, "shards", 1, "endpoints"], ["a:70000"]), "must be host:port, found 'a:70000'"),
        (changed(["generations", 0, "shards", 1, "endpoints"], [7000]), "must be text, found int"),
    ],
)  # fmt: skip
def test_what_is_not_valid_is_refused_with_a_sentence(content: bytes, sentence: str) -> None:
    with pytest.raises(InvalidTable) as error:
        parse(content)
    assert sentence in error.value.message


OTHER = {"namespace": "default", "name": "sample", "uid": "made again"}


@pytest.mark.parametrize(
    ("new", "current", "sentence"),
    [
        pytest.param(table(entry([[A]])), None, None, id="the first"),
        pytest.param(table(entry([[B]]), version=3), table(entry([[A]]), version=2), None, id="newer"),
        pytest.param(table(entry([[A]])), table(entry([[A]])), None, id="the same again"),
        pytest.param(table(entry([[B]])), table(entry([[A]])), "in effect with other content", id="same version"),
        pytest.param(
            table(entry([[A]]), version=1), table(entry([[A]]), version=2), "is older than version 2", id="rollback"
        ),
        pytest.param(
            table(entry([[A]]), dataset=OTHER), table(entry([[A]]), version=9), None, id="another dataset starts anew"
        ),
    ],
)
def test_versions_only_grow(new: RoutingTable, current: RoutingTable | None, sentence: str | None) -> None:
    why = refusal(new, current)
    assert (why is None) if sentence is None else (why and sentence in why)


def test_a_router_of_one_dataset_takes_no_table_of_another() -> None:
    own, other = table(entry([[A]])), table(entry([[A]]), dataset=OTHER, version=9)
    sentence = (
        "it is the table of default/sample with uid 'made again', and this router is of the dataset with uid 'local'"
    )
    for current in (None, own):
        assert refusal(own, current, "local") is None
        assert refusal(other, current, "local") == sentence
    old = refusal(own, table(entry([[A]]), version=2), "local")
    assert old
    assert "is older than version 2" in old


ONE, TWO = table(entry([[A], [A]]), version=1), table(entry([[B], [B]]), version=2)
NEXT = table(entry([[B], [B]], "g2"), version=2)


@pytest.mark.parametrize(
    ("new", "proven", "current", "current_proven", "may"),
    [
        pytest.param(ONE, [False, False], None, [], True, id="anything is better than no table"),
        pytest.param(NEXT, [True, True], ONE, [True, True], True, id="another generation, all proven"),
        pytest.param(NEXT, [True, False], ONE, [True, True], False, id="another generation, a shard unproven"),
        pytest.param(NEXT, [True, False], ONE, [True, False], False, id="not even when the old one is no better"),
        pytest.param(TWO, [True, False], ONE, [True, True], False, id="same generation, worse"),
        pytest.param(TWO, [True, False], ONE, [False, False], True, id="same generation, better"),
        pytest.param(TWO, [True, False], ONE, [True, False], True, id="same generation, no worse"),
    ],
)
def test_what_takes_effect(
    new: RoutingTable, proven: list[bool], current: RoutingTable | None, current_proven: list[bool], may: bool
) -> None:
    assert may_take_over(new, proven, current, current_proven) is may


class Seen:
    """A watcher of ``path`` and what it has told."""

    def __init__(self, path: Path) -> None:
        self.versions: list[int] = []
        self.invalid: list[str] = []
        self.watcher = TableWatcher(path, lambda table: self.versions.append(table.version), self.invalid.append)
        self.watcher.start()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "table.json"
    path.write_bytes(table_file(entry([[A]])))
    return path


@pytest.fixture
async def seen(path: Path) -> Any:
    seen = Seen(path)
    yield seen
    seen.watcher.stop()


async def test_a_rename_over_the_file_is_noticed_within_a_second(path: Path, seen: Seen) -> None:
    other = path.with_name("other")
    other.write_bytes(table_file(entry([[A]]), version=2))
    other.rename(path)
    await soon(lambda: seen.versions == [1, 2], "version 2 is seen", 1)


async def test_a_change_in_place_is_noticed_within_a_second_even_of_same_size_and_time(path: Path, seen: Seen) -> None:
    about = path.stat()
    path.write_bytes(table_file(entry([[A]]), version=2))
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    await soon(lambda: seen.versions == [1, 2], "version 2 is seen", 1)


async def test_a_swapped_symbolic_link_is_noticed_as_a_kubelet_does_it(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}" / "table.json").write_bytes(table_file(entry([[A]]), version=number))
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "table.json").symlink_to("..data/table.json")
    seen = Seen(tmp_path / "table.json")
    (tmp_path / "..data_tmp").symlink_to("..2")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    shutil.rmtree(tmp_path / "..1")
    await soon(lambda: seen.versions == [1, 2], "version 2 is seen", 1)
    seen.watcher.stop()


async def test_a_half_written_file_is_told_once_and_the_whole_one_is_seen(path: Path, seen: Seen) -> None:
    content = table_file(entry([[A]]), version=2)
    path.write_bytes(content[:50])
    await soon(lambda: seen.invalid, "the half is refused", 1)
    path.write_bytes(content)
    await soon(lambda: seen.versions == [1, 2], "version 2 is seen", 1)
    assert len(seen.invalid) == 1
    assert str(path) in seen.invalid[0]


async def test_a_file_that_is_not_there_yet_is_waited_for_and_told_when_it_goes_away(path: Path) -> None:
    content = path.read_bytes()
    path.unlink()
    seen = Seen(path)
    seen.watcher.look()
    assert seen.invalid == []
    path.write_bytes(content)
    await soon(lambda: seen.versions == [1], "version 1 is seen", 1)
    path.unlink()
    await soon(lambda: seen.invalid == [f"{path} cannot be read: No such file or directory"], "it is told", 1)
    seen.watcher.stop()
