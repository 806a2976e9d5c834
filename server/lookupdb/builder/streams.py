"""Streams of bytes: over http without a length, recognized by their first bytes, and decompressed in bounded memory. A
truncated stream never passes as whole."""

from __future__ import annotations

import bz2
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, Literal

import zstandard

from lookupdb.errors import BadSource

# Kinds of files, by their first bytes.
#
# No CSV and no JSON in UTF-8 begins as a pattern here says. A format with a plain-text mark is also known by the bytes
# after it: a CSV file may well begin with a column called ORC.


Compression = Literal["none", "gzip", "zstd", "bzip2", "xz"]

FIRST_BYTES: Final = 4096
"""The first bytes of a file that show its kind."""

ENDINGS: Final[dict[Compression, str]] = {"gzip": ".gz", "zstd": ".zst", "bzip2": ".bz2", "xz": ".xz"}
"""Each supported compression, with the ending of names."""
MAGIC: Final = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd", "bzip2": b"BZh", "xz": b"\xfd7zXZ\0"}
"""The first bytes of a stream of each."""


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file that is not text in UTF-8."""

    name: str
    begins: re.Pattern[bytes]
    hint: str
    """Advice if it is found instead of text."""
    is_read: bool = False
    """True if a spec can select it."""
    is_compressed: bool = False


_NO_TEXT: Final = rb".*?[\x00\x02-\x08\x0e-\x1f]"
"""After a plain-text mark comes a control character sooner or later. \\x01 may be Hive's delimiter."""


def _kind(name: str, pattern: bytes, hint: str, *, is_read: bool = False, is_compressed: bool = False) -> FileKind:
    return FileKind(name, re.compile(pattern, re.DOTALL), hint, is_read, is_compressed)


def _compression(name: Compression, more: bytes = b"") -> FileKind:
    pattern = re.escape(MAGIC[name]) + more
    hint = f"set source.compression: {name}, or omit it and let its name end in {ENDINGS[name]}"
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
        "set source.format: parquet, or omit it and let its name end in .parquet",
        is_read=True,
    ),
    _kind("Parquet with an encrypted footer", rb"PARE" + _NO_TEXT, _DECRYPT),
    _kind("Avro", rb"Obj\x01.*?avro\.(?:schema|codec)", _REWRITE),
    _kind("ORC", rb"ORC" + _NO_TEXT, _REWRITE),
    _kind("Arrow", rb"ARROW1\x00\x00|\xff{4}...\x00", _REWRITE),
    _kind("Feather", rb"FEA1" + _NO_TEXT, _REWRITE),
    _kind("HDF5", rb"\x89HDF\r\n\x1a\n", _REWRITE),
    _kind("a SQLite database", rb"SQLite format 3\x00", _REWRITE),
    _kind("a Python pickle", rb"\x80[\x02-\x05]", _REWRITE),
    _kind("a NumPy array", rb"\x93NUMPY", _REWRITE),
    _kind("an Excel file (.xls)", rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "save the sheet as CSV in UTF-8"),
    _kind("encrypted", rb"(?:age-encryption\.org/|Salted__)" + _NO_TEXT, _DECRYPT),
    _kind("UTF-32", rb"\xff\xfe\x00\x00|\x00\x00\xfe\xff", "write the file in UTF-8", is_read=True),
    _kind("UTF-16", rb"\xff\xfe|\xfe\xff", "write the file in UTF-8, as `iconv -f UTF-16 -t UTF-8` does", is_read=True),
)


def recognize(first: bytes) -> FileKind | None:
    """Return the kind of a file that begins with ``first``, ``FIRST_BYTES`` of it or all; None if it may be text."""
    return next((kind for kind in KINDS if kind.begins.match(first)), None)


def check_kind(first: bytes, name: str, file_format: str, compression: str) -> None:
    """Raise BadSource if the file ``name``, read as ``file_format``, is known to be something else: its uncompressed
    content begins with ``first``."""
    kind = recognize(first)
    expected = "Parquet" if file_format == "parquet" else "text in UTF-8"
    if kind is None or kind.name == expected:
        return
    if kind.is_compressed and compression != "none":
        raise BadSource(
            f"{name} is compressed twice: its {compression} stream holds {kind.name}",
            hint="compress it once; only one compression is removed",
        )
    raise wrong_kind_error(kind, name if compression == "none" else f"{name}, unpacked,", expected)


def wrong_kind_error(kind: FileKind, name: str, expected: str) -> BadSource:
    """Return the error for the file ``name``, which is of ``kind``."""
    return BadSource(
        f"{name} is {kind.name} by its first bytes, {f'not {expected}' if kind.is_read else 'which is not read'}",
        hint=kind.hint,
    )


_MAX_WINDOW: Final = 1 << 27
"""The most bytes that a file may make us allocate to decompress it; `zstd --long` and `xz -9` stay within it."""
_XZ_OVERHEAD: Final = 1 << 20
"""Memory of a decoder of xz beside its window."""
_MOST_AT_ONCE: Final = 1 << 20
"""Output of a decoder in one call, if it can be limited."""
_HEADER_BYTES: Final = 18
"""The longest header of a stream: that of a zstd frame."""
_DEFLATE: Final = 8
_UNKNOWN_GZIP_FLAGS: Final = 0xE0
_SAMPLE_BYTES: Final = 64
"""The bytes of a file that decide whether it is text."""
_UNKNOWN: Final = "no format that is known"

