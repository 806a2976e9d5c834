"""Decide after each check of manifest and source whether `up --watch` builds. The decision depends on:

desired    the inputs that manifest and source ask for
attempted  the inputs that were desired when the last build began, unless they are served
serving    the inputs that are served; None if the files of the active generation are damaged
answered   the success files for which a check has read the source; the last one is kept over a restart
due        the pause after an attempt is over

If the manifest names a success file, the check does this:

======================================================================  ==============================================
success file                                                            source
======================================================================  ==============================================
does not exist                                                          not read: nothing is desired
answered, for the same content of the manifest                          not read: taken as it was then. A later change
                                                                        is the next version, perhaps incomplete
another, or the content of the manifest differs                         read
======================================================================  ==============================================

The first row that applies gives the decision:

======================================================================  ==============================================
desired                                                                 decision
======================================================================  ==============================================
nothing: manifest or source cannot be read, or not yet                  REST
equal to serving, after an attempt at something else                    END_ATTEMPTS: the attempt is forgotten
equal to serving                                                        REST
equal to attempted, and not due                                         REST
other than at the last check, for up to MAX_UNSETTLED_LOOKS checks      REST, and SETTLE once
equal to attempted, and due                                             BUILD_AGAIN
anything else                                                           BUILD
======================================================================  ==============================================

After an attempt:

======================================================================  ==============================================
result                                                                  next attempt
======================================================================  ==============================================
failed                                                                  due after a pause
failed because of its data, and the source has no fingerprint           never due: the next version may be incomplete
serves the desired inputs                                               not needed
serves others: the source changed since the check, or changed back      due after a pause
======================================================================  ==============================================
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum, auto
from typing import Final, NamedTuple

from lookupdb.backoff import delay_after

# The growing pause between attempts. No failure is final: the source may have been incomplete or unavailable for a
# moment, even if it looks the same before and after.


FIRST_SECONDS: Final = 1.0
LONGEST_SECONDS: Final = 300.0
"""Longest pause after an error that may pass by itself: a full disk, a server that does not answer."""
FIRST_PERSISTENT_SECONDS: Final = 30.0
LONGEST_PERSISTENT_SECONDS: Final = 1800.0
"""Longest pause after other errors, for example a bad source. The operator waits as long."""


class RetryPause:
    """Decides when to retry. Each pause is twice the one before: from a second to five minutes if the error may pass,
    otherwise from half a minute to half an hour."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """``now``: a monotonic clock, in seconds."""
        self._now = now
        self._failures = {True: 0, False: 0}
        self._due_at: float | None = None

    def note_failure(self, *, may_pass: bool = True) -> float:
        """Record that the attempt failed. Returns the seconds until the next one."""
        first, longest = (
            (FIRST_SECONDS, LONGEST_SECONDS) if may_pass else (FIRST_PERSISTENT_SECONDS, LONGEST_PERSISTENT_SECONDS)
        )
        self._failures[may_pass] += 1
        pause = delay_after(self._failures[may_pass], first, longest)
        self._due_at = self._now() + pause
        return pause

    def is_due(self) -> bool:
        """Return whether the last attempt failed and the pause after it is over."""
        return self._due_at is not None and self._now() >= self._due_at

    def reset(self) -> None:
        """Forget the failures: the attempt succeeded, or the next one is a different attempt."""
        self._failures = {True: 0, False: 0}
        self._due_at = None


MAX_UNSETTLED_LOOKS: Final = 10
"""Number of consecutive checks that may find a changed source. After that it is built as it is."""


class ServingInputs(NamedTuple):
    """The inputs of a rollout: a change of any of them is rolled out."""

    content: str
    fingerprint: str | None
    """The fingerprint of the source. None only in desired inputs: the source has no fingerprint, but a success file."""
    replicas: int
    workers: int


class SuccessFileAnswer(NamedTuple):
    """The success file that was answered last, and the fingerprint of the source then; None if it has none."""

    success_file: str
    fingerprint: str | None

    def is_of_another(self, fingerprint: str) -> bool:
        """Return whether the source is known to have had another fingerprint than ``fingerprint``."""
        return self.fingerprint not in (None, fingerprint)


class DesiredInputs(NamedTuple):
    """The inputs that manifest and source ask for. A change of any of them is built without a pause after failures."""

    serving: ServingInputs
    gates: str
    active: str
    """The generation that gates compare with."""
    success_file: str | None = None
    """The identity of the file that marks the source as complete, if the manifest names one."""

    @property
    def answer(self) -> SuccessFileAnswer | None:
        """The answer to the success file that these inputs give; None without a success file."""
        return None if self.success_file is None else SuccessFileAnswer(self.success_file, self.serving.fingerprint)


def find_standing_answer(success_file: str, *answers: SuccessFileAnswer | None) -> SuccessFileAnswer | None:
    """Return the first of ``answers`` that is for ``success_file``; None if none is."""
    return next((answer for answer in answers if answer is not None and answer.success_file == success_file), None)


class Decision(Enum):
    """The decision after a check."""

    REST = auto()
    """Build nothing now."""
    SETTLE = auto()
    """Build nothing now, because the source keeps changing. Returned once for each build that this delays."""
    BUILD = auto()
    """Build: manifest or source has changed, or the files that are served are damaged."""
    BUILD_AGAIN = auto()
    """Build: the inputs are those of the failed attempt, and its pause is over."""
    END_ATTEMPTS = auto()
    """Cancel the pending retry: the desired inputs are served. Returned once."""


class RebuildSchedule:
    """Decides after each check of manifest and source. Its only effect is that it reads a clock."""

    def __init__(
        self,
        active: DesiredInputs,
        now: Callable[[], float] = time.monotonic,
        *,
        answer: SuccessFileAnswer | None = None,
    ) -> None:
        """``active``: the inputs that are served. ``answer``: the answer to a success file that an earlier `up` gave
        for the same content. ``now``: a monotonic clock, in seconds."""
        self._previous = active
        self._attempted: DesiredInputs | None = None
        self._answers: dict[str, SuccessFileAnswer] = {}
        """The answers by the content hash for which they were given."""
        self._unsettled_looks = 0
        self._backoff = RetryPause(now)
        """The pause after the last attempt."""
        self.lasting_answer: tuple[str, str, SuccessFileAnswer] | None = None
        """The last answer that the next `up` needs, with the hashes of the content and the gates that it is for. An
        answer without a fingerprint is kept only after the attempt failed for good."""
        self._note_answer(active)
        if answer is not None:
            self._resume(active, answer)

    def _resume(self, active: DesiredInputs, answer: SuccessFileAnswer) -> None:
        """Take over the ``answer`` of an earlier `up`. One without a fingerprint was bad: it counts as attempted."""
        serving = active.serving._replace(fingerprint=answer.fingerprint)
        desired = active._replace(serving=serving, success_file=answer.success_file)
        self._note_answer(desired)
        self.lasting_answer = (serving.content, active.gates, answer)
        if answer.fingerprint is None:
            self._attempted = desired

    def find_answer(self, content: str, success_file: str) -> SuccessFileAnswer | None:
        """Return the answer to ``success_file`` for the content hash ``content``: then the source is not read, and is
        taken as it was. Return None if the source must be read."""
        answer = self._answers.get(content)
        return answer if answer is not None and answer.success_file == success_file else None

    def decide(self, desired: DesiredInputs | None, serving: ServingInputs | None) -> Decision:
        """Return the decision after a check. ``desired`` is None if manifest or source could not be read, ``serving``
        if the files that are served are damaged. The caller then builds and notes the result."""
        previous = self._previous
        self._previous = desired or previous
        if desired is None:
            return Decision.REST  # this check says nothing about whether the source keeps changing
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
            self._unsettled_looks += 1  # it may be half written: wait for two equal checks
            return Decision.SETTLE if self._unsettled_looks == 2 else Decision.REST
        self._unsettled_looks = 0
        if is_attempted:
            return Decision.BUILD_AGAIN
        self._begin(desired)
        return Decision.BUILD

    def _is_attempted(self, desired: DesiredInputs) -> bool:
        """Return whether the last attempt was at ``desired``. Without a fingerprint, the generation that gates compare
        with does not count: another attempt could read an incomplete source."""
        if self._attempted is not None and desired.serving.fingerprint is None:
            desired = desired._replace(active=self._attempted.active)
        return desired == self._attempted

    def note_override(self, active: DesiredInputs) -> None:
        """Record that a generation with overridden gates is served now, with the inputs ``active``."""
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
        """Record that the last attempt failed. Returns the seconds until the next one; None if that waits for a change
        of manifest, source or success file."""
        attempted = self._attempted
        if attempted is not None and attempted.serving.fingerprint is None and not may_pass:
            self._backoff.reset()
            answer = self._answers.get(attempted.serving.content)
            if answer is not None:
                self.lasting_answer = (attempted.serving.content, attempted.gates, answer)
            return None
        return self._backoff.note_failure(may_pass=may_pass)

    def note_success(self, active: str, serving: ServingInputs) -> float | None:
        """Record that the last attempt succeeded: the generation ``active`` serves, with the inputs ``serving``.
        Returns None if these were desired, else the seconds until the next attempt."""
        if self._attempted is None:
            return None
        desired = self._attempted.serving
        if desired.fingerprint is None:  # the builder found it while it fetched
            desired = desired._replace(fingerprint=serving.fingerprint)
        self._attempted = self._attempted._replace(serving=desired, active=active)
        self._note_answer(self._attempted)
        if desired == serving:
            self._begin(None)
            return None
        return self._backoff.note_failure(may_pass=True)
