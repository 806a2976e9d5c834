"""Batches of the kernels in use: keys from text, values from a list."""

from __future__ import annotations

from typing import Any

from lookupdb import native
from lookupdb.keys import make_key_encoder
from lookupdb.router.batch_keys import UNAVAILABLE, BatchKeys, BatchValues, Values


def make_keys(texts: list[str]) -> BatchKeys:
    """The keys of a batch, which may repeat a key."""
    kernels = native.kernels()
    keys: BatchKeys = BatchKeys(texts) if kernels is None else kernels.PackedKeys(texts)
    return keys


def make_values(keys: BatchKeys, found: list[Any]) -> BatchValues:
    """Values of ``keys``, one each: bytes, None or UNAVAILABLE."""
    values = keys.make_values()
    for group in keys.group(make_key_encoder(()), (), 1):
        own = [found[position] for position in group.positions]
        are_known = [value is not UNAVAILABLE for value in own]
        values.place(group.select(are_known), [value for value in own if value is not UNAVAILABLE], 0)
        values.mark_unavailable(group.select([not is_known for is_known in are_known]))
    return values


def list_values(values: BatchValues) -> Values:
    """The values found, in the order of the keys."""
    listed: Values = values.to_list(UNAVAILABLE)
    return listed
