"""The console in a headless Chromium: by keyboard, in dark mode, on a phone, without JavaScript, and under attack."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3
from axe_playwright_python.sync_playwright import Axe
from docs_tools.screens import open_browser, running_up
from operator_support.console_world import MemorySource, one, serving
from playwright.sync_api import Browser, BrowserContext, Page, Request, expect
from plugin_samples import condition, generation, router, server

from lookupdb_operator.console.source import Elsewhere

RUN = "window.ran=(window.ran||0)+1"
HOSTILE = f"\"><script>{RUN}</script><img src=x onerror={RUN}>'-{RUN}-'</title></textarea>javascript:{RUN}"
MANIFEST = """apiVersion: lookupdb.dev/v1alpha1
kind: LookupDataset
metadata: {name: people}
spec:
  source: {url: people.csv}
  key: {columns: [id]}
  shards: 2
  rollout: {promotion: Manual}
"""
WIDE = """(()=>{const root=document.documentElement;
return root.scrollWidth<=root.clientWidth ? [] : [...document.querySelectorAll('body *')]
  .filter(e=>e.getBoundingClientRect().right>root.clientWidth && !e.closest('.scroll'))
  .map(e=>e.tagName+'.'+e.className+'#'+e.id)})()"""
"""What is wider than the screen, if anything is."""
BROKEN = """[...document.querySelectorAll('.pill, .mark')].filter(e=>{const text=document.createRange();
text.selectNodeContents(e); return !e.innerText.includes(' ') && text.getClientRects().length>1}).map(e=>e.innerText)"""
"""The badges of one word that have several lines."""
SCREENS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1180, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1180, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 360, "height": 740}, "color_scheme": "light", "has_touch": True, "is_mobile": True},
    "dark phone": {"viewport": {"width": 360, "height": 740}, "color_scheme": "dark", "has_touch": True},
}


@pytest.fixture(name="browser", scope="session")
def _browser() -> Iterator[Browser]:
    with open_browser() as browser:
        yield browser


def _write(path: Path, rows: list[tuple[str, str]]) -> None:
    lines = ['"{}","{}"'.format(*(text.replace('"', '""') for text in row)) for row in [("id", "title"), *rows]]
    new = path.with_suffix(".new")
    new.write_text("\n".join(lines) + "\n")
    new.replace(path)


@pytest.fixture(name="up", scope="session")
def _up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running `up` with a candidate; keys and values of its dataset are hostile."""
    folder = tmp_path_factory.mktemp("up")
    (folder / "people.yaml").write_text(MANIFEST)
    rows = [(f"p{number}", f"Person {number}") for number in range(500)] + [(HOSTILE, HOSTILE)]
    _write(folder / "people.csv", rows)
    with running_up(folder, "people.yaml") as url:
        changed = [("p0", "Somebody else"), *rows[2:], (f"{HOSTILE} 2", HOSTILE)]
        _write(folder / "people.csv", changed)
        ends_at = time.monotonic() + 120
        while urllib3.request("GET", f"{url}v1/dataset").json()["candidates"] != ["g2"]:
            assert time.monotonic() < ends_at, (folder / "up.log").read_text()
            time.sleep(0.2)
        yield url


@pytest.fixture(name="hostile", scope="session")
def _hostile() -> Iterator[str]:
    """A console all of whose texts are scripts."""
    kinds = ("Ready", "Built", "RolledOut", "Degraded")
    status: dict[str, Any] = {
        "conditions": [condition(kind, "False", HOSTILE, HOSTILE, HOSTILE) for kind in kinds],
        "phase": HOSTILE,
        "endpoint": HOSTILE,
        "candidate": {"generation": HOSTILE, "rollout": HOSTILE, "since": HOSTILE},
        "refused": generation(HOSTILE, HOSTILE, message=HOSTILE),
        "failure": {"generation": "g13", "reason": HOSTILE, "message": HOSTILE, "retryAt": HOSTILE},
        "generations": [generation(HOSTILE, HOSTILE, servedBy=1), generation("g12", HOSTILE, overridden=HOSTILE)],
        "builds": [{"generation": "g9", **dict.fromkeys(("outcome", "reason", "message", "finishedAt"), HOSTILE)}],
        "build": {"generation": HOSTILE, "startedAt": HOSTILE, "stall": {"reason": HOSTILE, "since": HOSTILE}},
        "rollouts": [
            {"rollout": "r34", "generation": HOSTILE, "startedAt": HOSTILE, "stall": {"reason": HOSTILE, "since": "x"}}
        ],
        "builtAt": HOSTILE,
        "shards": HOSTILE,
        "generation": HOSTILE,
        "schedule": {"due": HOSTILE},
    }
    pods = (server("r34", 0, ready=False, trouble=HOSTILE), server("r34", 1), router(0, ready=False))
    source = MemorySource(one("airports", *pods, **status), one("a-b.c"))
    source.values[HOSTILE] = HOSTILE.encode()
    source.difference = Elsewhere(HOSTILE, HOSTILE)
    with serving(source) as (url, _):
        yield f"{url}/"


