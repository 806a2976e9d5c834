"""The interface of the native kernels in ``server/native``. Python code uses it only through ``lookupdb.native``.

``INTERFACE`` is the checksum of this file, so every change of the interface must appear here.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, final

INTERFACE: int
SOURCES: str

class Damaged(ValueError):
    """A page or a stored value is damaged."""

@final
class PageWarmer:
    """Reads pages from disk before lookups need them. Several threads may use it at once; none holds the GIL."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, and ValueError for a file that is damaged or of an unknown format."""

    def warm(self, requests: list[bytes]) -> int:
        """Read the pages that the lookups in ``requests``, pieces of RESP, need, and wait for them. Returns the number
        of pages requested."""

@final
class ShardFile:
    """A shard file, read by the kernels, for tests and tools. It is mapped as long as this object lives."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, and ValueError for a file that is damaged or of an unknown format."""

    @property
    def dictionary(self) -> bytes: ...
    @property
    def records(self) -> int: ...
    def find(self, key: bytes) -> bytes | None:
        """The value stored under ``key``, or None. Raises Damaged."""

    def find_many(self, keys: list[bytes]) -> list[bytes | Damaged | None]:
        """The results of ``find`` for ``keys``, which are looked up together; an exception is an item."""

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Every key with its stored value, in key order. The iterator raises Damaged."""

    def expand(self, stored: bytes, *, fetch_ahead: bool = False) -> bytes:
        """The RESP bulk string for ``stored``, a value of this file. ``fetch_ahead``: prefetch from the dictionary, as
        if no cache had it. Raises Damaged.
        """

@final
class RequestHistograms:
    """The histograms of requests in ``counters``, described by ``lookupdb.process.worker.observe``."""

    def __init__(self, counters: memoryview, bounds: Sequence[int], /) -> None:
        """``bounds`` are the upper bounds of buckets, in nanoseconds."""

    def observe(self, histogram: int, arrived: int, count: int = 1, counter: int | None = None, /) -> None: ...

@final
class ShardKernel:
    """Answers lookups from a shard file. ``lookupdb.shard.commands`` and ``lookupdb.shard.worker`` use it."""

    def __init__(
        self,
        path: Path,
        slot: tuple[memoryview, tuple[int, int, int, int, int], Sequence[int]],
        error: bytes,
        *,
        read_bytes: int,
        chunk_bytes: int,
        slice_seconds: float,
    ) -> None:
        """``slot`` is shared memory with the indexes of lookups, misses, commands, sent bytes and the first histogram,
        and the bounds of buckets, in nanoseconds. ``error`` is the reply for damaged records. Raises OSError, and
        ValueError for a file that the kernels cannot read.
        """

    def run(
        self, epoll: int, fast_path: bytearray, protocols: bytearray, seconds: float
    ) -> tuple[list[tuple[int, int, bytes, list[bytes], bytes, bool, bool]], list[tuple[int, int]], bool, int]:
        """Wait on ``epoll`` and answer lookups: for ``seconds``, until Python has something to do, or until a turn was
        slow. Returns the clients for Python (file descriptor, error number, and arguments of
        ``RespConnection.resume``), the events for Python, whether the last turn was slow, and when its requests
        arrived.
        """

    def idle_seconds(self) -> float:
        """The seconds that ``run`` has waited for clients so far."""

    def warmer(self) -> PageWarmer:
        """A warmer of this file's pages, for other threads."""

    def answer(self, data: bytes, nil: bytes, arrived: int) -> tuple[bytes, list[bytes], bytes, bool, bool]:
        """See ``KeyReplies.answer``."""

    def replies(self, keys: list[bytes], nil: bytes) -> tuple[bytes, int]:
        """The replies to the first of ``keys``, as many as size and time allow, and their number. The caller has
        counted the keys.
        """

    def find(self, key: bytes) -> bytes | None:
        """See ``KeyReplies.find``."""

    def take_damage(self) -> tuple[int, str] | None:
        """The number of lookups of damaged records since the last call, and the first problem; None if there were
        none."""

