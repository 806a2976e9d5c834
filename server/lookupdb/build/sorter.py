r"""Sorts records out of core, within a memory limit: DuckDB does, fed through a pipe.

The parser's thread writes one line a record, ``hex key \x01 place \x01 value``, while DuckDB reads, sorts and spills
in threads of its own. A pipe, because DuckDB takes rows from Python only one converted value at a time, or through
numpy or Arrow; lines cost it next to nothing, and when either side fails the other sees it at once.
"""

from __future__ import annotations

import fcntl
import os
import threading
from binascii import a2b_base64, b2a_base64, hexlify
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import duckdb

from lookupdb.build.fetch import room_in
from lookupdb.errors import NotEnoughRoom

Placed = tuple[bytes, bytes, int]
"""Encoded key, value, place."""

SPOOL_BYTES: Final = 32 << 10
"""A value larger than this waits in a file of its own while its key is sorted, so that sorting needs little memory
however large values are."""
_BATCH_BYTES: Final = 4 << 20
_BATCH_RECORDS: Final = 2048
_LINES: Final = 128
"""Lines written at once: together they fit the pipe if values are small."""
_PIPE_BYTES: Final = 1 << 20
_SPOOLED: Final = b"@"
_ENCODED: Final = b"#"
"""First byte of a value that is a reference into the spool, or base64; JSON begins with neither."""


class Sorter:
    """``put`` records in any order, then ``finish``, then iterate. A context manager: it owns files and a thread.

    Records of equal keys come in the order of their ``place``, a number below 2**63.
    """

    def __init__(self, scratch: Path, memory: int, threads: int, *, encode: bool) -> None:
        """``memory`` is DuckDB's, in bytes. ``encode``: values may hold line breaks and other control characters."""
        self._scratch, self._memory, self._encode = scratch, memory, encode
        self._lines: list[bytes] = []
        self._put = self._put_bytes = self._spool_end = 0
        self._spool: int | None = None
        self._error: BaseException | None = None
        with duckdb_errors(scratch, memory):
            self.database = connect(scratch, memory, threads)
            self.cursor = self.database.cursor()
        reader, self._pipe = os.pipe()
        with suppress(OSError):  # only speed is lost with the default, 64 KiB
            fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._thread = threading.Thread(target=self._sort, args=(reader,), name="sorter", daemon=True)
        self._thread.start()

    def put(self, key: bytes, place: int, value: bytes) -> None:
        """One record. Raises NotEnoughRoom."""
        self._put += 1
        self._put_bytes += len(value)
        if len(value) > SPOOL_BYTES:
            value = self._spooled(value)
        elif self._encode:
            value = _ENCODED + b2a_base64(value, newline=False)
        lines = self._lines
        lines.append(b"%b\x01%d\x01%b\n" % (hexlify(key), place, value))
        if len(lines) == _LINES:
            self._flush()

    def _flush(self) -> None:
        data = memoryview(b"".join(self._lines))
        self._lines.clear()
        try:
            while data:
                data = data[os.write(self._pipe, data) :]
        except BrokenPipeError:
            self._thread.join()
            self._raise()

    def _spooled(self, value: bytes) -> bytes:
        with room_in(self._scratch):
            if self._spool is None:
                self._spool = os.open(self._scratch / "large-values", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            start, rest = self._spool_end, memoryview(value)
            while rest:
                rest = rest[os.write(self._spool, rest) :]
        self._spool_end += len(value)
        return b"%b%d:%d" % (_SPOOLED, start, len(value))

    def finish(self) -> None:
        """All is put: returns when the first record can be had. Raises NotEnoughRoom."""
        self._flush()
        self._close_pipe()
        self._thread.join()
        self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            with duckdb_errors(self._scratch, self._memory):
                raise self._error

    def _sort(self, reader: int) -> None:
        try:
            self.database.execute(_SORT, [f"/dev/fd/{reader}"])
        except BaseException as error:  # raised again where it can be seen
            self._error = error
        finally:
            os.close(reader)  # whoever writes sees it

    def __iter__(self) -> Iterator[list[Placed]]:
        """Batches of at most a few MiB, in the order of keys, then places."""
        average = self._put_bytes // self._put + 1 if self._put else 1
        size = max(1, min(_BATCH_RECORDS, _BATCH_BYTES // average))
        simple = self._spool is None and not self._encode
        while True:
            with duckdb_errors(self._scratch, self._memory):
                records = self.database.fetchmany(size)
            if not records:
                return
            if simple:
                yield records
            else:
                yield from self._decoded(records)

    def _decoded(self, records: list[Placed]) -> Iterator[list[Placed]]:
        batch, held = [], 0
        for key, sorted_value, place in records:
            value = sorted_value
            if value[:1] == _ENCODED:
                value = a2b_base64(value[1:])
            elif value[:1] == _SPOOLED:
                value = self._unspooled(value)
            batch.append((key, value, place))
            held += len(value)
            if held > _BATCH_BYTES:
                yield batch
                batch, held = [], 0
        if batch:
            yield batch

    def _unspooled(self, reference: bytes) -> bytes:
        assert self._spool is not None
        start, _, length = reference[1:].partition(b":")
        return os.pread(self._spool, int(length), int(start))

    def _close_pipe(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread.is_alive():
            self.database.interrupt()
        self._close_pipe()
        self._thread.join()
        self.database.close()
        if self._spool is not None:
            os.close(self._spool)
            self._spool = None


_SORT: Final = r"""
SELECT unhex(key) AS key, encode(value) AS value, place
FROM read_csv(
    $1, columns = {'key': 'VARCHAR', 'place': 'BIGINT', 'value': 'VARCHAR'}, auto_detect = false, header = false,
    delim = chr(1), quote = '', escape = '', nullstr = chr(2), buffer_size = 1000000, max_line_size = 100000
)
ORDER BY key, place
"""


def connect(scratch: Path, memory: int, threads: int) -> Any:
    """A DuckDB of ``memory`` bytes that spills into ``scratch`` and reads nothing but what it is told to."""
    folder = scratch / "sort"
    folder.mkdir(exist_ok=True)
    database = duckdb.connect(
        config={
            "memory_limit": f"{memory // 1024}KiB",
            "threads": threads,
            "temp_directory": str(folder),
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
    )
    database.execute("SET enable_progress_bar = false")
    return database


class duckdb_errors:  # noqa: N801 - used as a function
    """Turn what DuckDB says of memory and disk into NotEnoughRoom."""

    def __init__(self, scratch: Path, memory: int) -> None:
        self._scratch, self._memory = scratch, memory

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, duckdb.Error):
            return
        text = str(error)
        if "No space left" in text or "max_temp_directory_size" in text or "File too large" in text:
            raise NotEnoughRoom(
                f"no room left in the scratch folder {self._scratch} while sorting: {text.splitlines()[0]}",
                hint="a build needs about twice its uncompressed source there; give a larger folder with --scratch",
            ) from error
        if isinstance(error, duckdb.OutOfMemoryException):
            raise NotEnoughRoom(
                f"{self._memory >> 20} MiB, sorting's part of the memory limit, do not suffice: {text.splitlines()[0]}",
                hint="raise --memory-limit, or lower --threads",
            ) from error
