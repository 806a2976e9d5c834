"""A builder's claim in a bucket: an object that is created if it does not exist, and replaced every few seconds on the
condition that it still is the builder's own.

A claim that stops changing belongs to a dead builder and may be taken over. It is watched rather than dated, because
the clocks of two machines need not agree. A builder that lost its claim never gets it back.

The claim also decides who publishes: a builder's work is decided when it has put its manifest into its own claim, by
the same conditional put (``decide``). Nobody can take such a claim over; whoever meets it completes the publication. So
a builder that lost its claim can publish nothing, however long it stood still.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from typing import Final

import orjson

from lookupdb.errors import StoreError
from lookupdb.manifest import check_density
from lookupdb.store.bucket import Bucket, ObjectState
from lookupdb.store.gateway_wire import MAX_CONDITIONAL_BYTES
from lookupdb.store.object_store import PutMode, Version
from lookupdb.store.retry import call_with_retries

CLAIM: Final = "claim.json"
_TRIES: Final = 5
"""How often a conditional put is repeated because an older put of our own arrived late."""


class LeaseState(Enum):
    """What is known of a claim; each member says what its holder may delete."""

    HELD = auto()
    """Ours, and undecided: nobody else uses what this attempt has put."""
    LOST = auto()
    """Another's or gone, for good: this attempt will never be published, and nobody uses what it has put."""
    UNKNOWN = auto()
    """A decision was sent, but nobody knows yet whether it took effect: nothing may be deleted."""
    DECIDED = auto()
    """The manifest is in the claim: nothing that it names may be deleted, nor the claim before manifest.json exists."""


class PublicationDecided(Exception):
    """The claim holds a manifest that must be published."""

    def __init__(self, manifest: bytes) -> None:
        super().__init__()
        self.manifest = manifest


class Lease:
    """A claim object and the thread that keeps it fresh."""

    def __init__(self, bucket: Bucket, prefix: str, subject: str, abandoned: str | None = None) -> None:
        """``abandoned`` is the ETag of a claim whose builder is known to be dead.

        Raises StoreError if another process is building ``subject``, PublicationDecided if another one has decided
        its publication.
        """
        self.attempt: Final = uuid.uuid4().hex[:12]
        """Unique to this claim, and part of the names of all objects put under it."""
        self.state = LeaseState.HELD
        self._bucket = bucket
        self._path = f"{prefix}/{CLAIM}"
        self._subject = subject
        self._owner = f"{os.uname().nodename}:{os.getpid()}:{self.attempt}"
        self._beat = 0
        self._version: Version = {}
        self._stop = threading.Event()
        self._acquire(abandoned)
        self._thread = threading.Thread(target=self._keep_fresh, name="claim", daemon=True)
        self._thread.start()

    def _acquire(self, abandoned: str | None) -> None:
        """Create the claim, or replace that of a dead builder."""
        standing = call_with_retries(self._create_claim, self._bucket.patience)
        if self._is_ours(standing):
            return
        assert standing.body is not None
        if manifest := _read_decision(standing):
            raise PublicationDecided(manifest)
        if abandoned is None or standing.version.get("e_tag") != abandoned:
            self._await_expiry(standing)
        if not self._is_ours(self._put_claim(standing.version)):
            raise self._taken_error()

    def _create_claim(self) -> ObjectState:
        for _ in range(2):  # what stood in the way may be gone when it is looked at: a builder gave it up
            standing = self._put_claim("create")
            if standing.body is not None:
                return standing
        raise standing.error or self._taken_error()

    def _await_expiry(self, first: ObjectState) -> None:
        """Return when the claim has not changed for the length of a lease. Raises StoreError if it has."""
        deadline = time.monotonic() + self._bucket.lease
        while time.monotonic() < deadline:
            time.sleep(min(1.0, self._bucket.lease / 10))
            if self._bucket.read(self._path).version != first.version:
                raise self._taken_error()

    def _put_claim(self, mode: PutMode, manifest: bytes | None = None) -> ObjectState:
        """Put the claim, and repeat it if an older put of our own arrived late and replaced the known version."""
        self._beat += 1
        body = self._render(manifest)
        for _ in range(_TRIES):
            standing = self._bucket.put_if(self._path, body, mode)
            if not self._is_ours(standing):
                break
            mode = self._version = standing.version
            if standing.body == body:
                break
        return standing

    def _render(self, manifest: bytes | None) -> bytes:
        return orjson.dumps({"owner": self._owner, "beat": self._beat, "manifest": manifest and manifest.decode()})

    def _is_ours(self, standing: ObjectState) -> bool:
        return _read_member(standing, "owner") == self._owner

    def _taken_error(self) -> StoreError:
        return StoreError(
            f"{self._subject} is being built by another process",
            hint="wait for it to end, or choose another --generation",
        )

    def _keep_fresh(self) -> None:
        while not self._stop.wait(self._bucket.heartbeat):
            with suppress(StoreError):  # the network may come back before the lease expires
                if not self._is_ours(self._put_claim(self._version)):
                    self.state = LeaseState.LOST
                    return

    def check(self) -> None:
        """Raises StoreError if another process took the claim over."""
        if self.state is LeaseState.LOST:
            raise StoreError(
                f"{self._subject} was taken over by another process while this one stood still",
                hint="run the build again: what the other one has published is kept",
            )

    def decide(self, manifest: bytes, is_published: Callable[[], bool]) -> None:
        """Decide that ``manifest`` and no other will be published; ends the heartbeat.

        ``is_published`` tells whether it is published already: whoever meets a decision completes it and removes the
        claim, so a missing claim is no loss then. Raises StoreError, with ``state`` set to what is known.
        """
        if (size := len(self._render(manifest))) > MAX_CONDITIONAL_BYTES:
            raise StoreError(
                f"{self._subject} cannot be published: its manifest takes {size} bytes of the claim, expected at most"
                f" {MAX_CONDITIONAL_BYTES}",
                hint="it names every file of the source: let there be fewer",
            )
        self.end_heartbeat()
        self.check()

        def put() -> ObjectState:
            standing = self._put_claim(self._version, manifest)
            if (
                self._is_ours(standing) and _read_decision(standing) is None
            ):  # not decided, but an earlier put may still arrive
                raise standing.error or StoreError(f"the claim of {self._subject} does not keep what is put into it")
            return standing

        self.state = LeaseState.UNKNOWN
        is_decided = self._is_ours(call_with_retries(put, self._bucket.patience))
        is_decided = is_decided or call_with_retries(is_published, self._bucket.patience)
        self.state = LeaseState.DECIDED if is_decided else LeaseState.LOST
        self.check()

    def end_heartbeat(self) -> None:
        """Stop renewing the claim: it expires unless it is put again."""
        self._stop.set()
        self._thread.join()

    def remove(self) -> None:
        """Delete the claim if it is ours. Without a network it expires by itself."""
        self.end_heartbeat()
        with suppress(StoreError):
            if self._is_ours(self._bucket.read(self._path)):
                self._bucket.delete([self._path])
        self.state = LeaseState.LOST


def _read_member(standing: ObjectState, name: str) -> str | None:
    """A member of the claim; None if it is missing, or if the object is no claim."""
    try:
        text = standing.body or b"{}"
        check_density(text)
        value = orjson.loads(text)[name]
    except (ValueError, KeyError, TypeError):
        return None
    return value if isinstance(value, str) else None


def _read_decision(standing: ObjectState) -> bytes | None:
    """The manifest that the claim's builder decided to publish; None if it has not decided."""
    manifest = _read_member(standing, "manifest")
    return None if manifest is None else manifest.encode()
