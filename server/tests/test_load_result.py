"""Results from senders' reports: merged histograms, points over time, the document and its schema, text, conditions,
and whether the senders were fast enough to believe it."""

from __future__ import annotations

import random
from typing import Any

import jsonschema
import pytest
from hdrh.histogram import HdrHistogram
from support.load_results import SCHEMA, make_plan, make_result

from lookupdb.cli.load import check_bounds
from lookupdb.errors import LookupdbError, UsageError
from lookupdb.load.plan import SenderPlan, Tally, make_profile, make_target
from lookupdb.load.report import render_report
from lookupdb.load.result import (
    COUNTS,
    HIGHEST_MICROSECONDS,
    PERCENTILES,
    LatencyHistogram,
    Recording,
    list_exceeded,
    parse_condition,
    render_summary,
    thin_curve,
)
from lookupdb.load.run import LagWatch

# Histograms


def test_percentiles_are_those_of_the_values_within_a_thousandth() -> None:
    histogram, values = LatencyHistogram(), list(range(1, 100_001))
    random.Random(1).shuffle(values)
    histogram.record(values)
    assert histogram.count == 100_000
    assert histogram.mean == pytest.approx(50_000.5)
    for percentile in (50, 90, 99, 99.9):
        assert histogram.percentiles((percentile,))[0] == pytest.approx(percentile * 1000, rel=0.0011)
    assert histogram.highest == 100_000
    assert histogram.percentiles((100,)) == [100_000]


def test_a_percentile_of_few_is_exceeded_by_no_more_than_it_says() -> None:
    source = random.Random(3)
    for _ in range(200):
        values = sorted(source.randint(1, 1000) for _ in range(source.randint(1, 120)))
        histogram = LatencyHistogram()
        histogram.record(values)
        for percentile, value in zip(PERCENTILES, histogram.percentiles(PERCENTILES), strict=True):
            assert value == next(bound for bound in values if _share(values, bound) >= percentile)


def _share(values: list[int], bound: int) -> float:
    return 100 * sum(value <= bound for value in values) / len(values)


def test_one_timeout_of_sixty_is_in_the_99th_percentile_that_is_shown_and_in_the_one_that_is_judged() -> None:
    for tally in (Tally(timeouts=1), Tally(answered=1)):
        recording = Recording(1, 1)
        recording.take(0, 0, Tally(scheduled=60, answered=59, latencies=[1000] * 59))
        tally.latencies = [5_000_000]
        recording.take(0, 0.9, tally)
        recording.finish()
        document = make_result("p99>20ms", recording=recording)
        assert document["latency"]["percentiles"]["99"] == document["points"][0]["p99"] == 5_000_000
        assert document["failIf"][0]["holds"]


def test_the_histograms_of_processes_merge_into_that_of_all() -> None:
    source = random.Random(2)
    parts = [[int(source.lognormvariate(7, 1)) for _ in range(2000)] for _ in range(4)]
    merged, whole = LatencyHistogram(), LatencyHistogram()
    for part in parts:
        histogram = LatencyHistogram()
        histogram.record(part)
        merged.merge(histogram)
        whole.record(part)
    wanted = (0.0, 50.0, 90.0, 99.0, 99.9, 100.0)
    assert merged.percentiles(wanted) == whole.percentiles(wanted)
    assert (merged.count, merged.mean, merged.highest) == (whole.count, whole.mean, whole.highest)
    assert merged.encode() == whole.encode()


def test_what_is_encoded_is_read_by_the_library() -> None:
    histogram = LatencyHistogram()
    histogram.record([100, 200, 200, 5000])
    decoded = HdrHistogram.decode(histogram.encode())
    assert (decoded.get_total_count(), decoded.get_value_at_percentile(50)) == (4, 200)


def test_bounds_of_a_histogram() -> None:
    histogram = LatencyHistogram()
    assert (histogram.count, histogram.mean, histogram.highest, histogram.percentiles((99,))) == (0, None, None, [None])
    assert thin_curve(histogram) == []
    histogram.record([0, -5, 10**12])
    assert histogram.count == 3, "none is dropped"
    assert histogram.highest == HIGHEST_MICROSECONDS
    curve = thin_curve(histogram)
    assert curve[-1] == (100.0, HIGHEST_MICROSECONDS)
    assert all(percentile <= 67 for percentile, _ in curve[:-1]), "three requests have no 99th percentile"


