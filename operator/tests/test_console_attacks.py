"""The console of a cluster by HTTP: logins, cookies, and attempts to get in without them, or further than allowed."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import re
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import aiohttp
import orjson
import pytest
from operator_support.consoles import AIRPORTS, OURS, Router, dataset, pod, with_accounts
from operator_support.kube import Kube, Refusal, serving
from operator_support.loopback import listening
from operator_support.running import until
from support.signers import claims_of, jwks, rsa_signer
from yarl import URL

from lookupdb_operator import names
from lookupdb_operator.cluster import client
from lookupdb_operator.cluster.client import Api
from lookupdb_operator.console import pages, service
from lookupdb_operator.console.service import Console

PAGE = {"Accept": "text/html,application/xhtml+xml"}
PASSWORD = "a-long-password-of-the-proxy"
TEMPLATES = functools.cache(pages.make_environment)
"""Compiled once: it takes as long as all else of a console's start."""
SHOWN = re.compile(r'href="/datasets/([^"?/]+/[^"?/]+)"')


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def cookie(self) -> str:
        return self.headers.get("Set-Cookie", "")

    @property
    def shown(self) -> set[str]:
        """The datasets that the page links to."""
        return set(SHOWN.findall(self.text))


@dataclass
class Standing:
    """A console, and a client without a memory for cookies."""

    console: Console
    kube: Kube
    session: aiohttp.ClientSession

    async def ask(self, path: str, method: str = "GET", **options: Any) -> Answer:
        url = URL(f"http://127.0.0.1:{self.console.port}{path}", encoded=True)
        async with self.session.request(method, url, allow_redirects=False, **options) as response:
            return Answer(response.status, response.headers, await response.text())

    async def as_holder(self, token: str, path: str = "/", method: str = "GET", **options: Any) -> Answer:
        return await self.ask(path, method, headers={"Authorization": f"Bearer {token}"}, **options)

    async def log_in(self, token: str, **headers: str) -> Answer:
        own = {"Origin": f"http://127.0.0.1:{self.console.port}"}
        return await self.ask("/login", "POST", data={"token": token}, headers={**PAGE, **own, **headers})


@contextlib.asynccontextmanager
async def standing(folder: Path, *flags: str) -> AsyncIterator[Standing]:
    async with serving(folder) as kube:
        kube.jwks = jwks(rsa_signer())
        kube.put(dataset())
        kube.put(pod("airports-router-0", "router"))
        kube.put(dataset("guarded", "search", with_accounts(AIRPORTS, "shop/default")))
        kube.put(dataset("hidden", "search"))
        made = service.command.make_context("console", ["--port=0", "--admin-port=0", *flags]).params
        console = Console(service.options(**made), await Api.connect(str(folder / "kubeconfig")))
        stopped = asyncio.Event()
        task = asyncio.create_task(console.run(stopped))
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
            try:
                with patch.object(pages, "make_environment", TEMPLATES):
                    await until(lambda: console.explain_unready() is None, "the console ready")
                yield Standing(console, kube, session)
            finally:
                stopped.set()
                await task


@pytest.fixture(name="console")
async def _console(tmp_path: Path) -> AsyncIterator[Standing]:
    async with standing(tmp_path, "--subjects=ops/*") as console:
        yield console


@pytest.fixture(name="router")
async def _router(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Router]:
    router = Router()
    async with listening(router.handle) as port:
        monkeypatch.setattr(names, "endpoint", lambda *_, **__: f"http://127.0.0.1:{port}")
        yield router


def token(namespace: str = "shop", audience: str = OURS, **changes: Any) -> str:
    return rsa_signer().token(namespace, aud=[audience], **changes)


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


PATHS = (
    "/",
    "/live.json",
    "/datasets/shop/airports",
    "/datasets/shop/airports/live.json",
    "/datasets/shop/airports/lookup",
    "/datasets/shop/airports/diff",
    "/nowhere",
    "/static/",
    "/static/nowhere",
    f"/static/{'x' * 300}",
    "/static/../",
    "/static/%2e%2e/datasets/shop/airports",
    "//static/x",
    "/login/../",
)


