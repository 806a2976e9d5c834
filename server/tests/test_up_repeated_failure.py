"""`lookupdb up --watch` counts attempts that fail alike."""

from __future__ import annotations

from lookupdb.errors import SourceUnreadable
from lookupdb.up.builds import BuildFailed, RepeatedFailure


def test_those_in_a_row_that_fail_alike_are_counted() -> None:
    failure = RepeatedFailure()
    bad, other = BuildFailed("the build failed", 3, cause="line 2"), BuildFailed("the build failed", 3, cause="line 7")
    assert not failure.is_repeated_by(bad)
    assert [failure.note(error) for error in (bad, bad, bad, other, other, bad)] == [1, 2, 3, 1, 2, 1]
    assert failure.is_repeated_by(bad)
    assert not failure.is_repeated_by(other)


def test_another_hint_is_news() -> None:
    failure = RepeatedFailure()
    assert failure.note(SourceUnreadable("x cannot be read", hint="wait")) == 1
    assert failure.note(SourceUnreadable("x cannot be read", hint="give this user the right")) == 1


def test_after_a_success_all_is_news() -> None:
    failure = RepeatedFailure()
    failure.note(SourceUnreadable("x cannot be read"))
    failure.reset()
    assert failure.note(SourceUnreadable("x cannot be read")) == 1
