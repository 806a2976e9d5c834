"""Runs all stories, and with E2E_AGAIN=1 once more those that failed: ``python -m e2e.support.tell``, followed by
arguments of pytest. e2e/run runs it.

Stories that put no load on the cluster run side by side, before those that need it for themselves. A slow machine may
fail a story, and a second run alone forgives that. An answer that was wrong is never forgiven: then there is no second
run, and stories that passed have failed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

from e2e.support import figures, wrong

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


def tell(stories: Callable[[Sequence[str]], int], *, again: bool) -> int:
    """The exit code. ``stories`` runs them, given further arguments of pytest, and returns pytest's exit code."""
    code = _worst(stories(SIDE_BY_SIDE), stories(ALONE))
    if code and code != NOTHING_SELECTED and again and not wrong.kept():
        _say("again, only what failed …")
        code = stories(ONLY_FAILED)
        if not code:
            _say("FLAKY: what failed above has passed now; mend it")
    return WRONG_CODE if wrong.kept() else code


def _worst(*codes: int) -> int:
    """A selection by E2E_ARGS may leave nothing of one of the parts, but not of all."""
    ran = [code for code in codes if code != NOTHING_SELECTED]
    return max(ran, default=NOTHING_SELECTED)


def main() -> int:
    """With figures, goals that were missed and answers that were wrong as the last lines."""
    began, measured = time.monotonic(), len(figures.lines())
    wrong.FILE.unlink(missing_ok=True)
    shutil.rmtree(CACHE, ignore_errors=True)
    _say("stories …")
    code = tell(_pytest, again=bool(os.environ.get("E2E_AGAIN")))
    _say(f"stories: {time.monotonic() - began:.0f} s, exit code {code}; figures:")
    new = figures.lines()[measured:]
    for line in (*new, *figures.missed(new), *(f"WRONG answer: {line}" for line in wrong.kept())):
        print(line, flush=True)
    return code


def _pytest(further: Sequence[str]) -> int:
    command = [sys.executable, *PYTEST, *further, *sys.argv[1:]]
    return subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode


def _say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} e2e: {what}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