class TestWithoutAToken:
    async def test_nothing_is_shown(self, console: Standing) -> None:
        for path in PATHS:
            for answer in (
                await console.ask(path),
                await console.ask(path, headers=PAGE),
                await console.ask(path, "POST", data={"key": "KJFK"}),
                await console.ask(path, headers={"Authorization": "Basic b3BzOm9wcw=="}),
                await console.as_holder("e30.e30.e30", path),
            ):
                assert answer.status in (303, 400, 401, 404, 405), (path, answer)
                assert "airports" not in answer.text.replace(path, ""), path
                assert answer.shown == set(), path

    async def test_people_are_led_to_the_login_and_scripts_are_told(self, console: Standing) -> None:
        led = await console.ask("/datasets/shop/airports", headers=PAGE)
        assert (led.status, led.headers["Location"]) == (303, "/login")
        told = await console.ask("/live.json")
        assert (told.status, told.headers["WWW-Authenticate"]) == (401, "Bearer")

    async def test_the_login_and_its_style_are_public(self, console: Standing) -> None:
        page = await console.ask("/login", headers=PAGE)
        assert page.status == 200
        assert f"--audience {OURS}" in page.text
        assert "airports" not in page.text
        assert (await console.ask("/static/console.css")).status == 200

    async def test_a_bad_token_logs_nobody_in(self, console: Standing) -> None:
        for made, told in (
            (token(audience="https://kubernetes.default.svc"), "not for"),
            (token(audience="lookupdb-store:lookupdb/lookupdb"), "not for"),
            (token(exp=1), "expired"),
            (token(sub="system:serviceaccount:ops:admin"), "not a service account of its namespace"),
        ):
            refused = await console.log_in(made)
            assert (refused.status, refused.cookie) == (401, "")
            assert told in refused.text
            assert made not in refused.text
            for name in ("lookupdb-token", "__Host-lookupdb-token"):
                assert (await console.ask("/live.json", headers={"Cookie": f"{name}={made}"})).status == 401
            assert (await console.as_holder(made)).status == 401

    async def test_a_long_form_is_refused_unread(self, console: Standing) -> None:
        assert (await console.log_in("x" * 5000)).status == 401
        assert (await console.log_in("x" * 100_000)).status == 413

    async def test_guesses_cost_little(self, console: Standing) -> None:
        """A thousand forged tokens of a known key are judged within seconds: each is one verification."""
        head, claims, _ = token().split(".")
        signature = base64.urlsafe_b64encode(b"x" * 256).decode().rstrip("=")
        began = time.process_time()
        for _ in range(200):
            assert (await console.as_holder(f"{head}.{claims}.{signature}", "/live.json")).status == 401
        assert time.process_time() - began < 4


