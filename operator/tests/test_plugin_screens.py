"""The screen of a dataset in each phase, as the operator's own decisions make it; docs/kubectl-status.md shows them.

``LOOKUPDB_GOLDEN=update pytest operator/tests/test_plugin_screens.py`` writes the screens of that page anew.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from operator_support import phase_worlds
from operator_support.phase_worlds import screen_of, view_of
from operator_support.plan_samples import rebuilt, serving, unconfirmed
from operator_support.plan_world import World

from lookupdb_operator.plan.phase import PHASES
from lookupdb_operator.plugin.views import list_view


@pytest.mark.parametrize(
    ("state", "told"),
    [
        pytest.param(phase_worlds.building, [": Building, serves nothing", "g1  under way"], id="building"),
        pytest.param(serving, [": Ready, serves g1", "2/2 ready", "confirmed by all"], id="ready"),
        pytest.param(
            lambda: rebuilt(serving()),
            [": RollingOut, serves g1", "r2  g2  starting", "Shards that lack servers:", "r2 shard 0"],
            id="rolling out",
        ),
        pytest.param(
            lambda: unconfirmed(serving()), [": RollingOut", "r1  g1  ending", "r2  g2  taking over"], id="confirming"
        ),
        pytest.param(
            phase_worlds.candidate,
            [
                ": CandidateWaiting, serves g1",
                "g2 of r2 has waited for promotion for",
                "kubectl lookupdb promote -n default airports g2, or reject -n default airports g2",
                "r2  g2  candidate",
            ],
            id="a candidate",
        ),
        pytest.param(
            phase_worlds.shard_by_shard,
            [
                ": RollingOut, serves g1 and g2, shard by shard",
                "1 of 3 shards answer from g2, the others from g1",
                "r1  g1  being replaced  3 shards × 2",
                "r2  g2  replacing       1 of 3 shards × 2, 2 servers ready",
            ],
            id="shard by shard",
        ),
        pytest.param(phase_worlds.pinned, [": Pinned, serves g1", "pinned to g1", "active, pinned"], id="pinned"),
        pytest.param(
            lambda: phase_worlds.failing("BadSource", "people.csv: no such file"),
            [": Stuck, serves g1", "next attempt at a build in", "failed", "people.csv: no such file"],
            id="a build failed",
        ),
        pytest.param(
            lambda: phase_worlds.failing("GateClosed", "too few records"),
            [": GateClosed, serves g1", "too few"],
            id="a gate",
        ),
        pytest.param(phase_worlds.unplaced, [": Stuck, serves g1", "Why:", "3 Insufficient memory"], id="stuck"),
    ],
)
def test_the_screen(state: Callable[[], World], told: list[Any]) -> None:
    world = state()
    screen = screen_of(world)
    assert list_view.render([view_of(world).dataset], world.now, everywhere=True, namespace="")
    assert [words for words in told if words not in screen] == [], screen


PAGE = Path(__file__).parents[2] / "docs" / "kubectl-status.md"
SHOWN: dict[str, Callable[[], World]] = {
    "Building": phase_worlds.building,
    "Ready": serving,
    "RollingOut": phase_worlds.rolling_out,
    "RollingOut: shard by shard": phase_worlds.shard_by_shard,
    "CandidateWaiting": phase_worlds.candidate,
    "Pinned": phase_worlds.pinned,
    "RolledBack": phase_worlds.rolled_back,
    "GateClosed": phase_worlds.gate_closed,
    "Stuck: a build fails": phase_worlds.failing,
    "Stuck: servers do not start": phase_worlds.unplaced,
}
"""By the headings of the page."""


@pytest.mark.parametrize("heading", SHOWN)
def test_the_page_shows_what_the_command_does(heading: str) -> None:
    screen = screen_of(SHOWN[heading]())
    block = re.compile(rf"(?<=\n## {re.escape(heading)}\n)(.*?\n```\n)(.*?)(\n```\n)", re.DOTALL)
    text = PAGE.read_text(encoding="utf-8")
    if os.environ.get("LOOKUPDB_GOLDEN") == "update":
        text = block.sub(lambda found: found[1] + screen + found[3], text, count=1)
        PAGE.write_text(text, encoding="utf-8")
    found = block.search(text)
    assert found is not None, "there is no such heading, with a block behind it"
    assert found[2] == screen, "if that is meant: LOOKUPDB_GOLDEN=update pytest …"


def test_the_page_has_no_other_screen_and_its_words_are_phases() -> None:
    headings = re.findall(r"^## (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert headings == list(SHOWN)
    assert {heading.partition(":")[0] for heading in headings} <= {phase.name for phase in PHASES}
