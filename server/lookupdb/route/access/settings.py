"""Who may look up, as the command line says it. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """Who may look up. At least one of ``tokens`` and ``keys``; with ``keys`` come an audience and subjects."""

    tokens: str | None = None
    """The folder with hashes of tokens: in a cluster, a Secret's."""
    keys: str | None = None
    """The file with the public keys of the cluster's service accounts."""
    audience: str | None = None
    subjects: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, members: Mapping[str, Any]) -> AccessSettings:
        """Read them from a worker's configuration."""
        return cls(**{**members, "subjects": tuple(members["subjects"])})
