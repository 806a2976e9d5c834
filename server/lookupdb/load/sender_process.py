"""``python -m lookupdb.load.sender_process``: one sender. Its plan comes as a line on standard input; then, when it has
answered with its capacity, the instant to begin. It reports on standard output, a line of JSON each.

When its standard input ends, it stops: whatever ends the program that started it ends the load. A terminal's Ctrl-C is
that program's alone.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import ssl
import sys
import time
import traceback
from typing import Any, Final, NoReturn

import orjson
import uvloop

from lookupdb.load.capacity import measure_capacity
from lookupdb.load.sender import Sender
from lookupdb.load.sender_plan import SenderPlan
from lookupdb.load.tally import Tally

REPORT_SECONDS: Final = 0.25
STOP_SECONDS: Final = 2.0
"""For what is in flight, when the load is stopped before its end."""
_MAX_UNREAD_BYTES: Final = 64 << 20
"""Of reports. Who does not read them gets no more."""


class _Reports:
    """Standard output. Each has the counts of an interval, of which a second has four."""

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport

    def write(self, members: dict[str, Any]) -> None:
        if self._transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
            raise BufferError("nobody reads the reports")
        self._transport.write(orjson.dumps(members) + b"\n")


def main() -> None:
    """Run a sender."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    uvloop.run(_run())


async def _run() -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_end_by_bug)
    orders = asyncio.StreamReader(limit=1 << 30)  # a plan has all keys
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), os.fdopen(0, "rb", closefd=False))
    transport, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(1, "wb", closefd=False))
    reports = _Reports(transport)
    line = await orders.readline()
    if not line:
        return
    plan = SenderPlan.from_line(line)
    context = ssl.create_default_context(cafile=plan.ca_file) if plan.target.is_encrypted else None
    capacity = await measure_capacity(plan)
    sender = Sender(plan, context)
    gc.freeze()
    gc.disable()  # of what a request takes nothing is in a circle, and a look through a million keys is a pause
    await sender.open_first()
    reports.write({"capacity": capacity})
    start = await orders.readline()
    if start:
        await _send(sender, orders, reports, float(start), plan)
    transport.close()


def _end_by_bug(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> NoReturn:
    """What no code of ours handles would be repeated for each request, and requests would be forgotten by it."""
    print(context["message"], file=sys.stderr)
    if "exception" in context:
        traceback.print_exception(context["exception"])
    sys.stderr.flush()
    os._exit(1)


async def _send(
    sender: Sender, orders: asyncio.StreamReader, reports: _Reports, start: float, plan: SenderPlan
) -> None:
    measured = start + plan.load.warmup
    running = asyncio.ensure_future(sender.run(start))
    stopping = asyncio.ensure_future(orders.read())
    stopping.add_done_callback(lambda _: sender.stop(STOP_SECONDS))
    busy = time.process_time()
    begin = time.monotonic() - measured
    while not running.done():
        await asyncio.wait((running,), timeout=REPORT_SECONDS - begin % REPORT_SECONDS)
        tally, sender.tally = sender.tally, Tally()
        tally.busy, busy = time.process_time() - busy, time.process_time()
        reports.write({"begin": begin, "tally": tally.to_json()})
        begin = time.monotonic() - measured
    stopping.cancel()
    await running
    reports.write({"ended": True})


if __name__ == "__main__":
    main()
    sys.exit(0)
