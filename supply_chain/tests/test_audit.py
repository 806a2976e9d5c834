"""The audit: an advisory fails it, a network that is away does not, and what is no answer is not taken for a clean one.

Answers are as OSV's querybatch documents them; OSV itself is asked by nobody here.
"""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest
from supply_chain import audit as module
from supply_chain.audit import BadIgnoreList, Finding, Ignored, NotAudited, audit, find_advisories, judge, read_ignored
from supply_chain.locks import CRATES, PYPI, LockedPackage

TODAY = datetime.date(2026, 3, 1)
JINJA = LockedPackage(PYPI, "jinja2", "2.10")
TIME = LockedPackage(CRATES, "time", "0.1.44")
CLEAN = LockedPackage(PYPI, "click", "8.1.0")
ADVISORY = {"id": "GHSA-462w-v97r-4m45", "modified": "2024-03-14T05:33:55.246084Z"}
RUST = {"id": "RUSTSEC-2020-0071", "modified": "2023-11-08T04:03:33.573142Z"}


class Osv:
    """Answers by package, a page for each list."""

    def __init__(self, known: dict[str, list[list[Any]]]) -> None:
        self.known = known
        self.asked: list[dict[str, Any]] = []

    def __call__(self, body: bytes) -> bytes:
        queries = json.loads(body)["queries"]
        self.asked += queries
        return json.dumps({"results": [self.result(query) for query in queries]}).encode()

    def result(self, query: dict[str, Any]) -> dict[str, Any]:
        pages = self.known.get(query["package"]["name"], [])
        number = int(query.get("page_token", 0))
        more = {"next_page_token": str(number + 1)} if number + 1 < len(pages) else {}
        return ({"vulns": pages[number]} if pages else {}) | more


def test_advisories_of_both_ecosystems_and_of_all_pages() -> None:
    osv = Osv({"jinja2": [[ADVISORY], [{"id": "PYSEC-2019-217"}]], "time": [[RUST]]})
    found = find_advisories([JINJA, TIME, CLEAN], osv)
    assert {(each.package.name, each.advisory) for each in found} == {
        ("jinja2", ADVISORY["id"]),
        ("jinja2", "PYSEC-2019-217"),
        ("time", RUST["id"]),
    }
    assert osv.asked[1] == {"package": {"name": "time", "ecosystem": "crates.io"}, "version": "0.1.44"}
    assert osv.asked[-1]["page_token"] == "1"


def test_many_packages_are_asked_for_in_parts() -> None:
    packages = [LockedPackage(PYPI, f"p{number}", "1") for number in range(1201)]
    assert [each.advisory for each in find_advisories(packages, Osv({"p1200": [[ADVISORY]]}))] == [ADVISORY["id"]]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"<html>",
        b"[]",
        b"{}",
        b'{"results": []}',
        b'{"results": [{}]}',
        b'{"results": [null, {}]}',
        b'{"results": [{"vulns": [{}]}, {}]}',
        b'{"results": [{"vulns": 1}, {}]}',
        b'{"results": [{"vulns": {}}, {}]}',
        b'{"results": [{"vulns": ""}, {}]}',
        b'{"results": [{"vulns": null}, {}]}',
        b'{"results": [{"vulns": [{"id": ""}]}, {}]}',
        b'{"results": [{"vulns": [{"id": 7}]}, {}]}',
        b'{"results": [{"error": "x"}, {"code": 3}]}',
        b'{"results": [{"vulnerabilities": [{"id": "X"}]}, {}]}',
        b'{"results": [{"vulns": [], "error": "x"}, {}]}',
        b'{"results": [{"next_page_token": 1}, {}]}',
        b'{"results": [{"next_page_token": null}, {}]}',
        b"[" * 200_000,
    ],
)
def test_what_is_no_answer_is_not_taken_for_a_clean_one(answer: bytes) -> None:
    with pytest.raises(NotAudited):
        find_advisories([JINJA, TIME], lambda _: answer)


def test_pages_without_end() -> None:
    endless = json.dumps({"results": [{"next_page_token": "again"}]}).encode()
    with pytest.raises(NotAudited, match="pages"):
        find_advisories([JINJA], lambda _: endless)


