"""Run a load. First, one request checks that the router accepts the load; a refusal is reported as a sentence. Then
sender processes are started and watched, progress is shown, and their reports become the result."""

from __future__ import annotations

import asyncio
import http.client
import math
import shutil
import signal
import ssl
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple

import lmdb
import orjson

from lookupdb.errors import (
    REDIS_HINT,
    CorruptFile,
    LookupdbError,
    LookupFailed,
    Unavailable,
    UsageError,
    find_certificate_refusal,
    find_trust_hint,
)
from lookupdb.load.plan import (
    DEFAULT_SAMPLE,
    GENERATION_FIELD,
    DatasetFacts,
    LoadOrder,
    LoadTarget,
    Tally,
    clean,
    quote_key,
    take_sample,
)
from lookupdb.load.result import FailCondition, Recording, make_document, render_progress
from lookupdb.load.sender import judge_batch, judge_single
from lookupdb.network import describe_socket_failure, is_redis_reply
from lookupdb.process.launch import call_interruptibly
from lookupdb.store.generations import StoredGeneration, open_shard

TIMEOUT_SECONDS: Final = 30.0  # seconds for the request before the load
LATE_SECONDS: Final = 3.0  # ends the load if a sender has been late for so long
LATE_MICROSECONDS: Final = 100_000  # a sender is late while its median lag exceeds this
LINE_SECONDS: Final = 5.0  # seconds between two lines of progress
START_SECONDS: Final = 120.0  # seconds for senders to open connections
_SHOW_SECONDS: Final = 0.5
_LEAD_SECONDS: Final = 0.2  # seconds between the order to begin and the first request
_END_SECONDS: Final = 5.0  # seconds for a sender to exit when it is done
_LINE_BYTES: Final = 64 << 20
_MAX_ANSWER_BYTES: Final = 128 << 20
_MAX_DETAIL: Final = 1000
_TAIL_BYTES: Final = 2000
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_HINTS: Final[dict[int, str]] = {
    HTTPStatus.UNAUTHORIZED: "give a token that is accepted, by --token-file or in LOOKUPDB_TOKEN",
    HTTPStatus.FORBIDDEN: "give the token of a client that may look up in this dataset",
    HTTPStatus.PRECONDITION_FAILED: "without --at, the active one answers; a router's /v1/dataset lists its candidates",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "give a smaller --batch",
}


def sample_generation(generation: StoredGeneration, scratch: Path, seed: int, size: int = DEFAULT_SAMPLE) -> list[str]:
    """Return at most ``size`` random keys of ``generation``. All shards are read, one after another, without values.
    Raises UsageError, StoreError, CorruptFile."""
    keys = [key.decode() for key in take_sample(_iterate_keys(generation, scratch), size, seed)]
    if not keys:
        raise UsageError(f"{generation.where} has no keys to ask for", hint="give keys in a file")
    return keys


def _iterate_keys(generation: StoredGeneration, scratch: Path) -> Iterator[bytes]:
    for shard in generation.manifest.shards:
        with generation.file(shard, scratch) as path, open_shard(path) as reader:
            try:
                yield from reader.txn.cursor().iternext(keys=True, values=False)
            except lmdb.Error as error:
                raise CorruptFile(f"{path} is damaged: {error}", hint="fetch or build it again") from error


class _Answer(NamedTuple):
    status: int
    reason: str
    generation: bytes  # the header field; empty if there is none
    body: bytes


