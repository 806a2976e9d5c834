"""A request from its first byte to its last: who sends it, what it asks for, whether it is theirs, whether there is
room; then the operation. The order is fixed: who is not known learns nothing else."""

from __future__ import annotations

import logging
from typing import Final

from aiohttp import web

from lookupdb.store.gateway_wire import MODE_HEADER, REDIRECTED_SUFFIX, ErrorKind
from lookupdb.tokens.verification import Caller, InvalidToken, TokenCache
from lookupdb_operator.gateway.access import Access
from lookupdb_operator.gateway.admission import Admission
from lookupdb_operator.gateway.connection import Connection
from lookupdb_operator.gateway.keys import Keys
from lookupdb_operator.gateway.metrics import GatewayMetrics
from lookupdb_operator.gateway.problems import BrokenOff, RequestProblem, Unauthenticated, busy, invalid
from lookupdb_operator.gateway.reads import Reads
from lookupdb_operator.gateway.targets import Operation, RequestTarget, parse_target
from lookupdb_operator.gateway.writes import Writes

log = logging.getLogger(__name__)

_SCHEME: Final = "bearer "
_SINGLE_HEADERS: Final = (
    *("Authorization", "Content-Length", "Content-Encoding", "Expect", "Host", "Range", "Transfer-Encoding"),
    MODE_HEADER,
)
"""Of which a request has one at most: a proxy and the gateway might each believe another."""
_NO_OPERATION: Final = "none"
"""The label of requests that ask for nothing that there is."""
_BROKEN_OFF: Final = 499
"""The label of responses that ended early; nobody is sent it."""


class Handlers:
    """Answers requests."""

    def __init__(
        self,
        *,
        access: Access,
        keys: Keys,
        tokens: TokenCache,
        admission: Admission,
        reads: Reads,
        writes: Writes,
        metrics: GatewayMetrics,
    ) -> None:
        self._access = access
        self._keys = keys
        self._tokens = tokens
        self._admission = admission
        self._reads = reads
        self._writes = writes
        self._metrics = metrics

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer ``request``. Never raises what is not a cancellation."""
        operation, status = _NO_OPERATION, _BROKEN_OFF
        try:
            caller = await self._authenticate(request)
            target = parse_target(request.method, request.raw_path)
            operation = target.operation.value
            self._authorize(target, caller, request)
            with self._admission.admit(caller.namespace, transfers=_transfers_file(target, request)):
                response = await self._dispatch(request, target, caller)
            status = response.status
        except RequestProblem as problem:
            response, status = self._refuse(request, problem), problem.status
        except BrokenOff as error:
            log.warning("a response broke off: %s", error, extra={"operation": operation})
            response = _cut(request)
        except Exception:
            log.exception("a request failed, by a defect", extra={"operation": operation})
            status = 500
            response = RequestProblem(
                ErrorKind.STORE_FAILED, "the gateway has a defect; its log tells", status=500
            ).render()
        finally:
            self._metrics.count_request(operation, status)
        return response

    async def _authenticate(self, request: web.BaseRequest) -> Caller:
        """Who sends ``request``. Raises RequestProblem."""
        _check_headers(request)
        header = request.headers.get("Authorization", "")
        if header[: len(_SCHEME)].lower() != _SCHEME:
            raise Unauthenticated("absent", "expected a service account's token, as Authorization: Bearer …")
        token = header[len(_SCHEME) :].strip()
        caller = self._verify(token)
        if caller is None:
            is_current = await self._keys.look_again()
            caller = self._verify(token)
            if caller is None and not is_current:
                raise busy("the keys of this cluster's service accounts cannot be read now")
        if caller is None:
            raise Unauthenticated("key", "the token is signed with a key that is none of this cluster's")
        return caller

    def _verify(self, token: str) -> Caller | None:
        try:
            return self._tokens.verify(token)
        except InvalidToken as error:
            raise Unauthenticated(error.reason, error.detail) from error

    def _authorize(self, target: RequestTarget, caller: Caller, request: web.BaseRequest) -> None:
        """Raises RequestProblem unless ``target`` is the caller's; what a body names is looked at later."""
        match target.operation:
            case Operation.DELETE | Operation.COPY:
                return
            case Operation.LIST:
                is_allowed = self._access.may_list(target.path, caller, folders_only=target.folders_only)
            case Operation.WRITE:
                is_allowed = self._access.may_write(target.path, caller)
            case _:
                is_allowed = self._access.may_read(target.path, caller)
        if not is_allowed:
            raise RequestProblem(ErrorKind.FORBIDDEN, self._access.explain_refusal(target.path, caller))

    async def _dispatch(self, request: web.BaseRequest, target: RequestTarget, caller: Caller) -> web.StreamResponse:
        match target.operation:
            case Operation.READ | Operation.HEAD | Operation.LIST:
                connection = request.protocol
                assert isinstance(connection, Connection)
                async with connection.lasting():
                    return await self._read(request, target, caller)
            case Operation.WRITE:
                return await self._writes.put(request, target, caller)
            case Operation.COPY:
                return await self._writes.copy(request, caller)
            case Operation.DELETE:
                return await self._writes.delete(request, caller)

    async def _read(self, request: web.BaseRequest, target: RequestTarget, caller: Caller) -> web.StreamResponse:
        match target.operation:
            case Operation.READ:
                return await self._reads.get(request, target, caller)
            case Operation.HEAD:
                return await self._reads.head(request, target)
            case _:
                return await self._reads.list(request, target, caller)

    def _refuse(self, request: web.BaseRequest, problem: RequestProblem) -> web.StreamResponse:
        response = problem.render()
        match problem:
            case Unauthenticated(reason=reason):
                self._metrics.count_refusal(reason, problem.detail, request.remote)
                response.force_close()  # each guess costs a connection
            case RequestProblem(kind=ErrorKind.FORBIDDEN):
                self._metrics.count_refusal("forbidden", problem.detail, request.remote)
        return response


def _transfers_file(target: RequestTarget, request: web.BaseRequest) -> bool:
    """Whether a file is read, put or copied, as against what is short."""
    match target.operation:
        case Operation.READ:
            return target.path.endswith(REDIRECTED_SUFFIX)
        case Operation.WRITE:
            return MODE_HEADER not in request.headers
        case Operation.COPY:
            return True
    return False


def _check_headers(request: web.BaseRequest) -> None:
    for name in _SINGLE_HEADERS:
        if len(request.headers.getall(name, ())) > 1:
            raise invalid(f"expected one header {name}")


def _cut(request: web.BaseRequest) -> web.StreamResponse:
    """Close the connection at once, so that what was sent of the response is not taken for all of it."""
    if request.transport:
        request.transport.abort()
    return web.StreamResponse(status=_BROKEN_OFF)
