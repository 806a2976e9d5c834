"""What becomes of a slice's rows: records in a sorter, values in the sample, or rejected rows."""

from __future__ import annotations

from collections.abc import Callable

import orjson

from lookupdb.build.parse.rows import Row, RowRejected, describe_encode_error
from lookupdb.build.sort.runs import encode_place
from lookupdb.build.sort.sample import Sample
from lookupdb.build.sort.sorter import Sorter
from lookupdb.keys import InvalidKey, make_key_encoder
from lookupdb.manifest import SAMPLES
from lookupdb.spec import DatasetSpec


class SliceRecords:
    """Takes the rows of one slice, in their order."""

    def __init__(self, spec: DatasetSpec, sorter: Sorter, sample: Sample, number: int) -> None:
        self.sorter, self.sample = sorter, sample
        self.encode = make_key_encoder(spec.key.normalize)
        self._max_bytes = spec.value.max_bytes
        self._start = encode_place(number, 0)
        self.row = 0
        """The number of rows taken, rejected ones included."""
        self.rejected = 0
        self.samples: list[tuple[int, str]] = []
        """The first rejected rows, and why."""

    def take(self, extract_key: Callable[[Row], str], extract_value: Callable[[Row], bytes], fields: Row) -> None:
        """Take the next row, with its parser's ``key`` and ``value``. Raises NotEnoughRoom."""
        self.row += 1
        try:
            key = self.encode(extract_key(fields))
            value = extract_value(fields)
            if len(value) > self._max_bytes:
                raise RowRejected(f"its value is {len(value)} bytes long, value.maxBytes is {self._max_bytes}")
        except (RowRejected, InvalidKey) as error:
            self._reject(str(error))
        except orjson.JSONEncodeError as error:
            self._reject(describe_encode_error(error))
        else:
            value = bytes(memoryview(value))  # a copy of its own size: what orjson returns sits in a far larger block
            self.sorter.put(key, self.place, value)
            self.sample.offer(key, self.place, value)

    def _reject(self, reason: str) -> None:
        self.rejected += 1
        if len(self.samples) < SAMPLES:
            self.samples.append((self.row, reason))

    @property
    def place(self) -> int:
        """That of the last row."""
        return self._start + self.row
