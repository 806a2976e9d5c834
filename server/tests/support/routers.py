"""The router as a user starts it: ``lookupdb route``, its admin port, and clients that ask without a pause."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from support import launching
from support.metrics import without_dataset
from support.ports import free_port
from support.tls import authority, make_identity
from support.waiting import until


@dataclass(frozen=True, slots=True)
class Router:
    """A ``lookupdb route`` that runs."""

    process: subprocess.Popen[bytes]
    port: int
    admin: int
    resp: int = 0
    """The port for RESP, or 0."""

    def get(self, path: str, *, admin: bool = False) -> tuple[int, bytes]:
        """Status and body of one request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.admin if admin else self.port, timeout=60)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def metrics(self) -> str:
        """/metrics of the admin port, without the labels of the dataset."""
        return without_dataset(self.get("/metrics", admin=True)[1].decode())

    def status(self) -> dict[str, Any]:
        """/status of the admin port."""
        document: dict[str, Any] = orjson.loads(self.get("/status", admin=True)[1])
        return document

    def reports(self, member: str) -> list[Any]:
        """Return a member of each worker's last report."""
        return [worker["report"].get(member) for worker in self.status()["workers"]]


@contextlib.contextmanager
def routing(
    table: Path,
    *options: str,
    drain_seconds: int = 0,
    workers: int = 1,
    open_files: int | None = None,
    by_command_line: bool = False,
) -> Iterator[Router]:
    """``lookupdb route`` from ready until the block ends; it must then end with status 0.

    ``open_files`` is the hard limit of descriptors. ``by_command_line``: by an interpreter of its own. Where
    ``options`` say nothing else, a lookup may take as long as it does on a busy machine.
    """
    words = ["--table", str(table), "--port", "0", "--admin-port", "0", "--workers", str(workers)]
    words += ["--drain-seconds", str(drain_seconds), "--deadline-ms", "20000", *options]
    with launching.ready("route", words, open_files=open_files, by_command_line=by_command_line) as (process, told):
        yield Router(process, told["port"], told["admin"], told.get("resp", 0))
    assert process.returncode == 0, f"the router ended with {process.returncode}"


@contextlib.contextmanager
def routing_encrypted(table: Path, folder: Path, *options: str) -> Iterator[str]:
    """The URL of a router that shows a certificate for localhost, written to ``folder``."""
    certificate, key = make_identity("localhost", by=authority()).write(folder / "tls")
    with routing(table, "--tls-cert", str(certificate), "--tls-key", str(key), *options) as router:
        yield f"https://localhost:{router.port}"


@dataclass
class Clients:
    """Connections that ask ``keys`` one after another, as an HTTP client does: a connection that must close, or
    that is closed while nothing is asked, is opened again; what fails otherwise is a failure.
    """

    port: int
    keys: dict[str, bytes]
    count: int = 8
    answered: int = 0
    failures: list[str] = field(default_factory=list)
    refused: int = 0
    """Connections that could not be opened, or were closed before they answered anything."""
    _going: bool = True

    async def __aenter__(self) -> Clients:
        self._tasks = [asyncio.create_task(self._client(at)) for at in range(self.count)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._going = False
        await asyncio.gather(*self._tasks)

    async def _client(self, at: int) -> None:
        while self._going:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                self.refused += 1
                await asyncio.sleep(0.02)
                continue
            try:
                at = await self._connection(reader, writer, at)
            finally:
                writer.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, at: int) -> int:
        answered = 0
        keys = list(self.keys)
        while self._going:
            at = (at + 1) % len(keys)
            try:
                writer.write(f"GET /v1/lookup/{keys[at]} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
                body = await reader.readexactly(length)
            except (OSError, asyncio.IncompleteReadError) as error:
                if answered:
                    self.failures.append(f"{keys[at]}: {error!r}")
                else:
                    self.refused += 1
                return at
            answered += 1
            self.answered += 1
            if not head.startswith("http/1.1 200 ") or body != self.keys[keys[at]]:
                self.failures.append(f"{keys[at]}: {head} {body!r}")
            if "connection: close" in head:
                return at
        return at


@contextlib.contextmanager
def starting(table: Path, *options: str) -> Iterator[Router]:
    """``lookupdb route`` that need not become ready: on ports chosen beforehand, since there is no ready file yet."""
    port, admin = free_port(), free_port()
    words = ["--table", str(table), "--drain-seconds", "0", "--port", str(port), "--admin-port", str(admin), *options]
    process = launching.start("route", words)
    router = Router(process, port, admin)

    def answers() -> bool:
        assert process.poll() is None, f"the router ended with {process.returncode}"
        with contextlib.suppress(OSError):
            return router.get("/healthz", admin=True)[0] == 200
        return False

    try:
        until(answers, "the admin port answers")
        yield router
    finally:
        launching.stop(process)
