"""Routing tables: what is accepted, and what is refused and why."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from support.routing import BUILT_AT, entry, mixed, table, table_file

from lookupdb.router.routing_table import MAX_BYTES, InvalidTable, ShardEntry, digest_table, parse_table
from lookupdb.router.server_connection import ServerAddress

A, B = "10.0.0.1:7000", "10.0.0.2:7000"


def test_a_table_names_the_active_generation_and_its_endpoints() -> None:
    parsed = table(entry([[A, B], [B]]), entry([["[fd00::1]:7001"]], "g2"), version=12)
    assert (parsed.version, str(parsed.dataset), parsed.active) == (12, "default/sample", "g1")
    assert parsed.active_entry.shards == (
        ShardEntry("g1", BUILT_AT, (ServerAddress("10.0.0.1", 7000), ServerAddress("10.0.0.2", 7000))),
        ShardEntry("g1", BUILT_AT, (ServerAddress("10.0.0.2", 7000),)),
    )
    [shard] = parsed.entries[1].shards
    assert shard == ShardEntry("g2", BUILT_AT, (ServerAddress("fd00::1", 7001),))
    assert str(shard.endpoints[0]) == "[fd00::1]:7001"
    assert not parsed.is_mixed


def test_a_mixed_table_names_the_generation_of_each_shard() -> None:
    older = entry([[A], [A], [A]], "g9", builtAt="2026-11-19T00:00:00Z")
    target = entry([[B], [B], [B]], "g12")
    parsed = table(mixed(target, older, {1, 2}))
    assert parsed.is_mixed
    assert [entry.generation for entry in parsed.entries] == [parsed.active] == ["g12"]
    at_a, at_b = (ServerAddress("10.0.0.1", 7000),), (ServerAddress("10.0.0.2", 7000),)
    assert parsed.active_entry.shards == (
        ShardEntry("g12", BUILT_AT, at_b),
        ShardEntry("g9", "2026-11-19T00:00:00Z", at_a),
        ShardEntry("g9", "2026-11-19T00:00:00Z", at_a),
    )
    assert list(parsed.active_entry.shard_generations.items()) == [("g9", 2), ("g12", 1)]
    assert parsed.active_entry.oldest_built_at == "2026-11-19T00:00:00Z"


def test_a_shard_of_a_mixed_table_may_name_the_generation_of_its_entry() -> None:
    explicit = entry([[A]])
    explicit["shards"][0]["generation"] = "g1"
    parsed = table(explicit)
    assert not parsed.is_mixed
    assert parsed == table(entry([[A]]))


def test_the_digest_is_that_of_the_text_and_no_part_of_what_it_says() -> None:
    """16 digits of its SHA-256, which routers and operators of other versions compare."""
    assert digest_table(b"{}\n") == "ca3d163bab055381"
    text = table_file(entry([[A]]))
    same = text + b"\n"
    assert parse_table(text) == parse_table(same)
    assert [parse_table(one).digest for one in (text, same)] == [digest_table(text), digest_table(same)]
    assert digest_table(text) != digest_table(same)


def test_the_oldest_of_a_mixed_table_is_found_across_time_zones() -> None:
    older = entry([[A], [A]], "g1", builtAt="2026-11-20T01:30:00+02:00")
    target = entry([[B], [B]], "g2", builtAt="2026-11-20T00:00:00Z")
    assert table(mixed(target, older, {0})).active_entry.oldest_built_at == "2026-11-20T01:30:00+02:00"


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


def test_what_is_not_valid_is_refused_with_a_sentence() -> None:
    for content, sentence in (
        (b"", "a routing table is JSON, found 0 bytes that are not"),
        (table_file(entry([[A]]))[:-20], "bytes that are not"),
        (b"[]", "a routing table must be an object, found list"),
        (b" " * (MAX_BYTES + 1), f"at most {MAX_BYTES} bytes"),
        (changed(["formatVersion"], 3), "has format version 3, this lookupdb reads 1 and 2"),
        (changed(["formatVersion"], True), "has format version True, this lookupdb reads 1 and 2"),
        (changed(["formatVersion"], ...), "has format version None, this lookupdb reads 1 and 2"),
        (changed(["version"], ...), "the routing table must have 'version', it has formatVersion, dataset"),
        (changed(["version"], "12"), "version must be a whole number, found str"),
        (changed(["version"], True), "version must be a whole number, found bool"),
        (changed(["version"], -1), "version must not be negative, found -1"),
        (changed(["dataset", "uid"], ""), "dataset: uid must not be empty"),
        (changed(["active"], "g7"), "active generation 'g7' is not in its generations (g1)"),
        (changed(["generations"], []), "generations must have 1 to 16 entries, found 0"),
        (changed(["generations"], [entry([[A]]), entry([[B]])]), "names a generation twice: g1, g1"),
        (changed(["generations", 0, "generation"], "G1"), "generations[0].generation must be g1, g2, …, found 'G1'"),
        (changed(["generations", 0, "valueFormat"], "xml"), "valueFormat must be json or raw, found 'xml'"),
        (changed(["generations", 0, "builtAt"], "yesterday"), "builtAt must be an ISO 8601 time, found 'yesterday'"),
        (changed(["generations", 0, "builtAt"], "2026-11-20T00:00:00"), "builtAt must name its time zone"),
        (changed(["generations", 0, "normalize"], ["upper"]), "normalize may contain only strip, lowercase"),
        (changed(["generations", 0, "keyColumns"], ["a", "b"]), "generations[0] must have 'separator'"),
        (changed(["generations", 0, "keyColumns"], ["a", 1]), "generations[0].keyColumns must be text, found int"),
        (changed(["generations", 0, "shards"], []), "generations[0].shards must have 1 to 1024 entries, found 0"),
        (changed(["generations", 0, "shards", 1, "endpoints"], []), "generations[0].shards[1] must have 1 to 4096"),
        (changed(["generations", 0, "shards", 1, "endpoints"], ["nowhere"]), "endpoints[0] must be host:port, found"),
        (changed(["generations", 0, "shards", 1, "endpoints"], ["a:0"]), "must be host:port, found 'a:0'"),
        (changed(["generations", 0, "shards", 1, "endpoints"], ["a:70000"]), "must be host:port, found 'a:70000'"),
        (changed(["generations", 0, "shards", 1, "endpoints"], [7000]), "must be text, found int"),
    ):
        with pytest.raises(InvalidTable) as error:
            parse_table(content)
        assert sentence in error.value.message


def mixed_file(**members: Any) -> bytes:
    """A mixed table whose second shard, of g1 still, has other ``members``."""
    document = mixed(entry([[B], [B]], "g2"), entry([[A], [A]], "g1"), {1})
    document["shards"][1].update(members)
    return table_file(document)


def test_a_mixed_table_that_is_not_valid_is_refused_with_a_sentence() -> None:
    for content, sentence in (
        (
            table_file(mixed(entry([[B], [B]], "g2"), entry([[A], [A]]), {1}), formatVersion=1),
            "generations[0].shards[1] must not name a generation in format version 1, in which the entry names it",
        ),
        (mixed_file(generation="12"), "generations[0].shards[1].generation must be g1, g2, …, found '12'"),
        (mixed_file(generation=None), "generations[0].shards[1]: generation must be text, found NoneType"),
        (mixed_file(builtAt="yesterday"), "generations[0].shards[1].builtAt must be an ISO 8601 time"),
        (mixed_file(builtAt=12), "generations[0].shards[1]: builtAt must be text, found int"),
        (mixed_file(endpoints=[]), "generations[0].shards[1] must have 1 to 4096"),
        (
            table_file(mixed(entry([[B], [B]], "g2"), entry([[A], [A]]), {0, 1})),
            "active generation g2 serves none of the shards: g1 do",
        ),
        (
            table_file(mixed(entry([[B], [B]], "g2"), entry([[A], [A]]), {1}), entry([[A]], "g3")),
            "of format version 2 has one entry of generations, found g2, g3",
        ),
        (
            table_file(
                {
                    **entry([[A]] * 18, "g18"),
                    "shards": [
                        {"generation": f"g{number}", "builtAt": BUILT_AT, "endpoints": [A]} for number in range(1, 19)
                    ],
                }
            ),
            "at most 16 generations may serve the shards of a routing table, found 18",
        ),
    ):
        with pytest.raises(InvalidTable) as error:
            parse_table(content)
        assert sentence in error.value.message


def test_a_shard_of_another_generation_says_when_that_was_built() -> None:
    document = mixed(entry([[B], [B]], "g2"), entry([[A], [A]]), {1})
    del document["shards"][1]["builtAt"]
    with pytest.raises(InvalidTable) as error:
        table(document)
    assert "generations[0].shards[1] must have 'builtAt'" in error.value.message
