"""Requests to this machine, which no proxy of the environment must see."""

from __future__ import annotations

import urllib.request
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

_NO_PROXY: Final = urllib.request.ProxyHandler({})


def is_loopback(url: str) -> bool:
    """Whether the host of ``url`` is this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def proxy_handlers(url: str) -> list[urllib.request.BaseHandler]:
    """Return the handlers with which urllib asks ``url`` directly if it is this machine's, whatever proxy the
    environment names: that is another machine, which has another 127.0.0.1."""
    return [_NO_PROXY] if is_loopback(url) else []
