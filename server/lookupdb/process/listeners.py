"""Listening sockets, made by the supervisor and inherited by workers.

Because the supervisor keeps them, a dead worker's socket goes on accepting until the worker is back. They are
bound at once, so that a port in use is reported at once, and listen only when there is something to serve.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence

from lookupdb.errors import UsageError

ANY_ADDRESS = "*"
"""The host that means every address, IPv4 and, where the machine has it, IPv6."""
BACKLOG = 4096
"""Connections that may wait while a worker is busy or restarting; the kernel lowers it to net.core.somaxconn."""


def bind_shared(host: str, port: int, count: int) -> list[socket.socket]:
    """Return ``count`` sockets on one port, for ``listen``. Raises UsageError if a program listens on it."""
    first = bind(host, port)
    return [first, *(bind(host, bound_port(first)) for _ in range(count - 1))]


def check_free(host: str, port: int) -> None:
    """Raises UsageError if a program listens on the port."""
    bind(host, port).close()


def bind_admin(host: str, port: int) -> socket.socket:
    """Bind the admin port. Its error names the option: other servers share the default."""
    try:
        return bind(host, port)
    except UsageError as error:
        raise UsageError(
            f"{error.message} (the admin port)", hint="choose another --admin-port; 0 takes a free one"
        ) from error


def bind(host: str, port: int) -> socket.socket:
    """Return a TCP socket bound to ``host`` and ``port`` (0: a free one). Raises UsageError when it cannot be.

    ``::`` takes IPv4 clients too, and so does ``*``, which on a machine without IPv6 takes those alone.
    """
    if host == ANY_ADDRESS:
        return bind("::" if _has_ipv6() else "0.0.0.0", port)  # noqa: S104 - as was asked for
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
    """Let clients connect to the port that all of ``sockets`` are bound to; the kernel spreads them. Raises UsageError
    when another program, which may be one of ours, listens on it by now, on this address or on one that overlaps.

    The first one listens before it lets others share the port: of all who do so, the kernel lets one in. Among those
    who ask to share from the beginning it would let in each, and each would answer a part of the others' clients.
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
    port: int = listener.getsockname()[1]
    return port


def _cannot_listen(host: str, port: int, error: OSError | UnicodeError) -> UsageError:
    in_use = isinstance(error, OSError) and error.errno in (errno.EADDRINUSE, errno.EACCES)
    return UsageError(
        f"cannot listen on {host} port {port}: {getattr(error, 'strerror', None) or error}",
        hint="choose another port (0 takes a free one) or end the process that uses it"
        if in_use
        else "give an address of this machine, or * for all of them",
    )
