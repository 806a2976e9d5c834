"""The keeper sees the answer to each token, and the certificate that is shown. Needs no cluster."""

from __future__ import annotations

import asyncio
import importlib
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from e2e.support.certificates import Identity, make_authority, make_identity
from e2e.support.inside import import_inside

AUTHORITY = make_authority()
VALUE = b'{"id": "a"}'


@pytest.fixture
def keep(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """keep.py, as in the pod."""
    module = import_inside(monkeypatch, "keep")
    (tmp_path / "ca.crt").write_text(AUTHORITY.certificate_pem)
    monkeypatch.setattr(importlib.import_module("client"), "AUTHORITY", str(tmp_path / "ca.crt"))
    monkeypatch.setattr(module, "KEPT_SECONDS", 0.01)
    monkeypatch.setattr(module, "FRESH_SECONDS", 0.01)
    return module


class Router:
    """A fake router: shows a certificate, and answers tokens with their statuses."""

    def __init__(self, folder: Path, **statuses: int) -> None:
        self.statuses, self.body = statuses, VALUE
        self.identity = make_identity("localhost", by=AUTHORITY)
        self._folder = folder
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.show(self.identity)

    def show(self, identity: Identity) -> None:
        """Show new connections this certificate."""
        self.identity = identity
        certificate, key = self._folder / "tls.crt", self._folder / "tls.key"
        certificate.write_text(identity.certificate_pem)
        key.write_text(identity.key_pem)
        self._context.load_cert_chain(certificate, key)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """The router's URL."""
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0, ssl=self._context)
        yield f"https://localhost:{server.sockets[0].getsockname()[1]}"
        server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                token = head.decode().partition("Bearer ")[2].partition("\r\n")[0]
                status = self.statuses[token]
                kind, body = ("application/json", self.body) if status == 200 else ("application/problem+json", b"{}")
                writer.write(
                    f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                    + body
                )
        except (EOFError, ConnectionError):
            writer.close()


class Asking:
    """Asks ``router`` with the token ``t``."""

    def __init__(self, keep: ModuleType, router: Router) -> None:
        self._keep, self._router = keep, router
        self.seen = keep.Seen("a")
        self._stop = asyncio.Event()

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(json.dumps(self.seen.document()))
        return found

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Asking]:
        async with AsyncExitStack() as stack:
            url = await stack.enter_async_context(self._router.listening())
            group = await stack.enter_async_context(asyncio.TaskGroup())
            for ask in (self._keep.ask_kept, self._keep.ask_fresh):
                group.create_task(ask(self.seen, url, "a", "t", self._stop))
            yield self
            self._stop.set()

    async def wait(self, true: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + 60
        while not true(seen := self.document):
            assert time.monotonic() < deadline, seen
            await asyncio.sleep(0.02)
        return seen


def latest(document: dict[str, Any]) -> set[tuple[int, str]]:
    return {(status, serial) for status, serial in document["fresh"]["latest"]}


async def test_it_sees_a_token_taken_in_and_a_certificate_replaced(keep: ModuleType, tmp_path: Path) -> None:
    router = Router(tmp_path, t=401)
    before = router.identity.serial
    async with Asking(keep, router).running() as asking:
        await asking.wait(lambda seen: latest(seen) != set() and seen["kept"]["statuses"] == [401])
        router.statuses["t"] = 200
        router.show(make_identity("localhost", by=AUTHORITY))
        after = router.identity.serial
        await asking.wait(lambda seen: {int(serial, 16) for _, serial in latest(seen)} == {after})
        seen = await asking.wait(lambda seen: seen["kept"]["statuses"] == [401, 200])
    assert [int(serial, 16) for serial in seen["kept"]["serials"]] == [before]
    assert (seen["kept"]["opened"], seen["faults"]) == (1, [])


@pytest.mark.parametrize(("status", "body"), [(503, VALUE), (200, b'{"id": "b"}')], ids=["refused", "another record"])
async def test_what_must_not_come_is_a_fault(keep: ModuleType, tmp_path: Path, status: int, body: bytes) -> None:
    router = Router(tmp_path, t=200)
    async with Asking(keep, router).running() as asking:
        await asking.wait(lambda seen: seen["kept"]["answers"] > 0)
        router.statuses["t"], router.body = status, body
        seen = await asking.wait(lambda seen: len(seen["faults"]) > 1)
    assert all(str(status) in fault for fault in seen["faults"])


async def test_an_authority_that_is_not_trusted_is_no_router(keep: ModuleType, tmp_path: Path) -> None:
    router = Router(tmp_path, t=200)
    router.show(make_identity("localhost", by=make_authority()))
    client = importlib.import_module("client")
    async with router.listening() as url:
        with pytest.raises(TimeoutError):
            await client.Connection(url, token="t").open(0.3)
