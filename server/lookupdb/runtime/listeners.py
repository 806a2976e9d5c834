"""Listening sockets, made by the supervisor and inherited by workers.

Because the supervisor keeps them, a dead worker's socket goes on accepting until the worker is back. They are
bound at once, so that a port in use is told at once, and listen only when there is something to serve.
"""

from __future__ import annotations

import socket

from lookupdb.errors import UsageError

BACKLOG = 4096
"""Connections that may wait while a worker is busy or restarting; the kernel lowers it to net.core.somaxconn."""


def bind_shared(host: str, port: int, count: int) -> list[socket.socket]:
    """``count`` sockets on one port, over which the kernel spreads connections. Raises UsageError when it is in use.

    In use by whatever it be: the kernel would let two programs share the port if both ask to, and half of each
    one's clients would be answered by the other.
    """
    bind(host, port).close()
    first = bind(host, port, reuse_port=True)
    return [first, *(bind(host, port_of(first), reuse_port=True) for _ in range(count - 1))]


def bind(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """A TCP socket bound to ``host`` and ``port`` (0: a free one). Raises UsageError when it cannot be."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _cannot_listen(host, port, error) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from error
    listener.setblocking(False)
    return listener


def port_of(listener: socket.socket) -> int:
    """The port the socket is bound to."""
    port: int = listener.getsockname()[1]
    return port


def _cannot_listen(host: str, port: int, error: OSError) -> UsageError:
    return UsageError(
        f"cannot listen on {host} port {port}: {error.strerror or error}",
        hint="choose another port (0 takes a free one) or end the process that uses it",
    )