def test_requests_that_are_lost_count_as_slower_than_any_that_was_counted() -> None:
    histogram = LatencyHistogram()
    histogram.record(range(1, 91))
    assert histogram.percentiles((50.0, 90.0, 90.1, 99.0), failure_count=10) == [50, 90, None, None]
    assert histogram.percentiles((50.0, 99.0), failure_count=1_000_000) == [None, None]
    assert thin_curve(histogram, failure_count=10)[-1] == (90.0, 90), "the curve ends where answers end"
    assert LatencyHistogram().percentiles((50.0,), failure_count=10) == [None]


# Recording


def test_reports_of_all_senders_add_up() -> None:
    document = make_result()
    assert document["requests"] == {
        "scheduled": 1120,
        "answered": 800,
        "unavailable": {"Deadline": 80},
        "httpErrors": {"401 unauthenticated": 80},
        "broken": {"reset": 80},
        "invalid": {"not <xml> & \x1b[2J": 80},
        "timeouts": 3,
        "unsent": 0,
        "heldBack": 80,
    }
    assert document["keys"] == {"asked": 880, "found": 640, "missing": 160, "unavailable": 80}
    assert document["latency"]["count"] == 803
    assert document["latency"]["max"] == 5_000_000, "what was waited for in vain counts as long as it was"
    assert document["rate"] == {"scheduled": 112.0, "answered": 80.0}
    assert document["senders"]["busy"] == 0.2
    assert [(span["name"], span["answers"]) for span in document["generations"]] == [("g1", 40), ("g2", 40)]
    assert document["generations"][1]["firstSeconds"] == 5.0


def test_points_are_seconds_and_what_ends_after_the_end_is_in_the_last() -> None:
    points = make_result()["points"]
    assert [point["begin"] for point in points] == list(range(10))
    assert [point["answered"] for point in points] == [80] * 10
    assert [point["failed"] for point in points] == [32] * 9 + [35]
    assert points[-1]["max"] == 5_000_000
    assert max(point["max"] for point in points[:-1]) < 50_000
    assert all(0 < point["p50"] < 50_000 and point["p99"] is None for point in points), "32 of 112 have failed at once"


def test_a_long_load_has_no_more_points_than_can_be_looked_at() -> None:
    recording = Recording(86_400, 1)
    for second in range(0, 86_400, 30):
        recording.take(0, second, Tally(scheduled=1, answered=1, latencies=[100]))
    recording.finish()
    assert len(recording.points) == 600
    assert sum(point["answered"] for point in recording.points) == 2880 == recording.latencies.count


def test_what_became_due_before_the_warm_up_s_last_report_counts() -> None:
    """A sender that is held up there for a moment reports the begin of measuring with the end of the warm-up."""
    recording = Recording(2.0, 1)
    recording.take(0, -0.25, Tally(scheduled=3, answered=2, latencies=[100, 300_000], busy=1.0))
    recording.take(0, 0.25, Tally(scheduled=1, answered=2, latencies=[100, 400_000], busy=1.0))
    recording.finish()
    assert (recording.total.scheduled, recording.total.answered, recording.latencies.count) == (4, 4, 4)
    assert recording.points[0]["answered"] == 4
    assert recording.total.busy == 1.0, "of the warm-up nothing is counted"


def test_a_short_load_has_one_short_point() -> None:
    recording = Recording(0.4, 1)
    recording.take(0, -0.25, Tally(busy=1.0))
    recording.take(0, 0.0, Tally(scheduled=4, answered=4, latencies=[1, 2, 3, 4]))
    recording.finish()
    assert [(point["begin"], point["seconds"], point["answered"]) for point in recording.points] == [(0, 0.4, 4)]
    assert recording.total.busy == 0, "of the warm-up nothing is counted"


# Document


def test_the_document_fits_its_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    validator = jsonschema.Draft202012Validator(SCHEMA)
    validator.validate(make_result("p99>20ms", "missing>5%"))
    validator.validate(make_result(recording=Recording(10, 2)))
    for member in make_result():
        document = make_result()
        del document[member]
        assert not validator.is_valid(document), f"without {member}"
    assert not validator.is_valid({**make_result(), "formatVersion": 2})
    assert not validator.is_valid({**make_result(), "more": 1})


