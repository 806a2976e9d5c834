"""Runs all stories, and with E2E_AGAIN=1 those that failed once more: ``python -m e2e.support.run_stories``, followed
by arguments of pytest. e2e/run calls it.

Stories that put next to no load on the cluster run side by side, before those that need it for themselves. A slow
machine may fail a story, and a second run alone forgives that. An answer that was wrong is never forgiven: then there
is no second run, and stories that passed have failed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

from e2e.support import figures, wrong_answers

CACHE: Final = ".bench/stories"
"""Where pytest keeps which stories failed, for the second run."""
PYTEST: Final = (
    "-m",
    "pytest",
    "e2e",
    "--ignore=e2e/tests",
    "-v",
    "-o",
    f"cache_dir={CACHE}",
    "--durations=0",
    "--durations-min=1",
)
SIDE_BY_SIDE: Final = ("-m", "side_by_side", "-n", "3", "--dist", "loadfile")
"""A module stays with one worker: its stories may share a namespace."""
ALONE: Final = ("-m", "not side_by_side")
ONLY_FAILED: Final = ("--last-failed", "--last-failed-no-failures", "none")
NOTHING_SELECTED: Final = 5
WRONG_CODE: Final = 1


def run_all(stories: Callable[[Sequence[str]], int], *, again: bool) -> int:
    """Run all stories and return the exit code. ``stories`` takes further arguments of pytest, and returns its code."""
    code = _worst(stories(SIDE_BY_SIDE), stories(ALONE))
    if code and code != NOTHING_SELECTED and again and not wrong_answers.read_lines():
        _say("again, only what failed …")
        code = stories(ONLY_FAILED)
        if not code:
            _say("FLAKY: what failed above has passed now; mend it")
    return WRONG_CODE if wrong_answers.read_lines() else code


def _worst(*codes: int) -> int:
    """A selection by E2E_ARGS may leave nothing of one of the parts, but not of all."""
    ran = [code for code in codes if code != NOTHING_SELECTED]
    return max(ran, default=NOTHING_SELECTED)


def main() -> int:
    """Run all stories; figures, missed goals and wrong answers are the last lines of the output."""
    began, measured = time.monotonic(), len(figures.read_lines())
    wrong_answers.FILE.unlink(missing_ok=True)
    shutil.rmtree(CACHE, ignore_errors=True)
    _say("stories …")
    code = run_all(_pytest, again=bool(os.environ.get("E2E_AGAIN")))
    _say(f"stories: {time.monotonic() - began:.0f} s, exit code {code}; figures:")
    new = figures.read_lines()[measured:]
    wrong = [f"WRONG answer: {line}" for line in wrong_answers.read_lines()]
    for line in (*new, *figures.describe_missed_goals(new), *wrong):
        print(line, flush=True)
    return code


def _pytest(further: Sequence[str]) -> int:
    command = [sys.executable, *PYTEST, *further, *sys.argv[1:]]
    return subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode


def _say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} e2e: {what}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
