"""Where a router is: its URL in the parts that a request and a connection need."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from lookupdb.errors import UsageError

_LABEL: Final = "[A-Za-z0-9_-]{1,63}"
"""Of a host's name: a longer one, or none, resolves nowhere."""
_URL: Final = re.compile(
    rf"(https?)://(\[[0-9A-Fa-f:.]+\]|{_LABEL}(?:\.{_LABEL})*\.?)(?::([0-9]{{1,5}}))?(/[!-~]*)?", re.ASCII
)
_EXAMPLES: Final = "give one like http://127.0.0.1:8080, http://[::1]:8080 or https://lookups.example.com/people"
_MAX_PORT: Final = 65535
_MAX_SHOWN: Final = 100


class RouterAddress(NamedTuple):
    """A router's URL."""

    is_tls: bool
    host: str
    """A name or an address, without brackets: for connections and certificates."""
    port: int
    authority: str
    """Host and port, as the Host field has them."""
    prefix: str
    """What stands before ``/v1`` in each target; empty or ``/people``."""

    @property
    def url(self) -> str:
        """The URL, for messages."""
        return f"{'https' if self.is_tls else 'http'}://{self.authority}{self.prefix}"


def parse_url(url: str) -> RouterAddress:
    """The address in ``url``. Raises UsageError, which shows no password, if it can be no router's."""
    if "@" in url.partition("://")[2].partition("/")[0]:  # first of all: the messages below show the URL
        raise UsageError(
            "a router's URL has no user and no password, found an @ before its host",
            hint="leave out what ends with the @: a router takes a token, by token= or token_file=",
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
    if re.search(r"[?#]|/v1(/|$)", prefix):
        raise UsageError(f"a router's URL ends before /v1, found {url[:_MAX_SHOWN]!r}", hint=_EXAMPLES)
    is_tls = found[1] == "https"
    authority = found[2] + (f":{port}" if port is not None else "")
    return RouterAddress(is_tls, found[2].strip("[]"), port or (443 if is_tls else 80), authority, prefix)
