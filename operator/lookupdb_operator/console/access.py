"""Who may see the console of a cluster: the holders of service account tokens, the users of a proxy, or anyone.

A token is verified as routers verify theirs, and decides which datasets its holder sees. Lookups go to a router with
the same token, so that nobody reads a value that the router would refuse them. ``Door`` is the middleware that admits
visitors, and has the login page and its cookie."""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson
from aiohttp import web

from lookupdb.account_tokens import InvalidToken, TokenCache, decode_part, find_key_id
from lookupdb.credentials import Subjects
from lookupdb.router.access import MIN_TOKEN_BYTES
from lookupdb_operator.cluster.client import Keys
from lookupdb_operator.console.server import ACCOUNT, SOURCE, STATIC, Handler, read_form, render
from lookupdb_operator.console.source import ConsoleSource

log = logging.getLogger(__name__)

Spec = Mapping[str, Any]
"""The spec of a LookupDataset."""

SESSION_SECONDS: Final = 8 * 3600
"""The longest life of a cookie; its token may expire earlier."""
_MAX_COOKIE_BYTES: Final = 3800
"""Browsers drop cookies of more than 4096 bytes, their names and attributes included."""
_MAX_USER_BYTES: Final = 256


class NotAdmitted(Exception):
    """The request carries no valid credentials. The message contains no part of a token or password."""


class CannotJudge(Exception):
    """The token may be valid, but the cluster's keys cannot be read."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody who may see the console, or a part of it."""

    name: str
    namespace: str = ""
    account: str = ""
    """The service account; empty for other visitors."""
    audience: str = ""
    token: str = ""
    until: float = 0.0
    """When the token expires, in seconds since 1970."""
    sees_all: bool = False

    def sees(self, namespace: str, spec: Spec, audience: str) -> bool:
        """Return whether the visitor may see the dataset with ``spec`` in ``namespace``. ``audience`` is the
        console's."""
        if self.sees_all:
            return True
        is_ours = self.audience == audience
        if is_ours and self.namespace == namespace:
            return True  # the makers of such tokens can read the namespace's part of the store
        accounts = read_accounts(spec)
        if not is_ours and self.audience != accounts.get("audience"):
            return False
        try:
            return Subjects(accounts.get("subjects") or ()).allow(self.namespace, self.account)
        except ValueError:  # the CRD prevents it
            return False


def read_accounts(spec: Spec) -> Mapping[str, Any]:
    """Return ``spec.router.auth.serviceAccounts``."""
    return ((spec.get("router") or {}).get("auth") or {}).get("serviceAccounts") or {}


class TokenAccess:
    """Admits service accounts by their tokens, in a header or in the cookie that the login page sets."""

    def __init__(
        self, keys: Keys, audience: str, overseers: Iterable[str], other_audiences: Callable[[], Collection[str]]
    ) -> None:
        """``overseers`` see all datasets. ``other_audiences`` returns the audiences of datasets. Raises ValueError for
        an invalid subject."""
        self.audience = audience
        self._keys = keys
        self._overseers = Subjects(overseers)
        self._other_audiences = other_audiences
        self._caches: dict[str, TokenCache] = {}
        """One cache for each audience: a token is verified for the known audience that it names."""

    async def judge(self, authorization: str | None, cookie: str | None) -> Visitor:
        """Return the visitor whose token is in the header, or else in the cookie. Raises NotAdmitted or CannotJudge."""
        if authorization is not None:
            return await self.verify(_read_credentials(authorization, "bearer"))
        if not cookie:
            raise NotAdmitted("expected a token, as Authorization: Bearer …, or a login")
        return await self.verify(cookie)

    async def verify(self, token: str) -> Visitor:
        """Return the visitor with ``token``. Raises NotAdmitted or CannotJudge."""
        try:
            return await self._verify(token)
        except InvalidToken as error:
            raise NotAdmitted(error.detail) from error

    async def _verify(self, token: str) -> Visitor:
        find_key_id(token)  # cheap, and limits its size
        claims = _read_claims(token)  # not verified yet
        audience = claims.get("aud")
        if isinstance(audience, list) and len(audience) == 1:
            (audience,) = audience
        if not isinstance(audience, str):
            raise InvalidToken("audience", "expected a token for one audience")
        others = self._other_audiences()
        if audience != self.audience and audience not in others:
            raise InvalidToken("audience", f"the token is not for {self.audience}, nor for lookups in a dataset")
        for stale in self._caches.keys() - {self.audience, *others}:
            del self._caches[stale]
        cache = self._caches.setdefault(audience, TokenCache(lambda: self._keys.current, (audience,), time.time))
        verified = cache.verify(token)
        if verified is None:
            is_current = await self._keys.look_again()
            verified = cache.verify(token)
            if verified is None and not is_current:
                raise CannotJudge("the keys of this cluster's service accounts cannot be read now")
        if verified is None:
            raise InvalidToken("key", "the token is not signed with a key of this cluster")
        caller, _ = verified
        name = f"{caller.namespace}/{caller.account}"
        sees_all = audience == self.audience and self._overseers.allow(caller.namespace, caller.account)
        until = float(claims["exp"])
        return Visitor(name, caller.namespace, caller.account, audience, token, until, sees_all)


def _read_claims(token: str) -> Mapping[str, Any]:
    try:
        claims = orjson.loads(decode_part(token.split(".")[1]))
    except ValueError as error:
        raise InvalidToken("form", "the token's claims cannot be read") from error
    if not isinstance(claims, dict):
        raise InvalidToken("form", "the token's claims cannot be read")
    return claims


