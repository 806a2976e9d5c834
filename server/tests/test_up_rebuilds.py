"""When `lookupdb up --watch` builds, by what its looks see."""

from __future__ import annotations

import pytest

from lookupdb.local.rebuilds import MAX_UNSETTLED_LOOKS, Decision, DesiredInputs, RebuildSchedule, ServingInputs


def inputs(source: str, *, gates: str = "open", active: str = "g1") -> DesiredInputs:
    return DesiredInputs(ServingInputs("content", source, 1, 1), gates, active)


class Looks:
    """A schedule while g1 serves what was built from the source ``old``, with a clock that is set."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.schedule = RebuildSchedule(inputs("old"), lambda: self.seconds)

    def see(self, *sources: str | None, gates: str = "open") -> Decision:
        """What follows from the last of several looks."""
        for source in sources:
            desired = None if source is None else inputs(source, gates=gates)
            decision = self.schedule.decide(desired, inputs("old").serving)
        return decision

    def fail(self, source: str, *, may_pass: bool) -> float:
        """Build what is due, in vain. Returns the pause."""
        assert self.see(source) in (Decision.BUILD, Decision.BUILD_AGAIN)
        return self.schedule.note_failure(may_pass=may_pass)


@pytest.fixture
def looks() -> Looks:
    return Looks()


def test_what_serves_is_not_built(looks: Looks) -> None:
    assert looks.see("old", "old") is Decision.REST


def test_a_change_is_built_when_two_looks_agree(looks: Looks) -> None:
    assert looks.see("half") is Decision.REST
    assert looks.see("whole") is Decision.SETTLE
    assert looks.see("whole") is Decision.BUILD


def test_a_source_that_never_settles_is_built_in_the_end_as_it_is(looks: Looks) -> None:
    decisions = [looks.see(f"version {number}") for number in range(MAX_UNSETTLED_LOOKS + 1)]
    assert decisions.count(Decision.SETTLE) == 1, "it is said once"
    assert decisions[-1] is Decision.BUILD


def test_a_source_that_never_settles_is_built_though_some_looks_see_nothing(looks: Looks) -> None:
    """As when they come in the middle of a rewrite."""
    sources = (None if number % 3 == 2 else f"version {number}" for number in range(2 * MAX_UNSETTLED_LOOKS))
    assert Decision.BUILD in [looks.see(source) for source in sources]


@pytest.mark.parametrize("may_pass", [True, False])
def test_whatever_has_failed_is_built_again_after_a_pause(looks: Looks, may_pass: bool) -> None:
    looks.see("new")
    pause = looks.fail("new", may_pass=may_pass)
    looks.seconds = pause - 0.1
    assert looks.see("new") is Decision.REST
    looks.seconds = pause
    assert looks.see("new") is Decision.BUILD_AGAIN


def test_what_could_not_be_read_for_a_moment_goes_on_waiting(looks: Looks) -> None:
    looks.see("new")
    looks.seconds = looks.fail("new", may_pass=False)
    assert looks.see(None) is Decision.REST
    assert looks.see("new") is Decision.BUILD_AGAIN


@pytest.mark.parametrize(
    ("source", "gates"), [("newer", "open"), ("new", "closed")], ids=["another source", "other gates"]
)
def test_a_change_does_not_wait_for_what_has_failed_before(looks: Looks, source: str, gates: str) -> None:
    looks.see("new")
    looks.fail("new", may_pass=False)
    assert looks.see(source, source, gates=gates) is Decision.BUILD


def test_another_attempt_begins_with_a_short_pause(looks: Looks) -> None:
    looks.see("new")
    for _ in range(4):
        pause = looks.fail("new", may_pass=True)
        looks.seconds += pause
    looks.see("newer")
    assert looks.fail("newer", may_pass=True) == 1.0 < pause


def test_what_comes_back_after_what_serves_was_there_is_a_change(looks: Looks) -> None:
    looks.see("new")
    looks.fail("new", may_pass=False)
    assert looks.see("old", "new", "new") is Decision.BUILD


def test_what_has_succeeded_is_not_built_again(looks: Looks) -> None:
    looks.see("new", "new")
    looks.schedule.note_success()
    looks.seconds = 10_000.0
    assert looks.see("new") is Decision.REST, "what was read was another source, which the next look sees"
