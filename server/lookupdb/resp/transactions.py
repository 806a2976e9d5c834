"""What a client has queued between MULTI and EXEC. Nothing is written here, so EXEC only promises one generation."""

from __future__ import annotations

from typing import Final

from lookupdb.resp.requests import Command

QUEUED: Final = b"+QUEUED\r\n"
_COMMAND_BYTES: Final = 120
_ARGUMENT_BYTES: Final = 48
"""What Python needs for a command, and for a word of it, beside its bytes."""


class Transaction:
    """Commands of at most ``max_keys`` keys (one without a key counts as one), and of ``max_bytes``."""

    __slots__ = ("_keys", "_max_bytes", "_max_keys", "commands", "held_bytes", "is_aborted")

    def __init__(self, max_keys: int, max_bytes: int) -> None:
        self._max_keys = max_keys
        self._max_bytes = max_bytes
        self._keys = 0
        self.commands: list[Command] = []
        self.held_bytes = 0
        """About how many bytes of memory the commands take."""
        self.is_aborted = False
        """A command was refused: EXEC executes none, and nothing more is kept."""

    def add(self, command: Command, key_count: int) -> str | None:
        """Keep ``command`` until EXEC; or return the error if that is too much."""
        if self.is_aborted:
            return None
        keys = self._keys + max(1, key_count)
        size = self.held_bytes + _COMMAND_BYTES + sum(map(len, command)) + _ARGUMENT_BYTES * len(command)
        if keys > self._max_keys:
            return f"ERR too many keys in one transaction: {keys}, the limit is {self._max_keys}; send EXEC sooner"
        if size > self._max_bytes:
            return f"ERR the transaction is larger than {self._max_bytes} bytes, which is the limit; send EXEC sooner"
        self._keys, self.held_bytes = keys, size
        self.commands.append(command)
        return None

    def abort(self) -> None:
        """Have EXEC execute nothing."""
        self.is_aborted = True
        self.commands = []
        self.held_bytes = 0
