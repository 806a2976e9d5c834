"""Convert keys to bytes, and those bytes to a shard number.

Builder, router and ``lookupdb.open`` must all call these functions: a second implementation could silently lose data.
The native kernels have their own code for printable ASCII and for keys that are not normalised; tests compare it with
these functions. The hash is a wire contract; a change needs a new ``FORMAT_VERSION``.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Final

import xxhash

from lookupdb.records import Key, UnusableColumn, join_key

MAX_KEY_BYTES = 511
"""LMDB's limit for a key, in bytes of UTF-8."""

UNICODE_VERSION = unicodedata.unidata_version
"""The version of the Unicode tables that ``lowercase``, ``casefold`` and ``nfc`` use here; indexes record it."""

_STEPS: dict[str, Callable[[str], str]] = {
    "strip": str.strip,
    "lowercase": str.lower,
    "casefold": str.casefold,
    "nfc": lambda text: unicodedata.normalize("NFC", text),
}

NORMALIZATIONS = tuple(_STEPS)

_TABLE_STEPS = frozenset(["lowercase", "casefold", "nfc"])
"""The steps whose result depends on the Unicode tables."""

_CASE_STEPS = frozenset(["lowercase", "casefold"])


class InvalidKey(ValueError):
    """No shard can hold the key: it is empty, longer than ``MAX_KEY_BYTES``, or not text."""


def effective_steps(steps: Sequence[str]) -> tuple[str, ...]:
    """Return the steps that a spec's ``steps`` mean. If ``nfc`` is among them, it is also applied

    - after a ``lowercase`` or ``casefold`` that follows it: H̱ has no composed form, and its lowercase ẖ has one;
    - before a ``casefold`` that it follows, which turns the mark U+0345 into a letter: NFC must sort the marks first.

    So normalising a key twice changes nothing, and the composed and decomposed forms of a key are one key. Builders
    compute this list once, from the spec. Readers apply the list of the generation, which may be older than this rule.
    """
    if "nfc" not in steps:
        return tuple(steps)
    place = steps.index("nfc")
    before = ["nfc"] if "casefold" in steps[:place] else []
    after = [] if _CASE_STEPS.isdisjoint(steps[place:]) else ["nfc"]
    return (*before, *steps, *after)


def make_normalizer(steps: Sequence[str]) -> Callable[[str], str]:
    """Return the function that applies ``steps`` in their order. Raises KeyError for an unknown step."""
    functions = [_STEPS[step] for step in steps]
    match functions:
        case []:
            return str
        case [only]:
            return only
        case [first, second]:
            return lambda text: second(first(text))

    def apply(text: str) -> str:
        for function in functions:
            text = function(text)
        return text

    return apply


def has_same_normalization(steps: Sequence[str], unicode_version: str) -> bool:
    """Return whether this process normalises every key by ``steps`` like a process with the tables of
    ``unicode_version``."""
    return unicode_version == UNICODE_VERSION or _TABLE_STEPS.isdisjoint(steps)


def make_key_encoder(steps: Sequence[str]) -> Callable[[str], bytes]:
    """Return the function from a key, as a client or a source has it, to its stored bytes.

    That function raises InvalidKey, with the reason, if no record can have this key.
    """
    normalize = make_normalizer(steps)

    def encode(text: str) -> bytes:
        try:
            key = normalize(text).encode()
        except UnicodeEncodeError as error:
            raise InvalidKey("the key is not valid Unicode text (a lone surrogate)") from error
        if 0 < len(key) <= MAX_KEY_BYTES:
            return key
        if not key:
            raise InvalidKey("the key is empty" if not text else "the key is empty after normalisation")
        raise InvalidKey(f"the key is {len(key)} bytes long, the limit is {MAX_KEY_BYTES} bytes")

    return encode


def make_columns_encoder(steps: Sequence[str], columns: Sequence[str], separator: str) -> Callable[[Key], bytes]:
    """Return a function like ``make_key_encoder``'s, which also takes a key's columns as a tuple."""
    encode = make_key_encoder(steps)

    def encode_columns(key: Key) -> bytes:
        if isinstance(key, str):
            return encode(key)
        if len(columns) < 2:
            raise InvalidKey("a key of this dataset is one text")
        try:
            text = join_key(columns, key, separator)
        except (TypeError, UnusableColumn) as error:
            raise InvalidKey(str(error)) from error
        return encode(text)

    return encode_columns


def shard_number(key: bytes, shards: int) -> int:
    """Return the shard of the encoded ``key``, from 0 to ``shards - 1``."""
    return xxhash.xxh3_64_intdigest(key) % shards


def make_sampler(halvings: int) -> Callable[[bytes], bool]:
    """Return the function that says whether an encoded key is in a sample of one in ``2 ** halvings`` keys (0 to 63).

    It uses the upper bits of the hash, which are independent of the shard, so that every shard has its part. A smaller
    sample is part of a larger one.
    """
    digest, end = xxhash.xxh3_64_intdigest, 1 << (64 - halvings)
    return lambda key: digest(key) < end


# Names of shard files and their format version, without LMDB and zstd. See ``shardfile`` for their content.


FORMAT_VERSION: Final = 1

_FILE_NAME: Final = re.compile(r"shard-[0-9]{5}-of-[0-9]{5}(?:-([0-9a-f]{12}))?\.lmdb")


def file_name(shard: int, shards: int, attempt: str = "") -> str:
    """Return the name of a shard's file within its generation; in a bucket it is unique to the ``attempt`` that built
    it."""
    return f"shard-{shard:05d}-of-{shards:05d}{attempt and f'-{attempt}'}.lmdb"


def parse_attempt(name: str, shard: int, shards: int) -> str | None:
    """Return the attempt in the file ``name`` of this shard, "" if it has none; None if this is not the shard's
    file."""
    match = _FILE_NAME.fullmatch(name)
    attempt = (match[1] or "") if match else ""
    return attempt if name == file_name(shard, shards, attempt) else None


def is_file_name(name: str) -> bool:
    """Return whether ``name`` is the name of a shard's file."""
    return _FILE_NAME.fullmatch(name) is not None
