"""The state of a worker and of one of its clients, apart from sockets."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Final

from lookupdb.resp.fields import FieldReader, choose_fields
from lookupdb.resp.replies import NIL
from lookupdb.resp.transactions import Transaction
from lookupdb.serve import shard_counters
from lookupdb.serve.budget import ServerBudget
from lookupdb.serve.identity import ServerIdentity
from lookupdb.serve.limits import ServerLimits
from lookupdb.serve.native_replies import open_native_replies
from lookupdb.serve.stored_replies import KeyReplies, StoredReplies
from lookupdb.shardfile import ShardReader


@dataclass(slots=True)
class WorkerContext:
    """What the connections of one worker share."""

    shard: ShardReader
    identity: ServerIdentity
    limits: ServerLimits
    slot: memoryview
    """Its counters; ``shard_counters`` has the place of each."""
    password_sha256: bytes | None = None
    """Of what clients must show first; None: nothing."""
    port: int = 0
    file_bytes: int = 0
    replies: KeyReplies = field(init=False)
    fields: FieldReader = field(default_factory=choose_fields)
    started: float = field(default_factory=time.monotonic)
    connections: dict[int, Any] = field(default_factory=dict)
    """By file descriptor."""
    unauthenticated: dict[int, Any] = field(default_factory=dict)
    """Connections whose client has not authenticated, by file descriptor, the oldest first."""
    budget: ServerBudget = field(init=False)
    limits_before_auth: ServerLimits = field(init=False)
    last_id: int = 0

    def __post_init__(self) -> None:
        self.replies = open_native_replies(self.shard, self.slot) or StoredReplies(self.shard, self.slot)
        self.budget = ServerBudget(self.limits.max_held_bytes)
        self.limits_before_auth = self.limits.before_auth


class Session:
    """One client: the protocol that it chose, whether it may ask, and its name."""

    __slots__ = (
        "id",
        "is_authorised",
        "is_closing",
        "name",
        "nil",
        "protocol",
        "transaction",
        "unauthenticated_since",
        "worker",
    )
    transaction: Transaction | None

    def __init__(self, worker: WorkerContext) -> None:
        self.worker = worker
        worker.last_id += 1
        self.id: Final = worker.last_id
        self.is_closing = False
        """Whether the connection is closed after the reply that is made now."""
        self.reset()

    def reset(self) -> None:
        """Forget what the client has said of itself since it connected."""
        self.is_authorised = self.worker.password_sha256 is None
        self.unauthenticated_since = time.monotonic()
        """Since when it owes the password."""
        self.name = b""
        self.transaction = None
        self.use_protocol(2)

    @property
    def fields(self) -> FieldReader:
        """What reads the fields of values."""
        return self.worker.fields

    def begin_transaction(self) -> None:
        """Queue commands from now on. Together they may be as much as one command."""
        self.transaction = Transaction(self.limits.max_arguments, self.limits.max_request_bytes)

    def end_transaction(self) -> None:
        """Forget what is queued."""
        self.transaction = None

    def watch(self) -> None:
        """Do nothing: a server serves one file, which never changes."""

    @property
    def limits(self) -> ServerLimits:
        """The limits of this client: narrow ones until it has authenticated."""
        return self.worker.limits if self.is_authorised else self.worker.limits_before_auth

    def use_protocol(self, protocol: int) -> None:
        """Speak RESP ``protocol``: 2 or 3."""
        self.protocol = protocol
        self.nil = NIL[protocol]

    @property
    def has_passwords(self) -> bool:
        """Whether the server asks for a password."""
        return self.worker.password_sha256 is not None

    def find_denial(self) -> str | None:
        """Why the client may not ask; None if it may."""
        return None if self.is_authorised else "NOAUTH Authentication required."

    def count_command(self) -> None:
        """A command is about to be answered."""
        self.worker.slot[shard_counters.COMMANDS] += 1

    def count_error(self) -> None:
        """One is answered with an error."""
        self.worker.slot[shard_counters.ERRORS] += 1

    def authorise(self, user: bytes, password: bytes) -> str | None:
        """Let the client ask from now on if the password is right; the error if not."""
        if user == b"default" and self._knows(password):
            self.is_authorised = True
            return None
        return "WRONGPASS invalid username-password pair or user is disabled."

    def _knows(self, password: bytes) -> bool:
        expected = self.worker.password_sha256
        import hashlib  # here, because they bring OpenSSL: half a MB that a server without a password spares
        import hmac

        return expected is not None and hmac.compare_digest(hashlib.sha256(password).digest(), expected)
