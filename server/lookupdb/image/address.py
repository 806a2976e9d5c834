"""The URLs that a registry sends: of an upload, of a token, of a redirect. Each is judged before it is asked. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlencode, urljoin, urlsplit

from lookupdb.errors import RegistryError
from lookupdb.image.words import show_line

_PORTS: Final = {"http": 80, "https": 443}
_NETLOC: Final = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")
"""What `urlsplit` and a client read alike: no user name, no backslash, no zone."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_SECRET: Final = re.compile(r"(?<=//)[^/?#]*@|[?#].*", re.DOTALL)
_MAX_LABEL: Final = 63
"""Characters between two dots of a host's name: DNS has none that are longer, nor empty ones."""
_MAX_CHARACTERS: Final = 8192
_SHOWN_CHARACTERS: Final = 100

Origin = tuple[str, str, int]
"""Scheme, host and port."""


def follow(base: str, reference: str, what: str) -> str:
    """The URL that ``reference``, which was sent as ``what``, means beside the URL ``base``; without a fragment, which
    is never sent. With no ``base`` it must be whole. Raises RegistryError for what is no URL of HTTP."""
    reference = reference.strip()
    url, fault = "", _find_fault(reference)
    if not fault:
        try:
            url = urlsplit(urljoin(base, reference))._replace(fragment="").geturl()
            fault = _find_fault_of_whole(url)
        except ValueError:  # its text may show a password
            fault = "its host or its port is none"
    if fault:
        sender = show_origin(base) if base else "the registry"
        raise RegistryError(
            f"{sender} names as {what} {_show(reference)}, and {fault}:"
            " expected a URL of http or https with a host and without a user name",
            hint="is it an OCI registry? see how the registry, or a proxy before it, names itself",
        )
    return url


def _find_fault(reference: str) -> str:
    if _CONTROL.search(reference):
        return "it has a control character"
    return f"it has over {_MAX_CHARACTERS} characters" if len(reference) > _MAX_CHARACTERS else ""


def _find_fault_of_whole(url: str) -> str:
    """Raises ValueError, too."""
    parts = urlsplit(url)
    if parts.scheme not in _PORTS:
        return "its scheme is another" if parts.scheme else "it has no scheme"
    if not parts.netloc:
        return "it has no host"
    if "@" in parts.netloc:
        return "it has a user name"
    if not _NETLOC.fullmatch(parts.netloc):
        raise ValueError
    find_origin(url)
    return ""


def find_origin(url: str) -> Origin:
    """Who answers for ``url``, written in one way. Raises ValueError for what is no URL of HTTP."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        host = str(ip_address(host))
    except ValueError:
        if ":" in host or not all(0 < len(label) <= _MAX_LABEL for label in host.removesuffix(".").split(".")):
            raise
    return parts.scheme, host, _PORTS[parts.scheme] if parts.port is None else parts.port


def is_host_and_port(text: str) -> bool:
    """Whether a URL may have it: no address of IPv6 is wrong, and no port too large."""
    try:
        find_origin(f"http://{text}/")
    except ValueError:
        return False
    return True


def show_origin(url: str) -> str:
    """Host and port of ``url``, which is one of HTTP, as they stand in it."""
    return urlsplit(url).netloc


def add_query(url: str, members: Mapping[str, str]) -> str:
    """``url`` with ``members`` behind the query that it has."""
    parts = urlsplit(url)
    return parts._replace(query="&".join(filter(None, (parts.query, urlencode(members))))).geturl()


def _show(reference: str) -> str:
    """Without user, password and query, which may be secrets."""
    return f"'{show_line(_SECRET.sub('', reference[:_MAX_CHARACTERS]), _SHOWN_CHARACTERS)}'"
