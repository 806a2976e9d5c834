"""manifest.json: what a later minor revision adds is passed over, at every level."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from support.shards import write_generation

from lookupdb.errors import CorruptFile
from lookupdb.manifest import FILE_NAME, Manifest, RowSample


@pytest.fixture
def members(tmp_path: Path) -> dict[str, Any]:
    generation = write_generation(tmp_path, {"a": b"1"})
    found: dict[str, Any] = orjson.loads((generation / FILE_NAME).read_bytes())
    sample = {"file": "f", "row": 1, "reason": "why"}
    found["rejected"] = {"count": 1, "samples": [sample]}
    found["source"] = [{"url": "u", "bytes": 1, "etag": None, "modified": None}]
    found["dictionary"] = {"outcome": "trained", "reason": "why", "sha256": "aa"}
    return found


def test_members_of_a_later_revision_are_passed_over(members: dict[str, Any]) -> None:
    before = Manifest.from_json(orjson.dumps(members), "m")
    places = [members, members["totals"], members["rejected"], members["duplicates"]]
    places += [members["shards"][0], members["source"][0], members["rejected"]["samples"][0], members["dictionary"]]
    for place in places:
        place["ofALaterRevision"] = {"any": ["thing"]}
    assert Manifest.from_json(orjson.dumps(members), "m") == before
    assert before.rejected.samples == (RowSample("f", 1, "why"),)


def test_what_older_builders_did_not_record_is_optional(members: dict[str, Any]) -> None:
    del members["dictionary"], members["shards"][0]["dictionary_offset"]
    found = Manifest.from_json(orjson.dumps(members), "m")
    assert (found.dictionary, found.shards[0].dictionary_offset) == (None, 0)
    assert b'"dictionary":' not in found.to_json()


@pytest.mark.parametrize("dictionary", [None, 1, "kept", [], {}, {"outcome": "kept"}])
def test_a_choice_that_is_none_is_no_manifests(members: dict[str, Any], dictionary: Any) -> None:
    members["dictionary"] = dictionary
    with pytest.raises(CorruptFile, match="is not a generation's index"):
        Manifest.from_json(orjson.dumps(members), "m")


@pytest.mark.parametrize("name", ["shards", "totals", "unicode", "formatVersion"])
def test_a_member_that_is_missing_is_named(members: dict[str, Any], name: str) -> None:
    del members[name]
    with pytest.raises(CorruptFile, match=name):
        Manifest.from_json(orjson.dumps(members), "m.json")


@pytest.mark.parametrize(
    "path",
    [
        ("shards", 0, "file"),
        ("shards", 0, "bytes"),
        ("shards", 0, "dictionary_offset"),
        ("dictionary", "sha256"),
        ("totals", "records"),
        ("rejected", "samples", 0, "row"),
        ("source", 0, "etag"),
        ("normalize", 0),
        ("seconds",),
    ],
)
@pytest.mark.parametrize("value", [True, [], {"a": 1}])
def test_a_member_of_another_type_is_no_manifests(members: dict[str, Any], path: tuple[Any, ...], value: Any) -> None:
    members["normalize"] = ["nfc"]
    place: Any = members
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(CorruptFile, match=r"m\.json is not a generation's index: .*(expected|is not text)"):
        Manifest.from_json(orjson.dumps(members), "m.json")


def test_a_generation_without_shards_is_none(members: dict[str, Any]) -> None:
    members["shards"] = []
    with pytest.raises(CorruptFile, match="it names no shards"):
        Manifest.from_json(orjson.dumps(members), "m.json")


def test_another_format_version_is_refused(members: dict[str, Any]) -> None:
    members["formatVersion"] = 2
    with pytest.raises(CorruptFile, match="format version 2"):
        Manifest.from_json(orjson.dumps(members), "m.json")
