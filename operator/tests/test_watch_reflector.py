"""Lists and watches of one kind of object, against a server with prepared responses."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any

import orjson
import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration
from operator_support.loopback import listening, without_authorities
from operator_support.running import until

from lookupdb_operator import names
from lookupdb_operator.cluster import informers
from lookupdb_operator.cluster.api import Refused, Unreachable
from lookupdb_operator.cluster.client import Api
from lookupdb_operator.cluster.informers import Reflector
from lookupdb_operator.cluster.parse import Header, parse_header
from lookupdb_operator.names import Kind

Json = dict[str, Any]


def pod(name: str, version: int) -> Json:
    meta = {"name": name, "namespace": "shop", "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"kind": "Pod", "metadata": meta}


def page(*items: Json, version: int, more: str = "") -> Json:
    return {"kind": "PodList", "items": list(items), "metadata": {"resourceVersion": str(version), "continue": more}}


def event(kind: str, item: Json) -> Json:
    return {"type": kind, "object": item}


def bookmark(version: int) -> Json:
    return event("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(version)}})


GONE = event("ERROR", {"kind": "Status", "code": 410, "message": "too old resource version"})


class Server:
    """Answers lists with ``pages`` and watches with ``events``, in order; then with an error, and with silence."""

    def __init__(self) -> None:
        self.pages: list[Json | int] = []
        self.events: list[list[Json]] = []
        self.asked: list[Mapping[str, str]] = []
        self.headers: dict[str, str] = {}
        self.port = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(dict(request.query))
        if "watch" in request.query:
            response = web.StreamResponse()
            await response.prepare(request)
            if not self.events:
                await asyncio.sleep(60)
            for item in self.events.pop(0):
                await response.write(orjson.dumps(item) + b"\n")
            return response
        answer = self.pages.pop(0) if self.pages else 500
        if isinstance(answer, int):
            return web.json_response({"message": "not now"}, status=answer, headers=self.headers)
        return web.json_response(answer)

    @property
    def lists(self) -> list[Mapping[str, str]]:
        return [query for query in self.asked if "watch" not in query]

    @property
    def watched_from(self) -> list[str]:
        return [query["resourceVersion"] for query in self.asked if "watch" in query]


class Recorder:
    """A sink that records its calls."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.before: dict[str, Header] = {}

    def on_changed(self, kind: Kind, body: Mapping[str, Any]) -> None:
        self.told.append(f"changed {body['metadata']['name']} {body['metadata']['resourceVersion']}")

    def on_deleted(self, kind: Kind, body: Mapping[str, Any]) -> None:
        self.told.append(f"deleted {body['metadata']['name']}")

    def known_headers(self, kind: Kind, namespace: str) -> Mapping[str, Header]:
        return dict(self.before)

    def on_unlisted(self, kind: Kind, headers: Collection[Header]) -> None:
        self.told += [f"gone {header.name}" for header in headers]


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[tuple[Server, Api]]:
    server = Server()
    async with listening(server.handle) as server.port:
        with without_authorities():
            api = Api(Configuration(host=f"http://127.0.0.1:{server.port}"))
        try:
            yield server, api
        finally:
            await api.close()


@contextlib.asynccontextmanager
async def reflecting(api: Api, sink: Recorder) -> AsyncIterator[Reflector]:
    made = Reflector(api, names.POD, "", "ours", sink, asyncio.Semaphore(1))
    task = asyncio.create_task(made.run())
    try:
        yield made
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_everything_is_listed_page_by_page_and_watched_from_there() -> None:
    sink = Recorder()
    async with serving() as (server, api):
        server.pages = [page(pod("a", 5), pod("b", 6), version=7, more="next"), page(pod("c", 3), version=7)]
        server.events = [[event("MODIFIED", pod("a", 8)), event("DELETED", pod("b", 9)), bookmark(20)], []]
        async with reflecting(api, sink) as made:
            await asyncio.wait_for(made.synced.wait(), 60)
            await until(lambda: len(server.watched_from) >= 2, "the second watch")
    assert sink.told == ["changed a 5", "changed b 6", "changed c 3", "changed a 8", "deleted b"]
    assert [query.get("continue") for query in server.lists] == [None, "next"]
    assert all(query["limit"] == str(informers.PAGE) and query["labelSelector"] == "ours" for query in server.lists)
    assert server.watched_from[:2] == ["7", "20"], "from where the list was, then from where the bookmark says"
    watch = next(query for query in server.asked if "watch" in query)
    assert watch["allowWatchBookmarks"] == "true"
    assert watch["timeoutSeconds"].isdigit()


