"""The screen of a dataset in each phase, reached by the operator's own decisions, and the page of the reference with
the same screens."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from docs_tools import product, reference
from operator_support import phase_worlds
from operator_support.phase_worlds import screen_of, view_of
from operator_support.plan_samples import rebuilt, serving, unconfirmed
from operator_support.plan_world import World

from lookupdb_operator.plan.planner import PHASES
from lookupdb_operator.plugin import views


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
                "kubectl lookupdb promote -n default airports g2, or kubectl lookupdb reject -n default airports g2",
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
            [": Stuck, serves g1", "the next build attempt, in", "failed", "people.csv: no such file"],
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
    assert views.render_list([view_of(world).dataset], world.now, everywhere=True, place="")
    assert [words for words in told if words not in screen] == [], screen


def test_the_page_shows_what_the_command_does() -> None:
    screens, page = product.load_screens(), reference.page("reference/status-screens.md")
    assert screens.keys() >= {"Building", "CandidateWaiting", "GateClosed"}
    for heading, show in screens.items():
        assert f"\n## {heading}\n\n```text\n{show()}\n```" in page


def test_the_page_has_no_other_screen_and_its_words_are_phases() -> None:
    headings = re.findall(r"^## (.*)$", reference.page("reference/status-screens.md"), re.MULTILINE)
    assert headings == list(product.load_screens())
    assert {heading.partition(":")[0] for heading in headings} <= PHASES.keys()
