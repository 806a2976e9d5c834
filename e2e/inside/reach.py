"""Tries addresses: ``python reach.py < [["host", port], …]``, and prints one JSON list of true and false."""

from __future__ import annotations

import json
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

SECONDS = 4.0
"""An open port answers at once; TCP resends a dropped packet after 1 and after 3 seconds."""


def main() -> None:
    """Read addresses from standard input, and print the results."""
    places = json.load(sys.stdin)
    with ThreadPoolExecutor(len(places)) as threads:
        print(json.dumps(list(threads.map(_reaches, places))))


def _reaches(place: tuple[str, int]) -> bool:
    host, port = place
    try:
        socket.create_connection((host, port), timeout=SECONDS).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
