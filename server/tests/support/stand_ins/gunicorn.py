"""Stands in for gunicorn where that is not installed: ``python -m gunicorn`` with this folder in PYTHONPATH. It forks
workers before they serve, loads the application before (``--preload``) or after that, and ends them by SIGTERM."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer


class Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """No line for a request."""


class Server(WSGIServer):
    request_queue_size = 64


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("application")
    parser.add_argument("--bind")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--preload", action="store_true")
    parser.add_argument("--chdir")
    for option in ("--timeout", "--graceful-timeout", "--log-level"):
        parser.add_argument(option)
    parser.add_argument("--no-control-socket", action="store_true")
    arguments = parser.parse_args()
    host, _, port = arguments.bind.partition(":")
    os.chdir(arguments.chdir)
    sys.path.insert(0, arguments.chdir)
    application = load(arguments.application) if arguments.preload else None
    server = Server((host, int(port)), Handler)
    server.socket.setblocking(False)  # a connection that another worker has taken is not waited for
    children = [fork(server, arguments.application, application) for _ in range(arguments.workers)]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        signal.pause()
    finally:
        for child in children:
            os.kill(child, signal.SIGTERM)


def load(name: str) -> Any:
    module, _, member = name.partition(":")
    return getattr(importlib.import_module(module), member)


def fork(server: Server, name: str, application: Any) -> int:
    child = os.fork()
    if child == 0:
        server.set_app(application or load(name))
        server.serve_forever(poll_interval=60)
    return child


if __name__ == "__main__":
    main()
