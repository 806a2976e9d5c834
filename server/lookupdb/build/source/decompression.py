"""Decompresses a stream in bounded memory, and never takes a truncated stream for a whole one."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Final

import zstandard

from lookupdb.build.source.file_kinds import FIRST_BYTES, MAGIC, recognize
from lookupdb.errors import BadSource

_MAX_WINDOW: Final = 1 << 27
"""The most bytes that a file may make us allocate to unpack it; `zstd --long` and `xz -9` stay within it."""
_XZ_OVERHEAD: Final = 1 << 20
"""What a decoder of xz takes beside its window."""
_MOST_AT_ONCE: Final = 1 << 20
"""How many bytes a decoder gives at once, if it can be told."""
_HEADER_BYTES: Final = 18
"""The longest header of a stream: that of a zstd frame."""
_DEFLATE: Final = 8
_UNKNOWN_GZIP_FLAGS: Final = 0xE0
_SAMPLE_BYTES: Final = 64
"""How many bytes of a file are looked at for whether it is text."""
_UNKNOWN: Final = "no format that is known"

_CODECS: Final[dict[str, tuple[Callable[[], Any], int]]] = {
    "gzip": (lambda: zlib.decompressobj(wbits=31), 16 << 10),
    "zstd": (lambda: zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).decompressobj(), 2 << 10),
    "bzip2": (bz2.BZ2Decompressor, 16 << 10),
    "xz": (lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_WINDOW + _XZ_OVERHEAD), 16 << 10),
}
"""Compression → a decoder of one member, frame or stream, and how many bytes it is given at once: memory holds what
these expand to, a thousandfold and, with zstd, more. The others are told how much to give at once."""


def decompress(chunks: Iterable[bytes], compression: str, name: str) -> Iterator[bytes]:
    """The content of ``chunks``. Raises BadSource, which names the file ``name``, if it is damaged or cut short, or
    needs what we do not have."""
    new_decoder, piece_bytes = _CODECS[compression]
    decoder: Any = None
    data, position, streams = b"", 0, 0
    for piece in chain(_cut(chunks, piece_bytes), [b""]):
        position += len(piece)
        data += piece
        while data:
            if decoder is None:
                if streams:
                    data = data.lstrip(b"\0")  # what comes after a stream may be padded with zeros
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
    """What ``decoder`` makes of ``data``, which ends at ``position`` of the file ``name``."""
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
    """Raises BadSource if a stream that begins with ``first`` is none that we unpack. ``position`` is 0 for the first
    stream of the file."""
    kind, magic = recognize(first), MAGIC[compression]
    if (kind is None or kind.name != compression) and not first.startswith(magic[: len(first)]):
        looks_like = kind.name if kind else _describe_beginning(first)
        if position:
            raise BadSource(
                f"{name} goes on after its {compression} stream, near its byte {position}, with {looks_like}",
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
        return  # the decoder says what is wrong
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
    """What ``first``, the first bytes of a file, looks like. It quotes none of them: they may be a value."""
    try:
        text = first[:_SAMPLE_BYTES].decode()
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data" or not error.start:
            return _UNKNOWN
        text = first[: error.start].decode()
    is_text = all(character.isprintable() or character.isspace() for character in text)
    return "text" if is_text else _UNKNOWN
