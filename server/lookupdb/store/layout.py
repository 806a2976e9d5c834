"""Names within a store, and the only parsers of them: a name that does not match never becomes a path.

<store>/<cluster id>/<namespace>/<dataset>-<first 8 of its uid>/<generation>/shard-00000-of-00004.lmdb
                                                                             manifest.json

In a bucket the name of a shard's file ends with the attempt that put it, shard-00000-of-00004-3f2b9c1e77aa.lmdb, and
the manifest names it (see ``publication``). While a generation is being built, claim.json is beside them.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TypeVar

from lookupdb import manifest, shard_name
from lookupdb.backoff import Backoff
from lookupdb.errors import CorruptFile, GenerationExists, GenerationMissing, StoreDenied, StoreError, UsageError
from lookupdb.manifest import Manifest

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_UID: Final = re.compile(r"[A-Za-z0-9]{1,8}")


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """The place of one dataset's generations within a store."""

    cluster: str
    namespace: str
    name: str
    uid: str
    """Shortened to its first eight characters."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "uid", self.uid[:8])
        for part in (self.cluster, self.namespace, self.name):
            if not _LABEL.fullmatch(part):
                raise UsageError(f"{part!r} cannot be part of a store's path: expected a-z, 0-9 and -, at most 63")
        if not _UID.fullmatch(self.uid):
            raise UsageError(f"a dataset's uid begins with eight letters or digits, found {self.uid!r}")

    @property
    def path(self) -> str:
        """Its path in the store, with ``/``."""
        return dataset_path(self.cluster, self.namespace, self.name, self.uid)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @classmethod
    def parse(cls, cluster: str, namespace: str, folder: str) -> Self | None:
        """Return the address for ``<cluster>/<namespace>/<folder>``; None if this is not a dataset's path."""
        name, _, uid = folder.rpartition("-")
        try:
            return cls(cluster, namespace, name, uid)
        except UsageError:
            return None


def dataset_path(cluster: str, namespace: str, name: str, uid: str) -> str:
    """Return the folder of a dataset's generations, relative to the store; ``uid`` may be whole. Nothing is checked."""
    return f"{cluster}/{namespace}/{name}-{uid[:8]}"


def check_cluster_id(cluster: str) -> str:
    """Return ``cluster`` if it can be part of a path. Raises UsageError."""
    return StoreAddress(cluster, "default", "dataset", "local").cluster


def check_generation(generation: str) -> str:
    """Return ``generation`` if it is a generation's name. Raises UsageError."""
    try:
        manifest.generation_number(generation)
    except ValueError as error:
        raise UsageError(str(error)) from error
    return generation


def is_generation(name: str) -> bool:
    """Return whether ``name`` is a generation's: g1, g2, …"""
    return manifest.GENERATION.fullmatch(name) is not None


def parse_manifest(text: bytes, where: str, generation: str | None = None) -> Manifest:
    """Parse a manifest whose files all lie within the generation's folder.

    Raises CorruptFile, which names ``where``, also if the manifest describes another generation than ``generation``.
    """
    parsed = Manifest.from_json(text, where)
    if generation is not None and parsed.generation != generation:
        raise CorruptFile(f"{where} says it describes {parsed.generation}, expected {generation}")
    for number, shard in enumerate(parsed.shards):
        if shard_name.parse_attempt(shard.file, number, len(parsed.shards)) is None:
            expected = shard_name.file_name(number, len(parsed.shards))
            raise CorruptFile(f"{where} names the file {shard.file!r}, expected {expected}")
    return parsed


# Lock files. The kernel releases a lock however its holder ends, so a lock tells a live process from a dead one.


def try_lock(path: Path) -> int | None:
    """Return a descriptor that holds the lock file at ``path``, which is created if necessary; None if another process
    holds it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The last holder may have removed the file between our open and our lock.
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def unlock(path: Path, descriptor: int) -> None:
    """Remove the lock file, then release the lock."""
    with suppress(FileNotFoundError):
        path.unlink()
    os.close(descriptor)


log = logging.getLogger(__name__)

_FIRST_DELAY_SECONDS: Final = 0.25
_MAX_DELAY_SECONDS: Final = 2.0
_FINAL: Final = (CorruptFile, GenerationExists, GenerationMissing, StoreDenied)
"""Errors that a retry cannot help."""

T = TypeVar("T")


def call_with_retries(request: Callable[[], T], seconds: float) -> T:
    """Return the result of ``request``; retry for at most ``seconds`` while it raises a StoreError that may pass."""
    deadline = time.monotonic() + seconds
    backoff = Backoff(_FIRST_DELAY_SECONDS, _MAX_DELAY_SECONDS)
    while True:
        try:
            return request()
        except _FINAL:
            raise
        except StoreError as error:
            delay = backoff.fail()
            if time.monotonic() + delay > deadline:
                raise
            log.warning("the store failed, retrying the request", extra={"reason": error.message, "delay": delay})
        time.sleep(delay)
