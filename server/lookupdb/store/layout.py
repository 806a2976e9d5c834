"""Names within a store, and the only parsers of them: a name that does not match never becomes a path.

<store>/<cluster id>/<namespace>/<dataset>-<first 8 of its uid>/<generation>/shard-00000-of-00004.lmdb
                                                                             manifest.json

In a bucket the name of a shard's file ends with the attempt that put it, shard-00000-of-00004-3f2b9c1e77aa.lmdb, and
the manifest names it (see ``publication``). While a generation is being built, claim.json is beside (see ``lease``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

from lookupdb import manifest, shard_name
from lookupdb.errors import CorruptFile, UsageError
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
        """Relative to the store, with ``/``."""
        return dataset_path(self.cluster, self.namespace, self.name, self.uid)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @classmethod
    def parse(cls, cluster: str, namespace: str, folder: str) -> Self | None:
        """The address for ``<cluster>/<namespace>/<folder>``; None if this is no dataset's path."""
        name, _, uid = folder.rpartition("-")
        try:
            return cls(cluster, namespace, name, uid)
        except UsageError:
            return None


def dataset_path(cluster: str, namespace: str, name: str, uid: str) -> str:
    """The folder of a dataset's generations, relative to the store; ``uid`` may be whole. Nothing is checked."""
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
    """Whether ``name`` is a generation's: g1, g2, …"""
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
