"""docs/reference/openapi.yaml says what the router does: tests compare a running router, and the code, with it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.fleets import fleet, fleet_entry
from support.routers import routing
from support.routing import mixed, table_file
from support.shards import write_generation

from lookupdb.router.http import exchanges, problems

pytestmark = pytest.mark.long

PROBLEMS = [kind for kind in vars(problems).values() if isinstance(kind, problems.ProblemType)]
DOCUMENT: dict[str, Any] = yaml.load(
    (Path(__file__).parents[2] / "docs" / "reference" / "openapi.yaml").read_text(),
    getattr(yaml, "CSafeLoader", yaml.SafeLoader),
)
CASES = Path(__file__).with_name("support") / "openapi_cases.py"


@contextlib.contextmanager
def serving_generations(home: Path, *names: str) -> Iterator[str]:
    """The base URL of a real router before two real shards, of one generation or two, which know the examples' keys."""
    records = {"kjfk": b'{"name":"Kennedy"}', "egll": b'{"name":"Heathrow"}', "a&b c++": b"[1]", "0": b"2"}
    with contextlib.ExitStack() as stack:
        entries = []
        for name in names:
            made = write_generation(
                home, records, shards=2, generation=name, value_format="json", normalize=["strip", "lowercase"]
            )
            entries.append(fleet_entry(made, stack.enter_context(fleet(made))))
        table = home / "table.json"
        table.write_bytes(table_file(entries[0] if len(entries) == 1 else mixed(entries[0], entries[1], {1})))
        running = stack.enter_context(routing(table))
        yield f"http://127.0.0.1:{running.port}"


def test_a_running_router_answers_as_the_document_says(tmp_path: Path) -> None:
    """Each operation gets forty requests or more, with one generation and with two. The document is valid."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "schemathesis.pytest.plugin"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    with serving_generations(tmp_path / "one", "g1") as one, serving_generations(tmp_path / "two", "g2", "g1") as two:
        environment["ROUTER_URLS"] = f"{one} {two}"
        done = subprocess.run([*command, str(CASES)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(list(operations())) + 1} passed" in done.stdout


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, resource in DOCUMENT["paths"].items():
        for method, operation in resource.items():
            if method != "parameters":
                yield path, method.upper(), operation


def test_it_has_the_router_s_resources_and_methods() -> None:
    known = {
        (path.decode().removesuffix("/") + ("/{key}" if path.endswith(b"/") else ""), method)
        for path, methods in exchanges.METHODS.items()
        if path != b"*"
        for method in methods.split(", ")
    }
    assert {(path, method) for path, method, _ in operations()} == known


def test_it_has_every_type_of_problem_under_its_status() -> None:
    schema = DOCUMENT["components"]["schemas"]["Problem"]["properties"]["type"]["enum"]
    assert schema == list(dict.fromkeys(schema))
    assert set(schema) == {problems.TYPE_PREFIX + kind.name for kind in PROBLEMS}
    described: dict[str, set[str]] = {}
    for _, _, operation in operations():
        for status, response in operation["responses"].items():
            name = response.get("$ref", "").rpartition("/")[2]
            description = DOCUMENT["components"]["responses"].get(name, response)["description"]
            described.setdefault(status, set()).update(re.findall(r"`([a-z-]+)`", description))
    for kind in PROBLEMS:
        assert kind.name in described[str(kind.status)], f"{kind.status} {kind.name} is not described"


def test_any_request_can_meet_the_problems_of_any_request() -> None:
    closing = {"400", "401", "403", "408", "413", "414", "417", "431", "500", "503", "505"}
    for path, method, operation in operations():
        assert closing <= operation["responses"].keys(), f"{method} {path}"


def test_it_is_valid_json_too() -> None:
    json.dumps(DOCUMENT)


def test_people_read_of_every_status() -> None:
    """docs/reference/http-api.md names every type of problem."""
    text = (Path(__file__).parents[2] / "docs" / "reference" / "http-api.md").read_text()
    for kind in PROBLEMS:
        assert f"`{kind.name}`" in text
