"""The console in a cluster shows visitors their datasets, as the API server has them, and looks up what they may."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import pytest
from e2e.support import access, console, release
from e2e.support.console import Browser, Page
from e2e.support.figures import record
from e2e.support.kubectl import find, find_everywhere, kubectl, run_in, until
from e2e.support.pods import CLIENT
from e2e.support.scenario import LDS, Scenario

pytestmark = pytest.mark.side_by_side

OPEN: Final = "open"
GUARDED: Final = "guarded"
HIDDEN: Final = "hidden"
WEB: Final = "web"
RIGHTS: Final = (("list", "lookupdatasets.lookupdb.dev"), ("list", "pods"))
NO_RIGHTS: Final = (
    *(("get", "secrets"), ("list", "secrets"), ("get", "configmaps"), ("get", "pods/log"), ("create", "pods/exec")),
    *(("create", "pods"), ("delete", "pods"), ("patch", "lookupdatasets.lookupdb.dev"), ("get", "pods/proxy")),
)
ASK: Final = """
import sys, urllib.error, urllib.request
headers = {"Authorization": sys.argv[2]} if sys.argv[2] else {}
request = urllib.request.Request(sys.argv[1] + "/live.json", headers=headers)
try:
    print(urllib.request.urlopen(request, timeout=20).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""
"""Prints the status of the list, from inside the cluster."""


def test_each_visitor_sees_what_is_theirs_as_the_api_server_has_it(new_scenario: Callable[..., Scenario]) -> None:
    ours, theirs = new_scenario("console-ours"), new_scenario("console-theirs")
    keys = {
        scenario.namespace: scenario.source("records", version=scenario.name, records=300)
        for scenario in (ours, theirs)
    }
    audience = f"lookupdb:{theirs.namespace}"
    accounts = {"audience": audience, "subjects": [f"{ours.namespace}/{WEB}"]}
    kubectl("create", "serviceaccount", WEB, "--namespace", ours.namespace)
    ours.apply(_dataset(ours, OPEN))
    theirs.apply(_dataset(theirs, GUARDED, auth={"serviceAccounts": accounts}), _dataset(theirs, HIDDEN))
    ours.wait_settled(OPEN)
    for name in (GUARDED, HIDDEN):
        theirs.wait_settled(name)
    own, guarded, hidden = f"{ours.namespace}/{OPEN}", f"{theirs.namespace}/{GUARDED}", f"{theirs.namespace}/{HIDDEN}"

    with console.forwarded() as url:
        _check_strangers(url, ours)
        overseer = _log_in(url, access.account_token(*console.OVERSEER, console.AUDIENCE))
        assert {own, guarded, hidden} <= overseer.ask("/?q=e2e-console").shown
        until(lambda: _list_shown(overseer) == _list_held(), seconds=60, what="the datasets of the API server shown")
        for scenario, name in ((ours, OPEN), (theirs, GUARDED), (theirs, HIDDEN)):
            _wait_truth(overseer, scenario, name)
        _check_figures(overseer, ours)

        team = _log_in(url, access.account_token(ours.namespace, "default", console.AUDIENCE))
        assert team.ask("/").shown == {own}, "another namespace's datasets are not shown"
        for path in (hidden, guarded, f"{hidden}/live.json", f"{hidden}/lookup"):
            assert team.ask(f"/datasets/{path}").status == 404
        _check_lookup(team, ours, OPEN, keys[ours.namespace][7], ours.name)

        listed = _log_in(url, access.account_token(ours.namespace, WEB, console.AUDIENCE))
        assert listed.ask("/").shown == {own, guarded}
        refused = _look_up(listed, guarded, keys[theirs.namespace][7])
        assert f"kubectl lookupdb get -n {theirs.namespace} {GUARDED}" in refused.text

        client = _log_in(url, access.account_token(ours.namespace, WEB, audience))
        assert client.ask("/").shown == {guarded}, "a token for lookups shows what it is for"
        assert client.ask(f"/datasets/{own}").status == 404
        _check_lookup(client, theirs, GUARDED, keys[theirs.namespace][7], theirs.name)
    _check_rights()


def _dataset(scenario: Scenario, name: str, **router: Any) -> dict[str, Any]:
    return scenario.dataset(name, "records", shards=2, router={"drainSeconds": 0, "replicas": 1, **router})


def _check_strangers(url: str, scenario: Scenario) -> None:
    """Without a good token there is nothing but the login, neither through kubectl nor from inside the cluster."""
    page = Browser(url).ask("/")
    assert (page.status, page.headers["Location"]) == (303, "/login")
    login = Browser(url).ask("/login")
    assert login.status == 200
    assert console.AUDIENCE in login.text
    good = access.account_token(scenario.namespace, "default", console.AUDIENCE)
    tokens = {
        "the API server's": access.account_token(scenario.namespace, "default"),
        "another audience's": access.account_token(scenario.namespace, "default", "lookupdb:elsewhere"),
        "a gateway's": access.account_token(scenario.namespace, "default", release.AUDIENCE),
        "a forged one": good[:-8] + good[-8:][::-1],
    }
    for whose, token in tokens.items():
        stranger = Browser(url)
        assert stranger.log_in(token).status == 401, whose
        assert stranger.cookie == "", whose
        assert Browser(url).ask("/live.json", Authorization=f"Bearer {token}").status == 401, whose
    scenario.wait_client()
    inside = f"http://{console.service()}.{release.NAMESPACE}.svc"
    for shown, status in (("", "401"), (f"Bearer {tokens['a forged one']}", "401"), (f"Bearer {good}", "200")):
        assert run_in(CLIENT, scenario.namespace, "python", "-c", ASK, inside, shown).strip() == status


def _log_in(url: str, token: str) -> Browser:
    browser = Browser(url)
    answer = browser.log_in(token)
    assert (answer.status, answer.headers.get("Location")) == (303, "/"), answer.text
    assert {"HttpOnly", "SameSite=Strict"} <= set(answer.headers["Set-Cookie"].split("; "))
    return browser


def _list_shown(browser: Browser) -> set[str]:
    return {f"{row['namespace']}/{row['name']}" for row in browser.list_rows()}


def _list_held() -> set[str]:
    return {f"{one['metadata']['namespace']}/{one['metadata']['name']}" for one in find_everywhere(LDS)}


def _wait_truth(browser: Browser, scenario: Scenario, name: str) -> None:
    """Wait until a dataset's row and page are as the API server has it."""

    def look() -> bool:
        status = scenario.status(name)
        (row,) = browser.list_rows(f"{scenario.namespace}/{name}")
        ready = scenario.condition(name, "Ready")["status"]
        shown = [row[member] for member in ("ready", "phase", "generation", "built_at", "records")]
        assert shown == [ready, status["phase"], status["generation"], status["builtAt"], status["records"]]
        page = browser.ask(f"/datasets/{scenario.namespace}/{name}")
        assert page.status == 200, page
        servers = find("pods", scenario.namespace, f"lookupdb.dev/dataset={name},app.kubernetes.io/component=shard")
        names = [server["metadata"]["name"] for server in servers]
        for text in (f"serves {status['generation']}", status["endpoint"], f"{status['records']:,}", *names):
            assert text in page.text, f"{text} is not in {page.text}"
        return True

    until(look, seconds=60, what=f"the truth about {name} shown")


def _check_figures(browser: Browser, scenario: Scenario) -> None:
    """Wait for figures of the dataset's admin ports, which its NetworkPolicies open to the console."""

    def look() -> float | None:
        page = browser.ask(f"/datasets/{scenario.namespace}/{OPEN}/live.json")
        memory: float | None = json.loads(page.body)["private_bytes"]
        return memory

    memory = until(look, seconds=60, what="the memory of a dataset's pods")
    assert memory > 1 << 20
    record("console", "private memory of a dataset, as shown", memory / (1 << 20), "MiB")


def _look_up(browser: Browser, dataset: str, key: str) -> Page:
    return browser.ask(f"/datasets/{dataset}/lookup", {"key": key, "generation": ""})


def _check_lookup(browser: Browser, scenario: Scenario, name: str, key: str, version: str) -> None:
    """Wait until a lookup by the console is the record, and so the router's answer to others. Routers have the keys of
    service accounts within a minute."""

    def look() -> bool:
        page = _look_up(browser, f"{scenario.namespace}/{name}", key)
        assert page.status == 200, page
        for text in (key, f'"{version}"', f"{version} of {key}", scenario.status(name)["generation"]):
            assert text in page.text, f"{text} is not in {page.text}"
        return True

    until(look, seconds=180, what=f"a lookup in {name} by the console")
    assert "Missing" in _look_up(browser, f"{scenario.namespace}/{name}", "absent").text
    if name == OPEN:
        (answer,) = scenario.lookup(name, [key])
        assert answer.value == {"id": key, "version": version, "text": f"{version} of {key}"}


def _check_rights() -> None:
    """Ask the API server what the console's service account may do."""
    account = f"system:serviceaccount:{release.NAMESPACE}:{console.service()}"

    def may(verb: str, resource: str) -> bool:
        words = ("auth", "can-i", verb, resource, "--all-namespaces", f"--as={account}")
        try:
            return kubectl(*words).strip() == "yes"
        except AssertionError:  # kubectl's exit code 1 for no
            return False

    assert [right for right in RIGHTS if not may(*right)] == []
    assert [right for right in NO_RIGHTS if may(*right)] == []
