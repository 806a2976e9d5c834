"""Routing tables: what is accepted, and what is refused and why."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from support.routing import entry, table, table_file

from lookupdb.route.servers.address import ServerAddress
from lookupdb.route.table.routing_table import (
    MAX_BYTES,
    InvalidTable,
    RoutingTable,
    diagnose_refusal,
    may_take_over,
    parse_table,
)

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
        parse_table(content)
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
    why = diagnose_refusal(new, current)
    assert (why is None) if sentence is None else (why and sentence in why)


def test_a_router_of_one_dataset_takes_no_table_of_another() -> None:
    own, other = table(entry([[A]])), table(entry([[A]]), dataset=OTHER, version=9)
    sentence = (
        "it is the table of default/sample with uid 'made again', and this router is of the dataset with uid 'local'"
    )
    for current in (None, own):
        assert diagnose_refusal(own, current, "local") is None
        assert diagnose_refusal(other, current, "local") == sentence
    old = diagnose_refusal(own, table(entry([[A]]), version=2), "local")
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
