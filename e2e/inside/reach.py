"""Says which addresses can be reached: ``python reach.py < [["host", port], …]``, and one JSON list of true and false
back."""

from __future__ import annotations

import json
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

SECONDS = 4.0
"""Who is let in is answered at once; a packet that is dropped is sent again after 1 and after 3 seconds."""


def main() -> None:
    """Standard input to standard output."""
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
