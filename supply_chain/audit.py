"""Locked packages against the advisories of OSV, which has those of PyPI and of crates.io (RustSec).

``python -m supply_chain.audit`` ends with 1 for an advisory that ``ignored.toml`` does not name, or names no longer;
with 0 and a loud line when OSV cannot be asked: nothing is known then, and that is no finding. ``--report`` ends with 0
for new advisories too: `make check` must not fail for what was published since the last commit. An ignore list that
cannot be read fails both.
"""

from __future__ import annotations

import datetime
import json
import sys
import tomllib
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

from supply_chain.locks import CARGO_LOCK, ROOT, LockedPackage, read_cargo_lock, read_requirements

SERVICE: Final = "https://api.osv.dev/v1/querybatch"
SECONDS: Final = 10.0
"""For each request."""
IGNORED: Final = Path(__file__).with_name("ignored.toml")
REQUIREMENTS: Final = tuple(ROOT / "requirements" / f"{name}.txt" for name in ("run", "test", "bench", "docs"))
MAX_IGNORED_DAYS: Final = 180
"""Nobody remembers why, after that."""
_BATCH: Final = 500
_MAX_PAGES: Final = 20
_MAX_ANSWER_BYTES: Final = 16 << 20
_RESULT_MEMBERS: Final = {"vulns", "next_page_token"}
"""All that OSV documents: what else there is may be an error, or advisories under another name."""
_MEMBERS: Final = {"id", "package", "reason", "until"}

Ask = Callable[[bytes], bytes]
"""Posts JSON to OSV and returns its answer. Raises OSError."""


class NotAudited(Exception):
    """OSV has not answered, or not as it documents: nothing is known."""


class BadIgnoreList(Exception):
    """The list of ignored advisories cannot be taken for one."""


@dataclass(frozen=True, slots=True)
class Finding:
    """An advisory about a locked package."""

    package: LockedPackage
    advisory: str

    def __str__(self) -> str:
        return f"{self.advisory}: {self.package.name} {self.package.version} ({self.package.ecosystem})"


@dataclass(frozen=True, slots=True)
class Ignored:
    """An advisory that does not concern us, and until when that is believed."""

    advisory: str
    package: str
    reason: str
    until: datetime.date


def find_advisories(packages: Sequence[LockedPackage], ask: Ask) -> list[Finding]:
    """The advisories that OSV has of ``packages``. Raises NotAudited: never fewer than it has."""
    findings = []
    for start in range(0, len(packages), _BATCH):
        waiting: list[tuple[LockedPackage, str]] = [(package, "") for package in packages[start : start + _BATCH]]
        for _ in range(_MAX_PAGES):
            results = _ask_batch(waiting, ask)
            more = []
            for (package, _token), result in zip(waiting, results, strict=True):
                findings += [Finding(package, advisory) for advisory in _read_ids(result)]
                if token := _read_page_token(result):
                    more.append((package, token))
            waiting = more
            if not waiting:
                break
        else:
            raise NotAudited(f"expected at most {_MAX_PAGES} pages, found more")
    return sorted(set(findings), key=str)


def _ask_batch(waiting: Sequence[tuple[LockedPackage, str]], ask: Ask) -> list[dict[str, Any]]:
    queries = [
        {
            "package": {"name": package.name, "ecosystem": package.ecosystem},
            "version": package.version,
            **({"page_token": token} if token else {}),
        }
        for package, token in waiting
    ]
    try:
        answer = json.loads(ask(json.dumps({"queries": queries}).encode()))
    except (OSError, HTTPException) as error:
        raise NotAudited(f"OSV cannot be asked: {error}") from error
    except (ValueError, RecursionError) as error:
        raise NotAudited("OSV answers something that is no JSON, or too deep") from error
    results = answer.get("results") if isinstance(answer, dict) else None
    if not isinstance(results, list) or len(results) != len(queries) or not all(isinstance(r, dict) for r in results):
        raise NotAudited(f"expected {len(queries)} results of OSV, found something else")
    return results


def _read_ids(result: Mapping[str, Any]) -> list[str]:
    if unknown := set(result) - _RESULT_MEMBERS:
        raise NotAudited(f"expected results with {sorted(_RESULT_MEMBERS)}, found {sorted(unknown)[0][:100]!r}")
    advisories = result.get("vulns", [])
    if not isinstance(advisories, list):
        raise NotAudited("expected a list of advisories, found something else")
    return [_read_id(advisory) for advisory in advisories]


