"""Keeps a mapping at the generation that is to answer. No thread: some lookup, now and then, looks first."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any, Final, Protocol

from lookupdb.errors import CorruptFile, GenerationMissing, LookupdbError
from lookupdb.mapped.generation import MappedFiles, Opener, OpenGeneration, identify_manifest
from lookupdb.mapped.location import Identity, Location, unopened_error

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
"""After so long what could not be opened is tried again; the last of them from then on. Anything new is tried at
once."""
_ATTEMPTS: Final = 3
"""A generation may be removed between a look at which one it is and its opening."""
_TICK_NANOSECONDS: Final = 1_000_000_000
"""File systems give what changes within a tick of their clock one time; the coarsest ones tick once a second. What has
changed since so short a time may have changed again, unseen."""


class View(Protocol):
    """What a follower changes over."""

    def newest(self) -> Any:
        """The generation that answered last; None if it is closed."""

    def put(self, generation: Any) -> None:
        """Answer from ``generation`` from now on."""


class Follower:
    """Looks whether another generation is to answer, opens it and puts it in the place of the one that does."""

    def __init__(
        self, location: Location, opener: Opener, dataset: tuple[str, str, str], refresh_seconds: float | None
    ) -> None:
        self.location = location
        self.opener = opener
        self.refresh_seconds = refresh_seconds
        """How often it is asked to look, for whoever opens the same again."""
        self._dataset = dataset
        self._seen: Identity | None = None
        self._retries = 0
        self._retry_at = 0.0
        self._told = ""
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def look(self, view: View) -> None:
        """Change ``view`` over, if another generation is to answer and can be opened. What cannot is told once, and
        tried again later; the one that answers goes on. While another thread looks, nothing is done."""
        lock = self._own_lock()
        if lock.acquire(blocking=False):
            try:
                self._look(view)
            finally:
                lock.release()

    def reload(self, view: View) -> bool:
        """Look now. Returns whether another generation answers from now on. Raises StoreError, NotEnoughRoom: then the
        one that answers goes on."""
        with self._own_lock():
            self._seen = None
            identity = self._identify()
            changed = self._change_over(view)
            self._note_success(identity)
            return changed

    def _own_lock(self) -> threading.Lock:
        """This process' lock: in a child, the one of its parent may be held by a thread that is not there."""
        if self._pid != os.getpid():
            self._lock, self._pid = threading.Lock(), os.getpid()
        return self._lock

    def _look(self, view: View) -> None:
        identity = self._identify()
        is_new = identity != self._seen
        if not is_new and (not self._retries or time.monotonic() < self._retry_at):
            return
        if is_new:
            self._retries = 0
        try:
            self._change_over(view)
        except LookupdbError as problem:
            self._note_failure(identity, problem)
        else:
            self._note_success(identity)

    def _identify(self) -> Identity:
        try:
            return self.location.identity()
        except OSError as error:
            return (-(error.errno or 1), 0, 0, 0)

    def _change_over(self, view: View) -> bool:
        present = view.newest()
        if present is None:
            return False  # closed by another thread
        files = self._open_target(present.facts)
        if files is None:
            return False
        if files.facts.dataset != self._dataset:
            raise _other_dataset_error(files.facts, self._dataset)
        if view.newest() is None:
            return False
        view.put(files)
        log.info("%s: %s answers, in the place of %s", *_describe(files.facts), present.facts.manifest.generation)
        return True

    def _open_target(self, present: OpenGeneration) -> MappedFiles | None:
        """``open_target``, and no OSError: GenerationMissing if the folder is gone, else StoreError, NotEnoughRoom."""
        path = self.location.path
        try:
            return open_target(self.location, self.opener, present)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise GenerationMissing(
                f"the folder {path} is not there any more",
                hint="what is open goes on answering; open what is there now",
            ) from error
        except OSError as error:
            raise unopened_error(path, error) from error

    def _note_success(self, identity: Identity) -> None:
        self._seen = identity if _is_settled(identity) else None
        self._retries, self._told = 0, ""

    def _note_failure(self, identity: Identity, problem: Exception) -> None:
        self._seen = identity
        self._retry_at = time.monotonic() + RETRY_SECONDS[min(self._retries, len(RETRY_SECONDS) - 1)]
        self._retries += 1
        if str(problem) != self._told:
            self._told = str(problem)
            log.warning(
                "%s: another generation cannot be opened, what answers goes on: %s", self.location.path, problem
            )


def open_target(location: Location, opener: Opener, present: OpenGeneration | None) -> MappedFiles | None:
    """Open the generation at ``location`` that is to answer; None if it is the one that ``present`` is of. Raises
    StoreError, NotEnoughRoom, OSError."""
    for attempt in range(1, _ATTEMPTS + 1):
        target = location.target()
        found = identify_manifest(target)
        if present is not None and found == present.identity:
            return None
        try:
            return opener.open(target)
        except (GenerationMissing, CorruptFile):
            # Removed, half of it, or replaced, since it was found: then another one is there.
            if attempt == _ATTEMPTS or (location.target() == target and identify_manifest(target) == found):
                raise
    return None


def _is_settled(identity: Identity) -> bool:
    """Whether what has this identity gets another one when it changes again."""
    return time.time_ns() - max(identity[2:]) > _TICK_NANOSECONDS


def _describe(facts: OpenGeneration) -> tuple[str, str]:
    manifest = facts.manifest
    return f"{manifest.namespace}/{manifest.name}", manifest.generation


def _other_dataset_error(found: OpenGeneration, expected: tuple[str, str, str]) -> CorruptFile:
    return CorruptFile(
        "{} is a generation of {}/{} ({}), expected one of {}/{} ({})".format(found.folder, *found.dataset, *expected),
        hint="a dataset that was deleted and made again is another one: close the mapping and open it anew",
    )
