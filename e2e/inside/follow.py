"""Workers that map one dataset and print what they see: ``python follow.py NAMESPACE/NAME KEY WORKERS``.

Every worker prints a line of JSON when the version under KEY changes: ``worker``, ``version``, ``at`` (Unix time), and
its bytes: ``private`` (not backed by a file) and ``shared`` (its share of mapped pages).
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import lookupdb

PAUSE_SECONDS = 0.05
KIB = 1024


def main() -> None:
    """Fork before anything is read, like a web server that loads its application first."""
    name, key, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
    mapping = lookupdb.open(name)  # type: ignore[attr-defined,unused-ignore]
    for worker in range(workers):
        if os.fork() == 0:
            follow(worker, mapping, key)
    while True:
        os.wait()  # a worker that ends has failed, and the log has its traceback


def follow(worker: int, mapping: object, key: str) -> None:
    """Look ``key`` up again and again."""
    seen = None
    while True:
        version = mapping[key]["version"]  # type: ignore[index]
        if version != seen:
            seen = version
            line = {"worker": worker, "version": version, "at": time.time(), **figures()}
            os.write(1, f"{json.dumps(line)}\n".encode())  # in one call: other workers write there too
        time.sleep(PAUSE_SECONDS)


def figures() -> dict[str, int]:
    """Return the bytes of this process."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    sizes = {name: int(rest.split()[0]) * KIB for name, _, rest in (line.partition(":") for line in lines)}
    return {"private": sizes["Pss_Anon"], "shared": sizes["Pss_File"] + sizes["Pss_Shmem"]}


if __name__ == "__main__":
    main()
