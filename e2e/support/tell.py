"""Tells all stories, and with E2E_AGAIN=1 once more those that failed: ``python -m e2e.support.tell``, followed by
arguments of pytest. e2e/run runs it.

A slow machine may fail a story, and a second telling alone forgives that. An answer that was wrong is never forgiven:
then there is no second telling, and stories that passed have failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

from e2e.support import figures, wrong

PYTEST: Final = (
    "-m",
    "pytest",
    "e2e",
    "--ignore=e2e/tests",
    "-v",
    "-o",
    "cache_dir=.bench/stories",
    "--durations=0",
    "--durations-min=1",
)
ONLY_FAILED: Final = ("--last-failed", "--last-failed-no-failures", "none")
WRONG_CODE: Final = 1


def tell(stories: Callable[[Sequence[str]], int], *, again: bool) -> int:
    """The exit code. ``stories`` tells them, given further arguments of pytest, and returns pytest's exit code."""
    code = stories(())
    if code and again and not wrong.kept():
        _say("again, only what failed …")
        code = stories(ONLY_FAILED)
        if not code:
            _say("FLAKY: what failed above has passed now; mend it")
    return WRONG_CODE if wrong.kept() else code


def main() -> int:
    """With figures, goals that were missed and answers that were wrong as the last lines."""
    began, measured = time.monotonic(), len(figures.lines())
    wrong.FILE.unlink(missing_ok=True)
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