class TestLogin:
    async def test_puts_the_token_into_a_cookie_that_only_this_site_sends(self, console: Standing) -> None:
        made = token()
        answer = await console.log_in(made)
        assert (answer.status, answer.headers["Location"]) == (303, "/")
        value, *attributes = answer.cookie.split("; ")
        assert value == f"lookupdb-token={made}"
        age = next(int(one.split("=")[1]) for one in attributes if one.startswith("Max-Age"))
        assert 500 < age <= 600, "as long as the token"
        assert {"HttpOnly", "Path=/", "SameSite=Strict"} <= set(attributes)
        page = await console.ask("/", headers={**PAGE, "Cookie": f"a=b; {value}"})
        assert page.shown == {"shop/airports", "search/guarded"}
        assert "shop/default" in page.text
        assert made not in page.text

    async def test_behind_tls_the_cookie_is_bound_to_the_host(self, console: Standing) -> None:
        made = token()
        answer = await console.log_in(made, **{"X-Forwarded-Proto": "https"})
        assert answer.cookie.startswith(f"__Host-lookupdb-token={made}; ")
        assert "Secure" in answer.cookie.split("; ")
        assert "Domain" not in answer.cookie
        by_tls = {"X-Forwarded-Proto": "https"}
        kept = {"Cookie": f"__Host-lookupdb-token={made}", **by_tls}
        assert (await console.ask("/live.json", headers=kept)).status == 200
        tossed = {"Cookie": f"lookupdb-token={made}", **by_tls}
        assert (await console.ask("/live.json", headers=tossed)).status == 401, "another site of the domain may set it"

    async def test_of_two_cookies_none_counts(self, console: Standing) -> None:
        made, other = token(), token("search")
        for cookie in (f"lookupdb-token={made}; lookupdb-token={other}", f"lookupdb-token={made};lookupdb-token="):
            assert (await console.ask("/live.json", headers={"Cookie": cookie})).status == 401

    async def test_lasts_a_working_day_at_most(self, console: Standing) -> None:
        claims = {**claims_of("shop"), "aud": [OURS], "exp": int(time.time()) + 90 * 86400}
        assert "Max-Age=28800;" in (await console.log_in(rsa_signer().sign(claims))).cookie

    async def test_ends_with_the_token(self, console: Standing, monkeypatch: pytest.MonkeyPatch) -> None:
        cookie = {"Cookie": f"lookupdb-token={token()}"}
        assert (await console.ask("/live.json", headers=cookie)).status == 200
        for cache in console.console._door._access._caches.values():  # type: ignore[union-attr]
            monkeypatch.setattr(cache, "_now", lambda: time.time() + 700)
        assert (await console.ask("/live.json", headers=cookie)).status == 401

    async def test_ends_by_a_logout(self, console: Standing) -> None:
        made = token()
        answer = await console.ask("/logout", "POST", headers={"Cookie": f"lookupdb-token={made}"})
        assert (answer.status, answer.headers["Location"]) == (303, "/login")
        assert "Max-Age=0" in answer.cookie
        assert made not in answer.cookie
        by_link = await console.ask("/logout", headers={"Cookie": f"lookupdb-token={made}"})
        assert (by_link.status, by_link.cookie) == (405, ""), "no link logs anybody out"

    async def test_no_other_site_logs_anybody_in_or_looks_up(self, console: Standing, router: Router) -> None:
        made = token()
        for headers in (
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Origin": "http://127.0.0.1:1"},
        ):
            refused = await console.ask("/login", "POST", data={"token": made}, headers=headers)
            assert (refused.status, refused.cookie) == (403, ""), headers
            own = {"Cookie": f"lookupdb-token={made}", **headers}
            path = "/datasets/shop/airports/lookup"
            assert (await console.ask(path, "POST", data={"key": "KJFK"}, headers=own)).status == 403, headers
            assert router.received == [], headers

    async def test_while_keys_cannot_be_read_nobody_is_judged(
        self, console: Standing, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(client, "UNKNOWN_KEY_SECONDS", 0.0)
        console.kube.refused["/openid/v1/jwks"] = Refusal(500, "not now")
        made = rsa_signer("rsa-new").token("shop", aud=[OURS])
        assert (await console.as_holder(made)).status == 503
        assert (await console.log_in(made)).status == 503


class TestWhatIsShown:
    async def test_each_holder_sees_their_own(self, console: Standing) -> None:
        assert (await console.as_holder(token())).shown == {"shop/airports", "search/guarded"}
        assert (await console.as_holder(token("search"))).shown == {"search/guarded", "search/hidden"}
        assert (await console.as_holder(token("ops"))).shown == {"shop/airports", "search/guarded", "search/hidden"}
        assert (await console.as_holder(token("nowhere"))).shown == set()
        assert (await console.as_holder(token(audience=AIRPORTS))).shown == {"search/guarded"}

    async def test_what_is_hidden_is_as_what_is_absent(self, console: Standing) -> None:
        made, clock = token(), re.compile(r"<time.*?</time>")
        for rest in ("", "/live.json", "/lookup", "/diff"):
            hidden = await console.as_holder(made, f"/datasets/search/hidden{rest}")
            absent = await console.as_holder(made, f"/datasets/search/absent{rest}")
            assert (hidden.status, absent.status) == (404, 404), rest
            assert clock.sub("", hidden.text.replace("hidden", "absent")) == clock.sub("", absent.text), rest
            posted = await console.as_holder(made, f"/datasets/search/hidden{rest}", "POST", data={"key": "KJFK"})
            assert posted.status in (404, 405), rest

    async def test_the_list_as_json_is_as_limited(self, console: Standing) -> None:
        rows = orjson.loads((await console.as_holder(token(audience=AIRPORTS), "/live.json")).text)
        assert [(row["namespace"], row["name"]) for row in rows] == [("search", "guarded")]

    async def test_two_headers_are_refused(self, console: Standing) -> None:
        headers = [("Authorization", f"Bearer {token('ops')}"), ("Authorization", f"Bearer {token()}")]
        assert (await console.ask("/live.json", headers=headers)).status in (400, 401)

    async def test_headers_of_proxies_say_nothing(self, console: Standing) -> None:
        names_of_users = (
            "X-Forwarded-User",
            "X-Remote-User",
            "X-Auth-Request-User",
            "Remote-User",
            "X-Forwarded-Email",
        )
        headers = dict.fromkeys(names_of_users, "ops/admin") | {"Authorization": f"Bearer {token('nowhere')}"}
        assert (await console.ask("/", headers=headers)).shown == set()


class TestLookups:
    async def test_are_the_routers_answer(self, console: Standing, router: Router) -> None:
        answer = await console.as_holder(token(), "/datasets/shop/airports/lookup", "POST", data={"key": "KJFK"})
        assert answer.status == 200
        assert "John" in answer.text
        (request,) = router.received
        assert request.query["key"] == "KJFK"
        assert not {"Authorization", "Cookie", "X-Forwarded-Proto"} & request.headers.keys()

    async def test_with_a_token_for_the_console_name_the_command(self, console: Standing, router: Router) -> None:
        answer = await console.as_holder(token(), "/datasets/search/guarded/lookup", "POST", data={"key": "KJFK"})
        assert "kubectl lookupdb get -n search guarded" in answer.text
        assert router.received == []

    async def test_with_a_token_for_lookups_show_it_to_the_router(self, console: Standing, router: Router) -> None:
        made = token(audience=AIRPORTS)
        answer = await console.as_holder(made, "/datasets/search/guarded/lookup", "POST", data={"key": "KJFK"})
        assert "John" in answer.text
        assert made not in answer.text
        assert router.received[0].headers["Authorization"] == f"Bearer {made}"


class TestBehindAProxy:
    @pytest.fixture(name="console")
    async def _console(self, tmp_path: Path) -> AsyncIterator[Standing]:
        (tmp_path / "password").write_text(PASSWORD)
        async with standing(tmp_path, "--access=proxy", f"--password-file={tmp_path / 'password'}") as console:
            yield console

    async def test_its_users_see_all(self, console: Standing) -> None:
        page = await console.ask("/", headers={"Authorization": basic("anna", PASSWORD)})
        assert page.shown == {"shop/airports", "search/guarded", "search/hidden"}
        assert "anna" in page.text

    async def test_nobody_else_is_shown_anything(self, console: Standing) -> None:
        for headers in (
            {},
            {"Authorization": f"Bearer {PASSWORD}"},
            {"Authorization": f"Bearer {token('ops')}"},
            {"Cookie": f"lookupdb-token={token('ops')}"},
            {"X-Forwarded-User": "anna", "X-Forwarded-For": "127.0.0.1"},
            {"Authorization": basic("anna", "guess")},
            {"Proxy-Authorization": basic("anna", PASSWORD)},
        ):
            answer = await console.ask("/", headers={**PAGE, **headers})
            assert (answer.status, answer.shown) == (403, set())
            assert PASSWORD not in answer.text

    async def test_there_is_no_login(self, console: Standing) -> None:
        assert (await console.ask("/login", headers=PAGE)).status in (403, 404)
        assert (await console.log_in(token("ops"))).status in (403, 404, 405)

    async def test_lookups_that_need_a_token_name_the_command(self, console: Standing, router: Router) -> None:
        path = "/datasets/search/guarded/lookup"
        headers = {"Authorization": basic("anna", PASSWORD)}
        answer = await console.ask(path, "POST", data={"key": "KJFK"}, headers=headers)
        assert "kubectl lookupdb get" in answer.text
        assert router.received == [], "and the proxy's password stays here"


async def test_anyone_sees_all_if_that_is_chosen(tmp_path: Path) -> None:
    async with standing(tmp_path, "--access=anyone") as console:
        assert (await console.ask("/")).shown == {"shop/airports", "search/guarded", "search/hidden"}


async def test_what_anyone_sees_on_this_machine_no_web_page_of_another_name_reads(tmp_path: Path) -> None:
    async with standing(tmp_path, "--access=anyone") as console:
        assert (await console.ask("/live.json", headers={"Host": "evil.example:7074"})).status == 421
        assert (await console.ask("/live.json", headers={"Host": "localhost:7074"})).status == 200


async def test_the_admin_port_reports_health_and_metrics_and_no_dataset(console: Standing) -> None:
    await console.ask("/live.json")
    await console.ask("/login", "POST", headers={"Origin": "http://evil.example"})
    texts = {}
    for path in ("/healthz", "/readyz", "/status", "/metrics"):
        async with console.session.get(f"http://127.0.0.1:{console.console.admin_port}{path}") as response:
            texts[path] = await response.text()
            assert response.status == 200
    counts = re.findall(r'^lookupdb_console_requests_total{code="(\d+)"} (\S+)$', texts["/metrics"], re.MULTILINE)
    assert counts == [("401", "1.0"), ("403", "1.0")]
    assert orjson.loads(texts["/status"])["datasets"] == 3
    assert "airports" not in "".join(texts.values())
