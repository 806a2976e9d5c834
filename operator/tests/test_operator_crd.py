"""The CRD's status has exactly the members that the operator writes, each within its bounds."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from lookupdb.dataset import schema
from lookupdb.dataset.schema import to_camel_case
from lookupdb_operator import status
from lookupdb_operator.status import (
    MOMENTS,
    BuildFailure,
    BuildRecord,
    BuildStatus,
    CandidateStatus,
    Condition,
    DatasetStatus,
    GenerationStatus,
    PushStatus,
    RefusedGeneration,
    RolledBack,
    RolloutStatus,
    ScheduleStatus,
    Stall,
    TableCandidate,
    TablePart,
    TableStatus,
    Ticket,
    json_name,
)

CRD_STATUS = schema.resource_schema()["properties"]["status"]
NOW = "2026-01-01T00:00:00Z"
DIGEST = "0123456789abcdef" * 4

UID = "8d3f6b1a-4c2e-4f5a-9e7b-6a5c4d3e2f10"
FULL = DatasetStatus(
    observed_generation=7,
    operator="lookupdb/lookupdb",
    conditions=tuple(Condition(kind, "True", "Serving", "It serves.", 7, NOW) for kind in status.CONDITIONS),
    phase="RollingOut",
    endpoint="http://airports-router.default.svc",
    generation="g11",
    records=28_000,
    bytes=1 << 40,
    built_at=NOW,
    shards="1024/1024",
    replicas=64,
    selector="lookupdb.dev/dataset=airports,lookupdb.dev/component=shard,lookupdb.dev/rollout=r3",
    generations=(
        GenerationStatus(
            *("g11", DIGEST, DIGEST, 28_000, 1 << 40, 1 << 30, 4, ("strip", "lowercase"), "json", NOW),
            served_by=12,
            adopted_from=f"{UID}/g999999999",
            key_columns=("country", "id"),
            separator=":",
        ),
        GenerationStatus("g999999999", DIGEST, DIGEST, 0, 0, 0, 1, (), "raw", NOW, premature_promotion="g999999999"),
    ),
    refused=RefusedGeneration(
        *(
            "g12",
            DIGEST,
            DIGEST,
            5,
            1 << 40,
            1 << 30,
            4,
            ("strip",),
            "json",
            NOW,
            "again",
            13,
            DIGEST,
            NOW,
            "g12",
            f"{UID}/g999999999",
            ("country", "id"),
            ":",
            NOW,
            "r" * 256,
            NOW,
            "g12",
        )
    ),
    rolled_back=(RolledBack("g10", DIGEST, DIGEST),),
    rejected=(RolledBack("g9", DIGEST, DIGEST),),
    last_generation=999_999_999,
    last_rollout=34,
    refreshed="by hand",
    build=BuildStatus(
        *("g12", DIGEST, "again", DIGEST, NOW, NOW, DIGEST, DIGEST, "g11", Stall("Unschedulable", NOW), 28_000, "g12"),
        f"{UID}/g999999999",
    ),
    failure=BuildFailure("BadSource", "airports.csv: no such file", "g10", DIGEST, "", 3, NOW),
    builds=(
        BuildRecord("g10", "failed", "BadSource", NOW, NOW),
        BuildRecord("g11", "built", "Built", NOW, NOW, 28_000, 3600, "built g11", 1),
    ),
    last_checked=NOW,
    next_check=NOW,
    schedule=ScheduleStatus("0 2 * * * Europe/Berlin", NOW, NOW, NOW),
    rollouts=(
        RolloutStatus("r34", "g11", DIGEST, NOW),
        RolloutStatus("r35", "g11", DIGEST, NOW, 2, Stall("QuotaExceeded", NOW), 2),
        RolloutStatus("r36", "g11", DIGEST, NOW, 2, shard_ranges="0-3", window="2-3", push=PushStatus(UID, NOW, 3)),
    ),
    build_ticket=Ticket(NOW),
    rollout_ticket=Ticket(NOW, 3, "Unschedulable", "no node takes pod airports-r34-s0-0", DIGEST),
    table=TableStatus(
        12, "r34", "g11", 2, 4, NOW, NOW, TableCandidate("r35", "g11", 2, 4), (TablePart("r34", "g11", 4, "1-3"),)
    ),
    candidate=CandidateStatus("g11", "r35", NOW),
    store_digest=DIGEST,
)


def _strict(node: dict[str, Any]) -> dict[str, Any]:
    """Return ``node`` with unknown members refused, which the API server would drop."""
    node = dict(node)
    if "properties" in node:
        node["properties"] = {name: _strict(child) for name, child in node["properties"].items()}
        node["additionalProperties"] = False
    if "items" in node:
        node["items"] = _strict(node["items"])
    return node


@pytest.mark.parametrize("written", [FULL, DatasetStatus()], ids=["full", "empty"])
def test_what_the_operator_writes_is_what_the_crd_describes(written: DatasetStatus) -> None:
    members = written.to_json()
    jsonschema.Draft202012Validator(_strict(CRD_STATUS)).validate(members)
    assert DatasetStatus.from_json(members) == written


def _objects(kind: type, node: dict[str, Any], path: str) -> Iterator[tuple[str, type, dict[str, Any]]]:
    """Yield ``kind`` and every dataclass in it, each with its part of the CRD."""
    yield path, kind, node
    for name, hint in typing.get_type_hints(kind).items():
        inner = [part for part in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(part)]
        child = node["properties"].get(to_camel_case(name), {})
        for part in inner:
            yield from _objects(typing.cast(type, part), child.get("items", child), f"{path}.{to_camel_case(name)}")


OBJECTS = tuple(_objects(DatasetStatus, CRD_STATUS, "status"))


def test_the_crd_has_every_member_of_the_status_and_no_other() -> None:
    for path, kind, node in OBJECTS:
        names = {field.name: json_name(field) for field in dataclasses.fields(kind)}
        assert set(node["properties"]) == set(names.values()), path
        for name, hint in typing.get_type_hints(kind).items():
            options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
            origin = typing.get_origin(options[0]) or options[0]
            expected = {int: "integer", tuple: "array", str: "string", typing.Literal: "string"}.get(origin, "object")
            assert node["properties"][names[name]]["type"] == expected, f"{path}.{name}"


def test_what_cannot_be_read_back_cannot_be_written() -> None:
    """An edit of the status cannot remove a member that its reader needs."""
    for kind in (GenerationStatus, BuildFailure, BuildStatus, BuildRecord, RolloutStatus, ScheduleStatus, TableStatus):
        node = next(node for _, one, node in OBJECTS if one is kind)
        members = dataclasses.fields(kind)
        needed = {to_camel_case(field.name) for field in members if field.default is dataclasses.MISSING}
        assert set(node["required"]) == needed, kind


def _leaves(node: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every number, text and list of ``node``."""
    if node["type"] in ("integer", "string", "array"):
        yield path, node
    for name, child in node.get("properties", {}).items():
        yield from _leaves(child, f"{path}.{name}")
    if "items" in node:
        yield from _leaves(node["items"], f"{path}[]")


