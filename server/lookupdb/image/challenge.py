"""How a registry asks for credentials: the header WWW-Authenticate, and the request for a token that it leads to.
Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from lookupdb.image.address import add_query

_SCHEME: Final = re.compile(r"\s*(Basic|Bearer)\b", re.IGNORECASE)
_PARAMETER: Final = re.compile(r'([A-Za-z_]{1,32})="([^"\x00-\x1f]{0,2048})"')


@dataclass(frozen=True, slots=True)
class Challenge:
    """What is asked for: a name and a password with each request (``Basic``), or a token of ``realm`` (``Bearer``)."""

    scheme: str
    realm: str = ""
    service: str = ""


def parse_challenge(header: str) -> Challenge | None:
    """What the header asks for; None for what this client cannot give."""
    found = _SCHEME.match(header[:8192])
    if not found:
        return None
    scheme = found[1].capitalize()
    parameters = dict(_PARAMETER.findall(header[:8192]))
    if scheme == "Bearer" and not parameters.get("realm"):
        return None
    return Challenge(scheme, parameters.get("realm", ""), parameters.get("service", ""))


def token_url(realm: str, challenge: Challenge, repository: str) -> str:
    """Where to ask for a token that may pull from and push to ``repository``; ``realm`` is that of the ``challenge``,
    a URL."""
    query = {"service": challenge.service} if challenge.service else {}
    return add_query(realm, {**query, "scope": f"repository:{repository}:pull,push"})
