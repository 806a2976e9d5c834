"""Listening sockets, made by the supervisor and inherited by workers.

Because the supervisor keeps them, a dead worker's socket goes on accepting until the worker is back. They are
bound at once, so that a port in use is reported at once, and listen only when there is something to serve.
Until then the kernel would give their port to another one of ours, too: see ``SharedPort.claim``.
"""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass

from lookupdb.errors import UsageError

ANY_ADDRESS = "*"
"""The host that means every address, IPv4 and, where the machine has it, IPv6."""
BACKLOG = 4096
"""Connections that may wait while a worker is busy or restarting; the kernel lowers it to net.core.somaxconn."""


@dataclass(frozen=True, slots=True)
class SharedPort:
    """Sockets on one port, over which the kernel spreads connections."""

    sockets: list[socket.socket]
    claim: socket.socket
    """Keeps others of ours from the port until it is closed, or its process ends: the kernel does so only from when the
    sockets listen, and two that are bound before would share the port."""

    @property
    def port(self) -> int:
        """Its number."""
        return bound_port(self.sockets[0])


def bind_shared(host: str, port: int, count: int) -> SharedPort:
    """Return ``count`` sockets on one port. Raises UsageError if in use.

    It must not be in use by any program: the kernel would let two programs share the port if both ask to, and each
    would answer half of the other's clients.
    """
    check_free(host, port)
    first = bind(host, port, reuse_port=True)
    try:
        claim = _claim(first)
    except OSError as error:
        first.close()
        raise _cannot_listen(host, port, error) from error
    others = (bind(host, bound_port(first), reuse_port=True) for _ in range(count - 1))
    return SharedPort([first, *others], claim)


def check_free(host: str, port: int) -> None:
    """Raises UsageError if a program listens on the port, or one of ours has claimed it."""
    with bind(host, port) as listener, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_claim_name(listener))  # it takes nothing: who claims it in this moment can
        except OSError:
            return
        raise _cannot_listen(host, port, OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE)))


def _claim(listener: socket.socket) -> socket.socket:
    """Claim the port of ``listener``, until what is returned is closed. Raises OSError if it is claimed."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(_claim_name(listener))
    except OSError:
        claim.close()
        raise
    return claim


def _claim_name(listener: socket.socket) -> str:
    """A name in the kernel's abstract namespace: each network has its own, as it has its ports, and no file is left."""
    host, port = listener.getsockname()[:2]
    return f"\0lookupdb listens on {host} {port}"


def bind_admin(host: str, port: int) -> socket.socket:
    """Bind the admin port. Its error names the option: other servers share the default."""
    try:
        return bind(host, port)
    except UsageError as error:
        raise UsageError(
            f"{error.message} (the admin port)", hint="choose another --admin-port; 0 takes a free one"
        ) from error


def bind(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """Return a TCP socket bound to ``host`` and ``port`` (0: a free one). Raises UsageError when it cannot be.

    ``::`` takes IPv4 clients too, and so does ``*``, which on a machine without IPv6 takes those alone.
    """
    if host == ANY_ADDRESS:
        return bind("::" if _has_ipv6() else "0.0.0.0", port, reuse_port=reuse_port)  # noqa: S104 - as was asked for
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
        if reuse_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from error
    listener.setblocking(False)
    return listener


def listen(listener: socket.socket) -> None:
    """Let clients connect. Raises UsageError when another socket listens on the port, which was free when this one was
    bound to it."""
    try:
        listener.listen(BACKLOG)
    except OSError as error:
        host, port = listener.getsockname()[:2]
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
