"""Checks the spec's columns against the headers of local CSV files, before a build."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lookupdb.build.parse.csv_parser import CsvParser
from lookupdb.build.source.fetch import find_local_file
from lookupdb.build.source.listing import SourceObject
from lookupdb.build.source.slices import Slice, SliceFile
from lookupdb.errors import BadSource
from lookupdb.spec import DatasetSpec

_MAX_FILES: Final = 20
_MAX_HEADER_BYTES: Final = 1 << 20


def check_csv_headers(spec: DatasetSpec, objects: Iterable[SourceObject]) -> None:
    """Check the first CSV files that are neither remote nor compressed. Raises BadSource as the build would."""
    files = [file for item in objects if item.format == "csv" and (file := find_local_file(item)) is not None]
    for number, file in enumerate(files[:_MAX_FILES]):
        piece = Slice(number)
        try:
            with SliceFile(file.path, piece) as raw:
                CsvParser(spec, file, piece, raw, _MAX_HEADER_BYTES)
        except OSError as error:
            raise BadSource(f"{file.name} cannot be read: {error.strerror}") from error
