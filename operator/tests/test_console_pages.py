"""The console by HTTP, without a browser: what every answer has, who is refused, and that all texts are escaped."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import pytest
import urllib3
from operator_support.console_world import MemorySource, one, serving
from plugin_samples import HEALTHY, condition, generation, router, server

from lookupdb_operator.console.dataset import FoundKey
from lookupdb_operator.console.pages import make_environment
from lookupdb_operator.console.server import POLICY
from lookupdb_operator.console.source import Elsewhere

HOSTILE = "\"><script>alert(1)</script><img src=x onerror=alert(2)>{{7*7}}'</textarea></title>"
DATASET = "/datasets/shop/airports"


class Console:
    """A client of a console, and the source behind it."""

    def __init__(self, url: str, source: MemorySource) -> None:
        self.url, self.source = url, source
        self._pool = urllib3.PoolManager(retries=False, timeout=30)

    def ask(self, path: str, method: str = "GET", **options: Any) -> urllib3.BaseHTTPResponse:
        return self._pool.request(method, f"{self.url}{path}", **options)

    def text(self, path: str, method: str = "GET", **options: Any) -> str:
        answer = self.ask(path, method, **options)
        assert answer.status == 200, answer.data
        return answer.data.decode()

    def post(self, path: str, **fields: str) -> str:
        return self.text(path, "POST", fields=fields, encode_multipart=False)


@pytest.fixture(name="console", scope="module")
def _console() -> Iterator[Console]:
    source = MemorySource(one())
    with serving(source, hosts=("127.0.0.1", "localhost", "::1")) as (url, _):
        yield Console(url, source)


PAGES = ("/", DATASET, f"{DATASET}/lookup", f"{DATASET}/diff", "/live.json", f"{DATASET}/live.json", "/no/such")


@pytest.mark.parametrize("path", [*PAGES, "/static/console.css", "/static/console.js", "/static/icon.svg"])
def test_every_answer_has_the_policy(console: Console, path: str) -> None:
    answer = console.ask(path)
    assert answer.status == (404 if path == "/no/such" else 200)
    assert answer.headers["Content-Security-Policy"] == POLICY
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert "unsafe" not in POLICY
    assert console.ask(path, "HEAD").data == b""


@pytest.mark.parametrize("name", ["", "nothing", "x" * 300, "%2e%2e/templates/base.html", "a%00b"])
def test_another_file_is_not_found(console: Console, name: str) -> None:
    answer = console.ask(f"/static/{name}")
    assert (answer.status, answer.headers["Cache-Control"]) == (404, "no-store")
    assert b"Not Found" in answer.data


@pytest.mark.parametrize("path", PAGES[:4])
def test_pages_have_no_script_or_style_of_their_own_and_ask_nobody_else(console: Console, path: str) -> None:
    found: list[tuple[str, dict[str, str | None]]] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: found.append((tag, dict(attrs)))  # type: ignore[method-assign]
    parser.feed(console.text(path))
    for tag, attributes in found:
        assert not [name for name in attributes if name == "style" or name.startswith("on")], (tag, attributes)
        assert tag != "style"
        assert tag != "script" or attributes.get("src") == "/static/console.js"
        for name in ("src", "href", "action"):
            target = attributes.get(name)
            assert target is None or target.startswith(("/", "#")), target


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[", "localhost@evil"]
)
def test_a_page_of_another_name_cannot_read_it(console: Console, host: str) -> None:
    answer = console.ask("/", headers={"Host": host})
    assert answer.status in (400, 421)
    assert b"airports" not in answer.data


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1", "[::1]:80", "LOCALHOST"])
def test_this_machine_can(console: Console, host: str) -> None:
    assert console.ask("/", headers={"Host": host}).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
    ],
)
@pytest.mark.parametrize("page", ["lookup", "diff"])
def test_no_other_site_sends_a_form(console: Console, page: str, headers: dict[str, str]) -> None:
    console.source.asked.clear()
    answer = console.ask(f"{DATASET}/{page}", "POST", fields={"key": "a"}, headers=headers)
    assert answer.status == 403
    assert console.source.asked == []


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_is_changed(console: Console, method: str) -> None:
    for path in ("/", DATASET, "/live.json"):
        assert console.ask(path, method).status == 405
    assert console.ask(f"{DATASET}/lookup", "PUT").status == 405


def test_a_large_form_is_refused(console: Console) -> None:
    answer = console.ask(f"{DATASET}/lookup", "POST", fields={"key": "x" * 40_000}, encode_multipart=False)
    assert answer.status == 413


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/x-www-form-urlencoded; charset=none-such", 400),
        ("application/x-www-form-urlencoded", 400),
        ("multipart/form-data", 415),
        ("multipart/form-data; boundary=x", 415),
    ],
)
@pytest.mark.parametrize("page", ["lookup", "diff"])
def test_what_is_no_form_is_refused(console: Console, page: str, content_type: str, status: int) -> None:
    answer = console.ask(f"{DATASET}/{page}", "POST", body=b"--x\r\n\r\n\xff", headers={"Content-Type": content_type})
    assert answer.status == status


def test_a_value_is_shown_with_its_shard_size_time_and_generation(console: Console) -> None:
    console.source.values["KJFK"] = b'{"name":"<b>John</b>","m":1e400}'
    page = console.post(f"{DATASET}/lookup", key="KJFK", generation="g12")
    assert console.source.asked[-1] == ("KJFK", "g12")
    assert "&lt;b&gt;John&lt;/b&gt;" in page
    assert "1e400" in page
    assert "32 B" in page
    assert "µs" in page
    assert 'Missing</h2><p class="lead">no record has it (' in console.post(f"{DATASET}/lookup", key="no")
    assert "may or may not exist: shard 1 is away" in console.post(f"{DATASET}/lookup", key="away")


def test_no_other_generation_answers_for_one_that_is_not_served(console: Console) -> None:
    """Happens if a page shows the choice of generations from before a cutover."""
    console.source.asked.clear()
    page = console.post(f"{DATASET}/lookup", key="a", generation="g99")
    assert "Not looked up" in page
    assert "g99 is not served." in page
    assert console.source.asked == []
    console.post(f"{DATASET}/lookup", key="a")
    assert console.source.asked == [("a", None)]


def test_a_candidate_can_be_asked_and_compared(console: Console) -> None:
    candidate = {"generation": "g13", "rollout": "r35", "since": "2026-01-02T11:55:00Z"}
    console.source.views[0] = one(candidate=candidate, generations=[generation("g12", servedBy=7), generation("g13")])
    try:
        page = console.text(DATASET)
        assert "g13 waits for promotion" in page
        assert "kubectl lookupdb promote -n shop airports g13" in page
        console.post(f"{DATASET}/lookup", key="a", generation="g13")
        assert console.source.asked[-1] == ("a", "g13")
        choice = console.text(f"{DATASET}/diff")
        assert "<option selected>g12</option>" in choice
        assert "<option selected>g13</option>" in choice
    finally:
        console.source.views[0] = one()


def test_a_rejected_generation_is_in_the_store_and_cannot_serve(console: Console) -> None:
    message = "minRecords: expected 5, found 2; g1 is in the store for inspection"
    console.source.views[0] = one(generation="", generations=[], refused=generation("g1", message=message))
    try:
        page = console.text(DATASET)
        assert message in page
        assert "No generation can serve yet." in page
        assert "No generation is stored. A comparison needs two." in console.text(f"{DATASET}/diff")
    finally:
        console.source.views[0] = one()


def _difference(text: str) -> dict[str, Any]:
    side = {"generation": "g11", "records": 5, "where": "x", "normalize": []}
    samples = {"added": [{"key": text, "before": None, "after": text}], "removed": [], "changed": []}
    return {
        "before": side,
        "after": {**side, "generation": "g12"},
        "added": 1234,
        "removed": 0,
        "changed": 0,
        "same": 4,
        "isWhole": True,
        "samples": samples,
    }


def test_a_difference_is_shown_with_samples(console: Console) -> None:
    console.source.difference = _difference(HOSTILE)
    page = console.post(f"{DATASET}/diff", before="g11", after="g12")
    assert "1,234" in page
    assert "g11 → g12" in page
    assert "<script>alert" not in page
    console.source.difference = Elsewhere("It needs a Job.", "kubectl lookupdb diff -n shop airports g11 g12")
    page = console.post(f"{DATASET}/diff", before="g11", after="g12")
    assert "kubectl lookupdb diff -n shop airports g11 g12" in page


def test_a_bug_is_a_page_without_details(console: Console) -> None:
    console.source.difference = RuntimeError("secret")
    answer = console.ask(f"{DATASET}/diff", "POST", fields={"before": "g11", "after": "g12"}, encode_multipart=False)
    assert answer.status == 500
    assert b"secret" not in answer.data
    assert answer.headers["Content-Security-Policy"] == POLICY


@pytest.mark.parametrize(
    ("phase", "shown"), [("GateClosed", "GateClosed"), ("Serving", "Serving: GateClosed")], ids=["same", "other"]
)
def test_a_badge_says_a_reason_once(phase: str, shown: str) -> None:
    row = SimpleNamespace(level="warning", phase=phase, health="GateClosed")
    level = make_environment().globals["parts"].level  # type: ignore[attr-defined]
    assert level(row) == f'<span class="pill warning">{shown}</span>'


@pytest.mark.parametrize("phase", ["Rejected", "RolledBack"])
def test_the_badge_of_a_generation_that_may_not_serve_is_not_green(phase: str) -> None:
    row = SimpleNamespace(level="good", phase=phase, health="")
    level = make_environment().globals["parts"].level  # type: ignore[attr-defined]
    assert level(row) == f'<span class="pill plain">{phase}</span>'


def test_the_error_of_a_build_keeps_its_lines(console: Console) -> None:
    failed = "minRecords: expected 5\nchanged: override the gate:\n  lookupdb override-gates x"
    joined = "minRecords: expected 5; changed: override the gate: lookupdb override-gates x. Next."
    built = condition("Built", "False", "GateClosed", joined)
    failure = {"generation": "g13", "reason": "GateClosed", "message": failed}
    console.source.views[0] = one(conditions=[built], failure=failure)
    try:
        lines = failed.replace("\n", "\n  ") + "\n  Next."
        assert console.text(DATASET).count(lines) == 2, "in what it waits for, and in the condition"
    finally:
        console.source.views[0] = one()


def test_all_texts_are_escaped() -> None:
    conditions = [condition(one_of["type"], "False", HOSTILE, HOSTILE) for one_of in HEALTHY]
    pods = (server("r34", 0, ready=False, trouble=HOSTILE), router(0))
    hostile = one(
        "airports",
        *pods,
        conditions=conditions,
        phase=HOSTILE,
        endpoint=HOSTILE,
        refused=generation("g13", message=HOSTILE),
        failure={"generation": "g13", "reason": HOSTILE, "message": HOSTILE, "retryAt": HOSTILE},
        builds=[{"generation": "g9", "outcome": HOSTILE, "reason": HOSTILE, "message": HOSTILE, "finishedAt": HOSTILE}],
        rollouts=[
            {"rollout": "r34", "generation": "g12", "startedAt": HOSTILE, "stall": {"reason": HOSTILE, "since": ""}}
        ],
        builtAt=HOSTILE,
        schedule={"due": HOSTILE},
    )
    source = MemorySource(hostile)
    source.values[HOSTILE] = HOSTILE.encode()
    with serving(source) as (url, _):
        console = Console(url, source)
        pages = [console.text("/"), console.text(f"/?q={'%3Cscript%3E'}"), console.text(DATASET)]
        pages.append(console.post(f"{DATASET}/lookup", key=HOSTILE, generation=HOSTILE))
        pages.append(console.ask("/datasets/shop/%3Cscript%3E").data.decode())
    assert isinstance(FoundKey(HOSTILE, "g12", b"", True), FoundKey)
    for page in pages:
        assert "<script>alert" not in page
        assert "<img src=x" not in page
        assert "onerror=alert(2)>" not in page
    assert "&lt;script&gt;alert(1)" in pages[2]
    assert "{{7*7}}" in pages[2], "it is text, and no template"


def test_figures_are_those_of_the_pages_as_json(console: Console) -> None:
    row = console.ask("/live.json").json()[0]
    assert (row["namespace"], row["name"], row["generation"], row["records"]) == ("shop", "airports", "g12", 28298)
    one_dataset = console.ask(f"{DATASET}/live.json").json()
    assert one_dataset["history"] == []
    assert one_dataset["level"] == "good"
