"""The operator's view of routers, from their responses on the wire."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from operator_support.recording_server import connected

from lookupdb.router.routing_table import describe_contradiction
from lookupdb_operator.model import RouterReport

Json = dict[str, Any]


def worker(
    version: int | None,
    error: str | None = None,
    uid: str = "ds-1",
    generation: str | None = None,
    **others: Any,
) -> Json:
    report = {"datasetUid": uid if version else None, "tableVersion": version, "tableSeen": 5, "error": error}
    report |= {"generation": generation, **others}
    return {"index": 0, "state": "ready", "report": report}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(
            {"workers": [worker(4), worker(3, "s0: no answer")]}, RouterReport(3, "s0: no answer", newest=4), id="min"
        ),
        pytest.param({"workers": [worker(4), worker(4)]}, RouterReport(4, newest=4), id="all"),
        pytest.param(
            {"workers": [worker(4, generation="g1"), worker(4, generation="g2"), worker(4, generation="g1")]},
            RouterReport(4, newest=4, generations=frozenset({"g1", "g2"})),
            id="of which generations",
        ),
        pytest.param(
            {"workers": [worker(4, tableDigest="0123456789abcdef"), worker(4), worker(None, tableDigest=None)]},
            RouterReport(None, "a worker has no routing table yet", newest=4, digests=frozenset({"0123456789abcdef"})),
            id="with which content",
        ),
        pytest.param(
            {"workers": [worker(4, "s0: no answer"), worker(4, f"{describe_contradiction(4)}; so")]},
            RouterReport(4, "version 4 is in effect with other content; so", newest=4),
            id="a lasting problem comes first",
        ),
        pytest.param(
            {"workers": [worker(4), worker(None)]},
            RouterReport(None, "a worker has no routing table yet", newest=4),
            id="none",
        ),
        pytest.param(
            {"workers": [{"index": 0, "report": None}]},
            RouterReport(None, "a worker has no routing table yet", is_empty=True),
            id="new",
        ),
        pytest.param(
            {"workers": []}, RouterReport(None, "a worker has no routing table yet", is_empty=True), id="no workers"
        ),
        pytest.param(
            {"workers": [worker(4), worker(9, uid="ds-0")]},
            RouterReport(None, "it answers from the routing table of another dataset, ds-0"),
            id="of the dataset that had this name before",
        ),
    ],
)
async def test_what_a_router_answers_from(answer: Json, expected: RouterReport) -> None:
    async with connected() as (server, cluster):
        server.then(answer)
        assert await cluster.ask_router("127.0.0.1", "ds-1") == expected
    assert server.asked[0].path == "/status"
    assert "authorization" not in server.asked[0].headers


NO_DIGESTS: list[object] = [
    "",
    "0123456789ABCDEF",
    "0123456789abcdef\n",
    "0" * 5000,
    7,
    ["0123456789abcdef"],
    {},
    True,
]


def _answer_with(digest: object) -> web.Response:
    return web.json_response({"workers": [worker(4, tableDigest=digest)]})


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda: web.json_response({"pid": 1}), "not answer as a router does"),
        (lambda: web.Response(text="hello"), "not answer as a router does"),
        *((functools.partial(_answer_with, digest), "not answer as a router does") for digest in NO_DIGESTS),
        (lambda: web.Response(status=503), "answers 503"),
        (lambda: web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"}), "answers 302"),
    ],
)
async def test_what_is_no_router(answer: Callable[[], web.Response], told: str) -> None:
    async with connected() as (server, cluster):
        server.answers.append(answer())
        report = await cluster.ask_router("127.0.0.1", "ds-1")
    assert report.table_version is None
    assert told in report.problem
