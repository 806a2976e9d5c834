"""What a client was made with, checked."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import Final, NamedTuple, TypedDict

from lookupdb.client.address import RouterAddress, parse_url
from lookupdb.errors import UsageError

MAX_ANSWER_BYTES: Final = 192 << 20
"""Of one answer: a router sends 64 MiB of values at most, raw ones grow by a third, and there are keys and JSON."""
DEFAULT_TIMEOUT: Final = 5.0
DEFAULT_CONNECT_TIMEOUT: Final = 2.0
DEFAULT_MAX_CONNECTIONS: Final = 16
DEFAULT_MAX_KEYS: Final = 1000

FilePath = str | PathLike[str]


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
    timeout: float = DEFAULT_TIMEOUT
    connect_timeout: float = DEFAULT_CONNECT_TIMEOUT
    read_timeout: float | None = None
    token: str | None = None
    token_file: FilePath | None = None
    ca_file: FilePath | None = None
    cert_file: FilePath | None = None
    key_file: FilePath | None = None
    max_connections: int = DEFAULT_MAX_CONNECTIONS
    retries: int = 1
    traceparent: Callable[[], str | None] | None = None
    cache_bytes: int = 0
    cache_seconds: float = 1.0
    max_keys: int = DEFAULT_MAX_KEYS


_TEXTS: Final = (str,)
_PATHS: Final = (str, PathLike)
_TYPES: Final[dict[str, tuple[tuple[type, ...], str]]] = {
    **dict.fromkeys(("timeout", "connect_timeout", "read_timeout"), ((int, float), "a number of seconds")),
    **dict.fromkeys(("max_connections", "retries", "max_keys"), ((int, float), "a whole number")),
    "cache_bytes": ((int, float), "a whole number"),
    "cache_seconds": ((int, float), "a number of seconds"),
    "token": (_TEXTS, "text"),
    **dict.fromkeys(("token_file", "ca_file", "cert_file", "key_file"), (_PATHS, "a path")),
}
"""Of what kind an argument is, and how that is called. ``traceparent`` is a function."""


def check_settings(url: str, options: ClientOptions) -> ClientSettings:
    """Raises TypeError for arguments of another kind, UsageError for others that cannot be used."""
    if not isinstance(url, str):
        raise TypeError(f"a router's URL is text, found {type(url).__name__}")
    _check_types(options)
    settings = ClientSettings(parse_url(url), **options)
    for name in ("timeout", "connect_timeout", "read_timeout"):
        seconds = getattr(settings, name)
        if seconds is not None and not 0 < seconds < float("inf"):
            raise UsageError(f"{name} is a number of seconds above 0, found {seconds!r}")
    for name, least in (
        ("max_connections", 1),
        ("max_keys", 1),
        ("retries", 0),
        ("cache_bytes", 0),
        ("cache_seconds", 0),
    ):
        value = getattr(settings, name)
        if not value >= least:
            raise UsageError(f"{name} is at least {least}, found {value!r}")
        if not isinstance(value, int) and name != "cache_seconds":
            raise UsageError(f"{name} is a whole number, found {value!r}")
    if settings.token is not None and settings.token_file is not None:
        raise UsageError("a client shows one token, found both token and token_file")
    if (settings.cert_file is None) != (settings.key_file is None):
        raise UsageError("cert_file and key_file belong together, found only one of them")
    if not settings.address.is_tls and (settings.ca_file is not None or settings.cert_file is not None):
        raise UsageError("certificates are for https, found a URL with http")
    return settings


def _check_types(options: ClientOptions) -> None:
    for name, value in options.items():
        if name not in ClientOptions.__annotations__:
            known = ", ".join(ClientOptions.__annotations__)
            raise TypeError(f"a client has no argument {name}; it has {known}")
        if name == "traceparent":
            if value is not None and not callable(value):
                raise TypeError(f"traceparent is a function, found {type(value).__name__}")
            continue
        types, kind = _TYPES[name]
        may_be_none = ClientSettings._field_defaults[name] is None
        if not (isinstance(value, types) and not isinstance(value, bool)) and not (value is None and may_be_none):
            # Not the value: it may be a token.
            raise TypeError(f"{name} is {kind}{' or None' if may_be_none else ''}, found {type(value).__name__}")
