"""A crew whose members are threads of this process: what they read and report is the same, and they start at once."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import Any

import pytest

from lookupdb.builder import crew
from lookupdb.builder.crew import Crew, CrewMember, SliceJob


class _MemberThread:
    """The interface of a member's process that a crew uses."""

    def __init__(self, job: SliceJob, queue: int, messages: int) -> None:
        # Descriptors of its own, as a process would have.
        self._queue, self._messages = os.dup(queue), os.dup(messages)
        member = CrewMember(SliceJob.from_json(job.to_json()), self._queue, self._messages)
        self._is_done = False
        self._thread = threading.Thread(target=self._run, args=(member,))
        self._thread.start()

    def _run(self, member: CrewMember) -> None:
        try:
            with suppress(BrokenPipeError):
                member.run()
                self._is_done = True
        finally:
            os.close(self._messages)
            os.close(self._queue)

    def kill(self) -> None:
        """Do nothing: a thread cannot be killed, and ends when the crew closes the pipe of its reports."""

    def wait(self) -> int:
        self._thread.join()
        return 0 if self._is_done else 1


class ThreadCrew(Crew):
    """See above."""

    def _start(self, alive: int, message_pipe: int) -> Any:
        return _MemberThread(self._job, self._queue, message_pipe)


@pytest.fixture
def thread_crew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources are read by threads."""
    monkeypatch.setattr(crew, "Crew", ThreadCrew)
