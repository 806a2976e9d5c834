"""The interface between the HTTP front and the lookup core: callbacks, so that a lookup costs no future."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeAlias

from lookupdb.route.lookups.batch_keys import BatchValues
from lookupdb.route.lookups.generation import ServedGeneration
from lookupdb.route.servers.address import ServerAddress

Reason: TypeAlias = Literal["NoTable", "Unreachable", "QueueFull", "Deadline", "BadAnswer", "Damaged", "Overloaded"]
"""Stable, because clients read it. ``docs/reference/http-api.md`` says what they can do; here is who says it, and when:

| reason | who | when |
| --- | --- | --- |
| NoTable | ``LookupCore.find``, ``find_many``; ``DatasetExchange`` | no routing table is in effect |
| Unreachable | ``Lane._fail`` | the connection is lost or closed during a try |
| Unreachable | ``ShardReplicas._park`` | no endpoint is ready or was a moment ago, or too many keys wait for one |
| QueueFull | ``ShardReplicas._submit_to_least_busy`` | the queues of the chosen and the least busy endpoint are full |
| Deadline | ``Deadlines._sweep`` | the deadline has passed, wherever the lookup waits |
| BadAnswer | ``Lane._refuse`` | a try is answered with an error |
| Damaged | ``Lane._refuse``, ``Lane._on_reply`` | a try finds the key's value damaged |
| Overloaded | ``LookupCore.find``, ``find_many`` | the budget is used up, or half of it for a batch |
| Overloaded | ``PendingLookup.may_receive`` | a large value comes while three quarters of the budget are used |
| Overloaded | ``HttpConnection._refuse_overloaded`` | the budget is used up: the request is refused, not its keys |

What a try says is told only if no other try is open and no second one can begin (``PendingLookup.fail_try``).
"""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why nothing can be said about a key. Always temporary: the client may ask again."""

    reason: Reason
    detail: str
    """A sentence for people: what was tried, where, and what was found."""
    shard: int | None = None
    is_of_client: bool = False
    """The client waited for less than the router's deadline, and a server that was asked was at work still."""
    address: ServerAddress | None = field(default=None, compare=False)
    """Of the endpoint that it is one with, if it is."""


NO_TABLE: Final = Problem("NoTable", "the router has no valid routing table yet: nothing is served")
OVERLOADED: Final = Problem(
    "Overloaded", "the router holds as many requests and answers as its memory allows; come back later"
)


def make_endpoint_problem(reason: Reason, shard: int, address: ServerAddress, finding: str) -> Problem:
    """Return the problem with the endpoint of ``shard`` at ``address``, which its sentence names."""
    return Problem(reason, f"shard {shard}: {address}: {finding}", shard, address=address)


class Waiter(Protocol):
    """Gets exactly one of these calls for one key, possibly before ``LookupCore.find`` returns. Must not raise."""

    def found(self, value: bytes, generation: ServedGeneration) -> None:
        """The key's value."""

    def missing(self, generation: ServedGeneration) -> None:
        """No record of the generation has the key."""

    def unavailable(self, problem: Problem) -> None:
        """Nothing can be said about the key now."""

    def unknown_generation(self, name: str, active: ServedGeneration) -> None:
        """The routing table in effect, whose active generation is ``active``, has none of this name. A mixed one has
        none of any name."""


class BatchWaiter(Protocol):
    """Gets exactly one of these calls for a list of keys, possibly before ``find_many`` returns. Must not raise."""

    def done(self, generation: ServedGeneration, values: BatchValues, size: int, problem: Problem | None) -> None:
        """What was found of the keys: ``size`` bytes. With a ``problem`` some of them are unavailable, but not all: it
        is why the first of them is."""

    def too_large(self, limit: int) -> None:
        """The values are more than ``limit`` bytes together."""

    def unavailable(self, problem: Problem) -> None:
        """Nothing can be said about any of the keys now."""

    def unknown_generation(self, name: str, active: ServedGeneration) -> None:
        """The routing table in effect, whose active generation is ``active``, has none of this name. A mixed one has
        none of any name."""
