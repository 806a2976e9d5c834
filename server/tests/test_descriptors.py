"""The limit of open files is raised to what the system allows, and counted."""

from __future__ import annotations

import resource
import subprocess
import sys

PRINT_LIMIT = """
import resource
from lookupdb.disk import raise_limit
print(raise_limit(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def limits_of_child(soft: int, hard: int) -> list[int]:
    """Return the result of ``raise_limit`` in a process with these limits, and the soft limit after it."""
    child = subprocess.run(
        [sys.executable, "-c", PRINT_LIMIT],
        capture_output=True,
        check=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)),
    )
    return [int(line) for line in child.stdout.split()]


def test_soft_limit_is_raised_to_the_hard_one() -> None:
    assert limits_of_child(256, 700) == [700, 700]


def test_limit_that_is_at_its_highest_stays() -> None:
    assert limits_of_child(300, 300) == [300, 300]


def test_free_descriptors_are_those_that_can_really_be_opened() -> None:
    script = (
        "import os\n"
        "from lookupdb.disk import free_descriptors\n"
        "free = free_descriptors()\n"
        "taken = [os.open('/dev/null', os.O_RDONLY) for _ in range(free)]\n"
        "try:\n"
        "    os.open('/dev/null', os.O_RDONLY)\n"
        "except OSError as error:\n"
        "    print(free, error.errno)\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        check=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 128)),
    )
    free, errno = map(int, child.stdout.split())
    assert 100 < free < 128
    assert errno == 24
