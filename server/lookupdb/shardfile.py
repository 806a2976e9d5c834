r"""The shard file: its content, and the form of a stored record.

One LMDB file holds two named databases. ``records`` maps the encoded key (see ``keys``) to the stored value;
``meta`` holds ``format``, ``manifest`` (JSON, see ``ShardMeta``) and, if values are compressed, ``dictionary``.
Nothing in a shard file depends on when, where or as which generation it was built: the same source, spec and
dictionary give the same bytes. The generation's name is in manifest.json beside it.

A stored value is the RESP bulk string that answers a GET, ``$5\r\nvalue\r\n``, so that serving it is copying it. Or, if
that is smaller, it is a zstd frame of that string, without magic number, checksum and dictionary id. The first byte
shows which: the bit 0x04 is set in ``$``, but not in such a frame, where it is the header's checksum bit.

A checksum proves the whole file before it is served. Later damage by disk or memory shows in single values, which
``expand`` and ``is_framed`` check, so that a damaged value affects its own key alone.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, Self, cast

import lmdb
import orjson
import zstandard

from lookupdb.errors import OPEN_FILES_ERRNOS, CorruptFile, opening_error
from lookupdb.keys import FORMAT_VERSION
from lookupdb.wording import check_path

RECORDS: Final = b"records"
META: Final = b"meta"
META_FORMAT: Final = b"format"
META_MANIFEST: Final = b"manifest"
META_DICTIONARY: Final = b"dictionary"

FRAMED: Final = 0x24
"""The first byte, ``$``, of a stored value that is not compressed."""

_NOT_A_SHARD: Final = "shard files are called shard-NNNNN-of-NNNNN.lmdb; if this was one, fetch or build it again"

_OPENING_ERRNOS: Final = (*OPEN_FILES_ERRNOS, errno.ENOMEM, errno.EACCES, errno.EPERM)
"""Errors of LMDB that say nothing about a file's content."""

_LMDB_META: Final = struct.Struct("=16x I 20x I 92x Q Q")
"""A meta page of LMDB: magic number, size of a page, number of the last page, number of the transaction."""
_LMDB_MAGIC: Final = 0xBEEFC0DE

MAX_COMPRESSED_WINDOW: Final = 1 << 27
"""The largest window, in bytes, that a frame may need: it limits the memory that a crafted file can take."""
MAX_VALUE_BYTES: Final = 64 << 20
"""The maximum of ``spec.value.maxBytes``."""

_CLAIMS_SIZE: Final = 0x80
"""A compressed value whose first byte is at least this has its size in four or eight bytes of the frame's header (RFC
8878, 3.1.1.1). All others are smaller than 66 KB."""


def frame(value: bytes) -> bytes:
    """Return ``value`` as a RESP bulk string."""
    return b"$%d\r\n%b\r\n" % (len(value), value)


def unframe(framed: bytes) -> bytes:
    """Return the value inside the RESP bulk string ``framed``."""
    return framed[framed.index(b"\r\n") + 2 : -2]


def unframe_start(framed: bytes, max_bytes: int) -> bytes:
    """Return at most ``max_bytes`` of the value inside ``framed``, without a copy of the rest."""
    start = framed.index(b"\r\n") + 2
    return framed[start : min(len(framed) - 2, start + max_bytes)]


def is_framed(reply: bytes) -> bool:
    """Return whether ``reply`` is exactly one RESP bulk string, which cannot corrupt the replies sent after it."""
    head = reply[: reply.find(b"\r\n", 0, 16)]
    return head == b"$%d" % (len(reply) - len(head) - 4) and reply.endswith(b"\r\n")


class DamagedValue(CorruptFile):
    """A stored value is neither a RESP bulk string nor a compressed one."""


def expand(stored: bytes, inflate: Callable[[bytes], bytes]) -> bytes:
    """Return the RESP bulk string that ``stored`` is, or that ``inflate`` makes of it. Raises DamagedValue."""
    try:
        reply = stored if stored[0] == FRAMED else inflate(_check_claimed_size(stored))
    except (zstandard.ZstdError, MemoryError, IndexError) as error:
        raise DamagedValue(f"it does not decompress: {error}") from error
    if not is_framed(reply):
        raise DamagedValue(f"its {len(reply)} bytes, which begin with {reply[:12]!r}, are not one RESP bulk string")
    return reply


def _check_claimed_size(compressed: bytes) -> bytes:
    """Return ``compressed``, unless its header claims a size that no value has. Raises DamagedValue."""
    descriptor = compressed[0]
    if descriptor >= _CLAIMS_SIZE:
        start = 1 + (descriptor & 0x20 == 0) + (0, 1, 2, 4)[descriptor & 3]
        size = int.from_bytes(compressed[start : start + (4 if descriptor < 0xC0 else 8)], "little")
        if size > MAX_VALUE_BYTES + len(b"$67108864\r\n\r\n"):
            raise DamagedValue(f"it claims to be {size} bytes, a value has at most {MAX_VALUE_BYTES}")
    return compressed


def make_inflater(dictionary: bytes) -> Callable[[bytes], bytes]:
    """Return the function from a compressed stored value to its RESP bulk string."""
    return zstandard.ZstdDecompressor(
        dict_data=zstandard.ZstdCompressionDict(dictionary) if dictionary else None,
        format=zstandard.FORMAT_ZSTD1_MAGICLESS,
        max_window_size=MAX_COMPRESSED_WINDOW,
    ).decompress


