"""What the console shows, without a server: facts, figures, charts, values, and the scrapes behind them."""

from __future__ import annotations

import math
import random
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from operator_support.console_world import MemorySource, metrics, one
from plugin_samples import HEALTHY, condition, dataset, generation, router, server, view

from lookupdb_operator.console import facts, pages, watch
from lookupdb_operator.console.dataset import FoundKey
from lookupdb_operator.console.figures import (
    MAX_BUCKETS,
    DatasetRates,
    PodRates,
    PodReading,
    interpolate_quantile,
    read_figures,
    sum_rates,
)
from lookupdb_operator.console.watch import POINTS, History, Watch

NOW = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("ready", "degraded", "level"),
    [("True", "False", "good"), ("True", "True", "warning"), ("False", "True", "bad"), ("Unknown", "False", "unknown")],
)
def test_the_level_of_a_dataset_is_that_of_its_conditions(ready: str, degraded: str, level: str) -> None:
    conditions = [condition("Ready", ready, "X"), condition("Degraded", degraded, "Y")]
    assert facts.describe_row(dataset(conditions=conditions)).level == level


def test_a_dataset_that_nobody_has_looked_at_is_described_too() -> None:
    empty = facts.describe_dataset(view(**dict.fromkeys(dataset().status)))
    assert empty.row.level == "unknown"
    assert (empty.generations, empty.rollouts, empty.builds, empty.routers, empty.candidate) == ((), (), (), None, {})


def test_commands_are_those_of_the_present_state() -> None:
    def commands(**status: Any) -> list[str]:
        found = view(**status)
        return [action.command for action in facts.list_actions(found.dataset, facts.describe_dataset(found))]

    plain = commands()
    assert "kubectl lookupdb rollback -n shop airports" in plain, "g11 has served"
    assert not [command for command in plain if "promote" in command or "override" in command]
    candidate = commands(candidate={"generation": "g13", "rollout": "r35", "since": "2026-01-02T11:55:00Z"})
    assert candidate[:3] == [
        "kubectl lookupdb get -n shop airports KEY --generation g13",
        "kubectl lookupdb promote -n shop airports g13",
        "kubectl lookupdb reject -n shop airports g13",
    ]
    rejected = commands(refused=generation("g13", message="minRecords"))
    assert "kubectl lookupdb override-gates -n shop airports g13" in rejected
    pinned = view(spec={"generation": "g11"})
    actions = facts.list_actions(pinned.dataset, facts.describe_dataset(pinned))
    assert "kubectl lookupdb unpin -n shop airports" in [action.command for action in actions]


def test_figures_of_a_scrape_are_sums_over_processes_and_lookups_alone() -> None:
    text = metrics(router(0), 40, (10, 30, 40), failed=3)
    text += 'lookupdb_router_request_duration_seconds_count{endpoint="other",outcome="ok"} 900\n'
    text += 'lookupdb_router_private_bytes{process="broken" 7\nlookupdb_router_keys_missing_total 2.0\nnonsense\n'
    reading = read_figures(text, "airports")
    assert (reading.lookups, reading.requests, reading.failed, reading.private_bytes) == (42, 43, 3, 124)
    assert reading.buckets == {0.001: 10, 0.01: 30, math.inf: 40}


@pytest.mark.parametrize("number", ["+Inf", "-Inf", "NaN", "-1", "1e308", "x"])
def test_figures_that_a_broken_pod_makes_up_break_no_page(number: str) -> None:
    first, last = (read_figures(f"lookupdb_router_keys_found_total {text}\n", "airports") for text in ("0", number))
    rates = PodRates.measure(first, last, 2.0)
    assert rates is not None
    found = sum_rates([rates, rates], [first, last])
    assert found.lookups is not None
    assert pages.draw("Lookups", [0.0], [("lookups", [found.lookups])], pages.format_number).top
    line = 'lookupdb_router_request_duration_seconds_bucket{{endpoint="lookup",outcome="ok",le="{}"}} 1\n'
    text = "".join(map(line.format, (number, *range(10_000))))
    assert len(read_figures(text, "airports").buckets) <= MAX_BUCKETS


def test_quantiles_are_those_of_prometheus() -> None:
    buckets = {0.001: 10.0, 0.01: 30.0, math.inf: 40.0}
    assert interpolate_quantile(buckets, 0.125) == pytest.approx(0.0005)
    assert interpolate_quantile(buckets, 0.5) == pytest.approx(0.0055)
    assert interpolate_quantile(buckets, 0.99) == 0.01, "beyond the last bound"
    assert interpolate_quantile({}, 0.5) is None
    assert interpolate_quantile({0.001: 0.0, math.inf: 0.0}, 0.5) is None
    assert interpolate_quantile({0.001: 5.0}, 0.5) is None, "without the last bucket nothing is known"


