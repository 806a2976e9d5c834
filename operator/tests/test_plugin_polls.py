"""The plugin keeps waiting while the API server fails for a moment, and never longer than its timeout."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from operator_support.kube import Kube, Refusal, serving
from operator_support.plugin_program import Ended, run_plugin
from operator_support.running import until
from plugin_samples import body, generation

from lookupdb_operator import names
from lookupdb_operator.cluster.api import Refused, Unauthorized, Unreachable
from lookupdb_operator.plugin import change_verbs, session
from lookupdb_operator.plugin.session import Polls

DATASET = "/apis/lookupdb.dev/v1alpha1/namespaces/shop/lookupdatasets/airports"
UNABLE = Refusal(503, "the server is currently unable to handle the request")


@pytest_asyncio.fixture(name="kube")
async def _kube(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Kube]:
    monkeypatch.setattr(change_verbs, "_EVERY", 0.02)
    async with serving(tmp_path) as kube:
        kube.put(body())
        yield kube


class _AfterTheWrite(dict[str, Refusal]):
    """Answers of the polls after a write: refusals in turn, and a callback before the first success."""

    def __init__(self, kube: Kube, refusals: Iterable[Refusal], then: Callable[[], None]) -> None:
        super().__init__()
        self._kube, self._refusals, self._then = kube, list(refusals), then

    def get(self, path: str, default: Any = None) -> Any:
        if path != DATASET or not self._kube.writes:
            return default
        if self._refusals:
            return self._refusals.pop(0)
        self._then()
        return default


def _answer_refresh(kube: Kube) -> None:
    held: Any = kube.get("LookupDataset", "shop", "airports")
    value = held["metadata"]["annotations"][names.REFRESH]
    answered = body(refreshed=value, generations=[generation("g12", refresh=value)])["status"]
    kube.put({**held, "status": answered})


async def _refresh(tmp_path: Path, *words: str) -> Ended:
    return await run_plugin(tmp_path / "kubeconfig", "refresh", "airports", "-n", "shop", "--wait", *words)


@pytest.mark.parametrize(
    "refusal",
    [UNABLE, Refusal(500, "etcdserver: leader changed"), Refusal(429, "too many requests"), Refusal(410, "too old")],
    ids=lambda refusal: str(refusal.code),
)
async def test_a_look_that_fails_for_a_moment_is_followed_by_another_one(
    kube: Kube, tmp_path: Path, refusal: Refusal
) -> None:
    kube.refused = _AfterTheWrite(kube, [refusal] * 2, lambda: _answer_refresh(kube))
    ended = await _refresh(tmp_path)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("shop/airports: the refresh is done")


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (Refusal(401, "Unauthorized"), "the API server does not accept these credentials: Unauthorized"),
        (Refusal(403, "ann cannot get lookupdatasets", "Forbidden"), "ann cannot get lookupdatasets"),
        (Refusal(404, "not found", "NotFound"), "there is no LookupDataset airports in namespace shop"),
    ],
    ids=lambda value: str(value.code) if isinstance(value, Refusal) else "",
)
async def test_what_asking_again_does_not_change_ends_it_at_once(
    kube: Kube, tmp_path: Path, refusal: Refusal, told: str
) -> None:
    kube.refused = _AfterTheWrite(kube, [refusal], lambda: _answer_refresh(kube))
    ended = await _refresh(tmp_path)
    assert (ended.code, told in ended.err) == (1, True), ended.err


async def test_the_first_request_of_a_verb_fails_at_once(kube: Kube, tmp_path: Path) -> None:
    kube.refused[DATASET] = UNABLE
    ended = await _refresh(tmp_path)
    assert (ended.code, UNABLE.message in ended.err, kube.writes) == (1, True, [])


async def test_an_api_server_that_goes_on_failing_is_reported_once_and_at_the_end(
    kube: Kube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_REPORT_AFTER", 0.1)
    monkeypatch.setattr(change_verbs, "_SILENCE_SECONDS", 0.2)
    kube.refused = _AfterTheWrite(kube, [UNABLE] * 10_000, lambda: None)
    ended = await _refresh(tmp_path, "--timeout", "500ms")
    trouble = f"LookupDataset airports: {UNABLE.message}"
    assert ended.code == 1
    assert ended.err.splitlines() == [
        trouble,
        "error: shop/airports is not done after 0.5 s: it waits for the operator to take it up."
        f" The last poll failed: {trouble}",
    ], "and not that the operator is silent"


async def test_time_is_up_also_while_the_api_server_does_not_answer(
    kube: Kube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_LAST_SECONDS", 0.1)
    running = asyncio.ensure_future(_refresh(tmp_path, "--timeout", "1s"))
    await until(lambda: kube.writes or running.done(), "the refresh to be asked for")
    began, kube.closed[DATASET] = time.monotonic(), asyncio.Event()
    ended = await running
    kube.closed[DATASET].set()
    assert time.monotonic() - began < 15, "a request alone may take 30 s"
    assert (ended.code, "LookupDataset airports: the API server does not answer\n" in ended.err) == (1, True), ended.err


async def _say_nothing() -> str:
    raise Unreachable("Job x", "away")


async def _answer() -> str:
    return "seen"


async def test_what_fails_again_later_is_reported_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = Polls("Job x", 60)
    assert await looks.look(_say_nothing) is None
    assert (looks.trouble, looks.answered_seconds, capsys.readouterr().err) == ("Job x: away", 0.0, "")
    monkeypatch.setattr(session, "_REPORT_AFTER", 0.0)
    for _ in range(2):
        await looks.look(_say_nothing)
        await looks.look(_say_nothing)
        assert capsys.readouterr().err == "Job x: away\n"
        assert await looks.look(_answer) == "seen"
        assert (looks.trouble, looks.describe_trouble()) == ("", "")


@pytest.mark.parametrize("error", [Unauthorized("Job x", "no"), Refused("Job x", "no")], ids=["401", "403"])
async def test_what_will_not_be_otherwise_is_raised(error: Exception) -> None:
    async def fail() -> str:
        raise error

    with pytest.raises(type(error)):
        await Polls("Job x", 60).look(fail)
