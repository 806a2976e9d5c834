"""Spans of sampled requests: one of the request, and a child for the keys that went to one shard.

An exchange whose request is not sampled stays as it is. Any other gets a ``TracedConnection``, whose lookup core makes
pending lookups that record when they end. Children are made after the answer has been written. No span contains a key:
a path has a placeholder for it, and a problem is recorded by its reason alone.

Nothing is sent to shards: a batch has the keys of many requests, and the protocol has no place for their spans.
"""

from __future__ import annotations

import asyncio
import copy
import time
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from lookupdb.router.batch_keys import ReplyValues
from lookupdb.router.clients import Answer
from lookupdb.router.http import request as target
from lookupdb.router.http.exchanges import METHODS, ClientConnection, Exchange
from lookupdb.router.http.request import TRACEPARENT, Request
from lookupdb.router.lookup_core import LookupCore
from lookupdb.router.lookups import PendingLookup, Problem, ShardSlice, SingleKey
from lookupdb.telemetry import SAMPLED, log_fields, parse_traceparent

if TYPE_CHECKING:
    from lookupdb.spans import Spans, TimedSpan

_ANSWERED: Final = "Answered"
_ABANDONED: Final = "Abandoned"
"""The outcome of keys whose request has ended before they were answered: the client is gone, or was refused."""
_STATUS: Final = slice(len("HTTP/1.1 "), len("HTTP/1.1 200"))


class RequestTraces:
    """Begins the spans of requests."""

    def __init__(self, spans: Spans, *, is_encrypted: bool) -> None:
        self._spans = spans
        self._scheme = "https" if is_encrypted else "http"
        self.samples_roots = spans.may_sample_roots
        """True if a request may be sampled even if its caller has no span, or an unsampled one."""

    def begin(self, exchange: Exchange, request: Request) -> None:
        """Begin the span of ``exchange`` if it is sampled. Requests without access and probes have none."""
        parent = parse_traceparent(request.fields.get(TRACEPARENT))
        is_sampled = parent is not None and parent.flags & SAMPLED
        if request.refusal is not None or not (is_sampled or self.samples_roots):
            return
        path, method = _find_resource(request.target), request.method.decode()
        if path in _PROBE_PATHS:
            return
        attributes: dict[str, str | int] = {"http.request.method": method, "url.scheme": self._scheme}
        if path is not None:
            attributes["http.route"] = path
        start = time.time_ns() - (time.monotonic_ns() - exchange.arrived)
        span = self._spans.begin(f"{method} {path or ''}".rstrip(), "SERVER", parent, attributes, start)
        if span.is_kept:
            trace = RequestTrace(span)
            exchange.connection = cast("ClientConnection", TracedConnection(exchange.connection, trace))
            exchange.lookups = cast("LookupCore", _TracedLookups(exchange.lookups, trace))


_PROBE_PATHS: Final = tuple(path.decode() for path in target.PROBES)


def _find_resource(requested: bytes) -> str | None:
    """Return the path of the resource, with ``{key}`` and ``{name}`` for what varies; None if there is none."""
    path, prefix = requested.partition(b"?")[0], ""
    if not path.startswith(b"/"):
        path = target.to_origin_form(path)
    if path.startswith(target.DATASETS):
        path, prefix = target.split_dataset(path)[1], "/v1/datasets/{name}"
    if path.startswith(target.LOOKUP_KEY):
        path = target.LOOKUP_KEY + b"{key}"
    elif path not in METHODS:
        return None
    return prefix + path.decode().removeprefix("/v1" if prefix else "")


class _ShardBatch(NamedTuple):
    """The keys of a request that went to one shard."""

    lookup: PendingLookup
    key_count: int
    start: int
    """Nanoseconds since 1970."""
    end: int
    outcome: str


