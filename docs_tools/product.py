"""The facts for the reference. No other module of ``docs_tools`` names a module of the product."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final, cast
from unittest import mock

import click
import yaml

from lookupdb.cli import VERBS, cli, other_verbs
from lookupdb.process import memory
from lookupdb.process.supervisor import Supervisor
from lookupdb.process.worker import Counters
from lookupdb.resp.commands import CommandTable
from lookupdb.router import counters as route_counters
from lookupdb.router import router as route_metrics
from lookupdb.router.resp.exchanges import COMMANDS as ROUTER_COMMANDS
from lookupdb.shard import limits
from lookupdb.shard import server as shard_metrics
from lookupdb.shard.commands import COMMANDS as SHARD_COMMANDS
from lookupdb.shard.server import ServedShard
from lookupdb.sync.keeper import SyncFigures
from lookupdb.sync.service import SyncState, collect_sync
from lookupdb_operator.console.service import ConsoleMetrics
from lookupdb_operator.gateway import service as gateway_service
from lookupdb_operator.gateway.transfers import GatewayMetrics
from lookupdb_operator.metrics import Metrics
from lookupdb_operator.plan import lifecycle, planner, reasons
from lookupdb_operator.plan.lifecycle import GenerationPhase, Phase, RolloutPhase, Transition
from lookupdb_operator.plugin.cli import cli as kubectl_cli

__all__ = [
    "CRD",
    "OPENAPI",
    "ROUTER_COMMANDS",
    "SHARD_COMMANDS",
    "VALUES",
    "VALUES_SCHEMA",
    "CommandTable",
    "GenerationPhase",
    "Phase",
    "RolloutPhase",
    "Transition",
    "cli",
    "kubectl_cli",
    "lifecycle",
    "load_screens",
    "metric_families",
    "planner",
    "reason_sentences",
    "reasons",
    "verbs",
]

ROOT: Final = Path(__file__).resolve().parents[1]
CRD: Final = ROOT / "crds" / "lookupdatasets.lookupdb.dev.yaml"
VALUES: Final = ROOT / "charts" / "lookupdb" / "values.yaml"
VALUES_SCHEMA: Final = ROOT / "charts" / "lookupdb" / "values.schema.json"
ALERTS: Final = ROOT / "charts" / "lookupdb" / "templates" / "monitoring" / "prometheusrule.yaml"
RUNBOOKS: Final = ROOT / "docs" / "runbooks"
"""A page for each alert; its first paragraph is what the alert means."""
OPENAPI: Final = ROOT / "docs" / "reference" / "openapi.yaml"
RESP_TEXTS: Final = Path(__file__).with_name("resp_commands.toml")
"""The reply of each command; the server does not describe these."""
REASON_ADVICE: Final = Path(__file__).with_name("reason_advice.toml")
"""The remedy of a reason, if the condition's message does not say it in full."""

Family = tuple[str, str, str]
"""Name, kind, help."""


def load_yaml(path: Path) -> Any:
    """Return the document in ``path``."""
    return yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506


def verbs() -> Mapping[str, click.Command]:
    """Every verb of ``lookupdb`` with its command."""
    context = click.Context(cli)
    found = {name: cli.get_command(context, name) for name in [*VERBS, *other_verbs()]}
    return {name: command for name, command in found.items() if command is not None}


class _NoCounters:
    """Empty counters: metrics are only listed."""

    slots = 1

    def total(self, _: str, __: int = 0) -> int:
        return 0

    def values(self, _: str, __: int = 0) -> list[int]:
        return [0]


def metric_families() -> Mapping[str, list[Family]]:
    """The metrics of each program, as its own collectors list them."""
    counters = cast("Counters", _NoCounters())
    supervisor = cast("Supervisor", SimpleNamespace(state="ready", workers=[], pids={}))
    manifest = SimpleNamespace(namespace="", name="", generation="g1", shards=[])
    entry = SimpleNamespace(records=0, bytes=0)
    served = cast("ServedShard", SimpleNamespace(manifest=manifest, entry=entry, path=Path(__file__), shard=0))
    state = SimpleNamespace(is_ending=False, tables=[], keepers={}, figures=SyncFigures())
    gateway = GatewayMetrics()
    with mock.patch.object(memory, "container_memory", return_value=SimpleNamespace(limit=0, anon=0, file=0)):
        collected = {
            "Shard server": _collect(shard_metrics.collectors(served, counters, supervisor)),
            "Router": _collect(route_metrics.collectors(counters, supervisor)),
            "Sync": _collect([lambda: collect_sync(cast("SyncState", state))]),
            "Gateway": [*_collect([gateway.collect]), *_gateway_gauges()],
            "Console": _collect([ConsoleMetrics().collect]),
            "Operator": list(_operator_families()),
        }
    assert route_counters.COUNTERS
    assert limits.COUNTERS
    return collected


def _collect(collectors: Any) -> list[Family]:
    return [(family.name, family.kind, family.help) for collect in collectors for family in collect()]


def _gateway_gauges() -> Iterator[Family]:
    """The gauges that a running gateway registers: name → (help, what reads it)."""
    for node in ast.walk(ast.parse(inspect.getsource(gateway_service))):
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute) and node.target.attr == "gauges":
            assert isinstance(node.value, ast.Dict)
            for key, value in zip(node.value.keys, node.value.values, strict=True):
                assert isinstance(key, ast.Constant)
                assert isinstance(value, ast.Tuple)
                assert isinstance(value.elts[0], ast.Constant)
                yield str(key.value), "gauge", str(value.elts[0].value)


def _operator_families() -> Iterator[Family]:
    text = Metrics().render().decode()
    helps = dict(re.findall(r"^# HELP (\w+) (.*)$", text, re.MULTILINE))
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE):
        if name.startswith("lookupdb_") and not name.endswith("_created"):
            yield name, kind, helps[name]


def reason_sentences() -> Mapping[str, tuple[str, str]]:
    """Every reason with its sentence and the part of the module that lists it."""
    found: dict[str, tuple[str, str]] = {}
    source = inspect.getsource(reasons)
    lines = source.splitlines()
    body = ast.parse(source).body
    for node, following in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        value = getattr(reasons, node.target.id)
        if node.target.id[0].isupper() and isinstance(value, str):
            is_told = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            sentence = " ".join(str(cast("Any", following).value.value).split()) if is_told else ""
            comment = next((line[2:] for line in reversed(lines[: node.lineno - 1]) if line.startswith("# ")), "")
            found[value] = (comment, sentence)
    return found


def load_screens() -> Mapping[str, Callable[[], str]]:
    """The screens of ``kubectl lookupdb status`` that its tests hold, by heading."""
    if (tests := str(ROOT / "operator" / "tests")) not in sys.path:
        sys.path.append(tests)
    worlds: ModuleType = __import__("operator_support.phase_worlds", fromlist=["screen_of"])
    samples: ModuleType = __import__("operator_support.plan_samples", fromlist=["serving"])
    makers = {
        "Building": worlds.building,
        "Ready": samples.serving,
        "RollingOut": worlds.rolling_out,
        "RollingOut: shard by shard": worlds.shard_by_shard,
        "CandidateWaiting": worlds.candidate,
        "Pinned": worlds.pinned,
        "RolledBack": worlds.rolled_back,
        "GateClosed": worlds.gate_closed,
        "Stuck: a build fails": worlds.failing,
        "Stuck: servers do not start": worlds.unplaced,
    }
    return {heading: partial(lambda make: worlds.screen_of(make()), make) for heading, make in makers.items()}