class Preflight:
    """Send single requests to the router of ``target``."""

    def __init__(self, target: LoadTarget, ca_file: Path | None) -> None:
        """``ca_file`` replaces the CAs of this machine. Raises UsageError if it cannot be used."""
        self._target = target
        try:
            self._context = ssl.create_default_context(cafile=ca_file)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(
                f"--ca-file names {ca_file}, which cannot be used: {error.strerror or error}",
                hint="give a file with a certificate in PEM: -----BEGIN CERTIFICATE-----",
            ) from error

    def read_dataset(self, generation: str | None) -> DatasetFacts:
        """Return what the router serves. Raises Unavailable if it cannot be reached or serves nothing; LookupFailed if
        it refuses, or does not serve ``generation``."""
        answer = self._ask("GET", "/v1/dataset", None)
        self._check(answer)
        try:
            document = orjson.loads(answer.body)
            active, candidates = str(document["generation"]), document["candidates"]
            names = [str(item["generation"] if isinstance(item, dict) else item) for item in candidates]
            namespace, name, records = str(document["namespace"]), str(document["name"]), int(document["records"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._no_router(answer) from error
        if generation is not None and generation not in (active, *names):
            others = f"; candidates: {', '.join(names)}" if names else ""
            raise LookupFailed(
                f"{self._target.url} does not serve {generation}: {active} is active{others}",
                hint=_HINTS[HTTPStatus.PRECONDITION_FAILED],
            )
        return DatasetFacts(namespace, name, records, generation or active)

    def look_up(self, keys: Sequence[str], *, partial: bool) -> None:
        """Look ``keys`` up; unavailable keys are accepted. Raises LookupFailed if the router refuses, or if the answer
        is not a router's."""
        if len(keys) == 1:
            answer, judge = self._ask("GET", f"/v1/lookup{quote_key(keys[0]).decode()}", None), judge_single
        else:
            members = {"keys": list(keys), "partial": True} if partial else {"keys": list(keys)}
            answer, judge = self._ask("POST", "/v1/lookup", orjson.dumps(members)), judge_batch
        verdict = judge(answer.status, answer.generation, answer.body, len(keys))
        if verdict.kind == "httpErrors":
            self._check(answer)
        if verdict.kind in ("httpErrors", "invalid"):
            raise self._no_router(answer)

    def _ask(self, method: str, path: str, body: bytes | None) -> _Answer:
        try:
            return call_interruptibly(self._exchange, method, path, body, seconds=2 * TIMEOUT_SECONDS)
        except (OSError, ValueError, http.client.HTTPException) as error:
            host = f"{self._target.host}:{self._target.port}"
            raise Unavailable(
                f"no answer from {self._target.url}: {describe_socket_failure(error, host)}",
                hint=REDIS_HINT if is_redis_reply(error) else _find_tls_hint(error),
            ) from error

    def _exchange(self, method: str, path: str, body: bytes | None) -> _Answer:
        host, port = self._target.host, self._target.port
        connection = (
            http.client.HTTPSConnection(host, port, timeout=TIMEOUT_SECONDS, context=self._context)
            if self._target.is_encrypted
            else http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
        )
        headers = dict(self._target.fields) | ({} if body is None else {"Content-Type": "application/json"})
        try:
            connection.request(method, self._target.path + path, body, headers)
            response = connection.getresponse()
            generation = response.getheader(GENERATION_FIELD, "").encode("latin-1")
            return _Answer(response.status, response.reason, generation, response.read(_MAX_ANSWER_BYTES))
        finally:
            connection.close()

    def _check(self, answer: _Answer) -> None:
        """Raise the error for a refusal."""
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
        if answer.status == HTTPStatus.PRECONDITION_FAILED:  # the hint names --at instead of the header
            text = text.partition(f"; leave {GENERATION_FIELD} out")[0]
        message = f"the router answered {answer.status}: {text}"
        if answer.status == HTTPStatus.SERVICE_UNAVAILABLE:
            raise Unavailable(message)
        raise LookupFailed(message, hint=_HINTS.get(answer.status))

    def _no_router(self, answer: _Answer) -> LookupFailed:
        return LookupFailed(
            f"{self._target.url} answered {answer.status} {clean(answer.reason[:60])}, not as a router does",
            hint="check that a lookupdb router listens there, on its public port",
        )


def _find_tls_hint(error: BaseException) -> str | None:
    if isinstance(error, ssl.SSLCertVerificationError):
        return find_trust_hint(error) or "give the certificate of the CA that signed it with --ca-file"
    if find_certificate_refusal(error, has_shown_one=False):
        return "this command has no client certificate: load a router that asks for none"
    return "give its URL with http: if the router has no TLS" if isinstance(error, ssl.SSLError) else None


class LagWatch:
    """Watch how late one sender is."""

    _late_since = _seen_at = -math.inf

    def check(self, seconds: float, lags: Sequence[int]) -> None:
        """Check the ``lags`` of a report, in microseconds. Raises LookupdbError if the sender was late for too long:
        the result would measure this machine."""
        if not lags:
            return
        lag = sorted(lags)[len(lags) // 2]
        if lag <= LATE_MICROSECONDS or seconds - self._seen_at > LATE_SECONDS:
            self._late_since = seconds
        self._seen_at = seconds
        if seconds - self._late_since >= LATE_SECONDS:
            raise LookupdbError(
                f"this machine does not keep up: for {LATE_SECONDS:g} s requests left more than"
                f" {LATE_MICROSECONDS // 1000} ms late, the last ones {lag / 1e6:.2g} s",
                hint="lower --rate, give more --processes, or run it on a machine with idle CPUs",
            )


class LoadDisplay:
    """Show a load's progress on standard error: a changing line on a terminal, else a line every few seconds."""

    def __init__(self, is_terminal: bool | None = None) -> None:
        self._erase = "\r\x1b[K" if (sys.stderr.isatty() if is_terminal is None else is_terminal) else ""
        self._shown_at: float | None = None

    def show(self, recording: Recording, seconds: float, duration: float) -> None:
        """Show ``recording``, ``seconds`` after measuring began; negative in the warm-up."""
        self._shown_at = seconds if self._shown_at is None else self._shown_at
        if self._erase:
            line = render_progress(recording, seconds, duration)[: shutil.get_terminal_size().columns - 1]
            self.tell(line, end="")
        elif seconds - self._shown_at >= LINE_SECONDS:
            self._shown_at = seconds
            self.tell(render_progress(recording, seconds, duration))

    def tell(self, line: str, end: str = "\n") -> None:
        """Print ``line``."""
        print(f"{self._erase}{line}", end=end, file=sys.stderr, flush=True)


def run_load(order: LoadOrder, display: LoadDisplay, conditions: Sequence[FailCondition]) -> tuple[dict[str, Any], int]:
    """Load a router. Return the result, and the signal that ended the load, or 0. The first SIGINT or SIGTERM stops
    sending, with a result; the next ends at once. Raises LookupdbError if a sender ends by itself, or is too slow."""
    try:
        return asyncio.run(_Load(order, display).run(conditions))
    except asyncio.CancelledError as error:
        raise KeyboardInterrupt from error
    finally:
        display.tell("", end="")  # clear the changing line


class _Load:
    def __init__(self, order: LoadOrder, display: LoadDisplay) -> None:
        self._order, self._plan, self._display = order, order.sender.load, display
        self._recording = Recording(self._plan.duration, self._plan.processes)
        self._senders: list[asyncio.subprocess.Process] = []
        self._measured = math.inf  # when measuring begins, by time.monotonic()
        self._started_at = datetime.now(UTC)
        self._stopped_at = 0.0
        self._ended_by = 0

    async def run(self, conditions: Sequence[FailCondition]) -> tuple[dict[str, Any], int]:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "run in a task"
        with suppress(ValueError, RuntimeError):  # no signal handlers outside the main thread
            for number in _SIGNALS:
                loop.add_signal_handler(number, self._take_signal, number, task)
        showing: asyncio.Task[None] | None = None
        try:
            await asyncio.gather(*map(self._start, range(self._plan.processes)))
            await self._begin()
            showing = asyncio.ensure_future(self._show())
            await asyncio.gather(*map(self._read, range(self._plan.processes), self._senders))
        finally:
            if showing is not None:
                showing.cancel()
            await self._end()
        self._recording.finish()
        measured = min(self._plan.duration, max(0.0, self._stopped_at - self._measured))
        document = make_document(
            self._order,
            self._recording,
            started_at=self._started_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            seconds=measured if self._ended_by else self._plan.duration,
            is_interrupted=bool(self._ended_by),
            conditions=conditions,
        )
        return document, self._ended_by

    def _take_signal(self, number: int, task: asyncio.Task[Any]) -> None:
        if self._ended_by:
            task.cancel()
        else:
            self._ended_by, self._stopped_at = number, time.monotonic()
            self._stop()

    def _stop(self) -> None:
        """Stop sending. Pending requests get some seconds."""
        for sender in self._senders:
            _input(sender).close()

    async def _start(self, number: int) -> None:
        pipe, words = asyncio.subprocess.PIPE, (sys.executable, "-P", "-m", "lookupdb.load.sender")
        sender = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, stderr=pipe, limit=_LINE_BYTES)
        self._senders.append(sender)
        with suppress(ConnectionError):  # if the sender has ended, _read_line reports why
            _input(sender).write(replace(self._order.sender, process=number).to_line())
            await _input(sender).drain()

    async def _begin(self) -> None:
        try:
            async with asyncio.timeout(START_SECONDS):
                await asyncio.gather(*map(self._read_line, self._senders))
        except TimeoutError as error:
            raise LookupdbError(f"the senders were not ready within {START_SECONDS:g} s") from error
        start = time.monotonic() + _LEAD_SECONDS
        self._measured = start + self._plan.warmup
        self._started_at = datetime.now(UTC) + timedelta(seconds=self._measured - time.monotonic())
        if self._ended_by:  # senders may have started after the signal
            self._stop()
            return
        for sender in self._senders:
            _input(sender).write(f"{start!r}\n".encode())

    async def _read(self, number: int, sender: asyncio.subprocess.Process) -> None:
        watch = LagWatch()
        while "tally" in (report := await self._read_line(sender)):
            tally, known = Tally(**report["tally"]), self._recording.total.generations
            watch.check(report["begin"], tally.lags)
            for name, span in tally.generations.items():
                if known and name not in known:
                    self._display.tell(clean(f"at {span['firstSeconds']:.1f} s: {name} answers for the first time"))
            self._recording.take(number, report["begin"], tally)

    async def _read_line(self, sender: asyncio.subprocess.Process) -> dict[str, Any]:
        """Return the next report; empty if the load was stopped."""
        assert sender.stdout is not None
        assert sender.stderr is not None
        if line := await sender.stdout.readline():
            report: dict[str, Any] = orjson.loads(line)
            return report
        if self._ended_by:
            return {}
        tail = (await sender.stderr.read())[-_TAIL_BYTES:].decode(errors="replace").strip()
        raise LookupdbError(f"a sender ended with exit code {await sender.wait()}: {tail or 'it said nothing'}")

    async def _show(self) -> None:
        while True:
            self._display.show(self._recording, time.monotonic() - self._measured, self._plan.duration)
            await asyncio.sleep(_SHOW_SECONDS)

    async def _end(self) -> None:
        self._stop()
        for sender in self._senders:
            try:
                async with asyncio.timeout(_END_SECONDS):
                    await sender.wait()
            except (TimeoutError, asyncio.CancelledError):
                with suppress(ProcessLookupError):
                    sender.kill()
                await sender.wait()


def _input(sender: asyncio.subprocess.Process) -> asyncio.StreamWriter:
    assert sender.stdin is not None, "it is a pipe"
    return sender.stdin
