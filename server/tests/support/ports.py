"""Ports that are chosen before somebody listens on them."""

from __future__ import annotations

import random
import socket
from pathlib import Path


def free_port() -> int:
    """A port on which nobody listens, and which stays free: the system never hands it out to clients or to servers that
    take any port. Tests start many of both.
    """
    handed_out = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(handed_out // 2, handed_out)  # not the one that tests may have seeded
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
