"""docs/how-to/client.md: each of its programs runs against a router of airports, and prints what the page says."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.http import ScriptedLookups, serving
from support.ports import free_port

import lookupdb.errors
from lookupdb.client import Client, core
from lookupdb.client.settings import ClientOptions, ClientSettings
from lookupdb.testing import ServedDataset

TEXT = (Path(__file__).parents[2] / "docs" / "how-to" / "client.md").read_text()
PROGRAMS: dict[str, str] = dict(re.findall(r"^```python (\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL))
URL = "http://127.0.0.1:8080"
NAME = b"John F Kennedy International Airport"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    records = {"KJFK": b'{"name":"%b"}' % NAME, "EGLL": b'{"name":"London Heathrow Airport"}'}
    with serving(ScriptedLookups(values=records)) as router:
        yield f"http://127.0.0.1:{router.port}"


Play = Callable[[str, str], dict[str, Any]]


@pytest.fixture
def play() -> Iterator[Play]:
    """Runs the program of that name against that router, and returns the names that it leaves; its clients are closed
    at the end: pages leave that out."""
    left: list[dict[str, Any]] = []

    def run(name: str, url: str) -> dict[str, Any]:
        left.append(run_program(name, url))
        return left[-1]

    yield run
    for names in left:
        for value in names.values():
            if isinstance(value, Client):
                value.close()


def run_program(name: str, url: str) -> dict[str, Any]:
    assert URL in PROGRAMS[name] or name in ("settings", "tracing")
    names: dict[str, Any] = {}
    exec(compile(PROGRAMS[name].replace(URL, url), name, "exec"), names)
    return names


def test_the_page_has_these_programs() -> None:
    expected = "first unavailable many candidate columns frame tests asyncio threads gevent cache settings tracing"
    assert list(PROGRAMS) == expected.split()
    assert "```python\n" not in TEXT, "a program has a name, by which it is run here"


@pytest.mark.parametrize("name", ["first", "many", "candidate", "frame", "asyncio", "threads", "cache", "settings"])
def test_a_program_runs(play: Play, name: str, url: str) -> None:
    names = play(name, url)
    if name == "many":
        results = names["results"]
        assert {*results.found} == {"KJFK", "EGLL"}
        assert (results.missing, results.generation, names["partial"].unavailable) == (["nowhere"], "g1", [])
    if name == "frame":
        found = names["enriched"]["to_name"]
        assert found[:2].tolist() == [NAME.decode(), "London Heathrow Airport"]
        assert found.isna().tolist() == [False, False, True]
    if name == "threads":
        assert names["names"][0] == NAME.decode()


def test_the_program_with_columns_runs(play: Play) -> None:
    columns = {"g1": {"columns": ["country", "id"], "separator": ":"}}
    with serving(ScriptedLookups(values={"DE:1": b'"Ada"', "FR:7": b'"Eve"'}, keys=columns)) as router:
        names = play("columns", f"http://127.0.0.1:{router.port}")
        assert names["people"].get_many([("DE", 1)]).found == {("DE", 1): "Ada"}


def test_the_tests_run(url: str) -> None:
    """What serves their records is a stand-in here; test_testing.py has the real one."""
    names: dict[str, Any] = {}
    exec(compile(PROGRAMS["tests"], "tests", "exec"), names)
    served: list[dict[str, Any]] = []

    def serve_people(records: dict[str, Any]) -> ServedDataset:
        served.append(records)
        return ServedDataset(url, records, Path())  # type: ignore[arg-type]

    names["test_my_program"](serve_people)
    assert "ada" in served[0]
    assert "with serve(" in PROGRAMS["tests"]


def test_what_is_unavailable_is_reported(play: Play, url: str) -> None:
    name_airport = play("unavailable", url)["name_airport"]
    assert (name_airport("KJFK"), name_airport("nowhere")) == (NAME.decode(), "no such airport")
    name_airport = play("unavailable", f"http://127.0.0.1:{free_port()}")["name_airport"]
    assert name_airport("KJFK") == "KJFK (cannot tell now: RouterUnreachable)"


@pytest.mark.skipif(importlib.util.find_spec("gevent") is None, reason="gevent is not installed")
def test_the_program_of_gevent_runs(url: str) -> None:
    program = textwrap.dedent(PROGRAMS["gevent"]).replace(URL, url)
    program += "\nprint([greenlet.value['name'] if greenlet.value else None for greenlet in greenlets])\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, f"['{NAME.decode()}', 'London Heathrow Airport', None]"), done


def test_the_function_that_names_a_trace_is_one(play: Play, url: str) -> None:
    """Whatever fails in it, as what it imports may not be there, is left out."""
    with Client(url, traceparent=play("tracing", url)["traceparent"]) as client:
        assert client.has("KJFK")


def test_it_names_all_settings_and_their_defaults() -> None:
    table = TEXT[TEXT.index("| argument | default |") : TEXT.index("Lookups change nothing")]
    named = {
        name for cell in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)
    }
    assert named == ClientOptions.__annotations__.keys()
    assert named == {*ClientSettings._fields} - {"address"}
    defaults = ClientSettings._field_defaults
    assert f"| `timeout` | {defaults['timeout']:g} s |" in table
    assert f"| `connect_timeout` | {defaults['connect_timeout']:g} s |" in table
    for name in ("max_connections", "retries", "max_keys"):
        assert f"| `{name}` | {defaults[name]} |" in table


def test_it_names_all_errors_and_reasons_of_the_client() -> None:
    for error in ("Unavailable", "UnknownGeneration", "RequestRefused", "InvalidAnswer"):
        assert f"| `{error}` |" in TEXT
        assert issubclass(getattr(lookupdb.errors, error), lookupdb.errors.LookupFailed)
    reasons = [core.DEADLINE, core.UNREACHABLE, core.CONNECTION_LOST, core.TOO_MANY_CONNECTIONS]
    reasons += [core.NO_CONNECTION, core.QUEUE_FULL, core.GENERATION_CHANGED]
    assert [reason for reason in reasons if f"`{reason}`" not in TEXT] == []
