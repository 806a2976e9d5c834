"""The source of a cluster for the console: watched datasets and pods, metrics, lookups. The API server is in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from operator_support.consoles import AIRPORTS, OURS, Router, dataset, pod, sourcing, with_accounts
from operator_support.kube import Kube, serving
from operator_support.loopback import listening
from operator_support.running import until

from lookupdb.errors import LookupdbError
from lookupdb_operator import names
from lookupdb_operator.console import source as console_source
from lookupdb_operator.console.access import Visitor
from lookupdb_operator.console.dataset import AbsentKey, Dataset, FoundKey, UnavailableKey
from lookupdb_operator.console.service import ClusterSource, VisitorSource
from lookupdb_operator.console.source import Elsewhere

PROBLEM = "application/problem+json"
TOKEN = "the-token-of-a-visitor"


@pytest.fixture(name="kube")
async def _kube(tmp_path: Path) -> AsyncIterator[Kube]:
    async with serving(tmp_path) as kube:
        kube.put(dataset())
        kube.put(pod("airports-router-0", "router"))
        kube.put(pod("airports-r34-s1-0", "shard", **{names.ROLLOUT: "r34", names.SHARD: "1"}))
        yield kube


@pytest.fixture(name="source")
async def _source(kube: Kube, tmp_path: Path) -> AsyncIterator[ClusterSource]:
    async with sourcing(kube, tmp_path) as source:
        yield source


@pytest.fixture(name="router")
async def _router(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Router]:
    router = Router()
    async with listening(router.handle) as port:
        monkeypatch.setattr(names, "ADMIN_PORT", port)
        monkeypatch.setattr(names, "endpoint", lambda *_, **__: f"http://127.0.0.1:{port}")
        yield router


def keys(source: ClusterSource | VisitorSource) -> list[str]:
    return [view.dataset.key for view in source.list_datasets()]


def find(source: ClusterSource | VisitorSource, name: str = "airports", namespace: str = "shop") -> Dataset:
    view = source.find_dataset(namespace, name)
    assert view is not None
    return view.dataset


class TestWhatIsWatched:
    async def test_datasets_have_their_pods(self, kube: Kube, source: ClusterSource) -> None:
        (view,) = source.list_datasets()
        assert view == source.find_dataset("shop", "airports")
        held = kube.get("LookupDataset", "shop", "airports")
        assert held
        assert (view.dataset.spec, view.dataset.status) == (held["spec"], held["status"])
        assert {(one.name, one.component, one.ip, one.shard) for one in view.pods} == {
            ("airports-router-0", "router", "127.0.0.1", -1),
            ("airports-r34-s1-0", "shard", "127.0.0.1", 1),
        }

    async def test_every_change_is_seen(self, kube: Kube, source: ClusterSource) -> None:
        kube.put(dataset("people", "another"))
        kube.put(pod("airports-router-1", "router"))
        kube.remove("Pod", "shop", "airports-router-0")
        await until(lambda: keys(source) == ["another/people", "shop/airports"], "both datasets")
        await until(
            lambda: [one.name for one in source.list_datasets()[1].pods] == ["airports-r34-s1-0", "airports-router-1"],
            "the pods of now",
        )
        kube.remove("LookupDataset", "shop", "airports")
        await until(lambda: keys(source) == ["another/people"], "the end of one")
        assert source.find_dataset("shop", "airports") is None

    async def test_what_no_watch_reported_is_gone_after_the_next_list(self, kube: Kube, source: ClusterSource) -> None:
        kube.lose("Pod", "shop", "airports-router-0")
        kube.lose("LookupDataset", "shop", "airports")
        kube.put(dataset("people"))
        kube.interrupt(forget=True)
        await until(lambda: keys(source) == ["shop/people"], "the list")
        kube.put({**dataset(), "metadata": {**dataset()["metadata"]}})
        await until(lambda: len(keys(source)) == 2, "it again")
        await until(lambda: [one.name for one in source.list_datasets()[0].pods] == ["airports-r34-s1-0"], "its pod")

    async def test_another_dataset_of_the_name_has_no_pods_of_the_first(
        self, kube: Kube, source: ClusterSource
    ) -> None:
        again = dataset(phase="Pending")
        again["metadata"]["uid"] = "another-uid"
        kube.remove("LookupDataset", "shop", "airports")
        kube.put(again)
        await until(lambda: source.list_datasets() and find(source).uid == "another-uid", "the other")
        assert source.list_datasets()[0].pods == ()

    async def test_other_pods_are_not_asked_for(self, kube: Kube, tmp_path: Path) -> None:
        kube.put({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "shop", "name": "web"}, "spec": {}})
        kube.used.clear()
        expected = {
            (verb, resource, namespace)
            for verb in ("list", "watch")
            for resource in ("lookupdb.dev/lookupdatasets", "/pods")
            for namespace in ("shop", "search")
        }

        def used() -> set[tuple[str, str, str]]:
            return {(need.verb, need.resource, need.namespace) for need in kube.used}

        async with sourcing(kube, tmp_path, ("shop", "search")) as source:
            assert len(source.list_datasets()[0].pods) == 2
            await until(lambda: used() >= expected, "all watches")
        assert used() == expected
        assert kube.writes == []


class TestMetrics:
    async def test_are_those_of_the_pods_admin_port(self, source: ClusterSource, router: Router) -> None:
        (view,) = source.list_datasets()
        assert await source.read_metrics(view.dataset, view.pods[0]) == "lookupdb_router_private_bytes 7\n"
        assert "Authorization" not in router.received[0].headers

    async def test_are_bounded(self, source: ClusterSource, router: Router, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(console_source, "_MAX_METRICS_BYTES", 10)
        (view,) = source.list_datasets()
        with pytest.raises(LookupdbError, match="more than 10 bytes"):
            await source.read_metrics(view.dataset, view.pods[0])

    async def test_that_cannot_be_read_are_an_error(
        self, source: ClusterSource, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(names, "ADMIN_PORT", 1)
        (view,) = source.list_datasets()
        with pytest.raises(LookupdbError):
            await source.read_metrics(view.dataset, view.pods[0])


class TestLookups:
    async def test_are_the_routers_answers(self, source: ClusterSource, router: Router) -> None:
        found = await source.look_up(find(source), "a/b c+&?", None)
        assert found == FoundKey("a/b c+&?", "g12", b'{"name":"John"}', is_json=True)
        (request,) = router.received
        assert (request.path, dict(request.query)) == ("/v1/lookup", {"key": "a/b c+&?"})
        assert not {"Authorization", "Lookupdb-Generation", "Cookie"} & request.headers.keys()

    async def test_of_a_generation_name_it(self, source: ClusterSource, router: Router) -> None:
        await source.look_up(find(source), "KJFK", "g13")
        assert router.received[0].headers["Lookupdb-Generation"] == "g13"

    async def test_of_a_missing_key(self, source: ClusterSource, router: Router) -> None:
        text = '{"type":"https://lookupdb.dev/problems/missing","detail":"no record has it"}'
        router.answer = web.Response(
            text=text, status=404, content_type=PROBLEM, headers={"Lookupdb-Generation": "g12"}
        )
        assert await source.look_up(find(source), "x", None) == AbsentKey("x", "g12", "no record has it")

    @pytest.mark.parametrize("status", [302, 401, 403, 500])
    async def test_that_are_refused_name_the_command(self, source: ClusterSource, router: Router, status: int) -> None:
        router.answer = web.Response(status=status, headers={"Location": "http://127.0.0.1:1/"})
        refused = await source.look_up(find(source), "-it's", None)
        assert isinstance(refused, Elsewhere)
        assert f"a router answers {status}" in refused.why
        assert refused.command == """kubectl lookupdb get -n shop airports -- '-it'"'"'s'"""
        assert len(router.received) == 1, "no redirect is followed"

    async def test_without_a_router_are_unavailable(
        self, source: ClusterSource, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(names, "endpoint", lambda *_, **__: "http://127.0.0.1:1")
        found = await source.look_up(find(source), "KJFK", None)
        assert isinstance(found, UnavailableKey)
        assert "spec.router.clients" in found.why

    async def test_by_tls_verify_the_certificate(self, source: ClusterSource, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = []

        def endpoint(*words: object, **options: object) -> str:
            asked.append((words, options))
            return "http://127.0.0.1:1"

        monkeypatch.setattr(names, "endpoint", endpoint)
        tls = dataset(router={"tls": {"secretName": "x"}, "service": {"port": 443}})
        await source.look_up(
            Dataset.from_body({**tls, "metadata": {**tls["metadata"], "resourceVersion": "1"}}), "k", None
        )
        assert asked == [(("airports", "shop", 443), {"is_encrypted": True})]
        assert source._tls.check_hostname

    async def test_generations_are_compared_by_a_command(self, source: ClusterSource) -> None:
        found = await source.compare(find(source), "g11", "g12")
        assert isinstance(found, Elsewhere)
        assert found.command == "kubectl lookupdb diff -n shop airports g11 g12"


class TestVisitors:
    """What one visitor gets."""

    @pytest.fixture(autouse=True)
    async def _datasets(self, kube: Kube, source: ClusterSource) -> None:
        kube.put(dataset("guarded", "search", with_accounts(AIRPORTS, "shop/web")))
        kube.put(dataset("hidden", "search"))
        await until(lambda: len(keys(source)) == 3, "all datasets")

    def of(
        self, source: ClusterSource, audience: str = OURS, account: str = "web", namespace: str = "shop"
    ) -> VisitorSource:
        visitor = Visitor(f"{namespace}/{account}", namespace, account, audience, TOKEN)
        return VisitorSource(source, visitor, OURS)

    async def test_see_what_is_theirs(self, source: ClusterSource) -> None:
        assert keys(self.of(source)) == ["search/guarded", "shop/airports"]
        assert keys(self.of(source, account="other")) == ["shop/airports"]
        assert keys(self.of(source, AIRPORTS)) == ["search/guarded"]
        assert keys(self.of(source, namespace="nowhere")) == []
        assert keys(VisitorSource(source, Visitor("ops", sees_all=True), OURS)) == keys(source)

    async def test_cannot_find_the_rest(self, source: ClusterSource) -> None:
        assert self.of(source).find_dataset("search", "hidden") is None
        assert self.of(source).find_dataset("search", "absent") is None
        assert self.of(source, AIRPORTS).find_dataset("shop", "airports") is None
        assert self.of(source).find_dataset("search", "guarded") is not None

    async def test_show_open_routers_no_token(self, source: ClusterSource, router: Router) -> None:
        assert isinstance(await self.of(source).look_up(find(source), "KJFK", None), FoundKey)
        assert "Authorization" not in router.received[0].headers

    async def test_show_others_the_token_that_is_for_them(self, source: ClusterSource, router: Router) -> None:
        guarded = find(source, "guarded", "search")
        assert isinstance(await self.of(source, AIRPORTS).look_up(guarded, "KJFK", None), FoundKey)
        assert router.received[0].headers["Authorization"] == f"Bearer {TOKEN}"

    async def test_never_send_a_token_for_the_console(self, kube: Kube, source: ClusterSource, router: Router) -> None:
        kube.put(dataset("trap", "search", with_accounts(OURS, "shop/web")))
        await until(lambda: len(keys(source)) == 4, "the trap")
        for name in ("guarded", "trap"):
            refused = await self.of(source).look_up(find(source, name, "search"), "KJFK", None)
            assert isinstance(refused, Elsewhere)
            assert "need a token for" in refused.why
            assert "--token-file" in refused.command
        assert router.received == []

    async def test_send_no_token_whose_audience_another_namespace_has_too(
        self, kube: Kube, source: ClusterSource, router: Router
    ) -> None:
        kube.put(dataset("trap", "evil", with_accounts(AIRPORTS, "shop/web")))
        await until(lambda: len(keys(source)) == 4, "the trap")
        visitor = self.of(source, AIRPORTS)
        for name, namespace in (("trap", "evil"), ("guarded", "search")):
            refused = await visitor.look_up(find(source, name, namespace), "KJFK", None)
            assert isinstance(refused, Elsewhere)
            assert "several namespaces" in refused.why
        assert router.received == []

    async def test_have_no_token_of_a_secret(self, kube: Kube, source: ClusterSource, router: Router) -> None:
        kube.put(dataset("handed", "shop", {"auth": {"tokens": {"secretName": "clients"}}}))
        await until(lambda: len(keys(source)) == 4, "it")
        refused = await self.of(source).look_up(find(source, "handed"), "KJFK", None)
        assert isinstance(refused, Elsewhere)
        assert "a token of its Secret" in refused.why
        assert router.received == []