def test_another_version_is_refused() -> None:
    for render in (render_summary, lambda document: render_report(document, is_page=True)):
        with pytest.raises(LookupdbError, match="not a result that this version reads"):
            render({**make_result(), "formatVersion": 2})


def test_a_plan_comes_through_the_pipe_as_it_was() -> None:
    target = make_target("https://a:1/b", "token", "g2", ["X: y"])
    plan = SenderPlan(make_plan(), target, 1, "ca.crt", ["a", "ä"])
    assert SenderPlan.from_line(plan.to_line()) == plan
    assert plan.to_line().count(b"\n") == 1


def test_senders_share_what_may_be_in_flight() -> None:
    target = make_target("http://a", None, None, [])
    parts = [
        SenderPlan(make_plan(processes=3, max_in_flight=10), target, process, None, []).max_in_flight
        for process in range(3)
    ]
    assert parts == [4, 3, 3]


# Text


def test_the_summary_says_all_outcomes_and_remarks() -> None:
    text = render_summary(make_result("p99>20ms", "errors>0"))
    for line in (
        "shop/people at http://a:80, 10.0 s measured",
        "       800 answered",
        "        80 unavailable: Deadline",
        "        80 HTTP error: 401 unauthenticated",
        "        80 broken connection: reset",
        "         3 timeout",
        "keys       640 found, 160 missing, 80 unavailable",
        "generation g2: 40 answers, from 5.0 s to 9.8 s",
        "80 requests had to wait because 10 were in flight",
        "fail-if    errors>0: holds",
        "fail-if    p99>20ms: holds",
        "latency    p50 ",
        "  p75 –  p90 –",
        "note       323 of 1,120 requests were not answered",
    ):
        assert line in text
    assert "this machine itself sent" not in text
    late = make_result()
    late["senders"] = {"lag": {**late["senders"]["lag"], "percentiles": {"50": 1, "99": 50_000}}, "busy": 0.97}
    assert "1 of 100 requests at least 50 ms late" in render_summary(late)
    assert "senders were busy 97%" in render_summary(late)


def test_keys_of_another_dataset_are_remarked() -> None:
    def summarize(hit_ratio: float, *, missing: int, found: int = 0, unavailable_keys: int = 0) -> str:
        recording, tally = Recording(10, 1), Tally(scheduled=5, answered=5, latencies=[100] * 5)
        tally.missing, tally.found, tally.unavailable_keys = missing, found, unavailable_keys
        recording.take(0, 0, tally)
        recording.finish()
        document = make_result(recording=recording)
        document["plan"]["hitRatio"] = hit_ratio
        return render_summary(document)

    told = "all keys are missing: check that keys.txt has keys of shop/people"
    assert told in summarize(1.0, missing=5)
    assert told not in summarize(1.0, missing=4, found=1)
    assert told not in summarize(1.0, missing=4, unavailable_keys=1)
    assert told not in summarize(0.0, missing=5), "all are made up"


# Conditions


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("p50>1ms", True),
        ("p50>1s", False),
        ("p70>1s", False),
        ("p75>=5s", True),
        ("p75 < 5s", False),
        ("p99.9>=100s", True),
        ("max>4.9s", True),
        ("max>5000001us", True),
        ("max<100s", False),
        ("mean>1s", True),
        ("unavailable>0", True),
        ("unavailable>80", False),
        ("unavailable>=80", True),
        ("errors>322", True),
        ("errors>323", False),
        ("errors>28%", True),
        ("errors>29%", False),
        ("missing>18%", True),
        ("missing>19%", False),
        ("http-errors>79", True),
        ("broken<81", True),
        ("invalid<=80", True),
        ("timeouts>2", True),
        ("unsent>0", False),
        ("held-back>0", True),
        ("mixed>0", False),
        ("generations>1", True),
        ("rate<80", False),
        ("rate<81", True),
    ],
)
def test_a_condition_holds_or_does_not(condition: str, holds: bool) -> None:
    (judged,) = make_result(condition)["failIf"]
    assert (judged["condition"], judged["holds"]) == (condition, holds), judged


def _record(*, answered: int, **ends: int) -> Recording:
    """So many answers after 100 µs, and the given other ends: a name of a failure, timeouts, unsent."""
    recording, waits = Recording(10, 1), ends.get("timeouts", 0) + ends.get("unsent", 0)
    tally = Tally(scheduled=answered + sum(ends.values()), answered=answered)
    tally.timeouts, tally.unsent = ends.pop("timeouts", 0), ends.pop("unsent", 0)
    tally.latencies = [100] * answered + [5_000_000] * waits
    for kind, count in ends.items():
        tally.failures[kind] = {"label": count} if count else {}
        tally.failure_latencies += [10] * count
    recording.take(0, 0, tally)
    recording.finish()
    return recording