@dataclass(frozen=True, slots=True)
class ShardMeta:
    """The metadata in a shard file."""

    dataset: str
    """``namespace/name``."""
    shard: int
    shards: int
    records: int
    normalize: tuple[str, ...]
    """The steps that normalise keys."""
    value_format: Literal["json", "raw"]
    compression: Literal["zstd", "none"]
    content: str
    """``DatasetSpec.content_hash()`` of the dataset's spec."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Fields of a later minor revision, kept but not used."""

    def to_json(self) -> bytes:
        """Return deterministic JSON: sorted members, no white space."""
        members = asdict(self)
        extra = members.pop("extra")
        return orjson.dumps({**extra, **members}, option=orjson.OPT_SORT_KEYS)

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Raises ValueError or KeyError if a member is missing or has another type."""
        members = orjson.loads(text)
        present = {name: members.pop(name) for name in cls.__slots__ if name != "extra"}
        present["normalize"] = tuple(present["normalize"])
        return cls(**present, extra=members)


class ShardReader:
    """A shard file, open for reading. Do not share it across fork: open it in the process that reads it.

    It is opened without locks, with one read transaction for its whole life, which is safe because the file never
    changes. ``close()`` unmaps the file; no value that ``find`` returned refers to the map.
    """

    def __init__(self, path: Path) -> None:
        """Raises CorruptFile if ``path`` is not a shard file, is cut short, or has an unknown format version,
        FileNotFoundError if it does not exist, UsageError if the path is not UTF-8, NotEnoughRoom or StoreError if it
        cannot be opened for another reason."""
        check_path(path)
        self.path = path
        try:
            _check_length(path)
            self._env = lmdb.open(
                str(path), subdir=False, readonly=True, create=False, lock=False, readahead=False, max_dbs=2
            )
            self.meta, self.dictionary_bytes = self._describe()
            self._records = self._env.open_db(RECORDS, create=False)
            self.txn = self._env.begin(db=self._records)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise opening_error(path, error.errno or 0) from error
        except (lmdb.Error, ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, lmdb.Error):
                for number in _OPENING_ERRNOS:
                    if str(error).endswith(os.strerror(number)):
                        raise opening_error(path, number) from error
            raise CorruptFile(f"{path} is not a shard file: {error}", hint=_NOT_A_SHARD) from error

    def _describe(self) -> tuple[ShardMeta, int]:
        with self._env.begin(db=self._env.open_db(META, create=False), buffers=True) as txn:
            version = bytes(txn.get(META_FORMAT) or b"")
            if version != b"%d" % FORMAT_VERSION:
                raise ValueError(f"format version {version!r}; this lookupdb reads {FORMAT_VERSION}")
            meta = ShardMeta.from_json(bytes(txn.get(META_MANIFEST) or b""))
            return meta, len(txn.get(META_DICTIONARY) or b"")

    @cached_property
    def dictionary(self) -> bytes:
        """The dictionary, empty if there is none."""
        return self.describe(META_DICTIONARY) or b""

    def describe(self, name: bytes) -> bytes | None:
        """Return the file's metadata ``name``; None if there is none."""
        with self._env.begin(db=self._env.open_db(META, create=False)) as txn:
            description: bytes | None = txn.get(name)
            return description

    @cached_property
    def inflate(self) -> Callable[[bytes], bytes]:
        """The result of ``make_inflater`` for this file. It copies the dictionary, so it is made when first used."""
        return make_inflater(self.describe(META_DICTIONARY) or b"")

    def find(self, key: bytes) -> bytes | None:
        """Return the RESP bulk string stored under ``key`` (1 to 511 bytes), or None. Raises DamagedValue."""
        stored: bytes | None = self.txn.get(key)
        return None if stored is None else self.expand(stored)

    def expand(self, stored: bytes) -> bytes:
        """Return the RESP bulk string for ``stored``, a value of this file. Raises DamagedValue."""
        try:
            return expand(stored, self.inflate)
        except DamagedValue as error:
            message = f"{self.path}: a stored value is damaged: {error.message}"
            raise DamagedValue(message, hint="fetch or build it again") from error

    def renew(self) -> None:
        """Begin another ``txn`` after an error of LMDB: further reads of the old one fail."""
        self.txn.abort()
        self.txn = self._env.begin(db=self._records)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Return every key with its stored value, in key order."""
        return iter(self.txn.cursor())

    def pages(self) -> dict[str, int]:
        """LMDB's statistics of the records: ``psize``, ``depth``, ``leaf_pages``, ``overflow_pages``, ``entries`` …"""
        return cast("dict[str, int]", self.txn.stat(self._records))

    def close(self) -> None:
        """Unmap the file."""
        self.txn.abort()
        self._env.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_length(path: Path) -> None:
    """Raise OSError if the file cannot be opened, CorruptFile if it lacks pages that LMDB expects: touching one would
    kill the process with SIGBUS. LMDB itself rejects a file that is not its own."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found, needed = os.fstat(descriptor).st_size, _needed_bytes(descriptor)
    except OSError:
        return
    finally:
        os.close(descriptor)
    if found < needed:
        raise CorruptFile(
            f"{path} is cut short: it is {found} bytes long, but its header says {needed}",
            hint="it is damaged: fetch or build it again",
        )


def _needed_bytes(descriptor: int) -> int:
    """Return the file's length according to LMDB's newer meta page; 0 if it has none."""
    first = os.pread(descriptor, _LMDB_META.size, 0)
    if len(first) < _LMDB_META.size or _LMDB_META.unpack(first)[0] != _LMDB_MAGIC:
        return 0
    _, page_bytes, last_page, transaction = _LMDB_META.unpack(first)
    second = os.pread(descriptor, _LMDB_META.size, page_bytes)
    if len(second) == _LMDB_META.size:
        magic, _, other_last_page, other_transaction = _LMDB_META.unpack(second)
        if magic == _LMDB_MAGIC and other_transaction > transaction:
            last_page = other_last_page
    return int((last_page + 1) * page_bytes)