class RequestTrace:
    """The span of one request, and what becomes its children."""

    def __init__(self, span: TimedSpan) -> None:
        self._span = span
        self.fields = dict(span.ids)
        """Fields of log lines about the request."""
        self._batches: list[_ShardBatch] = []
        self._is_ended = False

    def note_dataset(self, core: LookupCore) -> None:
        """Record which dataset is asked."""
        if core.live is not None:
            dataset = core.live.table.dataset
            self._span.describe(namespace=dataset.namespace, dataset=dataset.name)
            self.fields["dataset"] = str(dataset)

    def note_batch(self, lookup: PendingLookup, key_count: int, start: int, outcome: str) -> None:
        """Record that the keys of ``lookup`` are answered, given up or abandoned."""
        self._batches.append(_ShardBatch(lookup, key_count, start, time.time_ns(), outcome))
        if outcome is _ABANDONED:  # no answer follows if the client is gone
            asyncio.get_running_loop().call_soon(self.end, None)

    def logged(self, lookup: PendingLookup) -> AbstractContextManager[None]:
        """Let log lines of the block name the request, its dataset and the generation that answers."""
        return log_fields(**self.fields, generation=lookup.replicas.generation.name)

    def end(self, status: int | None) -> None:
        """End the span, with the ``status`` of the answer, once. Make its children."""
        if self._is_ended:
            return
        self._is_ended = True
        for batch in self._batches:
            lookup = batch.lookup
            child = self._span.begin_child("shard batch", "CLIENT", batch.start)
            first, second = lookup.first_target, lookup.second_target
            child.describe(
                shard=lookup.replicas.number,
                keys=batch.key_count,
                generation=lookup.replicas.generation.name,
                replica=None if first is None else str(first.address),
                second_replica=None if second is None else str(second.address),
                outcome=batch.outcome,
            )
            if batch.outcome is not _ANSWERED:
                child.fail(batch.outcome)
            child.end(batch.end)
        if status is None:
            self._span.fail(_ABANDONED)
        else:
            self._span.add({"http.response.status_code": status})
            if status >= 500:
                self._span.fail(str(status))
        generations = {batch.lookup.replicas.generation.name for batch in self._batches}
        self._span.describe(generation=", ".join(sorted(generations)) or None)
        self._span.end()
        self._batches.clear()


class TracedConnection:
    """A client connection as the exchange of one traced request uses it."""

    def __init__(self, connection: ClientConnection, trace: RequestTrace) -> None:
        self._connection = connection
        self._trace = trace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def answer(self, exchange: Exchange, answer: Answer, counter: int | None = None) -> None:
        """Answer, and end the span."""
        head = answer if isinstance(answer, bytes) else answer[0]
        self._connection.answer(exchange, answer, counter)
        self._trace.end(int(head[_STATUS]))


class _TracedLookups:
    """A lookup core as the exchange of one traced request uses it. It notes its pending lookups in the trace."""

    def __init__(self, core: LookupCore, trace: RequestTrace) -> None:
        self._core = core
        self._trace = trace

    def __getattr__(self, name: str) -> Any:
        core = copy.copy(self._core)  # now, because the routing table may have changed
        core.make_key = partial(_TracedKey, self._trace)
        core.make_slice = partial(_TracedSlice, self._trace)
        self._trace.note_dataset(core)
        return getattr(core, name)


class _TracedKey(SingleKey):
    """A key whose end is noted."""

    __slots__ = ("_start", "_trace")

    def __init__(self, trace: RequestTrace, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._trace = trace
        self._start = time.time_ns()

    def deliver(self, values: ReplyValues, offset: int) -> None:
        """Note the end, and give the waiter its value."""
        self._trace.note_batch(self, 1, self._start, _ANSWERED)
        with self._trace.logged(self):
            super().deliver(values, offset)

    def give_up(self, problem: Problem) -> None:
        """Note the end, and report the problem to the waiter."""
        if not self.is_done:
            self._trace.note_batch(self, 1, self._start, problem.reason)
            with self._trace.logged(self):
                super().give_up(problem)


class _TracedSlice(ShardSlice):
    """A slice whose end is noted."""

    __slots__ = ("_outcome", "_sent_keys", "_start", "_trace")

    def __init__(self, trace: RequestTrace, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._trace = trace
        self._start = time.time_ns()
        self._sent_keys = self.key_count
        self._outcome = _ABANDONED

    def deliver(self, values: ReplyValues, offset: int) -> None:
        """Store the values in the gather."""
        self._outcome = _ANSWERED
        with self._trace.logged(self):
            super().deliver(values, offset)

    def give_up(self, problem: Problem) -> None:
        """Record the problem for all keys."""
        if not self.is_done:
            self._outcome = problem.reason
            with self._trace.logged(self):
                super().give_up(problem)

    def end(self) -> None:
        """End the lookup, and record that."""
        if not self.is_done:
            self._trace.note_batch(self, self._sent_keys, self._start, self._outcome)
        super().end()
