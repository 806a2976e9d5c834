"""Whom the load is for: a router's URL, taken apart, and the header fields that every request has."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from lookupdb.errors import UsageError

GENERATION_FIELD: Final = "Lookupdb-Generation"
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FIELD_TEXT: Final = re.compile(r"[\x21-\x7e\x80-\xff]([\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?")
_SECRET_FIELDS: Final = frozenset({"authorization", "proxy-authorization", "cookie"})
_OWN_FIELDS: Final = frozenset(
    {"connection", "content-length", "content-type", "transfer-encoding", "expect", "upgrade"}
)
_MAX_FIELDS: Final = 50


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """Where requests go."""

    url: str
    """Without a slash at its end."""
    host: str
    port: int
    is_encrypted: bool
    path: str
    """Of the router, behind a proxy say: empty or ``/people``."""
    fields: tuple[tuple[str, str], ...]
    """Those of every request, the token among them: this object is not shown to anybody."""

    @property
    def head(self) -> bytes:
        """The fields as they are sent."""
        return "".join(f"{name}: {value}\r\n" for name, value in self.fields).encode("latin-1")


def make_target(url: str, token: str | None, generation: str | None, headers: Iterable[str]) -> LoadTarget:
    """The router at ``url``, which has been found to be one's URL; ``headers`` are as ``Name: text``. Raises
    UsageError."""
    parts = urlsplit(url)
    if parts.query or parts.fragment:
        raise UsageError(f"a router's URL has no ? and no #, found {url}", hint="leave out what begins with it")
    is_encrypted = parts.scheme == "https"
    given = dict(_parse_header(header) for header in headers)
    if len(given) > _MAX_FIELDS:
        raise UsageError(f"{len(given)} header fields are given by --header, {_MAX_FIELDS} are the most")
    names = {name.lower() for name in given}
    fields = {} if "host" in names else {"Host": parts.netloc}
    if "user-agent" not in names:
        fields["User-Agent"] = "lookupdb-load"
    if token:
        fields["Authorization"] = f"Bearer {token}"
    if generation:
        fields[GENERATION_FIELD] = generation
    return LoadTarget(
        url=url.rstrip("/"),
        host=parts.hostname or "",
        port=parts.port or (443 if is_encrypted else 80),
        is_encrypted=is_encrypted,
        path=parts.path.rstrip("/"),
        fields=(*fields.items(), *given.items()),
    )


def _parse_header(header: str) -> tuple[str, str]:
    name, colon, text = header.partition(":")
    text = text.strip()
    if not colon or not _TOKEN.fullmatch(name) or not _FIELD_TEXT.fullmatch(text):
        raise UsageError(
            f"--header {name[:80]!r} is no header field",
            hint="give its name and its text, as --header 'X-Team: search'",
        )
    if name.lower() in _SECRET_FIELDS:
        raise UsageError(
            f"--header {name} would show a secret to whoever lists processes",
            hint="give a token by --token-file, or in LOOKUPDB_TOKEN",
        )
    if name.lower() == GENERATION_FIELD.lower():
        raise UsageError(f"--header {name} names a generation", hint="give it by --at")
    if name.lower() in _OWN_FIELDS:
        raise UsageError(f"--header {name} is one that this program sets itself", hint="leave it out")
    return name, text