@pytest.mark.parametrize("condition", ["p50>500ms", "p99>500ms", "p99.9<1ms", "max>=1s", "mean>1s", "mean<1us"])
@pytest.mark.parametrize("end", ["broken", "unavailable", "httpErrors", "invalid", "timeouts", "unsent"])
@pytest.mark.parametrize("count", [0, 100], ids="{} requests".format)
def test_of_no_answers_each_condition_on_a_latency_holds(condition: str, end: str, count: int) -> None:
    document = make_result(condition, recording=_record(answered=0, **{end: count}))
    assert document["failIf"] == [{"condition": condition, "value": None, "holds": True}]
    (sentence,) = list_exceeded([parse_condition(condition)], document)
    assert f"there is no such latency: 0 of {count} requests were answered" in sentence


@pytest.mark.parametrize("end", ["broken", "unavailable", "httpErrors", "invalid", "timeouts", "unsent"])
def test_requests_without_an_answer_are_slower_than_any_answer(end: str) -> None:
    """Whatever the bound: nobody knows when they would have been answered."""

    def judge(*texts: str, **ends: int) -> list[bool]:
        return [judged["holds"] for judged in make_result(*texts, recording=_record(**ends))["failIf"]]

    texts = ("p98>500ms", "p99>500ms", "p99>60s", "max>60s", "mean>60s")
    assert judge(*texts, answered=99, **{end: 1}) == [False, False, False, True, True]
    assert judge(*texts, answered=98, **{end: 2}) == [False, True, True, True, True]
    assert judge("p50>500ms", answered=10, **{end: 90}) == [True]
    assert judge(*texts, answered=100) == [False] * 5


def test_what_has_no_answer_is_shown_as_none() -> None:
    document = make_result(recording=_record(answered=0, broken=100))
    jsonschema.validate(document, SCHEMA)
    latency, (point,) = document["latency"], document["points"]
    assert (latency["mean"], latency["max"], {*latency["percentiles"].values()}) == (None, None, {None})
    assert (point["p50"], point["p99"], point["max"]) == (None, None, None)
    assert latency["curve"] == []
    assert "latency    p50 –  p75 –" in render_summary(document)
    assert "0 µs" not in render_summary(document)
    for is_page in (True, False):
        text = render_report(document, is_page=is_page)
        assert "p50 –" in text
        assert "0 µs" not in text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "p99",
        "p99>20",
        "p99>20%",
        "p100>1s",
        "p99=1ms",
        "unavailable>1ms",
        "rate<9%",
        "color>1",
        "missing>x",
        "p99>-1ms",
    ],
)
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a condition"):
        parse_condition(text)


def test_every_count_can_be_a_condition() -> None:
    for name in COUNTS:
        (judged,) = make_result(f"{name}>=0")["failIf"]
        assert judged["holds"] is True


# Bounds


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"rate": 1000, "duration": 59}, None),
        ({"rate": 1001}, "1,001 requests/s"),
        ({"rate": 1000, "batch": 101}, "101,000 keys/s"),
        ({"duration": 60}, "61 s, the warm-up included"),
        ({"profile": make_profile(1, 2000, ramp=10, duration=10, warmup=0)}, "2,000 requests/s"),
    ],
)
def test_more_than_the_default_bound_has_to_be_asked_for(changes: dict[str, Any], told: str | None) -> None:
    if told is None:
        check_bounds(make_plan(**changes))
        return
    with pytest.raises(UsageError, match=told) as caught:
        check_bounds(make_plan(**changes))
    assert "--beyond-default-bounds" in str(caught.value)


def test_senders_that_stay_behind_end_the_load() -> None:
    watch = LagWatch()
    for step in range(40):
        watch.check(step / 4, [100, 200_000, 300_000] if step % 8 else [100])
    for step in range(40, 52):
        watch.check(step / 4, [])
    for step in range(52, 62):
        watch.check(step / 4, [150_000])
    with pytest.raises(LookupdbError, match="does not keep up"):
        watch.check(16.0, [150_000])
