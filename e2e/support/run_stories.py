"""Runs all stories, and with E2E_AGAIN=1 those that failed once more: ``python -m e2e.support.run_stories``, followed
by arguments of pytest. e2e/run calls it.

A node that is lost is a wait of minutes: stories that disturb no other pass it, on the nodes that are left. Those that
put next to no load on the cluster run side by side, those under load two at a time. Behind them come the stories that
need the cluster for themselves. A slow machine may fail a story, and a second run alone forgives that. An answer that
was wrong is never forgiven: then there is no second run, and stories that passed have failed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from e2e.support import figures, nodes, wrong_answers
from e2e.support.command import CommandFailed

PYTEST: Final = ("-m", "pytest", "e2e", "--ignore=e2e/tests", "-v", "--durations=0", "--durations-min=1")
ONLY_FAILED: Final = ("--last-failed", "--last-failed-no-failures", "none")
CACHES: Final = ".bench/stories"
NOTHING_SELECTED: Final = 5
WRONG_CODE: Final = 1


@dataclass(frozen=True, slots=True)
class Part:
    """Stories that run in one pytest."""

    name: str
    selection: str
    """The expression of marks that selects them."""
    workers: int = 0
    """How many run at a time. A module stays with one worker: its stories may share a namespace."""

    @property
    def cache(self) -> tuple[str, ...]:
        """Where pytest keeps which of them failed."""
        return ("-o", f"cache_dir={CACHES}/{self.name}")

    @property
    def arguments(self) -> tuple[str, ...]:
        """For a first run."""
        distributed = ("-n", str(self.workers), "--dist", "loadfile", "--no-loadscope-reorder") if self.workers else ()
        return ("-m", self.selection, *self.cache, *distributed)

    @property
    def arguments_again(self) -> tuple[str, ...]:
        """For a second run, one at a time."""
        return ("-m", self.selection, *self.cache, *ONLY_FAILED)


NODE_LOST: Final = Part("node-lost", "node_lost")
SIDE_BY_SIDE: Final = Part("side-by-side", "side_by_side", workers=4)
IN_PAIRS: Final = Part("in-pairs", "in_pairs", workers=2)
ALONE: Final = Part("alone", "not (node_lost or side_by_side or in_pairs)")


def run_all(stories: Callable[[Part, bool], int], *, again: bool, wait_lost: Callable[[Future[int]], None]) -> int:
    """Run all stories and return the exit code. ``stories`` runs a part, the second time only what failed, and returns
    pytest's code; ``wait_lost`` waits until the lost node takes no more pods, or that story has ended without one."""
    with ThreadPoolExecutor(1) as executor:
        lost = executor.submit(stories, NODE_LOST, False)
        wait_lost(lost)
        codes = {part: stories(part, False) for part in (SIDE_BY_SIDE, IN_PAIRS)}
        codes[NODE_LOST] = lost.result()
    codes[ALONE] = stories(ALONE, False)
    if again and not wrong_answers.read_lines():
        for part in (part for part, code in codes.items() if code not in (0, NOTHING_SELECTED)):
            _say(f"again, only what failed of {part.name} …")
            codes[part] = stories(part, True)
            if not codes[part]:
                _say("FLAKY: what failed above has passed now; mend it")
    return WRONG_CODE if wrong_answers.read_lines() else _worst(*codes.values())


def _worst(*codes: int) -> int:
    """A selection by E2E_ARGS may leave nothing of some of the parts, but not of all."""
    ran = [code for code in codes if code != NOTHING_SELECTED]
    return max(ran, default=NOTHING_SELECTED)


def main() -> int:
    """Run all stories; figures, missed goals and wrong answers are the last lines of the output."""
    began, measured = time.monotonic(), len(figures.read_lines())
    wrong_answers.FILE.unlink(missing_ok=True)
    shutil.rmtree(CACHES, ignore_errors=True)
    _say("stories …")
    code = run_all(_pytest, again=bool(os.environ.get("E2E_AGAIN")), wait_lost=_wait_lost)
    _say(f"stories: {time.monotonic() - began:.0f} s, exit code {code}; figures:")
    new = figures.read_lines()[measured:]
    wrong = [f"WRONG answer: {line}" for line in wrong_answers.read_lines()]
    for line in (*new, *figures.describe_missed_goals(new), *wrong):
        print(line, flush=True)
    return code


def _pytest(part: Part, only_failed: bool) -> int:
    """The output of the story that others run beside is printed when it has ended."""
    began = time.monotonic()
    arguments = part.arguments_again if only_failed else part.arguments
    command = [sys.executable, *PYTEST, *arguments, *sys.argv[1:]]
    output = subprocess.PIPE if part is NODE_LOST else None
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, check=False, text=True)
    if ended.stdout:
        print(ended.stdout, flush=True)
    _say(f"stories {part.name}: {time.monotonic() - began:.0f} s, exit code {ended.returncode}")
    return ended.returncode


def _wait_lost(story: Future[int]) -> None:
    while not story.done():
        with contextlib.suppress(CommandFailed):
            if nodes.has_cordoned():
                return
        time.sleep(2)


def _say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} e2e: {what}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
