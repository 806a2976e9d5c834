"""One request of each kind before the load: what would be refused a thousand times is refused once, in a sentence.

The answer to a lookup is kept: senders try with it how many such they can read.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import orjson

from lookupdb.errors import LookupFailed, Unavailable
from lookupdb.load.answers import clean_label, judge_batch, judge_single
from lookupdb.load.key_choice import MISSING_PREFIX
from lookupdb.load.requests import quote_key
from lookupdb.load.target import GENERATION_FIELD, LoadTarget
from lookupdb.network import describe_socket_failure, is_redis_reply
from lookupdb.redis_port import REDIS_HINT
from lookupdb.runtime.daemon_calls import call_interruptibly

TIMEOUT_SECONDS: Final = 30.0
_MAX_BODY_BYTES: Final = 128 << 20
_MAX_DETAIL: Final = 1000
_HINTS: Final = {
    HTTPStatus.UNAUTHORIZED: "give a token that is accepted, by --token-file or in LOOKUPDB_TOKEN",
    HTTPStatus.FORBIDDEN: "give the token of a client that may look up in this dataset",
    HTTPStatus.PRECONDITION_FAILED: "leave --at out to ask what is active; a router's /v1/dataset lists its candidates",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "give a smaller --batch",
}


@dataclass(frozen=True, slots=True)
class RouterAnswer:
    """An answer, whole."""

    status: int
    reason: str
    fields: Sequence[tuple[str, str]]
    body: bytes

    @property
    def generation(self) -> bytes:
        """Those that the header names; empty if none does."""
        for name, text in self.fields:
            if name.lower() == GENERATION_FIELD.lower():
                return text.encode("latin-1")
        return b""

    def render(self) -> bytes:
        """As a router sends it on a connection that stays."""
        lines = [f"HTTP/1.1 {self.status} {self.reason}"]
        lines += [
            f"{name}: {text}"
            for name, text in self.fields
            if name.lower() not in ("content-length", "transfer-encoding", "connection")
        ]
        head = "\r\n".join([*lines, f"Content-Length: {len(self.body)}", "", ""])
        return head.encode("latin-1") + self.body


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """What a router says of its dataset."""

    namespace: str
    name: str
    generation: str
    """The one that was asked for, else the active one."""
    records: int


class Preflight:
    """Asks the router of ``target``. ``hint_for`` says what to do about an error of TLS."""

    def __init__(
        self, target: LoadTarget, context: ssl.SSLContext, hint_for: Callable[[BaseException], str | None]
    ) -> None:
        self._target, self._context, self._hint_for = target, context, hint_for

    def read_dataset(self, generation: str | None) -> DatasetFacts:
        """What the router serves. Raises Unavailable when it cannot be reached or serves nothing, LookupFailed when it
        refuses, or does not serve ``generation``, if one is asked for."""
        answer = self._ask("GET", "/v1/dataset", None)
        self._check(answer)
        try:
            document = orjson.loads(answer.body)
            active = str(document["generation"])
            candidates = [str(_candidate_name(candidate)) for candidate in document["candidates"]]
            facts = DatasetFacts(
                str(document["namespace"]), str(document["name"]), generation or active, int(document["records"])
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._no_router(answer) from error
        if generation is not None and generation not in (active, *candidates):
            others = f", and {', '.join(candidates)} a candidate" if candidates else ""
            raise LookupFailed(
                f"{self._target.url} does not serve {generation}: {active} is active{others}",
                hint=_HINTS[HTTPStatus.PRECONDITION_FAILED],
            )
        return facts

    def look_up(self, keys: Sequence[str], *, partial: bool) -> RouterAnswer:
        """The answer to a lookup of ``keys``. Raises LookupFailed when it is refused, or no router's. That keys are
        unavailable is an answer."""
        if len(keys) == 1:
            answer = self._ask("GET", f"/v1/lookup{quote_key(keys[0]).decode()}", None)
            verdict = judge_single(answer.status, answer.generation, answer.body)
        else:
            members = {"keys": list(keys), "partial": True} if partial else {"keys": list(keys)}
            answer = self._ask("POST", "/v1/lookup", orjson.dumps(members))
            verdict = judge_batch(answer.status, answer.generation, answer.body, len(keys))
        if verdict.kind == "httpErrors":
            self._check(answer)
        if verdict.kind in ("httpErrors", "invalid"):
            raise self._no_router(answer)
        return answer

    def make_up_key(self) -> str:
        """A key that no record has."""
        return f"{MISSING_PREFIX}preflight"

    def _ask(self, method: str, path: str, body: bytes | None) -> RouterAnswer:
        try:
            return call_interruptibly(self._exchange, method, path, body, seconds=2 * TIMEOUT_SECONDS)
        except (OSError, ValueError, http.client.HTTPException) as error:
            host = f"{self._target.host}:{self._target.port}"
            raise Unavailable(
                f"no answer from {self._target.url}: {describe_socket_failure(error, host)}",
                hint=REDIS_HINT if is_redis_reply(error) else self._hint_for(error),
            ) from error

    def _exchange(self, method: str, path: str, body: bytes | None) -> RouterAnswer:
        target = self._target
        connection = (
            http.client.HTTPSConnection(target.host, target.port, timeout=TIMEOUT_SECONDS, context=self._context)
            if target.is_encrypted
            else http.client.HTTPConnection(target.host, target.port, timeout=TIMEOUT_SECONDS)
        )
        try:
            connection.putrequest(method, target.path + path, skip_host=True, skip_accept_encoding=True)
            for name, text in target.fields:
                connection.putheader(name, text)
            if body is not None:
                connection.putheader("Content-Type", "application/json")
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            response = connection.getresponse()
            return RouterAnswer(response.status, response.reason, response.getheaders(), response.read(_MAX_BODY_BYTES))
        finally:
            connection.close()

    def _check(self, answer: RouterAnswer) -> None:
        """Raises what the refusal that ``answer`` is means."""
        if answer.status == HTTPStatus.OK:
            return
        if HTTPStatus.MULTIPLE_CHOICES <= answer.status < HTTPStatus.BAD_REQUEST:
            raise LookupFailed(
                f"{self._target.url} answered {answer.status}, a redirect, which a router never does",
                hint="give the URL of the router itself",
            )
        try:
            problem = orjson.loads(answer.body)
            text = f"{problem['title']}: {problem['detail']}"
        except (ValueError, KeyError, TypeError) as error:
            raise self._no_router(answer) from error
        text = "".join(character if character.isprintable() else " " for character in text[:_MAX_DETAIL])
        if answer.status == HTTPStatus.PRECONDITION_FAILED:  # a header, which is an option here
            text = text.partition(f"; leave {GENERATION_FIELD} out")[0]
        message = f"the router answered {answer.status}: {text}"
        if answer.status == HTTPStatus.SERVICE_UNAVAILABLE:
            raise Unavailable(message)
        raise LookupFailed(message, hint=_HINTS.get(HTTPStatus(answer.status)))

    def _no_router(self, answer: RouterAnswer) -> LookupFailed:
        return LookupFailed(
            f"{self._target.url} answered {answer.status} {clean_label(answer.reason)}, not as a router does",
            hint="is there a lookupdb router, and is this its public port?",
        )


def _candidate_name(candidate: Any) -> Any:
    return candidate["generation"] if isinstance(candidate, dict) else candidate