async def test_it_is_not_synced_before_the_last_page() -> None:
    sink = Recorder()
    async with serving() as (server, api):
        server.pages = [page(pod("a", 5), version=7, more="next"), 500]
        async with reflecting(api, sink) as made:
            await until(lambda: len(server.lists) >= 2, "the second page")
            assert not made.synced.is_set()
            server.pages = [page(pod("a", 5), version=8)]
            await asyncio.wait_for(made.synced.wait(), 60)
            await until(lambda: server.watched_from == ["8"], "the watch of what was listed as a whole")


async def test_a_watch_that_fell_behind_lists_again_and_says_what_is_gone() -> None:
    sink = Recorder()
    async with serving() as (server, api):
        server.pages = [page(pod("a", 5), version=7), page(pod("b", 11), version=12)]
        server.events = [[GONE]]
        async with reflecting(api, sink):
            await until(lambda: len(server.watched_from) >= 1, "the watch")
            sink.before = {"uid-a": parse_header(pod("a", 5))}
            await until(lambda: "12" in server.watched_from, "the watch of the new list")
    assert sink.told == ["changed a 5", "changed b 11", "gone a"]


async def test_a_list_that_expires_half_way_begins_again() -> None:
    sink = Recorder()
    async with serving() as (server, api):
        server.pages = [page(pod("a", 5), version=7, more="next"), 410, page(pod("a", 5), version=9)]
        async with reflecting(api, sink) as made:
            await asyncio.wait_for(made.synced.wait(), 60)
    assert [query.get("continue") for query in server.lists] == [None, "next", None]


async def test_a_watch_that_is_cut_goes_on_from_what_it_has_seen() -> None:
    sink = Recorder()
    async with serving() as (server, api):
        server.pages = [page(version=7)]
        server.events = [[event("ADDED", pod("a", 8))], [event("MODIFIED", pod("a", 9))]]
        async with reflecting(api, sink):
            await until(lambda: len(server.watched_from) >= 3, "the third watch")
    assert server.watched_from[:3] == ["7", "8", "9"]
    assert len(server.lists) == 1


async def test_relisting_ends_the_watch() -> None:
    async with serving() as (server, api):
        server.pages = [page(version=7), page(version=30)]
        async with reflecting(api, Recorder()) as made:
            await until(lambda: server.watched_from == ["7"], "the watch")
            made.relist()
            await until(lambda: server.watched_from == ["7", "30"], "the watch of the new list")


async def test_an_event_that_cannot_be_read_is_no_end() -> None:
    async with serving() as (server, api):
        server.pages = [page(version=7)]
        server.events = [[{"type": "MODIFIED"}]]
        async with reflecting(api, Recorder()):
            await until(lambda: len(server.watched_from) >= 2, "another watch")
    assert server.watched_from[:2] == ["7", "7"]


@pytest.mark.parametrize("status", [429, 503])
async def test_an_api_server_that_asks_to_be_left_alone_is(status: int) -> None:
    async with serving() as (server, api):
        server.pages, server.headers = [status], {"Retry-After": "1"}
        with pytest.raises(Unreachable) as raised:
            await api.request("GET", "/x", subject="x")
        assert raised.value.retry_after == 1
        began = asyncio.get_running_loop().time()
        server.pages = [page(version=1)]
        await api.request("GET", "/y", subject="y")
        assert asyncio.get_running_loop().time() - began >= 0.9
        server.pages, server.headers = [403], {"Retry-After": "10"}
        with pytest.raises(Refused):
            await api.request("GET", "/z", subject="z")
        began = asyncio.get_running_loop().time()
        server.pages = [page(version=1)]
        await api.request("GET", "/y", subject="y")
        assert asyncio.get_running_loop().time() - began < 9, "a refusal is no such wish"


async def test_a_watch_leaves_it_alone_too() -> None:
    async with serving() as (server, api):
        server.pages, server.headers = [429], {"Retry-After": "1"}
        with pytest.raises(Unreachable):
            await api.request("GET", "/x", subject="x")
        began = asyncio.get_running_loop().time()
        server.events = [[bookmark(7)]]
        watch = api.stream("/y", subject="y", query={"watch": "true"}, silence_at_most=20)
        assert [len(lines) async for lines in watch] == [1]
        assert asyncio.get_running_loop().time() - began >= 0.9
