"""Decompresses a stream in bounded memory, and never takes a truncated stream for a whole one."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import zstandard

from lookupdb.errors import BadSource

_MAX_WINDOW: Final = 1 << 27
"""The most bytes that a zstd frame may make us allocate; `zstd --long` stays within it by default."""

_MAGIC: Final = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd"}

_UNKNOWN: Final = "no format that is known"
_SAMPLE_BYTES: Final = 64
"""How many bytes of a file are looked at for whether it is text."""

_BEGINNINGS: Final = {
    **{magic: compression for compression, magic in _MAGIC.items()},
    b"PK\x03\x04": "zip",
    b"\xfd7zXZ\0": "xz",
    b"BZh": "bzip2",
    b"PAR1": "Parquet",
}
"""What a file begins with → what it is."""

_CODECS: Final[dict[str, tuple[Callable[[], Any], int]]] = {
    "gzip": (lambda: zlib.decompressobj(wbits=31), 16 << 10),
    "zstd": (lambda: zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).decompressobj(), 2 << 10),
}
"""Compression → a decoder of one gzip member or zstd frame, and how many bytes it is given at once: memory holds what
these expand to, a thousandfold and, with zstd, more."""


def decompress(chunks: Iterable[bytes], compression: str, name: str) -> Iterator[bytes]:
    """The content of ``chunks``. Raises BadSource, which names the file ``name``, if it is damaged or cut short."""
    new_decoder, piece_bytes = _CODECS[compression]
    decoder: Any = None
    in_stream, position = False, 0
    try:
        for chunk in chunks:
            for start in range(0, len(chunk), piece_bytes):
                piece = bytes(chunk[start : start + piece_bytes])
                if not position:
                    _check_magic(piece, compression, name)
                position += len(piece)
                while piece:
                    if not in_stream:
                        decoder, piece = new_decoder(), piece.lstrip(b"\0")  # gzip may be padded with zeros
                        if not piece:
                            break
                    yield decoder.decompress(piece)
                    in_stream = not decoder.eof
                    piece = b"" if in_stream else decoder.unused_data
    except (zlib.error, zstandard.ZstdError) as error:
        reason = str(error).rpartition(": ")[2]
        raise BadSource(
            f"{name} is damaged: its {compression} stream cannot be unpacked near its byte {position} ({reason})",
            hint="fetch or write it again",
        ) from error
    if in_stream or position == 0:
        raise BadSource(
            f"{name} is cut short: its {compression} stream has no end after {position} bytes",
            hint="fetch or write it again",
        )


def _check_magic(first: bytes, compression: str, name: str) -> None:
    magic = _MAGIC[compression]
    is_skippable = compression == "zstd" and first[1:4] == b"\x2a\x4d\x18" and first[0] >> 4 == 5  # pzstd's first frame
    if first[: len(magic)] != magic[: len(first)] and not is_skippable:
        raise BadSource(
            f"{name} is not {compression}: it looks like {_describe_beginning(first)}",
            hint="fetch or write it again; or, if it is not compressed, name it so or set source.compression: none",
        )


def _describe_beginning(first: bytes) -> str:
    """What ``first``, the first bytes of a file, looks like. It quotes none of them: they may be a value."""
    known = next((kind for magic, kind in _BEGINNINGS.items() if first.startswith(magic)), None)
    if known is not None:
        return known
    try:
        text = first[:_SAMPLE_BYTES].decode()
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data" or not error.start:
            return _UNKNOWN
        text = first[: error.start].decode()
    is_text = all(character.isprintable() or character.isspace() for character in text)
    return "text" if is_text else _UNKNOWN
