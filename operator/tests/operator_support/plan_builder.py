"""The builder of the model cluster: what it publishes, what a gate refuses, and what it says."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import orjson

from lookupdb_operator.model import BuildResult, Manifest
from lookupdb_operator.plan import reasons

if TYPE_CHECKING:
    from operator_support.plan_world import World

_BUILT_AT = "2026-01-01T00:00:00Z"


def run_builder(world: World, generation: str, built: dict[str, Any], job: Manifest) -> BuildResult:
    """What the builder of ``generation`` ends with, whose Job is ``job`` and whose dataset's spec is ``built``."""
    words = job["spec"]["template"]["spec"]["containers"][0].get("args") or []
    content = world.content_of_source(orjson.dumps([built["source"], built["key"], built["shards"]]).decode())
    known = world.published.get(generation)
    if known not in (None, content):
        return BuildResult("failed", reason=reasons.GENERATION_EXISTS, message=f"{generation} exists", exit_code=5)
    if generation in world.refused:
        return _refusal(generation, content)
    flags = dict(itertools.pairwise(words))
    is_unchanged = flags.get("--unless-fingerprint") == content[-64:]
    judged_by = (content, orjson.dumps(built["gates"]).decode(), flags.get("--active", ""))
    known_refusal = flags.get("--unless-refused", "")
    is_refused_again = not is_unchanged and world.refused.get(known_refusal) == judged_by
    world.invariants.read(generation, content[-64:], publishes=not is_unchanged and not is_refused_again)
    if is_unchanged:
        return BuildResult("unchanged", fingerprint=content[-64:])
    if is_refused_again:
        return _refusal(known_refusal, content)
    world.published[generation] = content
    if known is None and world.closes_gate(content):
        world.refused[generation] = judged_by
        world.invariants.refuse(generation)
        return _refusal(generation, content)
    outcome = "built" if known is None else "adopted"
    return BuildResult(outcome, generation, content[-64:], 10, 1000, 500, _BUILT_AT)  # type: ignore[arg-type]


def _refusal(generation: str, content: str) -> BuildResult:
    message = "maxShrinkPercent: expected at most 20 % fewer records, found 10 where g1 has 100 (-90.0 %)"
    return BuildResult(
        *("failed", generation, content[-64:], 10, 1000, 500, _BUILT_AT),
        exit_code=4,
        reason=reasons.GATE_CLOSED,
        message=message,
    )