_MOST = {"integer": "maximum", "string": "maxLength", "array": "maxItems"}


def test_every_number_text_and_list_has_a_bound() -> None:
    """The operator holds every status in memory."""
    leaves = [*_leaves(CRD_STATUS, "status")]
    assert len(leaves) > 100
    assert [path for path, node in leaves if not {"enum", _MOST[node["type"]]} & node.keys()] == []


def test_a_moment_is_never_empty() -> None:
    """An unknown moment is left out."""
    for path, kind, node in OBJECTS:
        for field in dataclasses.fields(kind):
            if field.name in MOMENTS:
                assert node["properties"][json_name(field)]["minLength"] == 1, f"{path}.{field.name}"


def _edit(members: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Set ``members`` to ``value`` at ``path``, in the last item of every list."""
    name, _, rest = path.partition(".")
    inner = members[name]
    if isinstance(inner, list) and rest:
        return members | {name: [*inner[:-1], _edit(inner[-1], rest, value)]}
    return members | {name: _edit(inner, rest, value) if rest else value}


BEYOND: tuple[tuple[str, Any], ...] = (
    ("generations.shards", 1025),
    ("refused.shards", 10_000_000),
    ("rollouts.named", 65),
    ("table.replicas", 65),
    ("table.version", -1),
    ("lastGeneration", 1_000_000_000),
    ("rolledBack", [{"generation": "g1", "fingerprint": DIGEST, "content": DIGEST}] * 17),
    ("table.parts.shardRanges", "0-99999999"),
    ("table.parts.shardRanges", ",".join(str(shard) for shard in range(0, 1024, 2)) + "," * 4096),
    ("rollouts.window", "0-1024"),
    ("storeDigest", "0" * 129),
    ("table.writtenAt", ""),
    ("table.confirmedAt", ""),
    ("rollouts.startedAt", ""),
    ("rollouts.push.finishedAt", ""),
    ("rollouts.push.finishedAt", "soon"),
    ("rollouts.push.count", 1_000_000_000),
    ("rollouts.push.count", -1),
    ("rollouts.rollout", "r"),
    ("rollouts.generation", "r1"),
    ("generations.generation", "g01"),
    ("generations.builtAt", ""),
    ("build.startedAt", ""),
    ("build.stall.since", ""),
    ("failure.retryAt", ""),
    ("failure.generation", ""),
    ("schedule.slot", ""),
    ("table.rollout", "r1\n"),
    ("table.parts.rollout", "r1234567890"),
    ("candidate.generation", "g٣"),
)


def test_what_is_beyond_a_bound_cannot_be_read() -> None:
    """One dataset's status must not stop the operator. An empty moment, or a name without a number, would make each
    pass fail without a reason."""
    for path, value in BEYOND:
        with pytest.raises(ValueError, match="expected"):
            DatasetStatus.from_json(_edit(FULL.to_json(), path, value))


def test_conditions_are_those_of_kep_1623() -> None:
    conditions = CRD_STATUS["properties"]["conditions"]
    assert (conditions["x-kubernetes-list-type"], conditions["x-kubernetes-list-map-keys"]) == ("map", ["type"])
    assert set(conditions["items"]["required"]) == {"type", "status", "reason", "message", "lastTransitionTime"}
    assert conditions["items"]["properties"]["status"]["enum"] == ["True", "False", "Unknown"]


def test_status_is_written_apart_and_replicas_can_be_scaled() -> None:
    subresources = schema.crd()["spec"]["versions"][0]["subresources"]
    assert subresources["status"] == {}
    assert subresources["scale"] == {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