_CODECS: Final[dict[str, tuple[Callable[[], Any], int]]] = {
    "gzip": (lambda: zlib.decompressobj(wbits=31), 16 << 10),
    "zstd": (lambda: zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).decompressobj(), 2 << 10),
    "bzip2": (bz2.BZ2Decompressor, 16 << 10),
    "xz": (lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_WINDOW + _XZ_OVERHEAD), 16 << 10),
}
"""Compression → a decoder of one member, frame or stream, and the bytes of input for each call: memory holds their
expansion, a thousandfold and, with zstd, more. The output of the others can be limited."""


def decompress(chunks: Iterable[bytes], compression: str, name: str) -> Iterator[bytes]:
    """Yield the content of ``chunks``. Raises BadSource, which names the file ``name``, if it is damaged, cut short or
    not supported."""
    new_decoder, piece_bytes = _CODECS[compression]
    decoder: Any = None
    data, position, streams = b"", 0, 0
    for piece in chain(_cut(chunks, piece_bytes), [b""]):
        position += len(piece)
        data += piece
        while data:
            if decoder is None:
                if streams:
                    data = data.lstrip(b"\0")  # zeros may follow a stream as padding
                if not data or (piece and len(data) < (_HEADER_BYTES if streams else FIRST_BYTES)):
                    break
                _check_header(data[:FIRST_BYTES], compression, name, position if streams else 0)
                decoder, streams = new_decoder(), streams + 1
            yield from _decode(decoder, data, f"{compression} stream", name, position)
            data = decoder.unused_data if decoder.eof else b""
            if decoder.eof:
                decoder = None
    if decoder is not None or position == 0:
        raise BadSource(
            f"{name} is cut short: its {compression} stream has no end after {position} bytes",
            hint="fetch or write it again",
        )


def _cut(chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
    for chunk in chunks:
        for start in range(0, len(chunk), size):
            yield bytes(chunk[start : start + size])


def _decode(decoder: Any, data: bytes, stream: str, name: str, position: int) -> Iterator[bytes]:
    """Decode ``data``, which ends at ``position`` of the file ``name``."""
    limit = (_MOST_AT_ONCE,) if hasattr(decoder, "needs_input") else ()
    while True:
        try:
            content = decoder.decompress(data, *limit)
        except (zlib.error, zstandard.ZstdError, lzma.LZMAError, OSError) as error:
            raise _decoder_error(error, stream, name, position) from error
        yield content
        if not limit or decoder.eof or decoder.needs_input:
            return
        data = b""


def _decoder_error(error: Exception, stream: str, name: str, position: int) -> BadSource:
    reason = str(error).rpartition(": ")[2]
    if reason == "Memory usage limit exceeded":
        return BadSource(
            f"{name} needs more than {_MAX_WINDOW >> 20} MiB of memory to be unpacked, which is the most",
            hint="compress it again with `xz -9` or less",
        )
    if "unsupported" in reason.lower():
        return BadSource(
            f"{name}: its {stream} is of a kind that is not read ({reason})",
            hint="compress it again with the default options",
        )
    return BadSource(
        f"{name} is damaged: its {stream} cannot be unpacked near its byte {position} ({reason})",
        hint="fetch or write it again",
    )


def _check_header(first: bytes, compression: str, name: str, position: int) -> None:
    """Raise BadSource if we do not decompress a stream that begins with ``first``. ``position`` is 0 for the first
    stream of the file."""
    kind, magic = recognize(first), MAGIC[compression]
    if (kind is None or kind.name != compression) and not first.startswith(magic[: len(first)]):
        looks_like = kind.name if kind else _describe_beginning(first)
        if position:
            raise BadSource(
                f"{name} continues after its {compression} stream, near its byte {position}, with {looks_like}",
                hint="only another such stream, or zeros, may follow: fetch or write it again",
            )
        again = "fetch or write it again; or, if it is not compressed, name it so or set source.compression: none"
        raise BadSource(f"{name} is not {compression}: it looks like {looks_like}", hint=kind.hint if kind else again)
    if compression == "gzip" and len(first) > 3 and (first[2] != _DEFLATE or first[3] & _UNKNOWN_GZIP_FLAGS):
        raise BadSource(
            f"{name}: its gzip stream is of a kind that is not read (method {first[2]}, flags {first[3]:#04x})",
            hint="it is encrypted, or compressed by another method than deflate: compress it again with gzip",
        )
    if compression == "zstd":
        _check_zstd_frame(first[:_HEADER_BYTES], name)


def _check_zstd_frame(header: bytes, name: str) -> None:
    try:
        frame = zstandard.get_frame_parameters(header)
    except zstandard.ZstdError:
        return  # the decoder reports the error
    if frame.window_size > _MAX_WINDOW:
        raise BadSource(
            f"{name} needs a window of {-(-frame.window_size >> 20):,} MiB to be unpacked,"
            f" {_MAX_WINDOW >> 20} MiB is the most",
            hint="compress it again with `zstd --long=27` or less",
        )
    if frame.dict_id:
        raise BadSource(
            f"{name} is compressed with a zstd dictionary ({frame.dict_id}), and none is read here",
            hint="compress it again without a dictionary",
        )


def _describe_beginning(first: bytes) -> str:
    """Describe ``first``, the first bytes of a file, without quoting them: they may be a value."""
    try:
        text = first[:_SAMPLE_BYTES].decode()
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data" or not error.start:
            return _UNKNOWN
        text = first[: error.start].decode()
    is_text = all(character.isprintable() or character.isspace() for character in text)
    return "text" if is_text else _UNKNOWN
