"""The passwords that a worker shows to shard servers: one for all, or, of servers whose routing table entry names a
key, that of their shard and rollout, derived from the key.

Keys are files named by their fingerprint, in a folder that is watched. A key that was there once is remembered until
the process ends: what serves goes on serving when its file goes, and to take a file away revokes nothing, because the
servers take the password as long as they live.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from lookupdb.runtime.watched_files import Content

MOST_KEYS: Final = 64
"""That are remembered. A dataset has one a rollout at most, and routers start anew with each."""


@dataclass(frozen=True, slots=True)
class PasswordRef:
    """Which passwords the servers of a rollout ask for, by the routing table. Nothing of it is secret."""

    rollout: str
    key: str
    """Fingerprint of the key that the password is derived from."""

    def __str__(self) -> str:
        return f"password of rollout {self.rollout} (key {self.key})"


class UnknownKey(Exception):
    """A routing table names a key that is not there; the message says so."""


class Passwords:
    """The passwords of one worker. ``common`` is for servers whose routing table entry names no key."""

    def __init__(self, common: str | None = None) -> None:
        self._common = common
        self._keys: dict[str, bytes] = {}
        self._present: frozenset[str] = frozenset()
        self._wrong: frozenset[str] = frozenset()

    def take_files(self, content: Content) -> None:
        """Take the keys that the files hold, and remember those of before."""
        from lookupdb import shard_passwords  # here, because it brings OpenSSL, which a router without keys spares

        valid: set[str] = set()
        for path, key in content.items():
            is_whole = key is not None and len(key) == shard_passwords.KEY_BYTES
            if key is not None and is_whole and shard_passwords.fingerprint_key(key) == path.name:
                valid.add(path.name)
                self._keys.pop(path.name, None)  # the last one taken is forgotten last
                self._keys[path.name] = key
        self._present = frozenset(valid)
        self._wrong = frozenset(path.name for path in content) - valid
        while len(self._keys) > MOST_KEYS:
            del self._keys[next(iter(self._keys))]

    def find(self, ref: PasswordRef | None, shard: int) -> str | None:
        """The password of ``shard`` that ``ref`` asks for; None when none is to be shown. Raises UnknownKey."""
        if ref is None:
            return self._common
        key = self._keys.get(ref.key)
        if key is None:
            found = "holds another key or none" if ref.key in self._wrong else "is not there"
            raise UnknownKey(f"cannot be shown the {ref}: the file of that key {found} (--password-key-dir)")
        from lookupdb import shard_passwords

        return shard_passwords.derive_password(key, ref.rollout, shard)

    def list_missing(self, refs: Iterable[PasswordRef]) -> list[str]:
        """The fingerprints of keys that ``refs`` name and that no file holds now, also if they are remembered."""
        return sorted({ref.key for ref in refs} - self._present)
