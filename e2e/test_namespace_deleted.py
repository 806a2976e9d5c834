"""A namespace is deleted with a dataset in it that serves and one that is being built, whether an operator runs or not:
nothing keeps it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

import pytest
from e2e.support import release
from e2e.support.figures import BUSY, record
from e2e.support.kubectl import find, until
from e2e.support.story import Story

GONE_SECONDS: Final = 60


@pytest.fixture
def operator_gone() -> Iterator[Callable[[], None]]:
    """Stops the operator when it is called; it is back at the end."""
    yield lambda: release.scale_operator(0)
    release.scale_operator(1)


def test_it_goes_while_an_operator_runs(story: Story) -> None:
    _fill(story)
    _delete(story, "while an operator runs")


def test_it_goes_while_no_operator_runs(story: Story, operator_gone: Callable[[], None]) -> None:
    _fill(story)
    operator_gone()
    _delete(story, "while no operator runs")


def _fill(story: Story) -> None:
    """One dataset that serves, and one whose builder waits for its source."""
    story.source("records", version="v1", records=300)
    story.apply(story.dataset("serving", "records", shards=2))
    story.wait_settled("serving")
    story.apply(story.dataset("building", "absent"))
    until(lambda: find("pods", story.namespace, "app.kubernetes.io/component=builder"), seconds=60, what="a builder")


def _delete(story: Story, when: str) -> None:
    began = time.monotonic()
    story.delete_namespace()
    took = time.monotonic() - began
    record("namespace-deleted", f"a namespace with two datasets gone {when}", took, "s", at_most=GONE_SECONDS)
    assert took <= BUSY * GONE_SECONDS
