"""A client's settings, token and certificates.

``check_settings`` makes ``ClientSettings`` from a URL and options. ``TokenSource`` gives each request its token,
``TlsContexts`` each connection its certificates; both read their files again when these are replaced. ``PROCESS`` shows
whether the process was forked since connections were made.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable
from os import PathLike
from typing import TYPE_CHECKING, Final, NamedTuple, TypedDict

from lookupdb.errors import UsageError

if TYPE_CHECKING:
    import ssl

MAX_ANSWER_BYTES: Final = 192 << 20
"""The largest answer: a router sends at most 64 MiB of values; raw ones grow by a third; keys and JSON come on top."""
_LABEL: Final = "[A-Za-z0-9_-]{1,63}"  # a label of a host's name
_URL: Final = re.compile(
    rf"(https?)://(\[[0-9A-Fa-f:.]+\]|{_LABEL}(?:\.{_LABEL})*\.?)(?::([0-9]{{1,5}}))?(/[!-~]*)?", re.ASCII
)
_EXAMPLES: Final = "give one like http://127.0.0.1:8080, http://[::1]:8080 or https://lookups.example.com/people"
_MAX_PORT: Final = 65535
_MAX_SHOWN: Final = 100
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]{1,16384}=*", re.ASCII)
_LOOK_SECONDS: Final = 1.0  # seconds between two checks of a token file: a replaced token stays valid for minutes

FilePath = str | PathLike[str]


class RouterAddress(NamedTuple):
    """The parts of a router's URL."""

    is_tls: bool
    host: str  # name or address, without brackets, for connections and certificates
    port: int
    authority: str  # host and port, for the Host field
    prefix: str  # the path before ``/v1``: empty, or for example ``/people``, ``/v1/datasets/people``

    @property
    def url(self) -> str:
        """Return the URL, for messages."""
        return f"{'https' if self.is_tls else 'http'}://{self.authority}{self.prefix}"


def parse_url(url: str) -> RouterAddress:
    """Parse a router's URL. Raises UsageError, which never shows a password."""
    if "@" in (url.partition("://")[2] or url).partition("/")[0]:  # first of all: the messages below show the URL
        raise UsageError(
            "a router's URL has no user and no password, found an @ before its host",
            hint="leave out the part up to the @; a router takes a token, by token= or token_file=",
        )
    found = _URL.fullmatch(url)
    port = int(found[3]) if found and found[3] else None
    if found is None or (port is not None and not 0 < port <= _MAX_PORT) or found[2].startswith("-"):
        raise UsageError(
            f"a router's URL has a scheme, a host and maybe a port up to {_MAX_PORT} and a path, and nothing else, "
            f"found {url[:_MAX_SHOWN]!r}",
            hint=_EXAMPLES,
        )
    prefix = (found[4] or "").rstrip("/")
    if re.search(r"[?#]|/v1(?!/datasets/[^/]+$)(/|$)", prefix):
        raise UsageError(
            f"a router's URL ends before /v1, or with /v1/datasets/NAME, found {url[:_MAX_SHOWN]!r}", hint=_EXAMPLES
        )
    is_tls = found[1] == "https"
    authority = found[2] + (f":{port}" if port is not None else "")
    return RouterAddress(is_tls, found[2].strip("[]"), port or (443 if is_tls else 80), authority, prefix)


class ClientOptions(TypedDict, total=False):
    """The keyword arguments of a client."""

    timeout: float
    connect_timeout: float
    read_timeout: float | None
    token: str | None
    token_file: FilePath | None
    ca_file: FilePath | None
    cert_file: FilePath | None
    key_file: FilePath | None
    max_connections: int
    retries: int
    traceparent: Callable[[], str | None] | None
    cache_bytes: int
    cache_seconds: float
    max_keys: int


class ClientSettings(NamedTuple):
    """A client's URL and its options, with their defaults."""

    address: RouterAddress
    timeout: float = 5.0
    connect_timeout: float = 2.0
    read_timeout: float | None = None
    token: str | None = None
    token_file: FilePath | None = None
    ca_file: FilePath | None = None
    cert_file: FilePath | None = None
    key_file: FilePath | None = None
    max_connections: int = 16
    retries: int = 1
    traceparent: Callable[[], str | None] | None = None
    cache_bytes: int = 0
    cache_seconds: float = 1.0
    max_keys: int = 1000


_SECONDS: Final = ("timeout", "connect_timeout", "read_timeout")
_LEAST: Final = {"max_connections": 1, "max_keys": 1, "retries": 0, "cache_bytes": 0, "cache_seconds": 0}
_PATHS: Final = ("token_file", "ca_file", "cert_file", "key_file")
_TYPES: Final[dict[str, tuple[tuple[type, ...], str]]] = {
    **dict.fromkeys(_LEAST, ((int, float), "a whole number")),
    **dict.fromkeys((*_SECONDS, "cache_seconds"), ((int, float), "a number of seconds")),
    "token": ((str,), "text"),
    **dict.fromkeys(_PATHS, ((str, PathLike), "a path")),
}
"""Argument → its types, and their name for messages. ``traceparent`` is a function."""