IGNORE = """[[ignored]]
id = "GHSA-462w-v97r-4m45"
package = "jinja2"
reason = "its sandbox is not used"
until = {until}
"""


def test_who_is_ignored_is_so_for_a_reason_and_for_a_time() -> None:
    findings = [Finding(JINJA, str(ADVISORY["id"])), Finding(TIME, RUST["id"])]
    (ignored,) = read_ignored(IGNORE.format(until="2026-03-01"), TODAY)
    assert ignored == Ignored("GHSA-462w-v97r-4m45", "jinja2", "its sandbox is not used", TODAY)
    assert judge(findings, [ignored], TODAY) == ([findings[1]], [])
    assert judge(findings, [ignored], TODAY + datetime.timedelta(days=1)) == (findings, []), "its time is over"
    assert judge(findings[1:], [ignored], TODAY) == ([findings[1]], [ignored]), "nothing has it any more"
    same_of_another = Finding(CLEAN, str(ADVISORY["id"]))
    assert judge([same_of_another], [ignored], TODAY)[0] == [same_of_another]


@pytest.mark.parametrize(
    "text",
    [
        "[[ignored",
        IGNORE.format(until="2026-09-30"),
        IGNORE.format(until='"2026-03-02"'),
        IGNORE.format(until="2026-03-02T00:00:00Z"),
        IGNORE.format(until="2026-03-02").replace("its sandbox is not used", " "),
        IGNORE.format(until="2026-03-02").replace("reason", "why"),
    ],
)
def test_a_list_that_says_too_little_or_too_much_is_refused(text: str) -> None:
    with pytest.raises(BadIgnoreList):
        read_ignored(text, TODAY)


class TestTheWhole:
    def run(self, ask: Any, ignored: str = "", *, only_reports: bool = False) -> tuple[int, str]:
        code, lines = audit(ask, ignored, TODAY, only_reports=only_reports)
        return code, "\n".join(lines)

    def test_an_advisory_of_a_locked_package_fails(self) -> None:
        code, text = self.run(Osv({"aiohttp": [[ADVISORY]], "pyo3": [[RUST]]}))
        assert code == 1
        assert f"audit: {ADVISORY['id']}: aiohttp " in text
        assert f"audit: {RUST['id']}: pyo3 " in text

    def test_make_check_only_tells_of_it(self) -> None:
        code, text = self.run(Osv({"aiohttp": [[ADVISORY]]}), only_reports=True)
        assert code == 0
        assert f"audit: {ADVISORY['id']}: aiohttp " in text
        assert "`make audit` fails" in text

    def test_an_ignored_one_passes(self) -> None:
        ignored = IGNORE.format(until="2026-03-02").replace("jinja2", "aiohttp")
        assert self.run(Osv({"aiohttp": [[ADVISORY]]}), ignored)[0] == 0
        code, text = self.run(Osv({}), ignored)
        assert (code, "take it out" in text) == (0, True)

    def test_no_network_is_no_finding_and_is_said(self) -> None:
        def away(_: bytes) -> bytes:
            raise OSError("no route to host")

        code, text = self.run(away)
        assert code == 0
        assert "SKIPPED, nothing is known" in text
        assert "no route to host" in text

    def test_an_answer_that_is_unknown_is_no_finding_and_is_said(self) -> None:
        def fail_each(body: bytes) -> bytes:
            return json.dumps({"results": [{"error": "x"} for _ in json.loads(body)["queries"]]}).encode()

        code, text = self.run(fail_each)
        assert (code, "SKIPPED, nothing is known" in text, "'error'" in text) == (0, True, True)

    def test_a_bad_list_fails_also_without_a_network(self) -> None:
        for only_reports in (False, True):
            assert self.run(Osv({}), "[[ignored]]", only_reports=only_reports)[0] == 2

    def test_what_only_tests_use_is_asked_for_too(self) -> None:
        osv = Osv({})
        self.run(osv)
        assert {"aiohttp", "hypothesis", "gunicorn", "pyo3"} <= {query["package"]["name"] for query in osv.asked}


def test_our_own_list_can_be_read() -> None:
    """Not that its days are to come: `make check` of an old commit still passes."""
    read_ignored(module.IGNORED.read_text(encoding="utf-8"), datetime.datetime.now(datetime.UTC).date())
