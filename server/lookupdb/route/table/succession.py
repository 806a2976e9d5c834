"""Which routing table may follow which, and when. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lookupdb.route.table.routing_table import RoutingTable

_CONTRADICTION: Final = "is in effect with other content"


def diagnose_refusal(new: RoutingTable, current: RoutingTable | None, uid: str | None = None) -> str | None:
    """Why ``new`` may not follow ``current`` in a router of the dataset with ``uid`` (None: of any), as a sentence;
    None when it may.

    Versions only grow, so that a late or repeated write cannot bring back shards that are being retired. Another
    dataset (also one deleted and made again: its uid differs) counts from its own beginning.
    """
    if uid is not None and new.dataset.uid != uid:
        return (
            f"it is the table of {new.dataset} with uid {new.dataset.uid!r}, and this router is of the dataset with "
            f"uid {uid!r}"
        )
    if current is None or new.dataset != current.dataset or new.version > current.version or new == current:
        return None
    if new.version == current.version:
        return f"{describe_contradiction(new.version)}; a change needs a greater version"
    return f"version {new.version} is older than version {current.version}, which is in effect"


def describe_contradiction(version: int) -> str:
    """The words of a refusal by which the operator knows that a router answers from another table ``version`` than it
    is given. Nothing but a greater version heals that."""
    return f"version {version} {_CONTRADICTION}"


def tells_contradiction(why: str) -> bool:
    """Whether ``why`` says so of any version."""
    return _CONTRADICTION in why


def awaited_shards(
    new: RoutingTable, proven: Iterable[bool], current: RoutingTable | None, current_proven: Iterable[bool]
) -> list[int]:
    """The shards that keep ``new`` from being put into effect; ``proven`` tells, shard by shard of the active entry,
    whether an endpoint has proven itself.

    A shard that another generation is to serve needs one. A shard of the same generation need only be no worse off
    than it is: one that is down before and after must not keep the others from their new addresses.
    """
    if current is None:
        return []
    shards, current_shards = new.active_entry.shards, current.active_entry.shards
    if new.dataset != current.dataset or len(shards) != len(current_shards):
        return [number for number, is_proven in enumerate(proven) if not is_proven]
    states = zip(shards, proven, current_shards, current_proven, strict=True)
    return [
        number
        for number, (shard, is_proven, current_shard, was_proven) in enumerate(states)
        if not is_proven and (was_proven or shard.generation != current_shard.generation)
    ]


def may_ask_for_previous(new: RoutingTable, old: RoutingTable) -> bool:
    """Whether the active generation of ``old``, which ``new`` has replaced, may still be asked for by name: of another
    dataset it may not, ``new`` may name it itself, and in a mixed table no generation is whole."""
    if new.dataset != old.dataset or new.is_mixed or old.is_mixed:
        return False
    return all(entry.generation != old.active for entry in new.entries)


def may_still_ask_for_previous(new: RoutingTable, old: RoutingTable, previous: RoutingTable) -> bool:
    """The same of the active generation of ``previous``, which came before that of ``old``: ``new`` has the generation
    of ``old``, of other servers say, and it is not the generation that has changed."""
    return new.active == old.active and may_ask_for_previous(new, previous)
