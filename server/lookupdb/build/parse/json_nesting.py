"""Limits how deeply JSON may be nested, independently of the parser, so that all parsers reject the same rows."""

from __future__ import annotations

import re
from typing import Final

from lookupdb.build.parse.rows import UnusableRow

MAX_NESTING: Final = 250
"""The most arrays and objects within each other. Writers of values allow a few more."""
_TOKENS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|([\[{])|[\]}]', re.DOTALL)


def too_deep_row() -> UnusableRow:
    """A row that stands for one that is nested too deeply."""
    return UnusableRow(f"it is nested more than {MAX_NESTING} deep")


def is_nested_too_deeply(text: bytes) -> bool:
    """Whether the JSON ``text`` is nested more than ``MAX_NESTING`` deep."""
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