class ProxyAccess:
    """Admits the users of an authenticating proxy, which sends their names with a password of its own. A header that
    only names a user is ignored: any client could send it."""

    def __init__(self, password_file: Path) -> None:
        """The file is read for each request, because a Secret may be replaced."""
        self._file = password_file

    async def judge(self, authorization: str | None, cookie: str | None) -> Visitor:
        """Return the proxy's user. Raises NotAdmitted or CannotJudge."""
        if authorization is None:
            raise NotAdmitted("expected the proxy's Authorization: Basic …")
        credentials = _read_credentials(authorization, "basic")
        try:
            user, separator, password = base64.b64decode(credentials, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError) as error:
            raise NotAdmitted("the proxy's credentials cannot be read") from error
        if not separator or not hmac.compare_digest(password.encode(), self._read_password()):
            raise NotAdmitted("the proxy's password is not the one in the Secret")
        if not user.isprintable() or len(user.encode()) > _MAX_USER_BYTES:
            raise NotAdmitted("the proxy sent a user name that is too long or not printable")
        return Visitor(user or "a user of the proxy", sees_all=True)

    def _read_password(self) -> bytes:
        try:
            password = self._file.read_bytes().rstrip(b"\r\n")
        except OSError as error:
            raise CannotJudge("the proxy's password cannot be read") from error
        if len(password) < MIN_TOKEN_BYTES:
            raise CannotJudge(f"the proxy's password has fewer than {MIN_TOKEN_BYTES} bytes")
        return password


class OpenAccess:
    """Admits everybody, and shows everything."""

    async def judge(self, authorization: str | None, cookie: str | None) -> Visitor:
        """Return a visitor without a name."""
        return Visitor("", sees_all=True)


AccessMode = TokenAccess | ProxyAccess | OpenAccess
"""Judges requests by their header Authorization and their cookie."""


def _read_credentials(header: str, scheme: str) -> str:
    """Return what follows ``scheme`` in an Authorization header. Raises NotAdmitted."""
    found, _, credentials = header.strip().partition(" ")
    if found.lower() != scheme or not credentials.strip():
        raise NotAdmitted(f"expected Authorization: {scheme.capitalize()} and a value")
    return credentials.strip()


def limit_session(visitor: Visitor, now: float) -> int:
    """Return how many seconds a cookie with the visitor's token may live. Raises NotAdmitted if it does not fit."""
    if len(visitor.token) > _MAX_COOKIE_BYTES:
        raise NotAdmitted(f"the token has more than {_MAX_COOKIE_BYTES} bytes, which no cookie holds")
    return max(1, min(SESSION_SECONDS, int(visitor.until - now)))


# The middleware, the login page, and its cookie.


COOKIE: Final = "lookupdb-token"
_LOGIN: Final = "/login"
_LOGOUT: Final = "/logout"
_FORWARDED_SCHEME: Final = "X-Forwarded-Proto"


class Door:
    """Checks every request with ``access``. Handlers get ``see(visitor)``, the source of what the visitor may see."""

    def __init__(self, access: AccessMode, see: Callable[[Visitor], ConsoleSource], audience: str = "") -> None:
        """Tokens for the console itself name ``audience``."""
        self._access = access
        self._see = see
        self._audience = audience

    @property
    def routes(self) -> list[web.RouteDef]:
        """The pages of the door."""
        if not isinstance(self._access, TokenAccess):
            return []
        return [web.get(_LOGIN, self._log_in), web.post(_LOGIN, self._log_in), web.post(_LOGOUT, self._log_out)]

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Admit the visitor, or refuse the request."""
        resource = request.match_info.route.resource
        path = resource.canonical if resource else ""
        if path.startswith(STATIC) or path in (_LOGIN, _LOGOUT):
            return await handler(request)
        credentials = request.headers.getall("Authorization", [])
        try:
            if len(credentials) > 1:
                raise NotAdmitted("expected one header Authorization")
            visitor = await self._access.judge(credentials[0] if credentials else None, _find_cookie(request))
        except CannotJudge as error:
            raise web.HTTPServiceUnavailable(text=f"{error}.") from error
        except NotAdmitted as error:
            return self._refuse(request, error)
        request[SOURCE] = self._see(visitor)
        if visitor.name:
            request[ACCOUNT] = visitor.name
        return await handler(request)

    def _refuse(self, request: web.Request, error: NotAdmitted) -> web.StreamResponse:
        if not isinstance(self._access, TokenAccess):
            return web.Response(status=403, text=f"Forbidden: {error}.\n")
        is_page = request.method == "GET" and "text/html" in request.headers.get("Accept", "")
        if is_page and "Authorization" not in request.headers:
            return web.Response(status=303, headers={"Location": _LOGIN})
        return web.Response(status=401, text=f"Unauthorized: {error}.\n", headers={"WWW-Authenticate": "Bearer"})

    async def _log_in(self, request: web.Request) -> web.StreamResponse:
        """Show the form, or verify the token of a posted one and put it into a cookie."""
        if request.method != "POST":
            return render(request, "login.html", audience=self._audience, problem="")
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
    """Return whether the browser uses TLS. A proxy says so in a header; whoever sends a false header only loses the
    cookie."""
    return request.secure or request.headers.get(_FORWARDED_SCHEME, "").partition(",")[0].strip().lower() == "https"


def _name_cookie(request: web.Request) -> str:
    """Return the cookie's name. With __Host-, browsers accept it only over TLS, from its own host, for all paths."""
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
        raise NotAdmitted(f"expected one cookie {name}; delete this site's cookies")
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
