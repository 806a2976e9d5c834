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


def check_settings(url: str, options: ClientOptions) -> ClientSettings:
    """Raises UsageError for what cannot be used."""
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
