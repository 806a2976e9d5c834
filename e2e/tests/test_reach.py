"""A pod reports the ports that it reaches. Needs no cluster."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "inside" / "reach.py"


def test_a_port_is_reached_when_somebody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        places = [listener.getsockname() for listener in (listening, silent)]
        result = subprocess.run(
            [sys.executable, SCRIPT], input=json.dumps(places), capture_output=True, text=True, check=True, timeout=60
        )
        assert json.loads(result.stdout) == [True, False]
