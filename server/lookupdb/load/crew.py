"""The sender processes of a load: started, told when to begin, read from, and ended."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import orjson

from lookupdb.errors import LookupdbError
from lookupdb.load.honesty import LagWatch, check_capacity
from lookupdb.load.sender_plan import SenderPlan
from lookupdb.load.tally import Tally

START_SECONDS: Final = 120.0
"""Until all senders must be ready: they open connections first."""
_LEAD_SECONDS: Final = 0.2
"""Between the order to begin and the begin."""
_LINE_BYTES: Final = 64 << 20
_END_SECONDS: Final = 5.0
"""Beyond the timeout of a request, until a sender that is done must have ended."""
_TAIL_BYTES: Final = 2000


class SenderFailed(LookupdbError):
    """A sender has ended, or did not begin, for another reason than its load."""

    reason = "SenderFailed"


TakeReport = Callable[[int, float, Tally], None]
"""Is told the sender's number, the begin of an interval in seconds since measuring began, and its counts."""


class SenderCrew:
    """The senders of ``plans``."""

    def __init__(self, plans: Sequence[SenderPlan], take_report: TakeReport) -> None:
        self._plans, self._take_report = plans, take_report
        self._processes: list[asyncio.subprocess.Process] = []
        self._watches = [LagWatch() for _ in plans]
        self._is_stopped = False

    async def run(self, on_begin: Callable[[float], None]) -> None:
        """Run the load to its end, or to that which ``stop`` brings about. ``on_begin`` is told when it begins, by
        time.monotonic(). Raises SenderTooSlow, and SenderFailed when one ends by itself."""
        try:
            await asyncio.gather(*(self._start(plan) for plan in self._plans))
            on_begin(await self._begin())
            await asyncio.gather(*(self._read(number) for number in range(len(self._plans))))
        finally:
            await self._end()

    def stop(self) -> None:
        """Send nothing more. What is in flight has some seconds."""
        self._is_stopped = True
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()

    async def _start(self, plan: SenderPlan) -> None:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "lookupdb.load.sender_process"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES,
        )
        self._processes.append(process)
        assert process.stdin is not None, "it is a pipe"
        with suppress(ConnectionError):  # what it has said before it ended is told by who reads
            process.stdin.write(plan.to_line())
            await process.stdin.drain()

    async def _begin(self) -> float:
        try:
            async with asyncio.timeout(START_SECONDS):
                ready = await asyncio.gather(*(self._read_line(process) for process in self._processes))
        except TimeoutError as error:
            raise SenderFailed(f"the senders were not ready within {START_SECONDS:g} s") from error
        if self._is_stopped:
            return time.monotonic()  # it is stopped already: senders end without having sent
        load = self._plans[0].load
        check_capacity(load.profile.highest, [report["capacity"] for report in ready], len(os.sched_getaffinity(0)))
        start = time.monotonic() + _LEAD_SECONDS
        for process in self._processes:
            assert process.stdin is not None, "it is a pipe"
            process.stdin.write(f"{start!r}\n".encode())
        return start

    async def _read(self, number: int) -> None:
        process = self._processes[number]
        while True:
            report = await self._read_line(process)
            if "tally" not in report:
                return
            tally = Tally.from_json(report["tally"])
            self._watches[number].check(report["begin"], tally.lags)
            self._take_report(number, report["begin"], tally)

    async def _read_line(self, process: asyncio.subprocess.Process) -> dict[str, Any]:
        """The next report; empty when there are no more because it was stopped."""
        assert process.stdout is not None
        line = await process.stdout.readline()
        if line:
            report: dict[str, Any] = orjson.loads(line)
            return report
        if self._is_stopped:
            return {}
        assert process.stderr is not None
        tail = (await process.stderr.read())[-_TAIL_BYTES:].decode(errors="replace").strip()
        raise SenderFailed(f"a sender has ended by itself, with {await process.wait()}: {tail or 'it said nothing'}")

    async def _end(self) -> None:
        self.stop()
        for process in self._processes:
            try:
                async with asyncio.timeout(_END_SECONDS):
                    await process.wait()
            except (TimeoutError, asyncio.CancelledError):
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
