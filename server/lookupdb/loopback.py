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


def proxy_options(url: str) -> dict[str, str]:
    """Return the options with which obstore asks ``url`` directly if it is this machine's.

    Another host, to which it may be redirected, is asked by the environment's proxy for http: an option puts all that
    the environment says about proxies out of force.
    """
    proxies = urllib.request.getproxies()
    proxy = proxies.get("http") or proxies.get("all")
    if not proxy or not is_loopback(url):
        return {}
    excluded = [urlsplit(url).hostname or "", *proxies.get("no", "").split(",")]
    return {"proxy_url": proxy, "proxy_excludes": ",".join(filter(None, excluded))}
