"""The console's door in a cluster: a middleware that admits visitors, the page for a token, and its cookie."""

from __future__ import annotations

import logging
import time
from typing import Final

from aiohttp import web

from lookupdb_operator.console.access import (
    AccessMode,
    CannotJudge,
    NotAdmitted,
    TokenAccess,
    Visitor,
    limit_session,
)
from lookupdb_operator.console.cluster_source import ClusterSource, VisitorSource
from lookupdb_operator.console.server import ACCOUNT, SOURCE, Handler, read_form, render

log = logging.getLogger(__name__)

COOKIE: Final = "lookupdb-token"
_LOGIN: Final = "/login"
_LOGOUT: Final = "/logout"
_PUBLIC: Final = "/static/"
_FORWARDED_SCHEME: Final = "X-Forwarded-Proto"


class Door:
    """Judges every request by ``access``, and gives handlers what the visitor may see of ``source``."""

    def __init__(self, access: AccessMode, source: ClusterSource, audience: str = "") -> None:
        """``audience`` is that of the console's own tokens."""
        self._access = access
        self._source = source
        self._audience = audience

    @property
    def routes(self) -> list[web.RouteDef]:
        """The pages of the door."""
        if not isinstance(self._access, TokenAccess):
            return []
        return [
            web.get(_LOGIN, self._show_login),
            web.post(_LOGIN, self._log_in),
            web.post(_LOGOUT, self._log_out),
        ]

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Admit the visitor, or refuse the request."""
        resource = request.match_info.route.resource
        path = resource.canonical if resource else ""
        if path.startswith(_PUBLIC) or path in (_LOGIN, _LOGOUT):
            return await handler(request)
        try:
            visitor = await self._judge(request)
        except CannotJudge as error:
            raise web.HTTPServiceUnavailable(text=f"{error}.") from error
        except NotAdmitted as error:
            return self._refuse(request, error)
        request[SOURCE] = VisitorSource(self._source, visitor, self._audience)
        if visitor.name:
            request[ACCOUNT] = visitor.name
        return await handler(request)

    async def _judge(self, request: web.Request) -> Visitor:
        credentials = request.headers.getall("Authorization", [])
        if len(credentials) > 1:
            raise NotAdmitted("expected one header Authorization")
        return await self._access.judge(credentials[0] if credentials else None, _find_cookie(request))

    def _refuse(self, request: web.Request, error: NotAdmitted) -> web.StreamResponse:
        if not isinstance(self._access, TokenAccess):
            return web.Response(status=403, text=f"Forbidden: {error}.\n")
        is_page = request.method == "GET" and "text/html" in request.headers.get("Accept", "")
        if is_page and "Authorization" not in request.headers:
            return web.Response(status=303, headers={"Location": _LOGIN})
        return web.Response(status=401, text=f"Unauthorized: {error}.\n", headers={"WWW-Authenticate": "Bearer"})

    async def _show_login(self, request: web.Request) -> web.StreamResponse:
        return render(request, "login.html", audience=self._audience, problem="")

    async def _log_in(self, request: web.Request) -> web.StreamResponse:
        """Verify the token of the form, and put it into a cookie."""
        assert isinstance(self._access, TokenAccess)
        token = str((await read_form(request)).get("token", "")).strip()
        try:
            visitor = await self._access.verify(token)
            seconds = limit_session(visitor, time.time())
        except NotAdmitted as error:
            log.warning("refused a login: %s", error, extra={"client": request.remote})
            return render(request, "login.html", status=401, audience=self._audience, problem=str(error))
        except CannotJudge as error:
            raise web.HTTPServiceUnavailable(text=f"{error}.") from error
        log.info("a login", extra={"account": visitor.name, "client": request.remote})
        response = web.Response(status=303, headers={"Location": "/"})
        _set_cookie(request, response, token, seconds)
        return response

    async def _log_out(self, request: web.Request) -> web.StreamResponse:
        """Remove the cookie. The token stays valid until it expires."""
        response = web.Response(status=303, headers={"Location": _LOGIN})
        _set_cookie(request, response, "", 0)
        return response


def _is_encrypted(request: web.Request) -> bool:
    """Whether the browser speaks TLS, to a proxy that says so. A false header only costs its sender the cookie."""
    return request.secure or request.headers.get(_FORWARDED_SCHEME, "").partition(",")[0].strip().lower() == "https"


def _name_cookie(request: web.Request) -> str:
    """Return the cookie's name. Browsers take one with this prefix only from its own host, by TLS, for all paths."""
    return f"__Host-{COOKIE}" if _is_encrypted(request) else COOKIE


def _find_cookie(request: web.Request) -> str | None:
    """Return the token in the cookie. Raises NotAdmitted if there are several: another site of the domain may have set
    one."""
    name, found = _name_cookie(request), []
    for header in request.headers.getall("Cookie", []):
        for pair in header.split(";"):
            key, _, value = pair.strip().partition("=")
            if key == name:
                found.append(value)
    if len(found) > 1:
        raise NotAdmitted(f"expected one cookie {name}; delete those of this site")
    return found[0] if found else None


def _set_cookie(request: web.Request, response: web.Response, token: str, seconds: int) -> None:
    response.set_cookie(
        _name_cookie(request),
        token,
        max_age=seconds,
        path="/",
        secure=_is_encrypted(request),
        httponly=True,
        samesite="Strict",
    )
