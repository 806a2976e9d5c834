"""Runs all scenarios: ``python -m e2e.support.run_scenarios``, followed by arguments of pytest. e2e/run calls it.

Scenarios with next to no load run four at a time, beside the scenario that loses a node, which mostly waits. Then those
under load run three at a time. The rest need the cluster for themselves and run last, one by one.

With E2E_AGAIN=1, failed scenarios run once more, because a slow machine may fail one. Wrong answers are never forgiven:
they fail the run, and nothing runs again.
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
CACHES: Final = ".bench/scenarios"
NOTHING_SELECTED: Final = 5
WRONG_CODE: Final = 1


@dataclass(frozen=True, slots=True)
class Part:
    """Scenarios that run in one pytest."""

    name: str
    selection: str
    """The expression that selects them by marks."""
    workers: int = 0
    """The number that run at a time. A module stays with one worker, because its scenarios may share a namespace."""

    @property
    def cache(self) -> tuple[str, ...]:
        """The options for pytest's list of failures."""
        return ("-o", f"cache_dir={CACHES}/{self.name}")

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of a first run."""
        distributed = ("-n", str(self.workers), "--dist", "loadfile", "--no-loadscope-reorder") if self.workers else ()
        return ("-m", self.selection, *self.cache, *distributed)

    @property
    def arguments_again(self) -> tuple[str, ...]:
        """The arguments of a second run, one at a time."""
        return ("-m", self.selection, *self.cache, *ONLY_FAILED)


NODE_LOST: Final = Part("node-lost", "node_lost")
SIDE_BY_SIDE: Final = Part("side-by-side", "side_by_side", workers=4)
UNDER_LOAD: Final = Part("under-load", "under_load", workers=3)
ALONE: Final = Part("alone", "not (node_lost or side_by_side or under_load)")


def run_all(scenarios: Callable[[Part, bool], int], *, again: bool, wait_lost: Callable[[Future[int]], None]) -> int:
    """Run all scenarios and return the exit code. ``scenarios`` runs a part, the second time only what failed, and
    returns pytest's code. ``wait_lost`` waits until the lost node takes no more pods, or its scenario has ended."""
    with ThreadPoolExecutor(1) as executor:
        lost = executor.submit(scenarios, NODE_LOST, False)
        wait_lost(lost)
        codes = {SIDE_BY_SIDE: scenarios(SIDE_BY_SIDE, False), NODE_LOST: lost.result()}
    codes |= {part: scenarios(part, False) for part in (UNDER_LOAD, ALONE)}
    if again and not wrong_answers.read_lines():
        for part in (part for part, code in codes.items() if code not in (0, NOTHING_SELECTED)):
            _say(f"again, only what failed of {part.name} …")
            codes[part] = scenarios(part, True)
            if not codes[part]:
                _say("FLAKY: what failed above has passed now; mend it")
    return WRONG_CODE if wrong_answers.read_lines() else _worst(*codes.values())


def _worst(*codes: int) -> int:
    """Return the worst code. E2E_ARGS may select nothing of some parts, but not of all."""
    ran = [code for code in codes if code != NOTHING_SELECTED]
    return max(ran, default=NOTHING_SELECTED)


def main() -> int:
    """Run all scenarios. The output ends with figures, missed goals and wrong answers."""
    began, measured = time.monotonic(), len(figures.read_lines())
    wrong_answers.FILE.unlink(missing_ok=True)
    shutil.rmtree(CACHES, ignore_errors=True)
    _say("scenarios …")
    code = run_all(_pytest, again=bool(os.environ.get("E2E_AGAIN")), wait_lost=_wait_lost)
    _say(f"scenarios: {time.monotonic() - began:.0f} s, exit code {code}; figures:")
    new = figures.read_lines()[measured:]
    wrong = [f"WRONG answer: {line}" for line in wrong_answers.read_lines()]
    for line in (*new, *figures.describe_missed_goals(new), *wrong):
        print(line, flush=True)
    return code


def _pytest(part: Part, only_failed: bool) -> int:
    """Run a part. The output of the lost node's scenario is printed when it ends."""
    began = time.monotonic()
    arguments = part.arguments_again if only_failed else part.arguments
    command = [sys.executable, *PYTEST, *arguments, *sys.argv[1:]]
    output = subprocess.PIPE if part is NODE_LOST else None
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, check=False, text=True)
    if ended.stdout:
        print(ended.stdout, flush=True)
    _say(f"scenarios {part.name}: {time.monotonic() - began:.0f} s, exit code {ended.returncode}")
    return ended.returncode


def _wait_lost(scenario: Future[int]) -> None:
    while not scenario.done():
        with contextlib.suppress(CommandFailed):
            if nodes.has_cordoned():
                return
        time.sleep(2)


def _say(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} e2e: {what}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
