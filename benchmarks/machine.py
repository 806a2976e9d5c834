"""The machine of a run: its cores, and the versions of installed software."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final

CORES: Final = sorted(os.sched_getaffinity(0))
LOAD_CORE: Final = CORES[0]
"""The core of the load generator, and of servers behind a router."""
SERVER_CORE: Final = CORES[-1]
"""The core of the measured server."""

PACKAGES: Final = {
    "redis-server": "redis-server",
    "webdis": "webdis",
    "nutcracker": "nutcracker",
    "wrk": "wrk",
    "cc": "gcc libc6-dev",
    "taskset": "util-linux",
    "setpriv": "util-linux",
    "fincore": "util-linux-extra",
}
"""Program → its Debian package."""

_PAGERS: Final = Path("/sys/kernel/mm/damon/admin/kdamonds")
_LOAD_BEFORE: Final = os.getloadavg()[0]
_QUIET: Final = 0.5

_PYTHON: Final = [
    "lookupdb",
    "lmdb",
    "duckdb",
    "zstandard",
    "hiredis",
    "httptools",
    "uvloop",
    "orjson",
    "xxhash",
    "redis",
    "flask",
    "gunicorn",
    "gevent",
    "requests",
    "httpx",
    "urllib3",
    "aiohttp",
]


class BenchError(Exception):
    """An error for the person who runs the benchmarks, shown without a traceback."""


def require(programs: Iterable[str]) -> None:
    """Check for programs and a second core. Raises BenchError with the Debian packages to install."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    os.environ["PATH"] = path
    missing = [program for program in programs if not shutil.which(program)]
    if missing:
        packages = " ".join(dict.fromkeys(PACKAGES[program] for program in missing))
        raise BenchError(f"not installed: {', '.join(missing)}. On Debian: apt-get install {packages}")
    if LOAD_CORE == SERVER_CORE:
        raise BenchError("the benchmarks need two cores, one for the server and one for the load; this machine has one")


def is_quiet() -> bool:
    """Return whether the machine was idle when this run began."""
    return _LOAD_BEFORE <= _QUIET


def describe() -> dict[str, str]:
    """Return name → value, for the report's head."""
    return {
        "CPU": _first_match("/proc/cpuinfo", r"model name\s*:\s*(.+)") or platform.machine(),
        "Cores": str(len(CORES)),
        "Memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB",
        "Kernel": platform.release(),
        "System": _first_match("/etc/os-release", r'PRETTY_NAME="(.+)"') or platform.system(),
        "Load average at the start": f"{_LOAD_BEFORE:.2f}",
        "Idle pages": "leave memory (DAMON)" if _evicts_idle_pages() else "stay in memory",
        "Commit": _line(["git", "describe", "--always", "--dirty"]) or "unknown",
    }


def _evicts_idle_pages() -> bool:
    """Return whether the kernel reclaims idle memory, so that files must be read again."""
    running = [state.parent for state in _PAGERS.glob("*/state") if state.read_text().strip() == "on"]
    actions = [action.read_text().strip() for pager in running for action in pager.glob("contexts/*/schemes/*/action")]
    return "pageout" in actions


def versions() -> dict[str, str]:
    """Program or Python distribution → version."""
    found = {
        "Redis": _match(r"v=(\S+)", _line(["redis-server", "--version"])),
        "webdis": _line(["dpkg-query", "-W", "-f", "${Version}", "webdis"]),
        "nutcracker": _match(r"nutcracker-(\S+)", _line(["nutcracker", "--version"])),
        "wrk": _match(r"wrk (?:debian/)?(\S+)", _line(["wrk", "--version"])),
        "cc": _line(["cc", "--version"]),
        "Python": platform.python_version(),
    }
    for name in _PYTHON:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = ""
    return {name: version or "not installed" for name, version in found.items()}


def _line(words: list[str]) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=False)
    except OSError:
        return ""
    return next(iter((done.stdout + done.stderr).strip().splitlines()), "")


def _match(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    return found[1] if found else ""


def _first_match(path: str, pattern: str) -> str:
    try:
        return _match(pattern, Path(path).read_text())
    except OSError:
        return ""
