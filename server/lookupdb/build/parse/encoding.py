"""Why a file of text is not UTF-8: most often it is something else by its first bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from lookupdb.errors import BadSource

_UTF_16: Final = "write the file in UTF-8, as `iconv -f UTF-16 -t UTF-8` does"
_KINDS: Final = (
    (b"\x1f\x8b", "gzip", "set source.compression: gzip, or let its name end in .gz"),
    (b"\x28\xb5\x2f\xfd", "zstd", "set source.compression: zstd, or let its name end in .zst"),
    (b"PAR1", "Parquet", "set source.format: parquet, or let its name end in .parquet"),
    (b"PK\x03\x04", "a zip archive, as a spreadsheet is", "unpack it, or save the sheet as CSV in UTF-8"),
    (b"\xff\xfe", "UTF-16", _UTF_16),
    (b"\xfe\xff", "UTF-16", _UTF_16),
)
"""First bytes, what such a file is, and what to do."""


def not_utf8_error(path: Path, name: str, problem: str) -> BadSource:
    """The error for the file ``name`` at ``path``, which is not UTF-8: ``problem``, if nothing better is known."""
    return recognize_file(path, name) or BadSource(problem, hint="write the file in UTF-8")


def recognize_file(path: Path, name: str) -> BadSource | None:
    """The error for a file that is known not to be text by its first bytes; None if it may be text."""
    with path.open("rb") as file:
        first = file.read(max(len(magic) for magic, _, _ in _KINDS))
    for magic, kind, hint in _KINDS:
        if first.startswith(magic):
            return BadSource(f"{name} is {kind} by its first bytes, not text in UTF-8", hint=hint)
    return None
