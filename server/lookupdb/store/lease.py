"""The claim of a builder in a bucket: an object that is put if it was not there, and put anew every few seconds on the
condition that it still is the builder's own.

A claim that stops changing belongs to a builder that died and may be taken over; it is watched rather than dated,
because the clocks of two machines need not agree.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import obstore
import orjson
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from lookupdb.errors import StoreError
from lookupdb.store.bucket import Bucket

CLAIM: Final = "claim.json"


class Lease:
    """A claim object and the thread that keeps it fresh."""

    def __init__(self, bucket: Bucket, prefix: str, what: str) -> None:
        self._bucket = bucket
        self._path = f"{prefix}/{CLAIM}"
        self._what = what
        self._owner = f"{os.uname().nodename}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._beat = 0
        self._lost: str | None = None
        self._stop = threading.Event()
        with bucket.errors("claim a generation in"):
            self._version = self._take()
        self._thread = threading.Thread(target=self._keep, name="claim", daemon=True)
        self._thread.start()

    def _take(self) -> dict[str, Any]:
        try:
            return self._put("create")
        except AlreadyExistsError:
            pass
        seen = self._watch()
        try:
            return self._put("create" if seen is None else seen)
        except (AlreadyExistsError, PreconditionError) as error:
            raise self._taken() from error

    def _watch(self) -> dict[str, Any] | None:
        """The version of a claim that did not change for a lease, or None when it went away. Raises StoreError."""
        first = self._head()
        deadline = time.monotonic() + self._bucket.lease
        while time.monotonic() < deadline:
            time.sleep(min(1.0, self._bucket.lease / 10))
            now = self._head()
            if now is None:
                return None
            if now != first:
                raise self._taken()
        return first

    def _head(self) -> dict[str, Any] | None:
        try:
            meta = obstore.head(self._bucket.store, self._path)
        except FileNotFoundError:
            return None
        return _version(meta)

    def _put(self, mode: Any) -> dict[str, Any]:
        self._beat += 1
        body = orjson.dumps({"owner": self._owner, "beat": self._beat})
        return _version(obstore.put(self._bucket.store, self._path, body, mode=mode))

    def _taken(self) -> StoreError:
        return StoreError(
            f"{self._what} is being built by another process",
            hint="wait for it to end, or choose another --generation",
        )

    def _keep(self) -> None:
        while not self._stop.wait(self._bucket.heartbeat):
            try:
                self._version = self._put(self._version)
            except (PreconditionError, FileNotFoundError) as error:
                self._lost = str(error)
                return
            except BaseError:
                continue  # the network may come back before the lease is over

    def check(self) -> None:
        """Raises StoreError when somebody else took the claim over."""
        if self._lost is not None:
            raise StoreError(f"{self._what} was taken over by another process while this one stood still")

    def renew(self) -> None:
        """Prove that the claim is ours at this moment, and end the heartbeat. Raises StoreError."""
        self._end()
        self.check()
        with self._bucket.errors("claim a generation in"):
            try:
                self._version = self._put(self._version)
            except (PreconditionError, FileNotFoundError) as error:
                self._lost = str(error)
        self.check()

    def _end(self) -> None:
        self._stop.set()
        self._thread.join()

    def release(self) -> None:
        """Remove the claim if it is ours; without a network it runs out by itself."""
        self._end()
        if self._lost is None:
            self._lost = "released"
            with suppress(BaseError, FileNotFoundError):
                obstore.delete(self._bucket.store, self._path)


def _version(known: Mapping[str, Any]) -> dict[str, Any]:
    """What a condition on an object names: stores tell an ETag, a version or both."""
    return {name: known[name] for name in ("e_tag", "version") if known[name] is not None}
