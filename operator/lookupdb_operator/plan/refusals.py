"""Writes that the API server refused, as what keeps something from getting on."""

from __future__ import annotations

from collections.abc import Iterator

from lookupdb_operator.model import Observed, Trouble
from lookupdb_operator.plan import reasons


def list_refusals(observed: Observed, kind: str = "", prefix: str = "") -> Iterator[Trouble]:
    """Why objects cannot be written; only those of ``kind``, and whose name begins with ``prefix``."""
    for (refused_kind, name), why in observed.refusals.items():
        if kind in ("", refused_kind) and name.startswith(prefix):
            reason = reasons.QUOTA_EXCEEDED if "exceeded quota" in why else reasons.APPLY_REFUSED
            yield Trouble(reason, f"{refused_kind} {name} cannot be written: {why}")
