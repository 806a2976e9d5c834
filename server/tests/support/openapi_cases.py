"""Requests that schemathesis makes of docs/reference/openapi.yaml, sent to each of the routers at ROUTER_URLS.

test_openapi.py runs them in a pytest of its own: importing schemathesis takes a fifth as long as collecting all tests.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import hypothesis
import schemathesis
import yaml

DOCUMENT: dict[str, Any] = yaml.load(
    (Path(__file__).parents[3] / "docs" / "reference" / "openapi.yaml").read_text(),
    getattr(yaml, "CSafeLoader", yaml.SafeLoader),
)
# The router ignores an invalid deadline, but schemathesis expects an error for a value that the schema does not allow.
DOCUMENT["components"]["parameters"]["Deadline"]["schema"] = {"type": "string"}
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
# A generation that is not served is 412, whether its name is valid or not.
for check in (SCHEMA.config.checks.positive_data_acceptance, SCHEMA.config.checks.negative_data_rejection):
    check.expected_statuses = [*check.expected_statuses, "412"]


@SCHEMA.parametrize()
@hypothesis.settings(
    max_examples=40,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)
def test_the_router_answers_as_the_document_says(case: schemathesis.Case[Any]) -> None:
    waits = str(case.headers.get("Lookupdb-Deadline-Ms", "")) if case.headers else ""
    if waits.strip().isdigit():  # a busy machine answers 503 to a deadline of 3 ms
        case.headers["Lookupdb-Deadline-Ms"] = waits + "0000"
    for url in os.environ["ROUTER_URLS"].split():
        case.call_and_validate(base_url=url)


def test_the_document_is_valid() -> None:
    SCHEMA.validate()
