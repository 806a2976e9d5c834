"""JSON values without loss: numbers keep their text, and nesting has a limit of our own.

orjson makes floats of fractions, exponents and integers beyond 64 bits: ``is_exact`` sees it, and ``decode_exactly``
parses again. The limit of nesting does not depend on the parser, so that all parsers reject the same rows.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import orjson

from lookupdb.build.parse.dict_rows import NOT_FINITE
from lookupdb.build.parse.rows import UnusableRow

_TEXTUAL: Final = frozenset([str, bool, type(None)])
_NESTED: Final = frozenset([dict, list])
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


def _number_text(text: str) -> orjson.Fragment:
    return orjson.Fragment(text)


def _parse_integer(text: str) -> int | orjson.Fragment:
    return int(text) if len(text) < 19 and text != "-0" else orjson.Fragment(text)


EXACT_DECODER: Final = json.JSONDecoder(
    parse_float=_number_text, parse_int=_parse_integer, parse_constant=lambda _: NOT_FINITE
)
"""Returns numbers that Python would change as fragments of their text. Takes NaN, infinities and lone surrogates, which
other programs write: a row is rejected for them alone, if its key or value holds one."""


def split_objects(text: bytes) -> tuple[list[bytes], bytes]:
    """The objects that stand one behind the other in ``text``, with blanks between them at most, and what is left.

    It is left if it is no whole object: the beginning of one, or something else.
    """
    objects, depth, start = [], 0, 0
    for token in _TOKENS.finditer(text):
        if not depth and (token[0] != b"{" or text[start : token.start()].strip()):
            break
        if token[1]:
            depth += 1
        elif token[0] in b"]}":
            depth -= 1
            if not depth:
                objects.append(text[start : token.end()])
                start = token.end()
    return objects, text[start:]


def is_exact(value: Any, text: bytes, depth: int = MAX_NESTING) -> bool:
    """Whether every number in ``value``, which orjson parsed from ``text``, can be written back unchanged.

    Raises RecursionError if it is nested more than ``depth`` deep.
    """
    if not depth:
        raise RecursionError
    members = value.values() if type(value) is dict else value
    kinds = set(map(type, members))
    if kinds <= _TEXTUAL:
        return True
    # A float may have been an integer beyond 64 bits; a 0 may have been -0.
    if float in kinds or (int in kinds and b"-0" in text and 0 in members):
        return False
    for member in members:  # noqa: SIM110 - a generator costs as much again
        if type(member) in _NESTED and not is_exact(member, text, depth - 1):
            return False
    return True


def decode_exactly(text: bytes) -> Any:
    """The JSON ``text`` with its numbers as fragments of their text, or a row that says why it is rejected."""
    return too_deep_row() if is_nested_too_deeply(text) else EXACT_DECODER.decode(text.decode("utf-8-sig"))
