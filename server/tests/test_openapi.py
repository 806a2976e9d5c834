"""docs/openapi.yaml says what the router does: a running router is held against it, and it against the code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
import yaml
from support.fleets import fleet, fleet_entry
from support.routers import routing
from support.routing import table_file
from support.shards import write_generation

from lookupdb.route.http import problems, routes

DOCUMENT: dict[str, Any] = yaml.safe_load((Path(__file__).parents[2] / "docs" / "openapi.yaml").read_text())
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
# A generation that is not served, whatever it is called, is 412: to schemathesis neither accepted nor rejected.
for check in (SCHEMA.config.checks.positive_data_acceptance, SCHEMA.config.checks.negative_data_rejection):
    check.expected_statuses = [*check.expected_statuses, "412"]


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of a real router before two real shards, which know the examples' keys."""
    home = tmp_path_factory.mktemp("openapi")
    records = {"kjfk": b'{"name":"Kennedy"}', "egll": b'{"name":"Heathrow"}', "a&b c++": b"[1]", "0": b"2"}
    generation = write_generation(home, records, shards=2, value_format="json", normalize=["strip", "lowercase"])
    with fleet(generation) as shards:
        table = home / "table.json"
        table.write_bytes(table_file(fleet_entry(generation, shards)))
        with routing(table) as running:
            yield f"http://127.0.0.1:{running.port}"


@SCHEMA.parametrize()
@hypothesis.settings(
    max_examples=40,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)
def test_a_running_router_answers_as_the_document_says(case: schemathesis.Case[Any], router: str) -> None:
    case.call_and_validate(base_url=router)


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, resource in DOCUMENT["paths"].items():
        for method, operation in resource.items():
            if method != "parameters":
                yield path, method.upper(), operation


def test_it_has_the_router_s_resources_and_methods() -> None:
    known = {
        (path.decode().removesuffix("/") + ("/{key}" if path.endswith(b"/") else ""), method)
        for path, methods in routes.METHODS.items()
        if path != b"*"
        for method in methods.split(", ")
    }
    assert {(path, method) for path, method, _ in operations()} == known


def test_it_has_every_type_of_problem_under_its_status() -> None:
    schema = DOCUMENT["components"]["schemas"]["Problem"]["properties"]["type"]["enum"]
    assert schema == list(dict.fromkeys(schema))
    assert set(schema) == {problems.TYPE_PREFIX + kind.name for kind in problems.ALL}
    described: dict[str, set[str]] = {}
    for _, _, operation in operations():
        for status, response in operation["responses"].items():
            name = response.get("$ref", "").rpartition("/")[2]
            description = DOCUMENT["components"]["responses"].get(name, response)["description"]
            described.setdefault(status, set()).update(re.findall(r"`([a-z-]+)`", description))
    for kind in problems.ALL:
        assert kind.name in described[str(kind.status)], f"{kind.status} {kind.name} is not described"


def test_any_request_can_meet_the_problems_of_any_request() -> None:
    closing = {"400", "408", "413", "414", "417", "431", "500", "503", "505"}
    for path, method, operation in operations():
        assert closing <= operation["responses"].keys(), f"{method} {path}"


def test_it_is_valid_json_too() -> None:
    json.dumps(DOCUMENT)
    SCHEMA.validate()


def test_people_read_of_every_status() -> None:
    """docs/http-api.md names every type of problem."""
    text = (Path(__file__).parents[2] / "docs" / "http-api.md").read_text()
    for kind in problems.ALL:
        assert f"`{kind.name}`" in text
