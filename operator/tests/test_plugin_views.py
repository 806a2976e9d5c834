"""The plugin's output, made without a cluster."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from plugin_samples import HEALTHY, ROUTERS, SERVERS, condition, dataset, generation, router, server, view

from lookupdb_operator.console.dataset import AbsentKey, DatasetPods, FoundKey, UnavailableKey, read_answer
from lookupdb_operator.console.facts import find_role, format_age, format_until
from lookupdb_operator.console.figures import MetricSample, bound_quantile, rate
from lookupdb_operator.plugin import views

DOCS = Path(__file__).parents[2] / "docs" / "how-to" / "kubectl.md"
NOW = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)


def _sections(text: str) -> dict[str, list[str]]:
    """Return the lines below each title."""
    sections: dict[str, list[str]] = {}
    title = ""
    for line in text.splitlines():
        if not line.startswith(" "):
            title = line.removesuffix(":")
        sections.setdefault(title, []).append(line.strip())
    return {title: lines[1:] for title, lines in sections.items()}


def test_a_dataset_that_serves_is_one_screen() -> None:
    text = views.render(view(*SERVERS, *ROUTERS), NOW)
    head = "shop/airports: Ready, serves g12, 28,298 records, built 2 h ago"
    assert text.splitlines()[:2] == [head, "  http://airports-router.shop.svc"]
    sections = _sections(text)
    assert list(sections)[1:] == ["Conditions", "Generations", "Rollouts", "Routers"], (
        "what has nothing to say is not there"
    )
    assert sections["Generations"] == [
        "g12  28,298 records  12.3 MiB  built 2 h ago      active",
        "g11  28,298 records  12.3 MiB  built 1 d 2 h ago  has served",
    ]
    assert sections["Rollouts"] == ["r34  g12  active  2 shards × 2, 4 servers ready  since 1 h 59 min"]
    assert sections["Routers"] == ["2/2 ready, routing table 7 confirmed by all"]


def test_one_of_a_kind_is_counted_as_one() -> None:
    lone = generation("g12", records=1, shards=1, servedBy=7)
    text = views.render(view(server("r34", 0), generations=[lone], records=1, refused=lone), NOW)
    assert "serves g12, 1 record, built" in text
    assert "g12  1 record  " in text
    assert "r34  g12  active  1 shard × 2, 1 server ready" in text
    assert "g12 of 1 record, built" in text


def _rolling_out() -> DatasetPods:
    serving = condition("Ready", "True", "Serving", "g12 serves 28,298 records at http://airports-router.shop.svc.")
    built = condition("Built", "True", "GenerationBuilt", "g13 holds 28,310 records in 2 shards.")
    healthy = condition("Degraded", "False", "Healthy", "Nothing is wrong.")
    waits = "1 of 2 shards of airports-r35 (generation g13) have their servers ready (2 each)."
    rolled_out = condition("RolledOut", "False", "StartingServers", waits)
    builds = [
        {
            "generation": "g13",
            "outcome": "built",
            "finishedAt": "2026-01-02T11:56:00Z",
            "records": 28_310,
            "seconds": 12,
        }
    ]
    return view(
        *SERVERS,
        *(server("r35", shard, replica, ready=shard + replica < 2) for shard in range(2) for replica in range(2)),
        *ROUTERS,
        phase="RollingOut",
        conditions=[serving, built, rolled_out, healthy],
        generations=[generation("g12"), generation("g13", "2026-01-02T11:56:00Z", records=28_310)],
        rollouts=[
            *dataset().status["rollouts"],
            {"rollout": "r35", "generation": "g13", "startedAt": "2026-01-02T11:57:00Z"},
        ],
        builds=builds,
    )


def test_the_docs_show_the_screen_as_it_is() -> None:
    shown = DOCS.read_text(encoding="utf-8").split("```")[1].strip()
    assert shown == views.render(_rolling_out(), NOW)


def _waiting(kind: str, reason: str, message: str) -> list[Any]:
    return [condition(kind, "False", reason, message) if one["type"] == kind else one for one in HEALTHY]


def test_what_is_waited_for_stands_first_and_for_how_long() -> None:
    status = {
        "conditions": _waiting("RolledOut", "StartingServers", "r35 has 1/2 shards ready."),
        "nextCheck": "2026-01-02T14:00:00Z",
        "failure": {
            "generation": "g13",
            "reason": "BadSource",
            "message": "x",
            "retryAt": "2026-01-02T12:00:30Z",
            "count": 3,
        },
    }
    text = views.render(view(*SERVERS, **status), NOW)
    assert _sections(text)["Waits for"] == [
        "a rollout, for 3 min: r35 has 1/2 shards ready.",
        "the next build attempt, in 30 s, after 3 failures",
        "next check of the source in 2 h, at 2026-01-02T14:00:00Z",
    ]


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (None, "the source is due for its check of 2026-01-02T11:00:00Z"),
        (
            {"generation": "g13", "slot": "2026-01-02T11:00:00Z", "startedAt": "2026-01-02T11:59:00Z"},
            "next check of the source now, at 2026-01-02T12:00:00Z",
        ),
    ],
    ids=["waits", "is made"],
)
def test_a_check_that_waits_to_be_made_is_reported_in_place_of_the_next_one(build: Any, said: str) -> None:
    schedule = {"expression": "0 * * * * UTC", "slot": "2026-01-02T11:00:00Z", "due": "2026-01-02T11:00:00Z"}
    status = {"nextCheck": "2026-01-02T12:00:00Z", "schedule": schedule, "build": build}
    assert said in views.render(view(*SERVERS, **status), NOW)


def test_a_schedule_that_rests_is_reported() -> None:
    spec = {**dataset().spec, "refresh": {"schedule": "0 2 * * *", "suspend": True}}
    line = "no check of the source: refresh.suspend is true, and the schedule '0 2 * * *' is paused"
    assert _sections(views.render(view(*SERVERS, spec=spec), NOW))["Waits for"][-1] == line
    assert "no check" not in views.render(view(*SERVERS), NOW)


CLOSED = (
    "minRecords: 1 of 9; removed: 'a'; let it pass: kubectl annotate lds x lookupdb.dev/override-gates=g13 --overwrite."
)
OTHER = "Deployment airports-router cannot be written: quota."


def test_a_closed_gate_is_reported_once_and_what_else_is_wrong_beside_it() -> None:
    conditions = [
        HEALTHY[0],
        condition("Built", "False", "GateClosed", f"{CLOSED} The next attempt is at noon."),
        HEALTHY[2],
        condition(
            "Degraded", "True", "ApplyRefused", f"{OTHER} {CLOSED} g12 keeps serving. The next attempt is at noon."
        ),
    ]
    refused = generation("g13", "2026-01-02T11:50:00Z", message="minRecords: 1 of 9\n  removed: 'a'")
    past = {
        "generation": "g13",
        "outcome": "gateClosed",
        "finishedAt": "2026-01-02T11:50:00Z",
        "message": f"{CLOSED[:40]}…",
    }
    other = {**past, "generation": "g10", "message": "minRecords: 2 of 9"}
    text = views.render(view(*SERVERS, conditions=conditions, refused=refused, builds=[other, past]), NOW)
    assert [text.count(once) for once in ("minRecords: 1", "removed: 'a'", "override-gates", "at noon")] == [1, 1, 1, 1]
    parts = _sections(text)
    assert parts["Conditions"][-1].endswith(f"as above; {OTHER} g12 keeps serving.")
    assert parts["Rejected by a gate"] == ["g13 of 28,298 records, built 10 min ago"]
    assert parts["Builds"][0].endswith("as above")
    assert parts["Builds"][1].endswith("minRecords: 2 of 9")


def test_the_error_of_a_failed_build_keeps_its_lines() -> None:
    conditions = [condition("Built", "False", "GateClosed", f"{CLOSED} The next attempt is at noon.")]
    failure = {"generation": "g13", "reason": "GateClosed", "message": CLOSED.replace("; ", "\n  ")}
    text = views.render(view(conditions=conditions, failure=failure), NOW)
    what, *advice = CLOSED.split("; ")
    assert _sections(text)["Waits for"] == [f"a build, for 3 min: {what}", *advice, "The next attempt is at noon."]


def test_a_generation_that_a_gate_refused_is_reported_with_how_to_let_it_through() -> None:
    refused = generation("g13", "2026-01-02T11:50:00Z", records=9_000, message="maxShrinkPercent: 68 % fewer")
    overridden = generation("g12", overridden="minRecords")
    text = views.render(view(*SERVERS, refused=refused, generations=[overridden]), NOW)
    assert _sections(text)["Rejected by a gate"] == [
        "g13 of 9,000 records, built 10 min ago",
        "maxShrinkPercent: 68 % fewer",
        "to override the gate: kubectl lookupdb override-gates -n shop airports g13",
    ]
    assert _sections(text)["Generations"][0].endswith("active, gate overridden")


def test_a_candidate_is_reported_with_what_to_do() -> None:
    candidate = {"generation": "g13", "rollout": "r35", "since": "2026-01-02T11:55:00Z"}
    rollouts = [
        *dataset().status["rollouts"],
        {"rollout": "r35", "generation": "g13", "startedAt": "2026-01-02T11:50:00Z"},
    ]
    text = views.render(view(*SERVERS, candidate=candidate, rollouts=rollouts), NOW)
    assert _sections(text)["Candidate"] == [
        "g13 of r35 has waited for promotion for 5 min",
        "look at it:  kubectl lookupdb get -n shop airports KEY --generation g13",
        "then:        kubectl lookupdb promote -n shop airports g13, or kubectl lookupdb reject -n shop airports g13",
    ]
    assert _sections(text)["Rollouts"][1].split()[:3] == ["r35", "g13", "candidate"]


@pytest.mark.parametrize(
    ("members", "table", "role"),
    [
        ({"named": 2}, {"rollout": "r34", "confirmedAt": "x"}, "active"),
        ({"named": 2}, {"rollout": "r34"}, "taking over"),
        ({"named": 2}, {"rollout": "r35"}, "ending"),
        ({"keptSince": "x"}, {"rollout": "r35"}, "kept"),
        ({}, {"rollout": "r33"}, "starting"),
        ({"named": 2}, {"rollout": "r34", "confirmedAt": "x", "parts": [{"rollout": "r33"}]}, "replacing"),
        ({"named": 2}, {"rollout": "r35", "confirmedAt": "x", "parts": [{"rollout": "r34"}]}, "being replaced"),
    ],
)
def test_what_a_rollout_does(members: dict[str, Any], table: dict[str, Any], role: str) -> None:
    assert find_role({"rollout": "r34", **members}, {"table": table}) == role


def test_shards_that_lack_servers_are_named_with_the_first_reasons_and_counted() -> None:
    pods = [server("r34", shard, ready=False, trouble="no node takes it") for shard in range(40)]
    sections = _sections(views.render(view(*pods), NOW))
    assert len(sections["Shards that lack servers"]) == 13
    assert sections["Shards that lack servers"][-1] == "and 28 more"
    assert sections["Why"] == ["airports-r34-s0-0 and 39 more: no node takes it"]


def test_marks_of_generations() -> None:
    status = {
        "rolledBack": [{"generation": "g12"}],
        "generation": "g11",
        "generations": [generation("g11"), generation("g12")],
    }
    text = views.render(view(spec={"generation": "g11"}, **status), NOW)
    assert "pinned to g11" in text.splitlines()[0]
    lines = _sections(text)["Generations"]
    assert lines[0].endswith("rolled back")
    assert lines[1].endswith("active, pinned")


def test_the_last_builds_newest_first() -> None:
    builds = [
        {
            "generation": f"g{n}",
            "outcome": "built",
            "reason": "Built",
            "startedAt": "x",
            "finishedAt": "2026-01-02T11:00:00Z",
            "records": 10,
            "seconds": 4,
            "message": f"built g{n}: 10 records in 1 shard, 4.0 s" + "; note" * (n == 7),
        }
        for n in range(9)
    ]
    builds.append(
        builds[0]
        | {
            "generation": "g9",
            "outcome": "failed",
            "reason": "BadSource",
            "message": "no file",
            "count": 3,
            "records": 0,
        }
    )
    build = {
        "generation": "g10",
        "startedAt": "2026-01-02T11:59:50Z",
        "stall": {"reason": "Unschedulable", "since": "2026-01-02T11:59:55Z"},
    }
    lines = _sections(views.render(view(builds=builds, build=build), NOW))["Builds"]
    assert [line.split()[0] for line in lines] == ["g10", "g9", "g8", "g7", "g6", "g5"]
    assert lines[0].endswith("  Unschedulable for 5 s")
    assert "failed × 3" in lines[1]
    assert lines[1].endswith("BadSource: no file")
    assert lines[2].endswith("1 h ago, in 4 s  10 records")
    assert lines[3].endswith("1 h ago, in 4 s  10 records: note")


def test_a_dataset_that_nobody_has_looked_at() -> None:
    empty = dict.fromkeys(dataset().status)
    assert views.render(view(**empty), NOW) == "shop/airports: no operator has reconciled it yet, serves nothing"


def test_no_text_of_a_cluster_moves_the_cursor() -> None:
    text = views.render(view(conditions=[condition("Ready", "False", "X", "a\x1b[2Jb\nc")]), NOW)
    assert "a [2Jb c" in text


def test_everything_for_machines() -> None:
    summary = views.summarize(view(*SERVERS[:1], *ROUTERS[:1]))
    assert summary["status"]["generation"] == "g12"
    assert [pod["name"] for pod in summary["pods"]] == ["airports-r34-s0-0", "airports-router-0"]
    assert json.loads(json.dumps(summary)) == summary


def test_all_datasets_are_a_table() -> None:
    lines = views.render_list([dataset()], NOW, everywhere=True, place="").splitlines()
    assert lines[0].split() == [
        "NAMESPACE",
        "NAME",
        "READY",
        "PHASE",
        "HEALTH",
        "GENERATION",
        "DATA",
        "AGE",
        "SHARDS",
        "RECORDS",
    ]
    assert lines[1].split() == ["shop", "airports", "True", "Ready", "Healthy", "g12", "2", "h", "2/2", "28,298"]
    assert views.render_list([], NOW, everywhere=False, place="here") == "There are no datasets in here."


PROBLEM = {"Content-Type": "application/problem+json; charset=utf-8"}


@pytest.mark.parametrize(
    ("status", "headers", "body", "expected"),
    [
        pytest.param(
            200,
            {"Content-Type": "application/json", "Lookupdb-Generation": "g12"},
            b'{"a":1e400}',
            FoundKey("k", "g12", b'{"a":1e400}', True),
            id="found",
        ),
        pytest.param(
            404,
            PROBLEM | {"Lookupdb-Generation": "g12"},
            b'{"type":"https://lookupdb.dev/problems/missing","detail":"no record"}',
            AbsentKey("k", "g12", "no record"),
            id="missing",
        ),
        pytest.param(
            404, {"Content-Type": "application/json"}, b'{"kind":"Status","reason":"NotFound"}', None, id="no Service"
        ),
        pytest.param(
            404, PROBLEM, b'{"type":"https://lookupdb.dev/problems/no-such-resource"}', None, id="no such path"
        ),
        pytest.param(
            503, PROBLEM, b'{"detail":"shard 3 is away"}', UnavailableKey("k", "shard 3 is away"), id="unavailable"
        ),
        pytest.param(503, {}, b"no endpoints", UnavailableKey("k", "no router can be reached"), id="no router"),
        pytest.param(
            412, PROBLEM, b'{"type":"https://lookupdb.dev/problems/unknown-generation"}', None, id="not served"
        ),
        pytest.param(200, {"Content-Type": "text/html"}, b"<html>", None, id="somebody else's 200"),
        pytest.param(404, PROBLEM, b"\xff", None, id="no JSON"),
    ],
)
def test_what_an_answer_says_of_a_key(status: int, headers: dict[str, str], body: bytes, expected: Any) -> None:
    assert read_answer("k", status, headers, body) == expected


def test_values_are_printed_as_they_came() -> None:
    assert (
        views.render_line(FoundKey("k", "g1", b'{"a":1e400}', True))
        == b'{"key":"k","generation":"g1","value":{"a":1e400}}'
    )
    assert views.render_line(FoundKey("k", "g1", b"\xff", False)) == b'{"key":"k","generation":"g1","value":"/w=="}'
    assert views.render_line(AbsentKey("k", "g1", "why")) == b'{"key":"k","generation":"g1","missing":true}'
    assert views.render_line(UnavailableKey("k", "why")) == b'{"key":"k","unavailable":"why"}'


def _shard(lookups: int, **more: float) -> MetricSample:
    lines = [
        f"lookupdb_shard_lookups_total {lookups}",
        f"lookupdb_shard_misses_total {lookups // 10}",
        'lookupdb_shard_private_bytes{process="supervisor"} 1048576',
        'lookupdb_shard_private_bytes{process="worker-0"} 1048576',
        "lookupdb_shard_file_bytes 1000",
        "lookupdb_shard_resident_bytes 250",
    ]
    return MetricSample.parse("\n".join(lines) + "\n", "airports")


def _router(requests: int, failed: int, batches: int) -> MetricSample:
    lines = [
        f'lookupdb_router_requests_total{{code="200"}} {requests}',
        f'lookupdb_router_requests_total{{code="503"}} {failed}',
        f"lookupdb_router_keys_found_total {requests}",
        f"lookupdb_router_keys_unavailable_total {failed}",
        f"lookupdb_router_client_deadline_keys_unavailable_total {failed // 2}",
        f"lookupdb_router_batch_duration_seconds_sum {batches * 0.0015}",
        f"lookupdb_router_batch_duration_seconds_count {batches}",
        'lookupdb_router_batch_duration_seconds_bucket{le="0.001"} 0',
        f'lookupdb_router_batch_duration_seconds_bucket{{le="0.0025"}} {batches}',
        f'lookupdb_router_batch_duration_seconds_bucket{{le="+Inf"}} {batches}',
    ]
    return MetricSample.parse("\n".join(lines) + "\n", "airports")


def test_rates_are_of_the_time_between_two_samples() -> None:
    pods = (SERVERS[0], ROUTERS[0])
    before = {SERVERS[0].name: _shard(100), ROUTERS[0].name: _router(10, 0, 1)}
    after = {SERVERS[0].name: _shard(300), ROUTERS[0].name: _router(30, 4, 5)}
    top = views.measure(pods, before, after, 2.0)
    (measured,) = top.servers
    assert (measured.lookups, measured.misses, measured.private_bytes, measured.cached_bytes) == (100, 10, 2097152, 250)
    (asked,) = top.routers
    assert (asked.requests, asked.errors, asked.keys, asked.unavailable) == (12, 2, 13, 3)
    assert asked.batch_microseconds == pytest.approx(1500)
    lines = views.render_top(top).splitlines()
    assert lines[1].split() == ["0", "airports-r34-s0-0", "100", "10", "2.0", "MiB", "1000", "B", "25", "%", "-"]
    assert asked.batch_p99_seconds == 0.0025
    assert "1.50 ms     ≤ 2.5 ms" in lines[4]
    assert json.loads(json.dumps(asdict(top)))["servers"][0]["lookups"] == 100


def test_a_shared_router_counts_each_dataset_apart() -> None:
    def sample(seconds: int) -> MetricSample:
        requests = (("", 0), ("airports", 2 * seconds), ("people", 70 * seconds))
        lines = (f'lookupdb_router_requests_total{{dataset="{name}",code="200"}} {count}\n' for name, count in requests)
        return MetricSample.parse("".join(lines), "airports")

    router = ROUTERS[0].name
    top = views.measure(ROUTERS[:1], {router: sample(0)}, {router: sample(5)}, 5.0)
    assert top.routers[0].requests == 2


@pytest.mark.parametrize(
    ("before", "after", "bound"),
    [
        pytest.param((0, 0, 0), (1000, 1000, 1000), 0.001, id="all within the first bound"),
        pytest.param((500, 500, 500), (1490, 1500, 1500), 0.001, id="99 in 100 of what was observed meanwhile"),
        pytest.param((0, 0, 0), (989, 1000, 1000), 0.1, id="a few more are slow"),
        pytest.param((0, 0, 0), (0, 0, 7), float("inf"), id="beyond the last bound"),
        pytest.param((7, 7, 7), (7, 7, 7), None, id="nothing was observed"),
        pytest.param((7, 7, 7), (5, 5, 5), None, id="the router has restarted"),
    ],
)
def test_a_quantile_is_reported_as_the_bound_that_holds(
    before: tuple[int, ...], after: tuple[int, ...], bound: float | None
) -> None:
    def sample(counts: tuple[int, ...]) -> MetricSample:
        bounds = ("0.001", "0.1", "+Inf")
        return MetricSample.parse(
            "".join(f'x_bucket{{le="{le}"}} {count}\n' for le, count in zip(bounds, counts, strict=True)), "airports"
        )

    assert bound_quantile(sample(before), sample(after), "x", 0.99) == bound


def test_a_server_that_was_started_again_or_does_not_answer_has_no_rates() -> None:
    assert rate(_shard(300), _shard(5), 2.0, "lookupdb_shard_lookups_total") is None
    top = views.measure(SERVERS[:1], {SERVERS[0].name: _shard(1)}, {SERVERS[0].name: "forbidden"}, 2.0)
    assert top.servers[0].problem == "forbidden"
    assert views.render_top(top).splitlines()[1].split() == ["0", "airports-r34-s0-0", "forbidden"]
    assert MetricSample.parse("what is this {", "airports").total("x") is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59, "59 s"),
        (60, "1 min"),
        (185, "3 min 5 s"),
        (900, "15 min"),
        (3 * 3600 + 1200, "3 h 20 min"),
        (12 * 86400 + 5, "12 d"),
    ],
)
def test_ages(seconds: float, text: str) -> None:
    moment = (NOW - timedelta(seconds=seconds)).isoformat()
    assert format_age(moment, NOW) == text


def test_a_moment_that_is_none_is_not_an_error() -> None:
    assert (format_age("", NOW), format_age("soon", NOW), format_until("soon", NOW)) == (
        "",
        "?",
        "?",
    )
    assert format_age((NOW + timedelta(hours=1)).isoformat(), NOW) == "0 s", "a clock is behind"
    assert router(0).ready