def _rates(lookups: float, failed: float = 0.0, **buckets: float) -> PodRates:
    return PodRates(lookups, failed, {float(bound[1:]): n for bound, n in buckets.items()})


def test_a_dataset_has_the_sums_of_its_pods() -> None:
    memory = [PodReading(private_bytes=3), PodReading(private_bytes=4)]
    found = sum_rates([_rates(5, 1), _rates(7)], memory)
    assert (found.lookups, found.failed, found.private_bytes) == (12, 1, 7)
    assert sum_rates([], []) == DatasetRates()


def test_a_shared_router_counts_each_dataset_apart() -> None:
    lines = [
        'lookupdb_router_keys_found_total{namespace="shop",dataset="airports"} 5',
        'lookupdb_router_keys_found_total{namespace="shop",dataset="people"} 70',
        'lookupdb_router_keys_missing_total{dataset="airports"} 2',
        'lookupdb_router_private_bytes{namespace="",dataset="",process="worker-0"} 9',
        'lookupdb_router_request_duration_seconds_count{dataset="people",endpoint="lookup",outcome="ok"} 70',
        'lookupdb_router_request_duration_seconds_count{dataset="airports",endpoint="batch",outcome="ok"} 4',
    ]
    reading = read_figures("\n".join(lines), "airports")
    assert (reading.lookups, reading.requests, reading.private_bytes) == (7, 4, 9)


def test_after_a_restart_rates_are_unknown_once() -> None:
    assert PodRates.measure(PodReading(lookups=10), PodReading(lookups=3), 2.0) is None
    assert PodRates.measure(PodReading(requests=10), PodReading(requests=3), 2.0) is None
    found = PodRates.measure(PodReading(lookups=10), PodReading(lookups=16), 2.0)
    assert found is not None
    assert found.lookups == 3


def test_a_history_is_bounded_and_keeps_what_is_newest() -> None:
    history = History()
    for second in range(3 * POINTS):
        history.add(second, DatasetRates(lookups=second, p99=None))
    points = list(history)
    assert [point.at for point in points] == list(range(2 * POINTS, 3 * POINTS))
    assert points[-1].lookups == 3 * POINTS - 1
    assert math.isnan(points[-1].p99)


