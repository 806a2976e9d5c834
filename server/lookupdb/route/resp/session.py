"""One client of RESP apart from its socket: the protocol that it chose, its name, and whether it may ask."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Final

from lookupdb.resp.fields import FieldReader
from lookupdb.resp.replies import NIL
from lookupdb.resp.requests import CommandLimits
from lookupdb.resp.transactions import Transaction
from lookupdb.route.access.verdict import Admitted, Denial, Denied
from lookupdb.route.counters import INDEX
from lookupdb.route.resp.limits import BEFORE_AUTH
from lookupdb.route.resp.service import RespService

NO_ACCESS_DATA: Final = "AccessUnknown"
"""Why nobody can be judged: the word that HTTP has for it, too."""
_COMMANDS: Final = INDEX["resp_commands"]
_ERRORS: Final = INDEX["resp_errors"]
_UNAUTHENTICATED: Final = INDEX["requests_unauthenticated"]
_FORBIDDEN: Final = INDEX["requests_forbidden"]


class ClientSession:
    """A ``resp.commands.RespSession``. A token that was accepted is kept, to be judged again when access changes."""

    __slots__ = (
        "_token",
        "_until",
        "_watched",
        "id",
        "is_closing",
        "may_ask",
        "name",
        "nil",
        "protocol",
        "service",
        "transaction",
    )
    transaction: Transaction | None

    def __init__(self, service: RespService) -> None:
        self.service = service
        self.id: Final = service.take_id()
        self.is_closing = False
        """Whether the connection is closed after the reply that is made now."""
        self._token: bytes | None = None
        self.reset()

    def reset(self) -> None:
        """Forget what the client has said of itself since it connected."""
        self._keep_token(None)
        self.may_ask = self.service.gatekeeper is None
        """Whether it may, as far as was judged: ``find_denial`` judges anew."""
        self._until = math.inf
        self.name = b""
        self.end_transaction()
        self.use_protocol(2)

    def use_protocol(self, protocol: int) -> None:
        """Speak RESP ``protocol``: 2 or 3."""
        self.protocol = protocol
        self.nil = NIL[protocol]

    # Transactions

    def begin_transaction(self) -> None:
        """Queue commands from now on: as many keys as one MGET may have, and as many bytes as one command."""
        self.transaction = Transaction(self.service.limits.max_keys, self.service.limits.max_body_bytes)

    def end_transaction(self) -> None:
        """Forget what is queued, and what is watched."""
        self.transaction = None
        self._watched: Callable[[], object] | None = None
        """Returns the routing table that was in effect at WATCH; None once it is gone."""

    def watch(self) -> None:
        """Have the next EXEC execute nothing if another routing table takes effect before."""
        live = self.service.lookups.live
        self._watched = self._watched or ((lambda: None) if live is None else weakref.ref(live))

    @property
    def is_outdated(self) -> bool:
        """Whether another routing table is in effect than when the client began to watch."""
        return self._watched is not None and self._watched() is not self.service.lookups.live

    @property
    def fields(self) -> FieldReader:
        """What reads the fields of values."""
        return self.service.fields

    @property
    def limits(self) -> CommandLimits:
        """Of the client's next command."""
        has_shown = self.may_ask or self._token is not None
        return self.service.read_limits if has_shown else BEFORE_AUTH

    def count_command(self) -> None:
        """A command is about to be answered."""
        self.service.counts[_COMMANDS] += 1

    def count_error(self) -> None:
        """One is answered with an error."""
        self.service.counts[_ERRORS] += 1

    # Who may ask

    @property
    def has_passwords(self) -> bool:
        """Whether clients show tokens."""
        return self.service.gatekeeper is not None

    def authorise(self, user: bytes, password: bytes) -> str | None:
        """Let the client ask from now on if ``password`` is a token that is accepted; the error if not. Tokens need no
        ``user``: it may be any."""
        del user
        verdict = self._judge(password)
        if isinstance(verdict, Admitted):
            return None
        if verdict.denial is Denial.UNDECIDED:
            return f"UNAVAILABLE {NO_ACCESS_DATA} {verdict.detail}"
        self.service.counts[_FORBIDDEN if verdict.denial is Denial.FORBIDDEN else _UNAUTHENTICATED] += 1
        if verdict.denial is Denial.FORBIDDEN:
            return f"NOPERM {verdict.detail}"
        return f"WRONGPASS invalid username-password pair or user is disabled: {verdict.detail}"

    def find_denial(self) -> str | None:
        """Why the client may not ask now; None if it may. A token that was accepted is judged again if it may not be
        good any more."""
        if self.may_ask:
            return None
        if self._token is None:
            return "NOAUTH Authentication required."
        verdict = self._judge(self._token)
        if isinstance(verdict, Admitted):
            return None
        if verdict.denial is Denial.UNDECIDED:
            return f"UNAVAILABLE {NO_ACCESS_DATA} {verdict.detail}"
        return "NOAUTH Authentication required: the token that was shown is not accepted any longer."

    def forget_access(self, now: float) -> None:
        """Judge the token again before the next command if it may not be good any more, ``now`` in seconds since 1970.
        ``math.inf``: in any case."""
        if self._until <= now and self.service.gatekeeper is not None:
            self.may_ask = False

    def close(self) -> None:
        """The client has gone."""
        self._keep_token(None)
        self.end_transaction()

    def _judge(self, token: bytes) -> Admitted | Denied:
        gatekeeper = self.service.gatekeeper
        assert gatekeeper is not None, "who asks for no token judges none"
        verdict = gatekeeper.judge_token(token)
        if isinstance(verdict, Admitted):
            self._keep_token(token)
            self.may_ask = True
            self._until = verdict.until
        return verdict

    def _keep_token(self, token: bytes | None) -> None:
        budget = self.service.budget
        budget.release(len(self._token or b""))
        self._token = token
        budget.take(len(token or b""))
