"""The listening sockets of a service's workers.

The supervisor keeps them, so a dead worker's socket accepts until the worker is back. They are bound at startup, to
report a port in use, and listen only when there is something to serve.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Sequence
from typing import Final

from lookupdb.errors import UsageError

log = logging.getLogger(__name__)

ANY_ADDRESS = "*"
"""The host for every address, IPv4 and, if available, IPv6."""
BACKLOG = 4096
"""Connections that may wait while a worker is busy or restarting. The kernel's limit is net.core.somaxconn."""


def bind_shared(host: str, port: int, count: int) -> list[socket.socket]:
    """Return ``count`` sockets on one port, for ``listen``. Raises UsageError if a program listens on it."""
    first = bind(host, port)
    return [first, *(bind(host, bound_port(first)) for _ in range(count - 1))]


def check_free(host: str, port: int) -> None:
    """Raise UsageError if a program listens on the port."""
    bind(host, port).close()


def bind_admin(host: str, port: int) -> socket.socket:
    """Bind the admin port. The error names its option, because other servers share the default."""
    try:
        return bind(host, port)
    except UsageError as error:
        raise UsageError(
            f"{error.message} (the admin port)", hint="choose another --admin-port; 0 takes a free one"
        ) from error


def bind(host: str, port: int) -> socket.socket:
    """Return a TCP socket bound to ``host`` and ``port`` (0 for a free one). Raises UsageError if that fails.

    ``::`` also accepts IPv4 clients, and so does ``*``. On a machine without IPv6, ``*`` accepts IPv4 clients only.
    """
    if host == ANY_ADDRESS:
        return bind("::" if _has_ipv6() else "0.0.0.0", port)  # noqa: S104 - as requested
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.removeprefix("[").removesuffix("]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise _cannot_listen(host, port, error) from error
    try:
        if address[0] == "::":
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from error
    listener.setblocking(False)
    return listener


def listen(sockets: Sequence[socket.socket]) -> None:
    """Listen on the port that all of ``sockets`` are bound to; the kernel spreads clients over them. Raises UsageError
    if another program, possibly ours, listens by now on an overlapping address.

    The first socket listens before the port is shared: then the kernel rejects a second program. With sharing from the
    beginning, several programs could listen on the port, and each would get some of the others' clients.
    """
    first, *others = sockets
    try:
        first.listen(BACKLOG)
        for listener in sockets if others else ():
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        for listener in others:
            listener.listen(BACKLOG)
    except OSError as error:
        host, port = first.getsockname()[:2]
        raise _cannot_listen(host, port, error) from error


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::", 0))
    except OSError:
        return False
    return True


def bound_port(listener: socket.socket) -> int:
    """Return the port that the socket is bound to."""
    return int(listener.getsockname()[1])


def _cannot_listen(host: str, port: int, error: OSError | UnicodeError) -> UsageError:
    in_use = isinstance(error, OSError) and error.errno in (errno.EADDRINUSE, errno.EACCES)
    return UsageError(
        f"cannot listen on {host} port {port}: {getattr(error, 'strerror', None) or error}",
        hint="choose another port (0 takes a free one) or end the process that uses it"
        if in_use
        else "give an address of this machine, or * for all of them",
    )


# Open files and sockets: the limit of this process, and the number of clients that it allows.


RESERVED_DESCRIPTORS: Final = 96
"""Descriptors that a worker keeps for its shard or table, listeners, pipes, counters, name resolution and refused
clients."""
MIN_DESCRIPTORS: Final = 160
"""The least limit with which a server starts: for supervisor, worker and a few clients."""


def max_client_connections(limit: int, endpoints: int = 0) -> int:
    """Return the number of clients that may connect with ``limit`` descriptors. Each of ``endpoints`` needs one, too.

    The next routing table may add as many endpoints before the current ones close. As many descriptors are kept for
    them, but at most half of the available ones.
    """
    available = max(0, limit - RESERVED_DESCRIPTORS - endpoints)
    return max(1, available - min(endpoints, available // 2))


def limit_connections(requested: int, limit: int) -> int:
    """Return the number of ``requested`` connections that a worker accepts; log if it is less. Raises UsageError."""
    if limit < MIN_DESCRIPTORS:
        raise UsageError(
            f"this process may open {limit} files and sockets, a server needs {MIN_DESCRIPTORS} at least",
            hint="raise the hard limit: ulimit -Hn",
        )
    possible = max_client_connections(limit)
    if possible < requested:
        log.warning(
            "a worker takes %d connections, not %d: %s",
            *(possible, requested, f"it may open {limit} files and sockets; raise the hard limit (ulimit -Hn)"),
        )
    return min(requested, possible)