# route/: the batches of the router, described by their Python fallback, lookupdb.router.batch_keys.

@final
class PackedKeys:
    def __init__(self, texts: list[str], /) -> None: ...
    @staticmethod
    def parse(body: bytes, max_keys: int) -> tuple[PackedKeys, bool] | None:
        """The distinct keys of a batch's body, and its member ``partial``. None if Python must read the body."""

    @staticmethod
    def cut(data: bytes, at: int, most: int) -> tuple[int, int, PackedKeys | None]:
        """See ``lookupdb.router.batch_keys.BatchKeys``."""

    @staticmethod
    def from_bytes(keys: list[bytes]) -> PackedKeys:
        """Keys as clients of RESP send them."""

    def __len__(self) -> int: ...
    def to_list(self) -> list[str]: ...
    def group(
        self, encode: Callable[[str], bytes], normalize: tuple[str, ...], shards: int
    ) -> list[PackedShardKeys]: ...
    def make_values(self) -> PackedValues: ...

@final
class PackedShardKeys:
    @property
    def shard(self) -> int: ...
    @property
    def packed(self) -> bytes: ...
    @property
    def positions(self) -> list[int]: ...
    def __len__(self) -> int: ...
    def cut(self, start: int, count: int) -> PackedShardKeys: ...
    def select(self, mask: list[bool]) -> PackedShardKeys: ...

