"""The router of `lookupdb up` starts, and takes over a routing table."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.up_stack import build_people, write_dataset
from support.waiting import soon
from support.web import QuietHandler, web_server

from lookupdb.dataset.spec import read_manifest
from lookupdb.up import serving
from lookupdb.up.run_state import RunFolder
from lookupdb.up.serving import CutoverFailed, LocalRouter
from lookupdb.up.up import Up, UpOptions

CONFIRMED = b'{"workers": [{"report": {"tableVersion": 7}}, {"report": {"tableVersion": 8}}]}'


async def confirm(tmp_path: Path, respond: Callable[[QuietHandler], None]) -> None:
    """Wait for the table 7 of a router whose admin port answers as ``respond`` does."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:  # noqa: N802 - http.server calls it so
            respond(self)

    write_dataset(tmp_path)
    spec = read_manifest(tmp_path / "people.yaml")
    with web_server(Handler) as url:
        local = LocalRouter(spec, 0, 0, RunFolder(tmp_path, "default", "people"), lambda: None)
        local._record_report({"admin": urlsplit(url).port})
        await local.wait_until_confirmed(7)


def answer(content: bytes, length: int | None = None) -> Callable[[QuietHandler], None]:
    def respond(handler: QuietHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content) if length is None else length))
        handler.end_headers()
        handler.wfile.write(content)
        handler.close_connection = True

    return respond


async def test_where_another_takes_the_redis_port_that_was_free_the_next_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when two are started at once."""
    write_dataset(tmp_path)
    build_people(tmp_path)
    lines: list[str] = []
    up = Up(UpOptions(tmp_path / "people.yaml", tmp_path / "data", 0, None, False, 1, None, None), lines.append)
    with socket.create_server((serving.HOST, 0)) as other:
        taken = other.getsockname()[1]
        found = iter([taken, taken])
        monkeypatch.setattr(serving, "find_free_port", lambda _, **__: next(found, 0))
        running = asyncio.create_task(up.run())
        await soon(lambda: running.done() or "Ctrl-C stops it all" in "".join(lines), "the banner")
        assert not running.done(), lines
        assert up._serving.resp_port not in (0, taken)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_it_has_once_every_worker_has(tmp_path: Path) -> None:
    await confirm(tmp_path, answer(CONFIRMED))


@pytest.mark.parametrize(
    "respond",
    [answer(CONFIRMED[:10], len(CONFIRMED)), answer(CONFIRMED[:10]), lambda handler: handler.wfile.write(b"?\r\n\r\n")],
    ids=["half an answer", "half of JSON", "no HTTP"],
)
async def test_a_router_that_ends_amid_each_answer_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, respond: Callable[[QuietHandler], None]
) -> None:
    monkeypatch.setattr(serving, "CONFIRM_SECONDS", 1.0)
    with pytest.raises(
        CutoverFailed, match="the router does not say within 1 s whether it has taken over routing table 7: "
    ):
        await confirm(tmp_path, respond)


async def test_one_that_has_ended_is_asked_again_once_it_is_started_again(tmp_path: Path) -> None:
    answers = [answer(CONFIRMED), answer(CONFIRMED[:10], len(CONFIRMED))]

    def respond(handler: QuietHandler) -> None:
        answers.pop()(handler)

    await confirm(tmp_path, respond)
    assert not answers


async def test_of_one_that_does_not_it_is_told_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "CONFIRM_SECONDS", 2.0)
    with pytest.raises(CutoverFailed, match=r"did not take over routing table 7 within 2 s, it has \[6\]\n"):
        await confirm(tmp_path, answer(b'{"workers": [{"report": {"tableVersion": 6}}]}'))


async def test_of_one_that_does_not_answer_it_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "CONFIRM_SECONDS", 0.5)
    ended = threading.Event()
    try:
        with pytest.raises(CutoverFailed, match=r"routing table 7 .*(its admin port does not answer|in time)\n"):
            await confirm(tmp_path, lambda _: (ended.wait(2), None)[1])
    finally:
        ended.set()
