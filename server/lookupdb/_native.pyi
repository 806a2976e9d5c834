"""What ``server/native`` exports. Python code reaches it by ``lookupdb.native`` alone.

``INTERFACE`` is the checksum of this file: whatever changes between Python and the kernels is to be seen here.
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
    """Reads from disk what lookups need. Any thread may use it, several at once; none holds the GIL meanwhile."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, and ValueError for a file that is damaged or of an unknown format."""

    def warm(self, requests: list[bytes]) -> int:
        """Make resident what the lookups in ``requests`` need, which are pieces of RESP, and wait for it. Returns the
        number of pages requested."""

@final
class ShardFile:
    """A shard file as the kernels' reader sees it, for tests and tools. It is mapped as long as it lives."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, and ValueError for a file that is damaged or of an unknown format."""

    @property
    def dictionary(self) -> bytes: ...
    @property
    def records(self) -> int: ...
    def find(self, key: bytes) -> bytes | None:
        """The value stored under ``key``, or None. Raises Damaged."""

    def find_many(self, keys: list[bytes]) -> list[bytes | Damaged | None]:
        """What ``find`` returns or raises for each of ``keys``, which are looked up together."""

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Every key with its stored value, in key order. The iterator raises Damaged."""

    def expand(self, stored: bytes, *, fetch_ahead: bool = False) -> bytes:
        """The RESP bulk string for ``stored``, a value of this file. ``fetch_ahead``: as of a dictionary that is in no
        cache. Raises Damaged.
        """

@final
class RequestHistograms:
    """The histograms of requests in ``counters``, described by ``lookupdb.process.worker.observe``."""

    def __init__(self, counters: memoryview, bounds: Sequence[int], /) -> None:
        """``bounds`` are the upper bounds of buckets, in nanoseconds."""

    def observe(self, histogram: int, arrived: int, count: int = 1, counter: int | None = None, /) -> None: ...

@final
class ShardKernel:
    """A shard file, and what answers lookups from it: ``lookupdb.shard.replies`` and ``turn`` use it."""

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
        and the bounds of buckets, in nanoseconds. ``error`` is the reply for what is damaged. Raises OSError, and
        ValueError for a file that cannot be read here.
        """

    def run(
        self, epoll: int, fast_path: bytearray, protocols: bytearray, seconds: float
    ) -> tuple[list[tuple[int, int, bytes, list[bytes], bytes, bool, bool]], list[tuple[int, int]], bool, int]:
        """Wait on ``epoll`` and answer lookups, for so long, until something is not for here, or until a turn was slow.
        Returns what is handed over, as arguments of ``RespConnection.resume`` behind a file descriptor and an error
        number, events, whether the turn was slow, and when its requests arrived.
        """

    def idle_seconds(self) -> float:
        """For how many seconds ``run`` has waited for clients until now."""

    def warmer(self) -> PageWarmer:
        """What reads the pages of this file from disk, for other threads."""

    def answer(self, data: bytes, nil: bytes, arrived: int) -> tuple[bytes, list[bytes], bytes, bool, bool]:
        """See ``KeyReplies.answer``."""

    def replies(self, keys: list[bytes], nil: bytes) -> tuple[bytes, int]:
        """The replies to the first of ``keys``, as many as size and time allow, and their number. The caller has
        counted the keys.
        """

    def find(self, key: bytes) -> bytes | None:
        """See ``KeyReplies.find``."""

    def take_damage(self) -> tuple[int, str] | None:
        """How many lookups were of something damaged since the last call, and what was wrong with the first."""

# route/: the batches of the router, described by their Python fallback, lookupdb.router.batch_keys.

