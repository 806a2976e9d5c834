"""The claim of a builder in a bucket: an object that is put if it was not there, and put anew every few seconds on the
condition that it still is the builder's own.

A claim that stops changing belongs to a builder that died and may be taken over; it is watched rather than dated,
because the clocks of two machines need not agree. Whoever was taken over never gets the claim back.

The claim decides who publishes, too: a builder is done when it has put its manifest into its own claim, by the same
conditional put (``decide``). Such a claim cannot be taken over; whoever meets it completes what it says (``decision``).
So one that was taken over, however long it stood still and wherever, can publish nothing.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from typing import Any, Final

import orjson

from lookupdb.errors import StoreError
from lookupdb.store.bucket import Bucket, ObjectState, Version
from lookupdb.store.retry import call_with_retries

CLAIM: Final = "claim.json"
_TRIES: Final = 5
"""Of one conditional put that meets an older put of our own, which came late."""


class LeaseState(Enum):
    """What is known of a claim; each member says what its holder may delete."""

    HELD = auto()
    """Ours, and nothing is decided: what this attempt has put is nobody's."""
    LOST = auto()
    """Another's or gone, for good: this attempt will never be published, and what it has put is nobody's."""
    UNKNOWN = auto()
    """A decision was sent, and whether it took effect cannot be told yet: nothing may be deleted."""
    DECIDED = auto()
    """The manifest is in the claim: nothing that it names may be deleted, nor the claim before manifest.json stands."""


class PublicationDecided(Exception):
    """The claim holds the manifest that is to be published."""

    def __init__(self, manifest: bytes) -> None:
        super().__init__()
        self.manifest = manifest


class Lease:
    """A claim object and the thread that keeps it fresh."""

    def __init__(self, bucket: Bucket, prefix: str, subject: str) -> None:
        """Raises StoreError when somebody else is building ``subject``, Decided when somebody else was done with it."""
        self.attempt: Final = uuid.uuid4().hex[:12]
        """Unique to this claim: part of the names of what is put under it."""
        self.state = LeaseState.HELD
        self._bucket = bucket
        self._path = f"{prefix}/{CLAIM}"
        self._subject = subject
        self._owner = f"{os.uname().nodename}:{os.getpid()}:{self.attempt}"
        self._beat = 0
        self._version: Version = {}
        self._stop = threading.Event()
        self._acquire()
        self._thread = threading.Thread(target=self._keep_fresh, name="claim", daemon=True)
        self._thread.start()

    def _acquire(self) -> None:
        """Put a claim where there is none, or in the place of one whose builder is dead."""
        standing = call_with_retries(self._create_claim, self._bucket.patience)
        if self._is_ours(standing):
            return
        assert standing.body is not None
        if manifest := _read_decision(standing):
            raise PublicationDecided(manifest)
        self._await_expiry(standing)
        if not self._is_ours(self._put_claim(standing.version)):
            raise self._taken_error()

    def _create_claim(self) -> ObjectState:
        standing = self._put_claim("create")
        if standing.body is None:
            raise standing.error or self._taken_error()
        return standing

    def _await_expiry(self, first: ObjectState) -> None:
        """Return when the claim has not changed for a lease. Raises StoreError."""
        deadline = time.monotonic() + self._bucket.lease
        while time.monotonic() < deadline:
            time.sleep(min(1.0, self._bucket.lease / 10))
            if self._bucket.read(self._path).version != first.version:
                raise self._taken_error()

    def _put_claim(self, mode: Any, manifest: bytes | None = None) -> ObjectState:
        """Put the claim, and again where an earlier put of ours came late and displaced the version that was known."""
        self._beat += 1
        members = {"owner": self._owner, "beat": self._beat, "manifest": manifest and manifest.decode()}
        body = orjson.dumps(members)
        for _ in range(_TRIES):
            standing = self._bucket.put_if(self._path, body, mode)
            if not self._is_ours(standing):
                break
            mode = self._version = standing.version
            if standing.body == body:
                break
        return standing

    def _is_ours(self, standing: ObjectState) -> bool:
        return _read_member(standing, "owner") == self._owner

    def _taken_error(self) -> StoreError:
        return StoreError(
            f"{self._subject} is being built by another process",
            hint="wait for it to end, or choose another --generation",
        )

    def _keep_fresh(self) -> None:
        while not self._stop.wait(self._bucket.heartbeat):
            with suppress(StoreError):  # the network may come back before the lease is over
                if not self._is_ours(self._put_claim(self._version)):
                    self.state = LeaseState.LOST
                    return

    def check(self) -> None:
        """Raises StoreError when somebody else took the claim over."""
        if self.state is LeaseState.LOST:
            raise StoreError(
                f"{self._subject} was taken over by another process while this one stood still",
                hint="run the build again: what the other one has published is kept",
            )

    def decide(self, manifest: bytes, is_published: Callable[[], bool]) -> None:
        """From here on ``manifest`` and no other is to be published; ends the heartbeat.

        ``is_published`` looks whether it stands: who meets a decision completes it and removes the claim, which then is
        gone for a good reason. Raises StoreError, and ``state`` is what is known then.
        """
        self.end_heartbeat()
        self.check()

        def put() -> ObjectState:
            standing = self._put_claim(self._version, manifest)
            if self._is_ours(standing) and _read_decision(standing) is None:  # not done, but it may come yet
                raise standing.error or StoreError(f"the claim of {self._subject} does not keep what is put into it")
            return standing

        self.state = LeaseState.UNKNOWN
        is_decided = self._is_ours(call_with_retries(put, self._bucket.patience))
        is_decided = is_decided or call_with_retries(is_published, self._bucket.patience)
        self.state = LeaseState.DECIDED if is_decided else LeaseState.LOST
        self.check()

    def end_heartbeat(self) -> None:
        """Let the claim run out, unless it is put anew."""
        self._stop.set()
        self._thread.join()

    def remove(self) -> None:
        """Delete the claim if it is ours. Without a network it runs out by itself."""
        self.end_heartbeat()
        with suppress(StoreError):
            if self._is_ours(self._bucket.read(self._path)):
                self._bucket.delete([self._path])
        self.state = LeaseState.LOST


def _read_member(standing: ObjectState, name: str) -> str | None:
    """A member of the claim that stands; None when there is no such member, or nothing that is a claim."""
    try:
        value = orjson.loads(standing.body or b"{}")[name]
    except (ValueError, KeyError, TypeError):
        return None
    return value if isinstance(value, str) else None


def _read_decision(standing: ObjectState) -> bytes | None:
    """The manifest that the claim's builder decided to publish, if it did."""
    manifest = _read_member(standing, "manifest")
    return None if manifest is None else manifest.encode()
