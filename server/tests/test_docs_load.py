"""docs/how-to/load.md: its commands run; its conditions, bounds and exit codes are those of the code."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from support.command_line import run_here
from support.http import ScriptedLookups, serving
from support.shards import write_generation

from lookupdb import errors
from lookupdb.cli import load
from lookupdb.cli.load import command
from lookupdb.load.plan import DEFAULT_SAMPLE, MAX_KEYS, parse_distribution
from lookupdb.load.result import COUNTS, parse_condition
from lookupdb.up.run_state import RunFolder

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "how-to" / "load.md").read_text()
COMMANDS = [line.partition("  #")[0].strip() for line in re.findall(r"^ {4}(lookupdb load .*)$", TEXT, re.MULTILINE)]
URL = "http://127.0.0.1:8080"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder where a `lookupdb up` serves airports, with a file of keys."""
    home = tmp_path_factory.mktemp("docs-load")
    keys = {f"K{number:03}": b'{"a":1}' for number in range(300)}
    place = home / ".lookupdb" / "store" / "local" / "default" / "airports-local"
    write_generation(place, keys, name="airports", value_format="json")
    (home / "keys.txt").write_text("\n".join(keys))
    up = RunFolder(home / ".lookupdb", "default", "airports")
    with serving(ScriptedLookups(values=keys)) as router, up.lock():
        up.write_state({"url": f"http://127.0.0.1:{router.port}"})
        yield home


@pytest.mark.parametrize("line", COMMANDS)
def test_its_commands_run(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    state = orjson.loads(next((folder / ".lookupdb" / "run").rglob("up.json")).read_bytes())
    line = line.replace(URL, state["url"]).replace("--rate 500 --duration 30", "--rate 100 --duration 1")
    _, *words = shlex.split(line)
    seconds = [] if "--duration" in line else ["--duration", "1", "--rate", "20"]
    ended = run_here(*words, *seconds, "--report", str(folder / "load.html"))
    assert ended.returncode == 0, ended.stderr
    written = ended.stdout.decode()
    shown = TEXT.partition("```\n")[2].partition("```")[0]
    for name in ("rate", "latency", "keys", "generation g1"):
        assert re.search(rf"^{name}\b", shown, re.MULTILINE)
        assert re.search(rf"^{name}\b", written, re.MULTILINE)
    assert " answered\n" in written


def test_there_are_commands() -> None:
    assert len(COMMANDS) == 3


def test_its_conditions_are_those_that_there_are() -> None:
    rows = re.findall(r"^\| (`.*?) \|", TEXT.partition("| condition |")[2].partition("\n\n")[0], re.MULTILINE)
    named = {text for row in rows for text in re.findall(r"`([^`]+)`", row)}
    for text in named:
        parse_condition(text if re.search("[<>]", text) else f"{text}>0")
    names = {re.split("[<>]", text)[0] for text in named}
    assert set(COUNTS) <= names


def test_its_ends_are_those_of_a_result() -> None:
    schema = orjson.loads((ROOT / "docs" / "reference" / "load-result.schema.json").read_bytes())
    members = set(schema["properties"]["requests"]["properties"]) - {"scheduled", "heldBack"}
    table = TEXT.partition("| outcome | in `--json` |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| [\w ]+ \| `(\w+)`", table, re.MULTILINE)) == members


def test_its_exit_codes_are_those_of_the_errors() -> None:
    table = TEXT.partition("| exit code |")[2].partition("\n\n")[0]
    codes = {int(code) for row in re.findall(r"^\| ([\d, ]+) \|", table, re.MULTILINE) for code in row.split(",")}
    raised = (errors.LookupFailed, errors.UsageError, errors.Unavailable, errors.StoreError, errors.LimitExceeded)
    assert codes == {0, 130, 143} | {error.exit_code for error in raised}


def test_its_bounds_and_defaults_are_those_of_the_program() -> None:
    assert load.FLAG in TEXT
    for number in (load.MAX_RATE, load.MAX_KEYS_PER_SECOND, MAX_KEYS, DEFAULT_SAMPLE):
        assert f"{number:,.0f}" in TEXT
    assert f"{load.MAX_SECONDS:g} seconds" in TEXT
    defaults = {name: parameter.default for parameter in command.params for name in parameter.opts}
    assert (defaults["--keys"], defaults["--timeout"], defaults["--arrivals"]) == ("sample", 5.0, "poisson")
    assert parse_distribution("zipf:1.1") == 1.1
    options = set(re.findall(r"`(--[a-z-]+)", TEXT)) - {"--token-secret", "--ca-secret", "--ca-config-map"}
    options -= {"--request-timeout", "--sample-"}
    assert options <= defaults.keys()