@final
class PackedKeys:
    def __init__(self, texts: list[str], /) -> None: ...
    @staticmethod
    def parse(body: bytes, max_keys: int) -> tuple[PackedKeys, bool] | None:
        """The distinct keys of a batch's body, and its member ``partial``. None if Python is to read the body."""

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
        """The reply ``data``; None unless it is a whole list of ``expected`` values and nothing else."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: Any, /) -> Any: ...
    def count(self, value: None, /) -> int: ...

@final
class ReplyScan:
    def __init__(self, expected: int) -> None: ...
    def feed(self, data: bytes) -> bool | None:
        """Look at the next piece of a reply: whether that is whole now. None if hiredis is to read it."""

    def join(self, pieces: list[bytes]) -> ShardReply | None:
        """The reply whose pieces have been fed."""

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
"""Of the library that ``Packer`` compresses with."""

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
        """The records that are certain to be kept; how many were dropped; and of the first ``named`` of these the key,
        the place, and the place of the record that was kept instead."""

    def finish(self) -> RecordBatch: ...

@final
class Packer:
    def __init__(self, shards: int, largest_record: int, dictionary: bytes, parameters: Any, /) -> None:
        """``parameters`` is python-zstandard's ``ZstdCompressionParameters``, or None: nothing is compressed. A record
        of more than ``largest_record`` bytes takes pages of its own, which are counted."""

    def pack(self, batch: RecordBatch, /) -> PackedRecords: ...

@final
class PackedRecords:
    def items(self, shard: int, /) -> tuple[list[tuple[bytes, bytes]], tuple[int, int, int, int, int, int]]:
        """Key and stored value of each record of ``shard``, and the members of ``packing.ShareSums`` in their order."""

# What is common to both kinds of rows. ``steps`` normalise a key; ``encode`` does so in Python, for a key that is not
# ASCII. ``separator`` stands between the columns of a key. A value of more than ``max_value`` bytes and a row of
# ``max_row`` are Python's to judge. ``read`` goes through ``block`` from ``at`` on; ``place`` is the last row's.
# It puts records into ``records``, until these take ``memory`` bytes, and offers each to ``sample``.

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
        """``rule`` says what the value is: "all" columns but the key's, the ``columns`` as an object ("columns"), or of
        one of them the JSON ("field"), the text ("raw") or the JSON that is its text ("json"). ``key_columns`` and
        ``columns`` stand within quotes, as JSON writes them. Raises ValueError for any other rule."""

    def watch(self, missing: set[bytes], known: set[bytes] | None, /) -> None:
        """Leave to Python each row with a column of ``missing``, those of the spec that no row had so far, and unless
        ``known`` is None each with one that is not among them: names that rows had. All stand within quotes."""

    def read(
        self, block: bytes, at: int, place: int, records: RecordBuffer, memory: int, sample: Sample, /
    ) -> tuple[int, int, int]:
        """Where in ``block`` reading stopped, how many rows were read, and how many lines. Where it is not the end, the
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
        """``dialect`` is the byte that delimits fields, the one that quotes or None, the one that escapes or None, and
        what a field without quotes holds if it is null; ``width`` is how many fields a row has; ``key_fields`` are
        their numbers. ``rule`` is "object", of all ``columns``, or the text ("raw") or JSON ("json") of the one there
        is. Of a column: the number of its field; what stands before the member, a bracket or comma, name and colon; its
        type; and whether an empty field is null. Raises ValueError for any other rule."""

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
        """Why and where in ``block`` reading stopped, how many rows were read, and how many lines. ``is_last``: nothing
        follows the block. Why: "end", what is left is no whole row; "full", memory is; "odd", the next row is Python's,
        by ``read_fields``; "broken", it is no CSV, no UTF-8 or of another width; "open quote", all ends in one."""

    def read_fields(
        self, block: bytes, at: int, is_last: bool, is_header: bool, /
    ) -> tuple[int, list[str | None]] | None:
        """Where the row at ``at`` ends, and its fields, none if the line is blank; a header has no null. None if the
        block has no whole row. Raises UnicodeDecodeError."""

    def quotes_seen(self) -> tuple[bool, bool]:
        """Whether, in the rows so far, a quoted field had a quote after a backslash, and an unquoted field a quote.
        False if there are escapes."""

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
        """``decoders`` of JSON are asked in their order: one for values without long numbers, and one for all.

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
