"""How deeply JSON may be nested: a bound that does not depend on who parses it, so that every reader rejects alike."""

from __future__ import annotations

import re
from typing import Final

from lookupdb.build.parse.rows import UnusableRow

MAX_NESTING: Final = 250
"""Arrays and objects within each other. What writes values allows a few more."""
_TOKENS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|([\[{])|[\]}]', re.DOTALL)


def too_deep() -> UnusableRow:
    """The row in the place of one that is nested too deeply."""
    return UnusableRow(f"it is nested more than {MAX_NESTING} deep")


def is_too_deep(text: bytes) -> bool:
    """Whether the JSON ``text`` is."""
    if text.count(b"[") + text.count(b"{") <= MAX_NESTING:
        return False
    depth = 0
    for token in _TOKENS.finditer(text):
        if token[1]:
            depth += 1
            if depth > MAX_NESTING:
                return True
        elif token[0] in b"]}":
            depth -= 1
    return False
