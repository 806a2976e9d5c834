"""What happens to rows that have the same key: fail, keep the first, or keep the last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Literal

from lookupdb.build.sort.runs import Record
from lookupdb.errors import BadSource
from lookupdb.manifest import SAMPLES, Rows, RowSample


class Duplicates:
    """Drops rows of a stream that is in order of (key, place), and counts what it dropped."""

    def __init__(
        self,
        policy: Literal["fail", "first", "last"],
        files: Sequence[str],
        origin: Callable[[int], tuple[int, int]],
    ) -> None:
        """``origin`` makes a place the number of its file in ``files`` and the row in it."""
        self._policy = policy
        self._files = files
        self._origin = origin
        self._count = 0
        self._samples: list[RowSample] = []

    @property
    def rows(self) -> Rows:
        """What was dropped so far."""
        return Rows(self._count, tuple(self._samples))

    def drop(self, batches: Iterable[list[Record]]) -> Iterator[list[Record]]:
        """The batches with one record a key. Raises BadSource when the policy is fail and a key stands twice.

        The last record of a batch is held back until the next batch shows that its key is not repeated.
        """
        held: list[Record] = []
        for batch in batches:
            records = held + batch
            if len({record[0] for record in records}) != len(records):
                records = self._unique(records)
            held = records[-1:]
            if len(records) > 1:
                yield records[:-1]
        if held:
            yield held

    def _unique(self, records: list[Record]) -> list[Record]:
        kept = records[:1]
        for record in records[1:]:
            if record[0] != kept[-1][0]:
                kept.append(record)
            elif self._policy == "last":
                self._dropped(kept[-1], record)
                kept[-1] = record
            else:
                self._dropped(record, kept[-1])
        return kept

    def _dropped(self, dropped: Record, kept: Record) -> None:
        if self._policy == "fail":
            first, second = sorted((dropped, kept), key=itemgetter(1))
            raise BadSource(
                f"the key {dropped[0].decode()!r} stands twice: {self._where(first)} and {self._where(second)}",
                hint="correct the source, or set `duplicates: first` or `duplicates: last` to keep one of them",
            )
        self._count += 1
        if len(self._samples) < SAMPLES:
            reason = f"the key {dropped[0].decode()!r} stands also in {self._where(kept)}, which is kept"
            file, row = self._origin(dropped[1])
            self._samples.append(RowSample(self._files[file], row, reason))

    def _where(self, record: Record) -> str:
        file, row = self._origin(record[1])
        return f"row {row} of {self._files[file]}"
