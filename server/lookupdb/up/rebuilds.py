"""When `up --watch` builds, by what it knows after each look:

desired    what manifest and source ask for
attempted  what was desired when a build last began, unless that serves
serving    what is served; None once the files of the active generation are damaged
answered   which success files have been answered: a look has seen the source under them; the last one also over a
           restart
due        whether the pause after an attempt is over

What a success file, where the manifest names one, has the look do:

======================================================================  ==============================================
success file                                                            source
======================================================================  ==============================================
not there                                                               not read: nothing is desired
answered, for what the manifest has built                               not read: as it was when that was answered. What
                                                                        changes under it is the next one, half written
another, or the manifest has something else built                       read
======================================================================  ==============================================

What follows from the look, by the first row that holds:

======================================================================  ==============================================
desired                                                                 decision
======================================================================  ==============================================
nothing: manifest or source cannot be read, or not yet                  REST
is what serves, after an attempt at what does not                       END_ATTEMPTS; if that comes back it is new
is what serves                                                          REST
is what was attempted, and not due                                      REST
differs from the look before, for no more than MAX_UNSETTLED_LOOKS      REST, and SETTLE once
is what was attempted, and due                                          BUILD_AGAIN
anything else                                                           BUILD
======================================================================  ==============================================

What an attempt leaves:

======================================================================  ==============================================
end                                                                     then
======================================================================  ==============================================
failed                                                                  due after a pause
failed by what it has read, of a source that nothing identifies         never due: half of the next could be read
serves, and is what was desired                                         nothing is due
serves, and is another: the source has changed since the look, or back  due after a pause
======================================================================  ==============================================
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum, auto
from typing import Final, NamedTuple

from lookupdb.backoff import delay_after

# The growing pause between two attempts at what has failed. Nothing fails for good: what an attempt has read may have
# been half written, or away for a moment, though it looks the same before and after.


FIRST_SECONDS: Final = 1.0
LONGEST_SECONDS: Final = 300.0
"""Of what may pass by itself: a disk has room again, a server answers."""
FIRST_PERSISTENT_SECONDS: Final = 30.0
LONGEST_PERSISTENT_SECONDS: Final = 1800.0
"""Of all else, a bad source say: as the operator waits in a cluster."""


class Backoff:
    """When to try again: each time after twice as long, from a second to five minutes where the error may pass, else
    from half a minute to half an hour."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """``now`` is a clock that is never set back, in seconds."""
        self._now = now
        self._failures = {True: 0, False: 0}
        self._due_at: float | None = None

    def note_failure(self, *, may_pass: bool = True) -> float:
        """The attempt has failed. Returns the seconds until the next one."""
        first, longest = (
            (FIRST_SECONDS, LONGEST_SECONDS) if may_pass else (FIRST_PERSISTENT_SECONDS, LONGEST_PERSISTENT_SECONDS)
        )
        self._failures[may_pass] += 1
        pause = delay_after(self._failures[may_pass], first, longest)
        self._due_at = self._now() + pause
        return pause

    def is_due(self) -> bool:
        """Whether the last attempt has failed, and its pause is over."""
        return self._due_at is not None and self._now() >= self._due_at

    def reset(self) -> None:
        """There is nothing to try again: the attempt has succeeded, or is another one."""
        self._failures = {True: 0, False: 0}
        self._due_at = None


MAX_UNSETTLED_LOOKS: Final = 10
"""A source that has changed at each of so many looks is built as it is."""


class ServingInputs(NamedTuple):
    """What decides what is served: a change of any of these is rolled out."""

    content: str
    fingerprint: str | None
    """Of the source. None, of what is desired alone: its server does not identify it, and its success file does."""
    replicas: int
    workers: int


class SuccessFileAnswer(NamedTuple):
    """Which success file was answered last, and the fingerprint that the source had; None where it has none."""

    success_file: str
    fingerprint: str | None

    def is_of_another(self, fingerprint: str) -> bool:
        """Whether it is known that the source was another one than that with ``fingerprint``."""
        return self.fingerprint not in (None, fingerprint)


class DesiredInputs(NamedTuple):
    """What manifest and source ask for: a change of any of these is built at once, whatever has failed before."""

    serving: ServingInputs
    gates: str
    active: str
    """The generation that a gate compares with."""
    success_file: str | None = None
    """The identity of the file that says that the source is whole, if the manifest names one."""

    @property
    def answer(self) -> SuccessFileAnswer | None:
        """How the success file is answered once this has been seen, if there is one."""
        return None if self.success_file is None else SuccessFileAnswer(self.success_file, self.serving.fingerprint)


def find_standing_answer(success_file: str, *answers: SuccessFileAnswer | None) -> SuccessFileAnswer | None:
    """Return the first of ``answers`` that is one of ``success_file``: another file has not been answered."""
    return next((answer for answer in answers if answer is not None and answer.success_file == success_file), None)


class Decision(Enum):
    """What follows from a look."""

    REST = auto()
    """There is nothing to build, or not now."""
    SETTLE = auto()
    """The source goes on changing. Once for each build that this holds up."""
    BUILD = auto()
    """Manifest or source have changed, or what serves is damaged."""
    BUILD_AGAIN = auto()
    """They are what an attempt before has failed with."""
    END_ATTEMPTS = auto()
    """They are what serves, and the attempt that was to be made again is not. Once."""


class RebuildSchedule:
    """Decides after each look at manifest and source; pure but for its clock."""

    def __init__(
        self,
        active: DesiredInputs,
        now: Callable[[], float] = time.monotonic,
        *,
        answer: SuccessFileAnswer | None = None,
    ) -> None:
        """``active`` is what serves; before the first look a success file has been answered for its content by
        ``answer``. ``now`` is a clock that is never set back, in seconds."""
        self._previous = active
        self._attempted: DesiredInputs | None = None
        self._answers: dict[str, SuccessFileAnswer] = {}
        """By the content hash of what was built, or was to be."""
        self._unsettled_looks = 0
        self._backoff = Backoff(now)
        """Of what was attempted last."""
        self.lasting_answer: tuple[str, str, SuccessFileAnswer] | None = None
        """The last answer, with the hashes of the content and the gates that it is for, which the next `up` is to heed.
        Not that of an attempt at what nothing identifies, which may yet be made again."""
        self._note_answer(active)
        if answer is not None:
            self._resume(active, answer)

    def _resume(self, active: DesiredInputs, answer: SuccessFileAnswer) -> None:
        """What nothing identifies, and was bad, is as if attempted: it is never due."""
        serving = active.serving._replace(fingerprint=answer.fingerprint)
        desired = active._replace(serving=serving, success_file=answer.success_file)
        self._note_answer(desired)
        self.lasting_answer = (serving.content, active.gates, answer)
        if answer.fingerprint is None:
            self._attempted = desired

    def find_answer(self, content: str, success_file: str) -> SuccessFileAnswer | None:
        """Return how ``success_file`` was answered for what has the hash ``content``: then the source is not to be
        read, and taken for what it was. None where it is to be read."""
        answer = self._answers.get(content)
        return answer if answer is not None and answer.success_file == success_file else None

    def decide(self, desired: DesiredInputs | None, serving: ServingInputs | None) -> Decision:
        """Say what follows from a look that saw ``desired``, None where manifest or source could not be read, while
        ``serving`` is what is served, None where that is damaged. The caller then builds and notes the result.
        """
        previous = self._previous
        self._previous = desired or previous
        if desired is None:
            return Decision.REST  # nothing has been seen, of a source that goes on changing neither
        self._note_answer(desired)
        if desired.serving == serving:
            had_attempted = self._attempted is not None
            self._begin(None)
            self._unsettled_looks = 0
            return Decision.END_ATTEMPTS if had_attempted else Decision.REST
        is_attempted = self._is_attempted(desired)
        if is_attempted and not self._backoff.is_due():
            self._unsettled_looks = 0
            return Decision.REST
        if desired != previous and self._unsettled_looks < MAX_UNSETTLED_LOOKS:
            self._unsettled_looks += 1  # it may still be written to: built when two looks agree, or in the end as it is
            return Decision.SETTLE if self._unsettled_looks == 2 else Decision.REST
        self._unsettled_looks = 0
        if is_attempted:
            return Decision.BUILD_AGAIN
        self._begin(desired)
        return Decision.BUILD

    def _is_attempted(self, desired: DesiredInputs) -> bool:
        """Whether a build of ``desired`` began last. Of what nothing identifies also where gates would compare it with
        another generation now: half of the next source could be read."""
        if self._attempted is not None and desired.serving.fingerprint is None:
            desired = desired._replace(active=self._attempted.active)
        return desired == self._attempted

    def note_override(self, active: DesiredInputs) -> None:
        """What a person has let through serves, and nothing of it was desired: ``active``."""
        if active.success_file and self.find_answer(active.serving.content, active.success_file):
            self._note_answer(active)

    def _begin(self, attempted: DesiredInputs | None) -> None:
        self._attempted = attempted
        self._backoff.reset()

    def _note_answer(self, desired: DesiredInputs) -> None:
        answer = desired.answer
        if answer is not None:
            self._answers[desired.serving.content] = answer
            if answer.fingerprint is not None:
                self.lasting_answer = (desired.serving.content, desired.gates, answer)

    def note_failure(self, *, may_pass: bool) -> float | None:
        """What was attempted last has failed. Returns the seconds until it is due again, None where it is not before
        something changes."""
        attempted = self._attempted
        if attempted is not None and attempted.serving.fingerprint is None and not may_pass:
            self._backoff.reset()
            answer = self._answers.get(attempted.serving.content)
            if answer is not None:
                self.lasting_answer = (attempted.serving.content, attempted.gates, answer)
            return None
        return self._backoff.note_failure(may_pass=may_pass)

    def note_success(self, active: str, serving: ServingInputs) -> float | None:
        """What was attempted last is done, and ``serving``, of the generation ``active``, serves. Returns None if that
        is what was desired, else the seconds until it is due again."""
        if self._attempted is None:
            return None
        desired = self._attempted.serving
        if desired.fingerprint is None:  # what was fetched tells
            desired = desired._replace(fingerprint=serving.fingerprint)
        self._attempted = self._attempted._replace(serving=desired, active=active)
        self._note_answer(self._attempted)
        if desired == serving:
            self._begin(None)
            return None
        return self._backoff.note_failure(may_pass=True)