def _read_id(advisory: object) -> str:
    found = advisory.get("id") if isinstance(advisory, dict) else None
    if not isinstance(found, str) or not found:
        raise NotAudited("expected the ids of advisories, found something else")
    return found


def _read_page_token(result: Mapping[str, Any]) -> str:
    token = result.get("next_page_token", "")
    if not isinstance(token, str):
        raise NotAudited("expected the token of a page, found something else")
    return token


def read_ignored(text: str, today: datetime.date) -> list[Ignored]:
    """The ignore list. Raises BadIgnoreList for what says no reason, or no day on which it is looked at again."""
    try:
        entries = tomllib.loads(text).get("ignored", [])
    except tomllib.TOMLDecodeError as error:
        raise BadIgnoreList(f"expected TOML: {error}") from error
    ignored = []
    for entry in entries:
        if set(entry) != _MEMBERS or not str(entry["reason"]).strip() or type(entry["until"]) is not datetime.date:
            raise BadIgnoreList(f"expected id, package, reason and until (a date), found {entry}")
        if entry["until"] > today + datetime.timedelta(days=MAX_IGNORED_DAYS):
            raise BadIgnoreList(f"expected {entry['id']} until a day within {MAX_IGNORED_DAYS} days: {entry['until']}")
        ignored.append(Ignored(entry["id"], entry["package"], entry["reason"], entry["until"]))
    return ignored


def judge(
    findings: Sequence[Finding], ignored: Sequence[Ignored], today: datetime.date
) -> tuple[list[Finding], list[Ignored]]:
    """The findings that count, and what is ignored without need."""
    valid = {(each.advisory, each.package) for each in ignored if each.until >= today}
    counting = [each for each in findings if (each.advisory, each.package.name) not in valid]
    found = {(each.advisory, each.package.name) for each in findings}
    return counting, [each for each in ignored if (each.advisory, each.package) not in found]


def ask_osv(body: bytes) -> bytes:
    """Post ``body`` to OSV. Raises OSError."""
    request = urllib.request.Request(SERVICE, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=SECONDS) as response:  # noqa: S310 - a constant https URL
        answer: bytes = response.read(_MAX_ANSWER_BYTES + 1)
    if len(answer) > _MAX_ANSWER_BYTES:
        raise OSError(f"its answer is longer than {_MAX_ANSWER_BYTES:,} bytes")
    return answer


def audit(ask: Ask, ignore_list: str, today: datetime.date, *, only_reports: bool) -> tuple[int, list[str]]:
    """The exit code, and what to print."""
    try:
        ignored = read_ignored(ignore_list, today)
    except BadIgnoreList as error:
        return 2, [f"audit: {IGNORED.name}: {error}"]
    packages = sorted(
        {each for path in REQUIREMENTS for each in read_requirements(path)} | {*read_cargo_lock(CARGO_LOCK)}
    )
    try:
        findings = find_advisories(packages, ask)
    except NotAudited as error:
        return 0, [f"audit: SKIPPED, nothing is known of {len(packages)} locked packages: {error}"]
    counting, idle = judge(findings, ignored, today)
    lines = [f"audit: {finding}: https://osv.dev/{finding.advisory}" for finding in counting]
    lines += [f"audit: {each.advisory} of {each.package} is ignored, and not found: take it out" for each in idle]
    lines.append(
        f"audit: {len(packages)} locked packages, {len(counting)} advisories, {len(findings)} with the ignored"
    )
    if counting and only_reports:
        lines.append("audit: `make audit` fails by these: upgrade, or name them in supply_chain/ignored.toml")
    return (1 if counting and not only_reports else 0), lines


def main() -> None:
    """The command line."""
    if sys.argv[1:] not in ([], ["--report"]):
        sys.exit("expected nothing or --report")
    today = datetime.datetime.now(datetime.UTC).date()
    ignore_list = IGNORED.read_text(encoding="utf-8")
    code, lines = audit(ask_osv, ignore_list, today, only_reports=bool(sys.argv[1:]))
    print("\n".join(lines), file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
