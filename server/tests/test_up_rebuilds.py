"""When `lookupdb up --watch` builds, by what its looks see."""

from __future__ import annotations

import pytest

from lookupdb.up.rebuilds import (
    LONGEST_SECONDS,
    MAX_UNSETTLED_LOOKS,
    Decision,
    DesiredInputs,
    RebuildSchedule,
    ServingInputs,
    SuccessFileAnswer,
    find_standing_answer,
)


def inputs(
    source: str | None, *, gates: str = "open", active: str = "g1", success_file: str | None = None
) -> DesiredInputs:
    return DesiredInputs(ServingInputs("content", source, 1, 1), gates, active, success_file)


class Looks:
    """A schedule while g1 serves what was built from the source ``old``, with a clock that is set."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.schedule = RebuildSchedule(inputs("old"), lambda: self.seconds)

    def see(self, *sources: str | None, gates: str = "open") -> Decision:
        """Return the decision of the last of several looks."""
        for source in sources:
            desired = None if source is None else inputs(source, gates=gates)
            decision = self.schedule.decide(desired, inputs("old").serving)
        return decision

    def fail(self, source: str, *, may_pass: bool) -> float:
        """Build what is due, in vain. Returns the pause."""
        assert self.see(source) in (Decision.BUILD, Decision.BUILD_AGAIN)
        pause = self.schedule.note_failure(may_pass=may_pass)
        assert pause is not None
        return pause


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


def test_that_what_serves_is_desired_again_ends_the_attempts_once(looks: Looks) -> None:
    looks.see("new")
    looks.fail("new", may_pass=True)
    assert [looks.see("old"), looks.see("old")] == [Decision.END_ATTEMPTS, Decision.REST]


def test_so_it_does_where_what_was_built_in_vain_is_what_serves(looks: Looks) -> None:
    """A file that is set back while the builder reads it."""
    looks.see("new", "new")
    assert looks.schedule.note_success("g1", inputs("old").serving) == 1.0
    assert [looks.see("old"), looks.see("old")] == [Decision.END_ATTEMPTS, Decision.REST]


def test_what_was_desired_and_serves_is_not_built_again(looks: Looks) -> None:
    looks.see("new", "new")
    new = inputs("new", active="g2")
    assert looks.schedule.note_success("g2", new.serving) is None
    looks.seconds = 10_000.0
    assert looks.schedule.decide(new, new.serving) is Decision.REST


@pytest.mark.parametrize("built", ["old", "a third one"])
def test_what_was_desired_is_built_again_after_a_pause_where_another_was_built(looks: Looks, built: str) -> None:
    """A file that is set back while the builder starts, and comes again."""
    looks.see("new", "new")
    serving = inputs(built).serving
    pause = looks.schedule.note_success("g2", serving)
    assert pause == 1.0
    new = inputs("new", active="g2")
    assert looks.schedule.decide(new, serving) is Decision.REST
    looks.seconds = pause
    assert looks.schedule.decide(new, serving) is Decision.BUILD_AGAIN


def test_a_source_whose_look_and_manifest_never_agree_is_built_ever_later(looks: Looks) -> None:
    looks.see("new", "new")
    pauses, serving = [], inputs("old").serving
    for number in range(2, 14):
        serving = inputs(f"built as g{number}").serving
        pause = looks.schedule.note_success(f"g{number}", serving)
        assert pause is not None
        pauses.append(pause)
        new = inputs("new", active=f"g{number}")
        assert looks.schedule.decide(new, serving) is Decision.REST
        looks.seconds += pause
        assert looks.schedule.decide(new, serving) is Decision.BUILD_AGAIN
    assert pauses[:3] == [1.0, 2.0, 4.0]
    assert pauses[-1] == LONGEST_SECONDS


def test_what_serves_is_built_again_once_it_is_damaged(looks: Looks) -> None:
    assert looks.see("old", "old") is Decision.REST
    assert looks.schedule.decide(inputs("old"), None) is Decision.BUILD
    pause = looks.schedule.note_failure(may_pass=True)
    assert looks.schedule.decide(inputs("old"), None) is Decision.REST
    looks.seconds = pause or 0.0
    assert looks.schedule.decide(inputs("old"), None) is Decision.BUILD_AGAIN


def test_what_is_damaged_as_soon_as_it_serves_is_built_again(looks: Looks) -> None:
    looks.see("new", "new")
    new = inputs("new", active="g2")
    looks.schedule.note_success("g2", new.serving)
    looks.schedule.decide(new, None)
    assert looks.schedule.decide(new, None) is Decision.BUILD


class Nights:
    """A schedule while g1 serves the source of day 1 with its success file, which is written again every night."""

    def __init__(self) -> None:
        self.active, self.serving = "g1", inputs("day 1").serving
        self.seconds = 0.0
        self.restart(None)

    def restart(self, answer: SuccessFileAnswer | None) -> None:
        """Another schedule, for which a success file was answered by ``answer`` before."""
        self.schedule = RebuildSchedule(inputs("day 1", success_file="S1"), lambda: self.seconds, answer=answer)

    def see(self, success_file: str, source: str | None, *, looks: int = 2) -> Decision:
        """Return the decision of the last of several looks at a source, read unless the file has been answered."""
        for _ in range(looks):
            answer = self.schedule.find_answer("content", success_file)
            desired = inputs(answer.fingerprint if answer else source, active=self.active, success_file=success_file)
            decision = self.schedule.decide(desired, self.serving)
        return decision


@pytest.fixture
def nights() -> Nights:
    return Nights()


def test_a_source_is_not_read_under_the_success_file_of_what_serves(nights: Nights) -> None:
    assert nights.schedule.find_answer("content", "S1") == SuccessFileAnswer("S1", "day 1")
    assert nights.see("S1", "half of day 2") is Decision.REST


def test_a_source_is_read_for_a_manifest_that_has_something_else_built(nights: Nights) -> None:
    assert nights.schedule.find_answer("other content", "S1") is None


def test_an_unchanged_source_answers_a_success_file(nights: Nights) -> None:
    assert nights.schedule.find_answer("content", "S2") is None
    assert nights.see("S2", "day 1") is Decision.REST
    assert nights.see("S2", "half of day 3") is Decision.REST
    assert nights.see("S3", "day 3") is Decision.BUILD


def test_an_attempt_answers_a_success_file_however_it_ends(nights: Nights) -> None:
    assert nights.see("S2", "day 2") is Decision.BUILD
    pause = nights.schedule.note_failure(may_pass=False)
    assert nights.see("S2", "half of day 3") is Decision.REST
    nights.seconds = pause or 0.0
    assert nights.schedule.find_answer("content", "S2") == SuccessFileAnswer("S2", "day 2"), (
        "of which the retry must be"
    )
    assert nights.see("S2", "half of day 3") is Decision.BUILD_AGAIN
    assert nights.see("S3", "day 3") is Decision.BUILD


def test_the_first_look_answers_a_success_file(nights: Nights) -> None:
    """A second look would find the next batch."""
    assert nights.see("S2", "day 2", looks=1) is Decision.REST
    assert nights.schedule.lasting_answer == ("content", "open", SuccessFileAnswer("S2", "day 2"))
    assert nights.see("S2", "half of day 3", looks=1) is Decision.BUILD
    assert nights.schedule.find_answer("content", "S2") == SuccessFileAnswer("S2", "day 2")


def test_what_was_let_through_answers_its_success_file_and_none_that_came_after_it(nights: Nights) -> None:
    nights.see("S2", "day 2")
    nights.schedule.note_failure(may_pass=False)
    nights.schedule.note_override(inputs("day 2, copied", success_file="S2"))
    assert nights.schedule.find_answer("content", "S2") == SuccessFileAnswer("S2", "day 2, copied")
    nights.schedule.note_override(inputs("day 1", success_file="S1"))
    assert nights.schedule.find_answer("content", "S2") is not None


def test_a_source_that_nothing_identifies_is_another_with_another_success_file(nights: Nights) -> None:
    assert nights.see("S2", None) is Decision.BUILD
    nights.serving = inputs("what was fetched").serving
    assert nights.schedule.note_success("g2", nights.serving) is None
    assert nights.see("S2", None, looks=1) is Decision.REST
    assert nights.see("S3", None) is Decision.BUILD


def test_what_nothing_identifies_and_was_bad_is_not_read_again_under_its_success_file(nights: Nights) -> None:
    assert nights.see("S2", None) is Decision.BUILD
    assert nights.schedule.note_failure(may_pass=False) is None
    nights.seconds = 1e6
    assert nights.see("S2", None, looks=1) is Decision.REST
    assert nights.see("S3", None) is Decision.BUILD
    assert nights.schedule.note_failure(may_pass=True) == 1.0


def test_what_nothing_identifies_and_was_bad_is_not_read_again_because_another_generation_serves(
    nights: Nights,
) -> None:
    """For example, the generation before serves because the files of the newest are damaged."""
    assert nights.see("S2", None) is Decision.BUILD
    assert nights.schedule.note_failure(may_pass=False) is None
    nights.active, nights.serving = "g0", inputs("day 0").serving
    assert nights.see("S2", None, looks=3) is Decision.REST
    assert nights.see("S3", None) is Decision.BUILD


def test_an_answer_lasts_over_a_restart(nights: Nights) -> None:
    assert nights.schedule.lasting_answer == ("content", "open", SuccessFileAnswer("S1", "day 1"))
    nights.see("S2", "day 1")
    assert nights.schedule.lasting_answer == ("content", "open", SuccessFileAnswer("S2", "day 1"))
    nights.see("S3", "day 3")
    assert nights.schedule.lasting_answer == ("content", "open", SuccessFileAnswer("S3", "day 3")), "before it is built"
    nights.schedule.note_failure(may_pass=True)
    assert nights.schedule.lasting_answer == ("content", "open", SuccessFileAnswer("S3", "day 3"))


def test_an_answer_of_what_nothing_identifies_lasts_once_it_is_not_tried_again(nights: Nights) -> None:
    nights.see("S2", None)
    nights.schedule.note_failure(may_pass=True)
    assert nights.schedule.lasting_answer == ("content", "open", SuccessFileAnswer("S1", "day 1"))
    nights.schedule.note_failure(may_pass=False)
    assert nights.schedule.lasting_answer == ("content", "open", SuccessFileAnswer("S2", None))


def test_a_success_file_that_was_answered_before_the_first_look_is_answered(nights: Nights) -> None:
    nights.restart(SuccessFileAnswer("S2", "day 1"))
    assert nights.schedule.lasting_answer == ("content", "open", SuccessFileAnswer("S2", "day 1"))
    assert nights.see("S2", "half of day 3") is Decision.REST
    assert nights.see("S3", "day 3") is Decision.BUILD


def test_what_was_attempted_before_the_first_look_is_attempted_again(nights: Nights) -> None:
    nights.restart(SuccessFileAnswer("S2", "day 2"))
    assert nights.see("S2", "half of day 3") is Decision.BUILD
    assert nights.schedule.find_answer("content", "S2") == SuccessFileAnswer("S2", "day 2"), "of which it must be"


def test_what_nothing_identifies_and_was_bad_before_the_first_look_is_not_read_again(nights: Nights) -> None:
    nights.restart(SuccessFileAnswer("S2", None))
    assert nights.see("S2", None, looks=3) is Decision.REST
    assert nights.schedule.lasting_answer == ("content", "open", SuccessFileAnswer("S2", None))
    assert nights.see("S3", None) is Decision.BUILD


def test_an_answer_stands_for_its_own_success_file_alone() -> None:
    first, second = SuccessFileAnswer("S1", "day 1"), SuccessFileAnswer("S2", "day 1")
    assert find_standing_answer("S2", None, first, second) is second
    assert find_standing_answer("S3", None, first, second) is None


@pytest.mark.parametrize(("answered", "is_of_another"), [("day 1", False), ("day 2", True), (None, False)])
def test_a_source_that_was_answered_and_is_not_what_serves_has_yet_to_be_built(
    answered: str | None, is_of_another: bool
) -> None:
    """An unidentified source cannot be compared."""
    assert SuccessFileAnswer("S2", answered).is_of_another("day 1") is is_of_another
