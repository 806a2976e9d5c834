"""Prints what ps and the admin port show in this pod: ``python processes.py PORT``.

Prints one JSON document of texts by name. Reads no environment.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path

FILES = ("cmdline", "comm", "status")
PATHS = ("status", "metrics", "readyz", "healthz", "nowhere")
SECONDS = 10


def main() -> None:
    """Print the document."""
    result = {f"/proc/{process}/{file}": text for process in list_processes() for file, text in read_process(process)}
    result |= {f"admin /{path}": ask(f"http://127.0.0.1:{sys.argv[1]}/{path}") for path in PATHS}
    print(json.dumps(result))


def list_processes() -> list[str]:
    """Return all processes but this one, whose arguments belong to the scenario."""
    return [name for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]  # noqa: PTH208


def read_process(process: str) -> list[tuple[str, str]]:
    """Return the text of a process, which may end meanwhile."""
    try:
        return [(file, Path("/proc", process, file).read_text(errors="replace")) for file in FILES]
    except (FileNotFoundError, ProcessLookupError):
        return []


def ask(url: str) -> str:
    """Return the answer, whatever its status."""
    try:
        with urllib.request.urlopen(url, timeout=SECONDS) as answer:
            return str(answer.read().decode(errors="replace"))
    except urllib.error.HTTPError as error:
        return error.read().decode(errors="replace")


if __name__ == "__main__":
    main()
