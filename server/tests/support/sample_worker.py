"""A worker for tests of the supervisor: answers one line a connection, and misbehaves as its configuration says."""

from __future__ import annotations

import os
import signal
import sys

from lookupdb.errors import CorruptFile
from lookupdb.process.worker import BEAT_SECONDS, WorkerBoot, run_worker


def main(boot: WorkerBoot) -> None:
    match boot.config.get("fault"):
        case "corrupt":
            raise CorruptFile("shard 3 is damaged", hint="fetch it again")
        case "exit":
            sys.exit(7)
        case "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    counters = boot.counters()
    slot = counters.slot(boot.index)
    listener = boot.listeners()[0]
    listener.settimeout(BEAT_SECONDS)
    beat = boot.make_heartbeat()
    boot.report_ready(greeting=boot.config["greeting"])
    while True:
        beat()
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        slot[counters.index["connections"]] += 1
        connection.sendall(b"%d\n" % os.getpid())
        connection.close()


def start() -> None:
    run_worker(main)