def check_settings(url: str, options: ClientOptions) -> ClientSettings:
    """Return the settings. Raises TypeError for an argument of a wrong type, UsageError for a wrong value."""
    if not isinstance(url, str):
        raise TypeError(f"a router's URL must be text, found {type(url).__name__}")
    for name, value in options.items():
        if name not in ClientOptions.__annotations__:
            raise TypeError(f"a client has no argument {name}; it has {', '.join(ClientOptions.__annotations__)}")
        may_be_none = ClientSettings._field_defaults[name] is None
        if value is None and may_be_none:
            continue
        if name == "traceparent":
            if not callable(value):
                raise TypeError(f"traceparent must be a function, found {type(value).__name__}")
            continue
        types, kind = _TYPES[name]
        if not isinstance(value, types) or isinstance(value, bool):  # the message has no value, which may be a token
            raise TypeError(f"{name} must be {kind}{' or None' if may_be_none else ''}, found {type(value).__name__}")
    settings = ClientSettings(parse_url(url), **options)
    for name in _SECONDS:
        seconds = getattr(settings, name)
        if seconds is not None and not 0 < seconds < float("inf"):
            raise UsageError(f"{name} must be a number of seconds above 0, found {seconds!r}")
    for name, least in _LEAST.items():
        number = getattr(settings, name)
        if not number >= least:
            raise UsageError(f"{name} must be at least {least}, found {number!r}")
        if not isinstance(number, int) and name != "cache_seconds":
            raise UsageError(f"{name} must be a whole number, found {number!r}")
    if settings.token is not None and settings.token_file is not None:
        raise UsageError("a client shows one token, found both token and token_file")
    if (settings.cert_file is None) != (settings.key_file is None):
        raise UsageError("cert_file and key_file belong together, found only one of them")
    if not settings.address.is_tls and (settings.ca_file is not None or settings.cert_file is not None):
        raise UsageError("certificates are for https, found a URL with http")
    return settings


class TokenSource:
    """Render the Authorization line. Raises UsageError, which never shows a token, if there is no usable token."""

    def __init__(self, token: str | None, file: FilePath | None) -> None:
        self._file = file
        self._identity: tuple[int, int, int] | None = None
        self._look_at = 0.0
        self._line = b"" if token is None else _render_token(token, "token")

    def line(self) -> bytes:
        """Return the head's line; empty without a token."""
        if self._file is not None and time.monotonic() >= self._look_at:
            self._look(self._file)
        return self._line

    def refresh(self, refused: bytes) -> bool:
        """Read the file now, because ``refused`` was not accepted. Return whether there is another token now."""
        if self._file is None:
            return False
        if self._line == refused:  # else another caller has read it already
            self._identity = None
            self._look(self._file)
        return self._line != refused

    def _look(self, file: FilePath) -> None:
        """Read the file if it has changed. While it cannot be read or is half written, the previous token stays."""
        try:
            identity = _identify(file)
            if identity != self._identity:
                with open(file, encoding="ascii") as opened:  # noqa: PTH123 - no pathlib for so little
                    line = _render_token(opened.read(1 << 15).strip(), os.fspath(file))
                self._line, self._identity = line, identity
        except (OSError, UnicodeDecodeError) as error:
            if not self._line:
                raise UsageError(f"the token file {os.fspath(file)} cannot be read: {error}") from error
        except UsageError:
            if not self._line:
                raise
        self._look_at = time.monotonic() + _LOOK_SECONDS


def _render_token(token: str, where: str) -> bytes:
    if not _TOKEN.fullmatch(token):
        raise UsageError(f"{where} holds no token: one has 1 to 16384 of A-Z a-z 0-9 - . _ ~ + /")
    return f"Authorization: Bearer {token}\r\n".encode()


def _identify(file: FilePath) -> tuple[int, int, int]:
    found = os.stat(file)  # noqa: PTH116
    return found.st_mtime_ns, found.st_ino, found.st_size


class TlsContexts:
    """Make the TLS context of connections, and make it again when one of its files has changed."""

    def __init__(self, settings: ClientSettings) -> None:
        self._is_needed = settings.address.is_tls
        self._files = settings.ca_file, settings.cert_file, settings.key_file
        self._lock = threading.Lock()
        self._identity: tuple[object, ...] | None = None
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext | None:
        """Return the context for a new connection; None without TLS. Raises UsageError for an unusable file."""
        if not self._is_needed:
            return None
        import ssl  # here: ssl takes as long to import as the rest of the client, and as much memory

        with self._lock:
            try:
                identity = tuple(_identify(file) for file in self._files if file is not None)
                if self._context is None or identity != self._identity:
                    authorities, certificate, key = self._files
                    context = ssl.create_default_context(cafile=authorities)
                    if certificate is not None:
                        context.load_cert_chain(certificate, key)
                    self._context, self._identity = context, identity
            except (OSError, ssl.SSLError) as error:
                if self._context is None:
                    files = ", ".join(os.fspath(file) for file in self._files if file is not None)
                    raise UsageError(
                        f"no TLS with the files {files}: {error.strerror or error}",
                        hint="ca_file and cert_file hold PEM certificates, key_file the key of the one in cert_file",
                    ) from error
            return self._context  # while a pair of files is half replaced, the previous context is used


class _Process:
    """The identity of this process. It changes in a fork, because a child must not use its parent's connections."""

    def begin(self) -> None:
        """Give this process a new identity."""
        self.epoch = object()  # an object for each process
        self.lock = threading.Lock()
        """Held briefly while a client starts again in a forked process, which several threads may notice at once. It is
        new in each process, so that no thread of the parent holds it."""


PROCESS: Final = _Process()
PROCESS.begin()
os.register_at_fork(after_in_child=PROCESS.begin)
