"""When `lookupdb up --watch` tries again what has failed."""

import pytest

from lookupdb.up.rebuilds import LONGEST_PERSISTENT_SECONDS, LONGEST_SECONDS, RetryPause


class Clock:
    """A clock that is set."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_nothing_is_due_before_a_failure() -> None:
    assert not RetryPause(Clock()).is_due()


@pytest.mark.parametrize("may_pass", [True, False])
def test_a_failure_is_tried_again_after_its_pause(may_pass: bool) -> None:
    clock = Clock()
    backoff = RetryPause(clock)
    pause = backoff.note_failure(may_pass=may_pass)
    clock.seconds = pause - 0.01
    assert not backoff.is_due()
    clock.seconds = pause
    assert backoff.is_due()


def test_pauses_double_to_five_minutes() -> None:
    backoff = RetryPause(Clock())
    pauses = [backoff.note_failure() for _ in range(12)]
    assert pauses[:4] == [1.0, 2.0, 4.0, 8.0]
    assert pauses[-2:] == [LONGEST_SECONDS, LONGEST_SECONDS]


def test_pauses_of_what_does_not_pass_by_itself_double_from_half_a_minute_to_half_an_hour() -> None:
    backoff = RetryPause(Clock())
    pauses = [backoff.note_failure(may_pass=False) for _ in range(2000)]
    assert pauses[:4] == [30.0, 60.0, 120.0, 240.0]
    assert pauses[-1] == LONGEST_PERSISTENT_SECONDS


def test_a_source_that_was_bad_once_is_not_waited_for_longer_because_a_disk_is_full() -> None:
    backoff = RetryPause(Clock())
    backoff.note_failure(may_pass=False)
    assert backoff.note_failure(may_pass=True) == 1.0
    assert backoff.note_failure(may_pass=False) == 60.0


def test_what_has_ended_is_not_due_and_the_next_failure_begins_again() -> None:
    clock = Clock()
    backoff = RetryPause(clock)
    backoff.note_failure()
    backoff.note_failure()
    backoff.reset()
    clock.seconds = LONGEST_SECONDS
    assert not backoff.is_due()
    assert backoff.note_failure() == 1.0
