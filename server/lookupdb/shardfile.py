r"""The shard file: what is in it, and how a record is stored.

One LMDB file holds two named databases. ``records`` maps the encoded key (see ``keys``) to the stored value;
``meta`` holds ``format``, ``manifest`` (JSON, see ``ShardMeta``) and, if values are compressed, ``dictionary``.
Nothing in a shard file depends on when, where or as which generation it was built: the same source and the
same spec give the same bytes. The generation's name stands in manifest.json beside it.

A stored value is the RESP bulk string that answers a GET, ``$5\r\nvalue\r\n``, so that serving it is copying
it; or a zstd frame of that, without magic number, checksum and dictionary id, where it is smaller. The first
byte tells which: such a frame starts with a header descriptor whose checksum bit (0x04) is clear, ``$`` has it set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Self, cast

import lmdb
import orjson
import zstandard

from lookupdb.errors import CorruptFile

FORMAT_VERSION: Final = 1
RECORDS: Final = b"records"
META: Final = b"meta"
META_FORMAT: Final = b"format"
META_MANIFEST: Final = b"manifest"
META_DICTIONARY: Final = b"dictionary"

FRAMED: Final = 0x24
"""The first byte, ``$``, of a stored value that is not compressed."""
NIL: Final = b"$-1\r\n"
"""What RESP answers for a key that is not there."""

MAX_COMPRESSED_WINDOW: Final = 1 << 27
"""No frame may ask for a larger window, in bytes: it bounds what a crafted file can make a server allocate."""


def file_name(shard: int, shards: int) -> str:
    """The name of a shard's file within its generation."""
    return f"shard-{shard:05d}-of-{shards:05d}.lmdb"


def frame(value: bytes) -> bytes:
    """``value`` as a RESP bulk string."""
    return b"$%d\r\n%b\r\n" % (len(value), value)


def unframe(framed: bytes) -> bytes:
    """The value inside the RESP bulk string ``framed``."""
    return framed[framed.index(b"\r\n") + 2 : -2]


def inflater(dictionary: bytes) -> Callable[[bytes], bytes]:
    """The function from a compressed stored value to its RESP bulk string."""
    return zstandard.ZstdDecompressor(
        dict_data=zstandard.ZstdCompressionDict(dictionary) if dictionary else None,
        format=zstandard.FORMAT_ZSTD1_MAGICLESS,
        max_window_size=MAX_COMPRESSED_WINDOW,
    ).decompress


@dataclass(frozen=True, slots=True)
class ShardMeta:
    """What a shard file says of itself."""

    dataset: str
    """``namespace/name``."""
    shard: int
    shards: int
    records: int
    normalize: tuple[str, ...]
    """The steps by which keys were, and are to be, normalised."""
    value_format: Literal["json", "raw"]
    compression: Literal["zstd", "none"]
    content: str
    """``DatasetSpec.content_hash()`` of the spec it was built to."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Fields of a later minor revision: kept, not used."""

    def to_json(self) -> bytes:
        """Deterministic JSON: sorted members, no white space."""
        members = asdict(self)
        extra = members.pop("extra")
        return orjson.dumps({**extra, **members}, option=orjson.OPT_SORT_KEYS)

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Raises ValueError or KeyError when a member is missing or of another type."""
        members = orjson.loads(text)
        known = {name: members.pop(name) for name in cls.__slots__ if name != "extra"}
        known["normalize"] = tuple(known["normalize"])
        return cls(**known, extra=members)


class Shard:
    """A shard file, open for reading. Not to be shared across fork: open it in the process that reads it.

    Opened without locks and with one read transaction for life, which is safe because the file never changes.
    ``close()`` unmaps the file; no value returned by ``find`` refers to the map.
    """

    def __init__(self, path: Path, *, readahead: bool = False) -> None:
        """Raises CorruptFile when ``path`` is no shard file, or one of a format version not known here."""
        self.path = path
        try:
            self._env = lmdb.open(
                str(path),
                subdir=False,
                readonly=True,
                create=False,
                lock=False,
                readahead=readahead,
                max_dbs=2,
            )
            self.meta, self.dictionary = self._describe()
            self._records = self._env.open_db(RECORDS, create=False)
            self.txn = self._env.begin(db=self._records)
        except FileNotFoundError:
            raise
        except (lmdb.Error, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptFile(f"{path} is not a shard file: {error}", hint="fetch or build it again") from error
        self.inflate = inflater(self.dictionary)

    def _describe(self) -> tuple[ShardMeta, bytes]:
        with self._env.begin(db=self._env.open_db(META, create=False)) as txn:
            version = txn.get(META_FORMAT)
            if version != b"%d" % FORMAT_VERSION:
                raise ValueError(f"format version {version!r}; this lookupdb reads {FORMAT_VERSION}")
            return ShardMeta.from_json(txn.get(META_MANIFEST) or b""), txn.get(META_DICTIONARY) or b""

    def find(self, key: bytes) -> bytes | None:
        """The RESP bulk string stored under ``key`` (1 to 511 bytes), or None."""
        stored: bytes | None = self.txn.get(key)
        if stored is None or stored[0] == FRAMED:
            return stored
        return self.inflate(stored)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Every key with its value as it is stored, in order of keys."""
        cursor = self.txn.cursor()
        yield from cursor

    def pages(self) -> dict[str, int]:
        """How LMDB holds the records: ``psize``, ``depth``, ``leaf_pages``, ``overflow_pages``, ``entries`` …"""
        return cast("dict[str, int]", self.txn.stat(self._records))

    def close(self) -> None:
        """Unmap the file."""
        self.txn.abort()
        self._env.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