async def test_scrapes_give_rates_and_a_pod_that_fails_gives_none(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    source = MemorySource(one("airports", server("r34", 0), router(0), router(1)))
    watching = Watch(source)
    for count in (0, 20, 40):
        source.texts["airports-router-0"] = metrics(router(0), count, (count, count, count))
        source.texts["airports-r34-s0-0"] = metrics(server("r34", 0), 10 * count)
        await watching.scrape()
        clock[0] += 2.0
    rates = watching.rates("shop", "airports")
    assert rates.lookups == 10
    assert rates.p99 == pytest.approx(0.00099)
    assert rates.private_bytes == 248, "the router that does not answer has no figures"
    assert [point.lookups for point in watching.history("shop", "airports")][1:] == [10, 10]
    source.views = []
    await watching.scrape()
    assert watching.rates("shop", "airports") == DatasetRates()
    assert watching.history("shop", "airports") == ()


@pytest.mark.parametrize("is_ready", [True, False])
async def test_figures_of_routers_that_no_longer_answer_are_unknown(
    monkeypatch: pytest.MonkeyPatch, is_ready: bool
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    source = MemorySource(one("airports", router(0)))
    watching = Watch(source)
    for count in (0, 20):
        source.texts["airports-router-0"] = metrics(router(0), count, (count, count, count))
        await watching.scrape()
        clock[0] += 2.0
    assert watching.rates("shop", "airports").lookups == 10
    source.texts.clear()
    source.views = [one("airports", replace(router(0), ready=is_ready))]
    await watching.scrape()
    assert watching.rates("shop", "airports") == DatasetRates()
    assert math.isnan(watching.history("shop", "airports")[-1].lookups), "charts call the last point that of now"


async def test_scrapes_are_bounded_in_number_and_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    pods = [server("r34", shard) for shard in range(400)]
    source = MemorySource(one("airports", *pods, router(0)))
    source.texts = {pod.name: metrics(pod, 1) for pod in (*pods, router(0))}
    read: list[str] = []
    original = source.read_metrics

    async def note(about: Any, pod: Any) -> str:
        read.append(pod.name)
        return await original(about, pod)

    monkeypatch.setattr(source, "read_metrics", note)
    watching = Watch(source)
    await watching.scrape()
    assert len(read) == math.ceil(400 * watch.SHOWN_SECONDS / watch.SHARD_SECONDS) + 1
    assert source.most_at_once <= watch.MAX_CONCURRENT
    for _ in range(40):
        clock[0] += watch.SHOWN_SECONDS
        await watching.scrape()
    assert set(read) == set(source.texts), "each one in its turn"
    read.clear()
    clock[0] += watch.SHOWN_SECONDS
    watching.show("shop", "airports")
    await watching.scrape()
    assert len(read) == 401, "what is looked at is read at once"


def test_a_chart_has_a_round_top_and_breaks_where_nothing_is_known() -> None:
    values = [3.0, math.nan, 7.0, 8.0]
    chart = pages.draw("Rate", [0, 30, 60, 90], [("r", values)], pages.format_number)
    assert (chart.top, chart.middle, chart.lines[0].last, chart.seconds) == ("10", "5", "8", 90)
    assert chart.lines[0].path.split(" ")[0].startswith("M0.0")
    assert chart.lines[0].path.count("M") == 2
    assert chart.summary == "Rate: now r 8; highest 8"
    assert pages.draw("Rate", [], [("r", [])], pages.format_number).summary == "Rate: no figures yet"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (math.nan, "–"), (0, "0"), (0.25, "0.2"), (9.96, "10.0"), (12345.6, "12,346")],
)
def test_numbers(value: float | None, text: str) -> None:
    assert pages.format_number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "–"), (0.0, "0 µs"), (8.5e-5, "85 µs"), (0.00124, "1.24 ms"), (2.0, "2 s")]
)
def test_latencies(seconds: float | None, text: str) -> None:
    assert pages.format_latency(seconds) == text


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            '{"a":1e400,"b":[1,{}],"c":[]}',
            ["{", '  "a": 1e400,', '  "b": [', "    1,", "    {}", "  ],", '  "c": []', "}"],
        ),
        ('"a{b]\\"c"', ['"a{b]\\"c"']),
        ("[]", ["[]"]),
        ("12345678901234567890", ["12345678901234567890"]),
    ],
)
def test_json_is_indented_and_keeps_its_numbers_and_texts(text: str, lines: list[str]) -> None:
    assert pages.indent_json(text).splitlines() == lines


def test_indented_json_says_the_same() -> None:
    import json

    choice = random.Random(7)

    def make(depth: int) -> Any:
        kind = choice.randrange(6 if depth else 4)
        if kind == 4:
            return [make(depth - 1) for _ in range(choice.randrange(4))]
        if kind == 5:
            return {choice.choice(["a", 'b"', "{", "ü,:"]): make(depth - 1) for _ in range(choice.randrange(4))}
        return [choice.random(), "[\\", None, choice.randrange(9)][kind]

    for _ in range(300):
        value = make(4)
        assert json.loads(pages.indent_json(json.dumps(value))) == value


def test_a_long_value_is_cut_and_says_so() -> None:
    text, is_whole = pages.show_value(b'"' + b"x" * 1_000_000 + b'"', is_json=True)
    assert (len(text), is_whole) == (pages.MAX_SHOWN_CHARACTERS, False)
    assert pages.show_value(b"\xff", is_json=False) == ("\\xff", True)


def test_the_shard_of_a_key_is_that_of_the_router() -> None:
    about = dataset(generations=[generation("g12", shards=7, normalize=["lowercase"])])
    shard = pages.find_shard(about, FoundKey("KJFK", "g12", b"1", True))
    assert shard == pages.find_shard(about, FoundKey("kjfk", "g12", b"1", True))
    assert shard is not None
    assert 0 <= shard < 7
    assert pages.find_shard(about, FoundKey("kjfk", "g9", b"1", True)) is None


def test_the_list_is_found_sorted_and_paged() -> None:
    views = [one(f"set-{number:03}", records=number) for number in range(250)]
    views[7] = one("set-007", conditions=[condition("Ready", "False", "X"), *HEALTHY[1:]])
    watching = Watch(MemorySource())
    first = pages.describe_fleet(views, watching, {})
    assert (first.entries[0].row.name, len(first.entries), first.pages, first.found) == ("set-007", 100, 3, 250)
    last = pages.describe_fleet(views, watching, {"page": "3", "sort": "records"})
    assert [entry.row.records for entry in last.entries][-1] == 0
    found = pages.describe_fleet(views, watching, {"q": "SHOP/set-01", "sort": "no such", "page": "99999"})
    assert (found.found, found.page, found.sort) == (10, 1, "health")
    assert found.links(page=2) == "q=SHOP%2Fset-01&page=2"