@final
class ShardReply:
    @staticmethod
    def read(data: bytes, expected: int) -> ShardReply | None:
        """The reply in ``data``; None unless it is exactly one whole list of ``expected`` values."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: Any, /) -> Any: ...
    def count(self, value: None, /) -> int: ...

@final
class ReplyScan:
    def __init__(self, expected: int) -> None: ...
    def feed(self, data: bytes) -> bool | None:
        """Read the next piece of a reply. Return whether the reply is complete; None if hiredis must read it."""

    def join(self, pieces: list[bytes]) -> ShardReply | None:
        """The reply made of ``pieces``, which have been fed."""

@final
class PackedValues:
    def __init__(self, keys: int) -> None: ...
    @property
    def unavailable_count(self) -> int: ...
    def __len__(self) -> int: ...
    def place(self, keys: PackedShardKeys, values: ShardReply | list[bytes | None], offset: int) -> int: ...
    def mark_unavailable(self, keys: PackedShardKeys) -> None: ...
    def to_list(self, unavailable: object) -> list[Any]: ...
    def encode(self, head: bytes, fields: bytes, start: bytes, keys: PackedKeys, raw: bool, partial: bool) -> bytes: ...
    def encode_in_pieces(self, start: bytes, keys: PackedKeys, raw: bool, partial: bool) -> list[bytes]: ...
    def encode_frames(self, head: bytes, fields: bytes, keys: PackedKeys) -> bytes: ...
    def encode_frames_in_pieces(self, keys: PackedKeys) -> list[bytes]: ...
    @property
    def found_count(self) -> int: ...
    def encode_replies(self, is_list: bool, nil: bytes, error: bytes) -> bytes: ...
    def encode_replies_in_pieces(self, is_list: bool, nil: bytes, error: bytes) -> list[bytes]: ...

def select_fields(value: bytes, names: list[bytes]) -> list[bytes | None] | None:
    """See ``lookupdb.resp.commands.FieldReader``."""

def encode_fields(value: bytes, names: bool, values: bool) -> tuple[int, bytes] | None:
    """See ``lookupdb.resp.commands.FieldReader``."""

# build/: rows, sorted runs and packed records, described by their Python fallbacks in lookupdb.builder.

ZSTD_VERSION: tuple[int, int, int]
"""The version of zstd that ``Packer`` compresses with."""

_Record = tuple[bytes, int, bytes]
"""Key, place (which grows in the order of the source), value."""

@final
class RecordBatch:
    def __init__(self, records: list[_Record], /) -> None: ...
    @property
    def data_bytes(self) -> int: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[_Record]: ...

@final
class RecordBuffer:
    @property
    def memory(self) -> int: ...
    def put(self, key: bytes, place: int, value: bytes, /) -> None: ...
    def write_run(self, path: Path, /) -> None: ...
    def take_sorted(self, spools: dict[int, Path], /) -> Iterator[RecordBatch]: ...

@final
class Sample:
    def __init__(self, max_bytes: int, last_rank: int | None, /) -> None: ...
    def offer(self, key: bytes, place: int, value: bytes, /) -> None: ...
    def write_run(self, path: Path, /) -> None: ...
    def add_run(self, path: Path, /) -> None: ...
    def take_values(self) -> list[bytes]: ...

@final
class Merge:
    def __init__(self, paths: list[Path], spools: dict[int, Path], /) -> None: ...
    def __iter__(self) -> Iterator[RecordBatch]: ...
    def __next__(self) -> RecordBatch: ...
    def write_run(self, path: Path, /) -> None: ...

@final
class UniqueRecords:
    def __init__(self, keeps_last: bool, named: int, /) -> None: ...
    def filter(self, batch: RecordBatch, /) -> tuple[RecordBatch, int, list[tuple[bytes, int, int]]]:
        """The records that are certainly kept, the number of dropped records, and the first ``named`` dropped ones:
        key, place, and the place of the record that is kept instead."""

    def finish(self) -> RecordBatch: ...

@final
class Packer:
    def __init__(self, shards: int, largest_record: int, dictionary: bytes, parameters: Any, /) -> None:
        """``parameters`` is python-zstandard's ``ZstdCompressionParameters``; None compresses nothing. A record of more
        than ``largest_record`` bytes takes pages of its own, which are counted."""

    def pack(self, batch: RecordBatch, /) -> PackedRecords: ...

@final
class PackedRecords:
    def items(self, shard: int, /) -> tuple[list[tuple[bytes, bytes]], tuple[int, int, int, int, int, int]]:
        """Key and stored value of each record of ``shard``, and the members of ``packing.ShareSums`` in their order."""

# Arguments that JsonRows and CsvRows have in common: ``steps`` normalise a key that is ASCII, and ``encode``, which is
# Python, any other key. ``separator`` joins the columns of a key. Python reads rows with a value of more than
# ``max_value`` bytes, and rows of ``max_row`` bytes or more.
#
# ``read`` reads rows of ``block`` from ``at`` on. ``place`` is the place of the row before them. It puts records into
# ``records``, until these take ``memory`` bytes, and offers each record to ``sample``.

@final
class JsonRows:
    def __init__(
        self,
        steps: list[str],
        encode: Callable[[str], bytes],
        key_columns: list[bytes],
        separator: bytes,
        rule: str,
        columns: list[bytes],
        max_value: int,
        max_row: int,
        /,
    ) -> None:
        """``rule`` says what the value of a record is. "all": an object of all columns but the key's. "columns": an
        object of ``columns``. The others need one column. "field": its JSON. "raw": its text. "json": its text, which
        is JSON. Names in ``key_columns`` and ``columns`` are within quotes, as JSON writes them. Raises ValueError for
        an unknown rule."""

    def watch(self, missing: set[bytes], known: set[bytes] | None, /) -> None:
        """From now on, leave some rows to Python: those with a column of ``missing``, and those with a column that is
        not in ``known``, unless that is None. ``missing`` are the columns of the spec that no row has had so far,
        ``known`` the names that rows have had. All names are within quotes."""

    def read(
        self, block: bytes, at: int, place: int, records: RecordBuffer, memory: int, sample: Sample, /
    ) -> tuple[int, int, int]:
        """Where in ``block`` reading stopped, and the numbers of rows and lines read. If it stopped before the end, the
        next line is unusual, or memory is full."""

@final
class CsvRows:
    def __init__(
        self,
        steps: list[str],
        encode: Callable[[str], bytes],
        dialect: tuple[int, int | None, int | None, list[bytes]],
        width: int,
        key_fields: list[int],
        separator: bytes,
        rule: str,
        columns: list[tuple[int, bytes, str, bool]],
        max_value: int,
        max_row: int,
        /,
    ) -> None:
        """``dialect`` is the delimiter, the quote or None, the escape or None, and the texts that mean null in a field
        without quotes. ``width`` is the number of fields in a row, and ``key_fields`` are the numbers of the key's.

        ``rule`` says what the value of a record is. "object": an object of ``columns``. The others need one column.
        "raw": its text. "json": its text, which is JSON. Each column has the number of its field, the text before its
        value (a bracket or comma, its name and a colon), its type, and whether an empty field is null. Raises
        ValueError for an unknown rule."""

    def read(
        self,
        block: bytes,
        at: int,
        is_last: bool,
        place: int,
        records: RecordBuffer,
        memory: int,
        sample: Sample,
        /,
    ) -> tuple[str, int, int, int]:
        """Why and where in ``block`` reading stopped, and the numbers of rows and lines read. ``is_last``: no other
        block follows.

        The reasons: "end", the rest is not a whole row; "full", memory is full; "odd", Python must read the next row,
        with ``read_fields``; "broken", the next row is not CSV, not UTF-8 or has another number of fields; "open
        quote", the source ends within quotes."""

    def read_fields(
        self, block: bytes, at: int, is_last: bool, is_header: bool, /
    ) -> tuple[int, list[str | None]] | None:
        """Where the row at ``at`` ends, and its fields; no fields if the line is blank. In a header, no field is null.
        None if the block has no whole row there. Raises UnicodeDecodeError."""

    def quotes_seen(self) -> tuple[bool, bool]:
        """Whether a quoted field of the rows so far had a quote after a backslash, and whether an unquoted field had a
        quote. Both are False if the dialect has escapes."""

