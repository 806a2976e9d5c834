"""What a file is by its first bytes, if that is no text: the one table of it.

No CSV and no JSON in UTF-8 begins as a pattern here says. A format whose mark is plain text is known by what follows
the mark too: a CSV file may well begin with a column that is called ORC.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from lookupdb.errors import BadSource

Compression = Literal["none", "gzip", "zstd", "bzip2", "xz"]

FIRST_BYTES: Final = 4096
"""How many bytes of a file are enough to know its kind."""

ENDINGS: Final[dict[Compression, str]] = {"gzip": ".gz", "zstd": ".zst", "bzip2": ".bz2", "xz": ".xz"}
"""Each compression that is read, with the ending of names."""
MAGIC: Final = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd", "bzip2": b"BZh", "xz": b"\xfd7zXZ\0"}
"""How a stream of each begins."""


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file that is no text in UTF-8."""

    name: str
    begins: re.Pattern[bytes]
    hint: str
    """What to do if it is found where text is expected."""
    is_read: bool = False
    """It can be used as it is, if the spec says so."""
    is_compressed: bool = False


_NO_TEXT: Final = rb".*?[\x00\x02-\x08\x0e-\x1f]"
"""What follows a mark that is plain text: sooner or later a control character. \\x01 may be Hive's delimiter."""


def _kind(name: str, pattern: bytes, hint: str, *, is_read: bool = False, is_compressed: bool = False) -> FileKind:
    return FileKind(name, re.compile(pattern, re.DOTALL), hint, is_read, is_compressed)


def _compression(name: Compression, more: bytes = b"") -> FileKind:
    pattern = re.escape(MAGIC[name]) + more
    hint = f"set source.compression: {name}, or leave it away and let its name end in {ENDINGS[name]}"
    return _kind(name, pattern, hint, is_read=True, is_compressed=True)


_RECOMPRESS: Final = f"unpack it, or compress it with {', '.join(list(ENDINGS)[:-1])} or {list(ENDINGS)[-1]}"
_REWRITE: Final = "write Parquet, CSV or JSON lines"
_UNPACK: Final = "unpack it: a source's file is one file of records"
_DECRYPT: Final = "decrypt it before it is read"
KINDS: Final = (
    _compression("gzip"),
    _compression("zstd", rb"|[\x50-\x5f]\x2a\x4d\x18"),  # a frame to skip, which pzstd writes first
    _compression("bzip2", rb"[1-9](?:1AY&SY|\x17rE8P\x90)" + _NO_TEXT),
    _compression("xz"),
    _kind("an old zstd (before version 0.8)", rb"[\x1e\x22-\x27]\xb5\x2f\xfd", _RECOMPRESS, is_compressed=True),
    _kind("lz4", rb"\x04\x22\x4d\x18|\x02\x21\x4c\x18", _RECOMPRESS, is_compressed=True),
    _kind("snappy", rb"\xff\x06\x00\x00sNaPpY|\x82SNAPPY\x00", _RECOMPRESS, is_compressed=True),
    _kind("lzma", rb"\x5d\x00\x00..\xff{8}", _RECOMPRESS, is_compressed=True),
    _kind("lzop", rb"\x89LZO\x00\r\n\x1a\n", _RECOMPRESS, is_compressed=True),
    _kind("zlib (.deflate)", rb"x[\x9c\xda]" + _NO_TEXT, _RECOMPRESS, is_compressed=True),
    _kind("compress (.Z)", rb"\x1f\x9d", _RECOMPRESS, is_compressed=True),
    _kind(
        "a zip archive or a spreadsheet (.xlsx)",
        rb"PK(?:\x03\x04|\x05\x06)",
        "unpack it, or save the sheet as CSV in UTF-8",
        is_compressed=True,
    ),
    _kind("a 7z archive", rb"7z\xbc\xaf\x27\x1c", _UNPACK, is_compressed=True),
    _kind("a rar archive", rb"Rar!\x1a\x07", _UNPACK, is_compressed=True),
    _kind("a tar archive", rb".{257}ustar(?:\x0000|  \x00)", _UNPACK),
    _kind(
        "Parquet",
        rb"PAR1" + _NO_TEXT,
        "set source.format: parquet, or leave it away and let its name end in .parquet",
        is_read=True,
    ),
    _kind("Parquet with an encrypted footer", rb"PARE" + _NO_TEXT, _DECRYPT),
    _kind("Avro", rb"Obj\x01.*?avro\.(?:schema|codec)", _REWRITE),
    _kind("ORC", rb"ORC" + _NO_TEXT, _REWRITE),
    _kind("Arrow", rb"ARROW1\x00\x00|\xff{4}...\x00", _REWRITE),
    _kind("Feather", rb"FEA1" + _NO_TEXT, _REWRITE),
    _kind("HDF5", rb"\x89HDF\r\n\x1a\n", _REWRITE),
    _kind("a SQLite database", rb"SQLite format 3\x00", _REWRITE),
    _kind("a pickle of Python's", rb"\x80[\x02-\x05]", _REWRITE),
    _kind("an array of NumPy's", rb"\x93NUMPY", _REWRITE),
    _kind("an Excel file (.xls)", rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "save the sheet as CSV in UTF-8"),
    _kind("encrypted", rb"(?:age-encryption\.org/|Salted__)" + _NO_TEXT, _DECRYPT),
    _kind("UTF-32", rb"\xff\xfe\x00\x00|\x00\x00\xfe\xff", "write the file in UTF-8", is_read=True),
    _kind("UTF-16", rb"\xff\xfe|\xfe\xff", "write the file in UTF-8, as `iconv -f UTF-16 -t UTF-8` does", is_read=True),
)


def recognize(first: bytes) -> FileKind | None:
    """The kind of a file that begins with ``first``, ``FIRST_BYTES`` of it or all; None if it may be text."""
    return next((kind for kind in KINDS if kind.begins.match(first)), None)


def check_kind(first: bytes, name: str, file_format: str, compression: str) -> None:
    """Raises BadSource if the file ``name``, which is read as ``file_format`` and begins with ``first`` when
    ``compression`` is taken off, is known to be something else."""
    kind = recognize(first)
    expected = "Parquet" if file_format == "parquet" else "text in UTF-8"
    if kind is None or kind.name == expected:
        return
    if kind.is_compressed and compression != "none":
        raise BadSource(
            f"{name} is compressed twice: its {compression} stream holds {kind.name}",
            hint="compress it once; one compression is taken off, and no second one",
        )
    raise wrong_kind_error(kind, name if compression == "none" else f"{name}, unpacked,", expected)


def wrong_kind_error(kind: FileKind, name: str, expected: str) -> BadSource:
    """The error for the file ``name``, which is of ``kind``."""
    return BadSource(
        f"{name} is {kind.name} by its first bytes, {f'not {expected}' if kind.is_read else 'which is not read'}",
        hint=kind.hint,
    )
