"""The hashes of the tokens that are accepted, out of the files of a Secret: one file a client, one hash a line. No I/O.

A plain SHA-256 does, because what is hashed is random: ``lookupdb token`` makes 256 bits. A slow hash protects what can
be guessed, and would cost each new connection, and each wrong token, what it costs who guesses.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PREFIX: Final = "sha256:"
MAX_HASHES: Final = 64
"""Of one client: several are valid while a token is replaced."""
MAX_PROBLEMS: Final = 5
"""That are told of at once."""
_MAX_BYTES: Final = 8 << 10
_LINE: Final = re.compile(rb"sha256:([0-9a-fA-F]{64})")
_HOW: Final = "expected sha256: and 64 hexadecimal digits a line, as `lookupdb token --hash` prints them"


@dataclass(frozen=True, slots=True)
class TokenHashes:
    """What the files of a Secret say."""

    digests: frozenset[bytes]
    """SHA-256 of each token that is accepted."""
    problems: tuple[str, ...]
    """Why files, or lines of them, count for nothing: sentences without any value."""


def hash_token(token: bytes) -> str:
    """The line of a Secret that lets ``token`` in."""
    return PREFIX + hashlib.sha256(token).hexdigest()


def read_token_hashes(content: Mapping[Path, bytes | None]) -> TokenHashes:
    """The hashes in all files of ``content``. A file that is not wholly as it should be counts for nothing."""
    digests: set[bytes] = set()
    problems: list[str] = []
    for path, text in content.items():
        if path.name.startswith("."):
            # Such a key of a Secret is as good as any, but who writes files by hand has such ones beside them.
            problems.append(f"{path.name} is not read, because its name begins with a dot")
            continue
        if text is None:
            problems.append(f"{path.name} cannot be read")
            continue
        found = _read_file(text)
        if isinstance(found, str):
            problems.append(f"{path.name}: {found}")
        else:
            digests |= found
    more = len(problems) - MAX_PROBLEMS
    told = [*problems[:MAX_PROBLEMS], f"and {more} more"] if more > 0 else problems
    return TokenHashes(frozenset(digests), tuple(told))


def _read_file(text: bytes) -> set[bytes] | str:
    """The digests of one client, or what is wrong."""
    if len(text) > _MAX_BYTES:
        return f"it has more than {_MAX_BYTES} bytes; {_HOW}"
    digests: set[bytes] = set()
    for number, line in enumerate(text.splitlines(), 1):
        if not (line := line.strip()):
            continue
        found = _LINE.fullmatch(line)
        if found is None:
            return f"line {number} is no hash of a token; a token itself does not belong there; {_HOW}"
        digests.add(bytes.fromhex(found[1].decode()))
    if not digests:
        return f"it is empty; {_HOW}"
    return digests if len(digests) <= MAX_HASHES else f"it has more than {MAX_HASHES} hashes"