class Observed:
    """What a page did: scripts that ran, violations of the policy, requests, errors."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        context.add_init_script(
            "window.violations=[];"
            "document.addEventListener('securitypolicyviolation',e=>violations.push(e.violatedDirective))"
        )
        self.page = context.new_page()
        self.foreign: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", self._note)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", lambda dialog: self.errors.append(dialog.message))
        self._url = url

    def _note(self, request: Request) -> None:
        if not request.url.startswith(self._url):
            self.foreign.append(request.url)

    def check(self) -> None:
        assert self.page.evaluate("window.ran") is None
        assert self.page.evaluate("window.violations") == []
        assert self.foreign == []
        assert self.errors == []


def _visit(page: Page, url: str, dataset: str) -> Iterator[str]:
    """Go to every page of a console, and yield its name."""
    page.goto(url)
    yield "datasets"
    page.goto(f"{url}?q=%22%3E%3Cscript%3E{RUN}%3C/script%3E")
    yield "nothing found"
    page.goto(f"{url}datasets/{dataset}")
    for summary in page.locator("summary").all():
        summary.click()
    yield "a dataset"
    page.get_by_role("textbox", name="Key").fill(HOSTILE)
    page.get_by_role("button", name="Look up").click()
    expect(page.locator("#answer-title")).to_be_visible()
    yield "a value"
    page.get_by_role("textbox", name="Key").fill("absent")
    page.get_by_role("button", name="Look up").click()
    expect(page.locator("#answer-title")).to_have_text("Missing")
    yield "a missing key"
    page.goto(f"{url}datasets/{dataset}/diff")
    if page.get_by_role("button", name="Compare").count():
        page.get_by_role("button", name="Compare").click()
        expect(page.locator("main section").first).to_be_visible(timeout=60_000)
    yield "a difference"
    page.goto(f"{url}datasets/no/such")
    yield "an error"


@pytest.mark.parametrize("screen", SCREENS)
def test_everybody_can_read_every_page(browser: Browser, up: str, hostile: str, screen: str) -> None:
    with browser.new_context(**SCREENS[screen]) as context:
        page = context.new_page()
        for url, dataset in ((up, "default/people"), (hostile, "shop/airports")):
            for name in _visit(page, url, dataset):
                found = Axe().run(page).response["violations"]
                serious = [
                    (violation["id"], [node["html"][:200] for node in violation["nodes"]])
                    for violation in found
                    if violation["impact"] in ("serious", "critical")
                ]
                assert serious == [], name
                assert page.evaluate(WIDE) == [], f"{name} is wider than the screen"
                assert page.evaluate(BROKEN) == [], name


@pytest.mark.parametrize("where", ["up", "hostile"])
def test_no_script_runs_but_the_consoles(browser: Browser, request: pytest.FixtureRequest, where: str) -> None:
    url = request.getfixturevalue(where)
    with browser.new_context() as context:
        observed = Observed(context, url)
        for name in _visit(observed.page, url, "default/people" if where == "up" else "shop/airports"):
            if name in ("datasets", "a dataset"):
                observed.page.wait_for_timeout(4000)  # its regions are replaced
            observed.check()


def test_the_policy_stops_what_escapes_nothing(browser: Browser, up: str) -> None:
    with browser.new_context() as context:
        observed = Observed(context, up)
        observed.page.goto(up)
        observed.page.evaluate(
            f"document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"{RUN}\">');"
            f"const one=document.createElement('script'); one.textContent='{RUN}'; document.body.append(one);"
            "const far=document.createElement('img'); far.src='http://127.0.0.2:1/x'; document.body.append(far);"
        )
        observed.page.wait_for_timeout(300)
        assert observed.page.evaluate("window.ran") is None
        violated = set(observed.page.evaluate("window.violations"))
        assert {"script-src-elem", "script-src-attr", "img-src"} <= violated


def test_the_keyboard_is_enough(browser: Browser, up: str) -> None:
    with browser.new_context(viewport={"width": 1180, "height": 900}) as context:
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        page = context.new_page()

        def press_until(text: str) -> None:
            for _ in range(80):
                page.keyboard.press("Tab")
                held = page.evaluate(
                    "(()=>{const e=document.activeElement,s=getComputedStyle(e);"
                    "return [e.innerText||e.name||e.ariaLabel||e.placeholder||'', s.outlineStyle, s.outlineWidth]})()"
                )
                assert held[1] != "none", f"the focus on {held[0]!r} is invisible"
                if held[0] == text:
                    return
            raise AssertionError(f"no {text!r} is reached")

        page.goto(up)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        assert page.evaluate("document.activeElement.getBoundingClientRect().top") >= -60
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        press_until("default/people")
        page.keyboard.press("Enter")
        page.wait_for_url("**/datasets/default/people")
        press_until("key")
        page.keyboard.type("p7")
        page.keyboard.press("Enter")
        expect(page.locator("pre.value")).to_have_text('{\n  "title": "Person 7"\n}')
        page.go_back()
        press_until("Copy")
        command = page.evaluate("document.activeElement.dataset.copy")
        page.keyboard.press("Enter")
        expect(page.locator(":focus")).to_have_text("Copied")
        assert page.evaluate("navigator.clipboard.readText()") == command


def test_figures_are_those_of_the_api(browser: Browser, up: str) -> None:
    truth = urllib3.request("GET", f"{up}v1/dataset").json()
    with browser.new_context(viewport={"width": 1180, "height": 900}) as context:
        page = context.new_page()
        page.goto(up)
        cells = page.locator("table.fleet tbody tr").first.locator("th, td").all_inner_texts()
        assert cells[0].startswith("default/people")
        assert (cells[2], cells[4]) == (truth["generation"], f"{truth['records']:,}")
        page.goto(f"{up}datasets/default/people")
        assert page.locator(".serves").inner_text() == f"Serves {truth['generation']} at {up.removesuffix('/')}"
        rows = page.locator("#generations tbody tr").all_inner_texts()
        assert [row.split("\t")[0:2] for row in rows] == [["g2", "candidate"], ["g1", "active"]]
        assert page.locator("#rollouts .grid").count() == 2, "both generations have servers"
        for generation_, value in (("g1", "Person 0"), ("g2", "Somebody else")):
            page.goto(f"{up}datasets/default/people")
            page.get_by_role("textbox", name="Key").fill("p0")
            page.get_by_role("combobox", name="Generation").select_option(generation_)
            page.get_by_role("button", name="Look up").click()
            expect(page.locator("pre.value")).to_contain_text(value)
            tiles = dict(tile.split("\n")[:2] for tile in page.locator(".tile").all_inner_texts())
            answer = urllib3.request("GET", f"{up}v1/lookup/p0", headers={"Lookupdb-Generation": generation_})
            assert tiles["Generation"] == answer.headers["Lookupdb-Generation"]
            assert tiles["Size"] == f"{len(answer.data):,} B"
        page.goto(f"{up}datasets/default/people")
        deadline = time.monotonic() + 60
        rates = [0.0]
        while max(rates) == 0:  # a scrape that fails on a busy machine leaves a moment without a rate
            assert time.monotonic() < deadline, "no rate is shown"
            for _ in range(200):
                urllib3.request("GET", f"{up}v1/lookup/p1")
            figures = urllib3.request("GET", f"{up}datasets/default/people/live.json").json()
            rates += [point["lookups"] or 0.0 for point in figures["history"]]
        expect(page.locator("#chart-1 path.line")).not_to_have_attribute("d", "", timeout=15_000)


def test_generations_are_compared(browser: Browser, up: str) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{up}datasets/default/people")
        page.get_by_role("link", name="Compare two").click()
        page.get_by_role("button", name="Compare").click()
        expect(page.locator("#difference-title")).to_have_text("g1 → g2", timeout=60_000)
        tiles = dict(tile.split("\n")[:2] for tile in page.locator(".tile").all_inner_texts())
        assert tiles == {"Added": "1", "Removed": "1", "Changed": "1", "Same": "499"}
        assert "Somebody else" in page.locator(".samples ins").all_inner_texts()[-1]


def test_without_scripts_everything_but_motion_works(browser: Browser, up: str) -> None:
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(up)
        page.get_by_placeholder("Find by name").fill("peo")
        page.get_by_role("button", name="Find").click()
        page.get_by_role("link", name="default/people").click()
        assert page.locator("button.copy:visible").count() == 0, "what does nothing is not shown"
        assert page.locator("#chart-1 svg").is_visible()
        page.get_by_role("textbox", name="Key").fill("p3")
        page.get_by_role("button", name="Look up").click()
        expect(page.locator("pre.value")).to_contain_text("Person 3")
        page.goto(f"{up}datasets/default/people/diff")
        page.get_by_role("button", name="Compare").click()
        expect(page.locator("#difference-title")).to_have_text("g1 → g2", timeout=60_000)


def test_live_figures_move_nothing(browser: Browser, up: str) -> None:
    with browser.new_context(viewport={"width": 1180, "height": 900}) as context:
        page = context.new_page()
        page.add_init_script(
            "window.shift=0; new PerformanceObserver(l=>{for(const e of l.getEntries()) window.shift+=e.value})"
            ".observe({type:'layout-shift',buffered:true})"
        )
        page.goto(f"{up}datasets/default/people")
        page.locator("summary").first.click()
        page.wait_for_timeout(1000)
        page.evaluate("window.shift=0")
        page.locator("a", has_text="Compare two").focus()
        before = page.locator("footer time").inner_text()
        expect(page.locator("footer time")).not_to_have_text(before, timeout=15_000)
        page.wait_for_timeout(4000)
        assert page.evaluate("window.shift") < 0.01
        assert page.evaluate("document.activeElement.innerText") == "Compare two", "the focus stays"
        assert page.locator("details[open]").count() == 1, "and what is open"