# mapped/: a generation in the process of the caller; its Python fallback is lookupdb.mapped.python_generation.

@final
class MappedGeneration:
    def __init__(
        self,
        paths: list[Path],
        normalize: tuple[str, ...],
        encode: Callable[[str], bytes],
        decoders: tuple[Callable[[bytes], Any], Callable[[bytes], Any]] | None,
        facts: Any,
    ) -> None:
        """``decoders`` decode JSON: the first one values without long numbers, the second one all others.

        Raises OSError, and ValueError for a file that is damaged or of an unknown format.
        """

    @property
    def facts(self) -> Any: ...
    def describe(self, shard: int, name: bytes) -> bytes | None: ...
    def count(self, shard: int) -> int: ...
    def is_sequence(self) -> bool: ...

@final
class MappedItems:
    def __iter__(self) -> MappedItems: ...
    def __next__(self) -> Any: ...

class MappedView:
    def __init__(
        self, generation: MappedGeneration, follower: Any | None = None, refresh_seconds: float | None = None
    ) -> None: ...
    @property
    def follower(self) -> Any | None: ...
    def put(self, generation: MappedGeneration | None) -> None: ...
    def current(self) -> MappedGeneration: ...
    def newest(self) -> MappedGeneration | None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, key: Any, /) -> Any: ...
    def __contains__(self, key: Any, /) -> bool: ...
    def __iter__(self) -> MappedItems: ...
    def get(self, key: Any, default: Any = None) -> Any: ...
    def raw(self, key: Any) -> bytes: ...
    def get_many(self, keys: Any, *, raw: bool = False) -> dict[str, Any]: ...
    def iterate(self, part: str, *, raw: bool = False) -> Iterator[Any]: ...
