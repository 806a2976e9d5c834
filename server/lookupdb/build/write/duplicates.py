"""What happens to rows with the same key: fail, keep the first, or keep the last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Literal

from lookupdb.build.sort.runs import Record
from lookupdb.errors import BadSource
from lookupdb.manifest import SAMPLES, ExcludedRows, RowSample


class DuplicateFilter:
    """Drops rows with equal keys from a stream ordered by (key, place), and counts them."""

    def __init__(
        self,
        policy: Literal["fail", "first", "last"],
        files: Sequence[str],
        find_origin: Callable[[int], tuple[int, int]],
    ) -> None:
        """``find_origin`` returns the number of a place's file in ``files``, and the row in it."""
        self._policy = policy
        self._files = files
        self._find_origin = find_origin
        self._count = 0
        self._samples: list[RowSample] = []

    @property
    def rows(self) -> ExcludedRows:
        """The rows dropped so far."""
        return ExcludedRows(self._count, tuple(self._samples))

    def drop_duplicates(self, batches: Iterable[list[Record]]) -> Iterator[list[Record]]:
        """The batches, with one record per key. Raises BadSource if the policy is fail and a key occurs twice.

        The last record of a batch waits until the next batch shows whether its key occurs again.
        """
        pending: list[Record] = []
        for batch in batches:
            records = pending + batch
            if len({record[0] for record in records}) != len(records):
                records = self._remove_duplicates(records)
            pending = records[-1:]
            if len(records) > 1:
                yield records[:-1]
        if pending:
            yield pending

    def _remove_duplicates(self, records: list[Record]) -> list[Record]:
        unique = records[:1]
        for record in records[1:]:
            if record[0] != unique[-1][0]:
                unique.append(record)
            elif self._policy == "last":
                self._record_drop(unique[-1], record)
                unique[-1] = record
            else:
                self._record_drop(record, unique[-1])
        return unique

    def _record_drop(self, duplicate: Record, survivor: Record) -> None:
        if self._policy == "fail":
            first, second = map(self._describe_origin, sorted((duplicate, survivor), key=itemgetter(1)))
            raise BadSource(
                f"the key {duplicate[0].decode()!r} occurs twice: {first} and {second}",
                hint="correct the source, or set `duplicates: first` or `duplicates: last` to keep one of them",
            )
        self._count += 1
        if len(self._samples) < SAMPLES:
            reason = (
                f"the key {duplicate[0].decode()!r} stands also in {self._describe_origin(survivor)}, which is kept"
            )
            file, row = self._find_origin(duplicate[1])
            self._samples.append(RowSample(self._files[file], row, reason))

    def _describe_origin(self, record: Record) -> str:
        file, row = self._find_origin(record[1])
        return f"row {row} of {self._files[file]}"
