"""Files of this machine: paths, file:// and volume:// URLs, the examples that lookupdb ships, and the fetched files
of a source. Parsers read these files and their slices. Files are recognized by their first bytes, and decompressed in
bounded memory; a truncated stream never passes as whole.
"""

from __future__ import annotations

import bz2
import datetime
import fnmatch
import hashlib
import io
import lzma
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import resources
from io import FileIO
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal, Protocol
from urllib.parse import unquote, urlsplit

import zstandard

from lookupdb.builder.tables import TableFile
from lookupdb.errors import BadSource, SourceMissing, SourceUnreadable
from lookupdb.manifest import SourceFile
from lookupdb.wording import check_path, strip_secrets

# Kinds of files, by their first bytes.
#
# No CSV or JSON file in UTF-8 matches a pattern here. If a format's mark is plain text, its pattern also needs bytes
# after it: a CSV file may begin with a column called ORC.


Compression = Literal["none", "gzip", "zstd", "bzip2", "xz"]

FIRST_BYTES: Final = 4096
"""Number of a file's first bytes that show its kind."""

ENDINGS: Final[dict[Compression, str]] = {"gzip": ".gz", "zstd": ".zst", "bzip2": ".bz2", "xz": ".xz"}
"""Each supported compression, with the ending of its files' names."""
MAGIC: Final = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd", "bzip2": b"BZh", "xz": b"\xfd7zXZ\0"}
"""The first bytes of each compression's stream."""


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file that is not text in UTF-8."""

    name: str
    begins: bytes
    """The pattern of its first bytes."""
    hint: str
    """Advice if a file is unexpectedly of this kind."""
    is_read: bool = False
    """False if errors say that it is not supported."""
    is_compressed: bool = False


_NO_TEXT: Final = rb".*?[\x00\x02-\x08\x0e-\x1f]"
"""Matches up to a control character, which text does not have. \\x01 may be Hive's delimiter, so it is no proof."""


def _compression(name: Compression, more: bytes = b"") -> FileKind:
    pattern = re.escape(MAGIC[name]) + more
    hint = f"set source.compression: {name}, or omit it and name the file *{ENDINGS[name]}"
    return FileKind(name, pattern, hint, is_read=True, is_compressed=True)


_RECOMPRESS: Final = f"unpack it, or compress it with {', '.join(list(ENDINGS)[:-1])} or {list(ENDINGS)[-1]}"
_REWRITE: Final = "write Parquet, CSV or JSON lines"
KINDS: Final = (
    _compression("gzip"),
    _compression("zstd", rb"|[\x50-\x5f]\x2a\x4d\x18"),  # a frame to skip, which pzstd writes first
    _compression("bzip2", rb"[1-9](?:1AY&SY|\x17rE8P\x90)" + _NO_TEXT),
    _compression("xz"),
    FileKind("lz4", rb"\x04\x22\x4d\x18|\x02\x21\x4c\x18", _RECOMPRESS, is_compressed=True),
    FileKind("snappy", rb"\xff\x06\x00\x00sNaPpY|\x82SNAPPY\x00", _RECOMPRESS, is_compressed=True),
    FileKind(
        "a zip archive or a spreadsheet (.xlsx)",
        rb"PK(?:\x03\x04|\x05\x06)",
        "unpack it, or save the sheet as CSV in UTF-8",
        is_compressed=True,
    ),
    FileKind("a tar archive", rb".{257}ustar(?:\x0000|  \x00)", "unpack it, and give its files as the source"),
    FileKind(
        "Parquet",
        rb"PAR1" + _NO_TEXT,
        "set source.format: parquet, or omit it and name the file *.parquet",
        is_read=True,
    ),
    FileKind("Parquet with an encrypted footer", rb"PARE" + _NO_TEXT, "decrypt it before it is read"),
    FileKind(
        "Avro",
        rb"Obj\x01.*?avro\.(?:schema|codec)",
        "set source.format: avro, or omit it and name the file *.avro",
        is_read=True,
    ),
    FileKind("ORC", rb"ORC" + _NO_TEXT, _REWRITE),
    FileKind("Arrow", rb"ARROW1\x00\x00|\xff{4}...\x00", _REWRITE),
    FileKind("a SQLite database", rb"SQLite format 3\x00", _REWRITE),
    FileKind("a Python pickle", rb"\x80[\x02-\x05]", _REWRITE),
    FileKind("an Excel file (.xls)", rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "save the sheet as CSV in UTF-8"),
    FileKind("UTF-32", rb"\xff\xfe\x00\x00|\x00\x00\xfe\xff", "write the file in UTF-8", is_read=True),
    FileKind(
        "UTF-16",
        rb"\xff\xfe|\xfe\xff|([\t -~]\x00){2}",
        "write the file in UTF-8, as `iconv -f UTF-16 -t UTF-8` does",
        is_read=True,
    ),
)


def recognize(first: bytes) -> FileKind | None:
    """Return the kind of a file from ``first``, its first ``FIRST_BYTES`` bytes; None if it may be text."""
    return next((kind for kind in KINDS if re.match(kind.begins, first, re.DOTALL)), None)


def check_kind(first: bytes, name: str, file_format: str, compression: str) -> None:
    """Raise BadSource if the file ``name``, read as ``file_format``, is known to be something else. Its uncompressed
    content begins with ``first``."""
    kind = recognize(first)
    expected = {"parquet": "Parquet", "avro": "Avro"}.get(file_format, "text in UTF-8")
    if kind is None or kind.name == expected:
        return
    if kind.is_compressed and compression != "none":
        raise BadSource(
            f"{name} is compressed twice: its {compression} stream holds {kind.name}",
            hint="compress it once; only one compression is removed",
        )
    raise wrong_kind_error(kind, name if compression == "none" else f"{name}, decompressed,", expected)


def wrong_kind_error(kind: FileKind, name: str, expected: str) -> BadSource:
    """Return the error for the file ``name``, which is of ``kind``."""
    return BadSource(
        f"{name} is {kind.name} by its first bytes, {f'not {expected}' if kind.is_read else 'which is not supported'}",
        hint=kind.hint,
    )


_MAX_WINDOW: Final = 1 << 27
"""The most bytes that a file may make us allocate to decompress it; `zstd --long` and `xz -9` stay within it."""
_XZ_OVERHEAD: Final = 1 << 20
"""Memory of an xz decoder in addition to its window."""
_MOST_AT_ONCE: Final = 1 << 20
"""The most output of a decoder in one call, for decoders that can be limited."""
_CODECS: Final[dict[str, tuple[Callable[[], Any], int]]] = {
    "gzip": (lambda: zlib.decompressobj(wbits=31), 16 << 10),
    "zstd": (lambda: zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).decompressobj(), 2 << 10),
    "bzip2": (bz2.BZ2Decompressor, 16 << 10),
    "xz": (lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_WINDOW + _XZ_OVERHEAD), 16 << 10),
}
"""Compression → a decoder of one member, frame or stream, and the bytes of input for each call. With gzip and zstd,
memory holds all that this input expands to: a thousand times as much, and more with zstd. The output of bzip2 and xz
can be limited.
"""


def decompress(chunks: Iterable[bytes], compression: str, name: str) -> Iterator[bytes]:
    """Yield the content of ``chunks``. Raises BadSource, which names the file ``name``, if it is damaged, cut short or
    not supported."""
    new_decoder, piece_bytes = _CODECS[compression]
    decoder: Any = None
    data, position, streams = b"", 0, 0
    pieces = (
        bytes(chunk[start : start + piece_bytes]) for chunk in chunks for start in range(0, len(chunk), piece_bytes)
    )
    for piece in chain(pieces, [b""]):
        position += len(piece)
        data += piece
        while data:
            if decoder is None:
                if streams:
                    data = data.lstrip(b"\0")  # zeros may follow a stream as padding
                if not data or (piece and len(data) < FIRST_BYTES):
                    break
                _check_beginning(data[:FIRST_BYTES], compression, name, position if streams else 0)
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


def _decode(decoder: Any, data: bytes, stream: str, name: str, position: int) -> Iterator[bytes]:
    """Decode ``data``, which ends at ``position`` of the file ``name``."""
    limit = (_MOST_AT_ONCE,) if hasattr(decoder, "needs_input") else ()
    while True:
        try:
            content = decoder.decompress(data, *limit)
        except (zlib.error, zstandard.ZstdError, lzma.LZMAError, OSError) as error:
            reason = str(error).rpartition(": ")[2]
            raise BadSource(
                f"{name}: its {stream} cannot be decompressed near its byte {position}: {reason}",
                hint="fetch or write it again; if it is whole, compress it with the default options",
            ) from error
        yield content
        if not limit or decoder.eof or decoder.needs_input:
            return
        data = b""


def _check_beginning(first: bytes, compression: str, name: str, position: int) -> None:
    """Raise BadSource if no stream of this compression begins with ``first``. ``position`` is 0 for the first stream of
    the file."""
    kind, magic = recognize(first), MAGIC[compression]
    if (kind is not None and kind.name == compression) or first.startswith(magic[: len(first)]):
        return
    looks_like = f": it looks like {kind.name}" if kind else ""
    if position:
        raise BadSource(
            f"{name} continues after its {compression} stream, near its byte {position}{looks_like}",
            hint="only another such stream, or zeros, may follow: fetch or write it again",
        )
    again = "fetch or write it again; or, if it is not compressed, rename it or set source.compression: none"
    raise BadSource(f"{name} is not {compression}{looks_like}", hint=kind.hint if kind else again)


# Patterns of paths, and the files that they match.


MAX_FILES: Final = 10_000
"""The most files that one url may match: more suggest a mistake in the pattern."""
Format = Literal["csv", "json", "jsonl", "parquet", "avro"]

WILDCARD: Final = re.compile(r"[*?\[]")
"""The characters that make a path a pattern."""
_CLASS: Final = re.compile(r"\[([!^]?)(\]?[^]]*)\]")
TABLE_FOLDERS: Final = {"_delta_log": "a Delta table", ".hoodie": "a Hudi table"}
"""Folder that only a table has → the kind of table."""
ICEBERG_FOLDER: Final = "metadata"
"""The folder of an Iceberg table whose files end in one of ``ICEBERG_ENDINGS``."""
ICEBERG_ENDINGS: Final = (".metadata.json", ".metadata.json.gz")
ICEBERG_TABLE: Final = "an Iceberg table"
FOLDER_HINT: Final = "match its files with a wildcard: folder/*.csv"


class RemoteFile(Protocol):
    """A file that is not on this machine."""

    def open(self, description: SourceFile) -> Iterator[bytes]:
        """Return its bytes in chunks. Raises BadSource, also if it no longer matches ``description``."""


@dataclass(frozen=True, slots=True)
class LocatedFile:
    """A file or object, and where to read it."""

    description: SourceFile
    place: Path | RemoteFile
    coding: Compression = "none"
    """The Content-Encoding in which a web server sends it."""


def is_hidden(name: str, *, is_file: bool = False) -> bool:
    """Return whether a file or folder of this name holds no data, by the rule of Spark and Hadoop. A partition's folder
    may begin with an underscore: ``_col=1``."""
    is_partition = "=" in name and not is_file
    return (name.startswith("_") and not is_partition) or name.startswith(".") or name.endswith("._COPYING_")


@dataclass(frozen=True, slots=True)
class PatternFolder:
    """A folder on the way to the files that a pattern matches."""

    path: str
    """Its path with the final slash; empty for the folder of relative paths."""
    places: frozenset[int]
    """The segments of the pattern that may match the names in this folder."""
    matched: str | None
    """The outermost folder around these names that the whole pattern matches."""


class PathMatches:
    """The files that a pattern matches in a store's listings, which arrive folder by folder.

    ``*``, ``?`` and ``[…]`` match within one name. A segment that is ``**`` matches any number of folders; as the last
    one it means ``**/*``. No wildcard matches a hidden name, unless that segment of the pattern begins with the same
    character.
    """

    def __init__(self, label: str, pattern: str) -> None:
        """Messages call the pattern ``label``."""
        self._label = label
        segments = pattern.split("/")
        if segments[-1] == "**":
            segments.append("*")
        fixed = next(number for number, segment in enumerate(segments) if WILDCARD.search(segment))
        self._segments = [(segment, _compile_segment(segment)) for segment in segments[fixed:]]
        self.root = PatternFolder(
            "".join(f"{segment}/" for segment in segments[:fixed]), self._skip_no_folders({0}), None
        )
        """The folder that holds all files that can match."""
        self._paths: list[str] = []
        self._left_out: str | None = None
        """A hidden name that would otherwise match."""

    def _skip_no_folders(self, places: set[int]) -> frozenset[int]:
        """Return ``places``, and those after each ``**``, which may match no folder."""
        for first in sorted(places):
            place = first
            while place < len(self._segments) and self._segments[place][0] == "**":
                place += 1
                places.add(place)
        return frozenset(places)

    def _match_name(self, folder: PatternFolder, name: str, *, is_file: bool = False) -> frozenset[int]:
        """Return the places of the pattern after ``name`` in ``folder``."""
        hidden, places = is_hidden(name, is_file=is_file), set()
        for place in folder.places:
            if place == len(self._segments):
                continue
            segment, matches = self._segments[place]
            if not matches(name):
                continue
            if hidden and not is_hidden(segment):
                self._left_out = self._left_out or folder.path + name
            else:
                places.add(place if segment == "**" else place + 1)
        return self._skip_no_folders(places)

    def crosses_folders(self, folder: PatternFolder) -> bool:
        """Return whether everything below ``folder`` may matter: ``**`` comes next, or the pattern matches the
        folder."""
        return folder.matched is not None or any(
            place < len(self._segments) and self._segments[place][0] == "**" for place in folder.places
        )

    def enter(self, folder: PatternFolder, name: str) -> PatternFolder | None:
        """Return the folder ``name`` in ``folder``; None if nothing in it can match."""
        path, places = f"{folder.path}{name}/", self._match_name(folder, name)
        matched = None if is_hidden(name) else folder.matched
        if len(self._segments) in places:
            matched = matched or path
        return PatternFolder(path, places, matched) if places or matched else None

    def add(self, folder: PatternFolder, name: str, is_file: Callable[[], bool] = lambda: True) -> bool:
        """Return whether the pattern matches the file ``name`` in ``folder``. ``is_file`` confirms that it is a file.

        Raises BadSource for too many files, and for a file that does not match although a folder above it does.
        """
        if len(self._segments) not in self._match_name(folder, name, is_file=True):
            if folder.matched is not None and not is_hidden(name, is_file=True) and is_file():
                raise BadSource(
                    f"{self._label} matches the folder {folder.matched}, but not the file {folder.path}{name} in it",
                    hint=f"to read such files, list {folder.matched}* in source.urls, or let the pattern cross folders "
                    "(**/); to leave the folder out, narrow the pattern",
                )
            return False
        if not is_file():
            return False
        if len(self._paths) == MAX_FILES:
            raise BadSource(f"{self._label} matches more than {MAX_FILES} files", hint="narrow the pattern")
        self._paths.append(folder.path + name)
        return True

    def finish(self) -> list[str]:
        """Return the paths of all matches, sorted. Raises BadSource if there are none."""
        if not self._paths:
            hint = "`*` does not match `/`; `**/` matches folders"
            if self._left_out is not None:
                hint = (
                    f"names that begin with `_` or `.` are not data, so {self._left_out} was left out: "
                    "to read such files, begin that part of the pattern with the same character"
                )
            raise SourceUnreadable(f"{self._label} matches no file", hint=hint)
        return sorted(self._paths)


def _compile_segment(segment: str) -> Callable[[str], object]:
    if segment == "**":
        return lambda _: True
    expression = _CLASS.sub(lambda found: f"[{'!' if found[1] else ''}{found[2]}]", segment)
    matches = re.compile(fnmatch.translate(expression)).match
    return lambda name: name and matches(name)


MAX_CHECKSUM_BYTES: Final = 64 << 20
"""Local files get a checksum as their ETag if their total size is at most this, which takes a fraction of a second to
read."""
_RESCUED: Final = "lost+found/"
"""File systems have this folder, which only root may list and which holds no data."""


def find_path(label: str, path: str, base: Path | None) -> list[LocatedFile]:
    """Return the files at ``path``, which may be relative to ``base`` or a pattern; messages call it ``label``. Raises
    BadSource."""
    if not Path(path).is_absolute() and base is None:
        raise BadSource(
            f"{label} is a relative path, but no manifest's folder is known",
            hint="use https://, s3://, gs://, az:// or volume://; relative paths are for a laptop",
        )
    root = base or Path("/")
    return [_locate(root / match, match) for match in _match_files(label, path, root)]


def find_file(url: str, label: str) -> list[LocatedFile]:
    """Return the files that a file:// url names or matches. Raises BadSource."""
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise BadSource(f"{label}: a file:// url has no host", hint="write three slashes: file:///folder/file.csv")
    path = unquote(url.removeprefix("file://").removeprefix("localhost"))
    return [_locate(Path(match), Path(match).as_uri()) for match in _match_files(label, path, Path("/"))]


def find_in_volume(label: str, path: str, volume: Path | None) -> list[LocatedFile]:
    """Return the files that ``path`` names or matches within the mounted volume. Raises BadSource."""
    if volume is None:
        raise BadSource(f"{label}: no volume is mounted", hint="give its folder with --volume")
    root = volume.resolve()
    files = []
    for match in _match_files(label, path.lstrip("/"), root):
        if not (root / match).resolve().is_relative_to(root):
            raise BadSource(f"{label}: {match} leads out of the volume")
        files.append(_locate(root / match, f"volume://{match}"))
    return files


def find_example(url: str, label: str) -> list[LocatedFile]:
    """Return the example that lookupdb ships under this name. Raises BadSource."""
    name = url.removeprefix("example://")
    folder = resources.files("lookupdb").joinpath("data")
    names = sorted(entry.name for entry in folder.iterdir() if ".csv" in entry.name)
    if name not in names:
        raise BadSource(f"{label}: there is no such example", hint=f"lookupdb ships with {', '.join(names)}")
    with resources.as_file(folder.joinpath(name)) as path:
        content = path.read_bytes()
        etag = hashlib.sha256(content).hexdigest()
        return [LocatedFile(SourceFile(url, len(content), etag, None), path)]


def _match_files(label: str, path: str, root: Path) -> list[str]:
    """Return the paths of the files that ``path`` names or matches, relative to ``root`` if ``path`` is. A file whose
    name looks like a pattern is matched literally."""
    literal = root / path
    if literal.is_file() or not WILDCARD.search(path):
        if literal.is_dir():
            raise BadSource(f"{label} is a folder, expected a file", hint=FOLDER_HINT)
        return [path]
    matches = PathMatches(label, path)
    _walk_folder(root, matches, matches.root, ())
    return matches.finish()


def _walk_folder(root: Path, matches: PathMatches, folder: PatternFolder, parents: tuple[tuple[int, int], ...]) -> None:
    """Find the files in ``folder``. Follows links, except to one of the ``parents``, named by device and inode."""
    try:
        status = (root / folder.path).stat()
        identity = (status.st_dev, status.st_ino)
        if identity in parents:
            return
        with os.scandir(root / folder.path) as found:
            entries = list(found)
    except (FileNotFoundError, NotADirectoryError):
        return
    except PermissionError as error:
        if folder.path.endswith(_RESCUED):
            return
        raise SourceUnreadable(f"the folder {folder.path} cannot be listed: {error.strerror}") from error
    for entry in entries:
        if not entry.is_dir():
            matches.add(folder, entry.name)
        elif (inner := matches.enter(folder, entry.name)) is not None:
            _walk_folder(root, matches, inner, (*parents, identity))


def find_table(path: Path, tables: dict[Path, str | None]) -> str | None:
    """Return the table that the file at ``path`` belongs to, "a Delta table at …"; None if there is none. ``tables``
    caches the result for each folder."""
    folders = dict.fromkeys(path.resolve().parents)
    if ".." not in path.parts:
        folders.update(dict.fromkeys(path.parents))  # the table's files may be links
    for folder in folders:
        if folder not in tables:
            tables[folder] = _recognize_table(folder)
        if (kind := tables[folder]) is not None:
            return f"{kind} at {folder}"
    return None


def _recognize_table(folder: Path) -> str | None:
    for name, kind in TABLE_FOLDERS.items():
        if (folder / name).is_dir():
            return kind
    try:
        is_iceberg = any(entry.name.endswith(ICEBERG_ENDINGS) for entry in (folder / ICEBERG_FOLDER).iterdir())
    except OSError:
        return None
    return ICEBERG_TABLE if is_iceberg else None


def _locate(path: Path, url: str) -> LocatedFile:
    label = strip_secrets(url)
    check_path(path, BadSource)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for its writer
            raise BadSource(
                f"{label} is not a regular file",
                hint="write its content to a file first: a source is read more than once",
            )
        with path.open("rb"):
            pass
    except FileNotFoundError as error:
        where = f" ({path})" if label == url else ""
        raise SourceMissing(f"{label}: there is no such file{where}", hint="check the name and the folder") from error
    except OSError as error:
        raise SourceUnreadable(f"{label} cannot be read: {error.strerror}") from error
    return LocatedFile(describe_local_file(url, status), path)


def add_checksums(files: list[LocatedFile]) -> list[LocatedFile]:
    """Return the files. Local files get a checksum as ETag, unless their total size is large. With it, a remounted
    ConfigMap or a file rewritten with the same content does not count as a change. Raises BadSource."""
    local = [file for file in files if isinstance(file.place, Path) and file.description.etag is None]
    if sum(file.description.bytes for file in local) > MAX_CHECKSUM_BYTES:
        return files
    found = []
    for file in files:
        if not isinstance(file.place, Path) or file.description.etag is not None:  # an example has its checksum
            found.append(file)
            continue
        try:
            with file.place.open("rb") as content:
                checksum = hashlib.file_digest(content, "sha256").hexdigest()
        except OSError as error:
            raise SourceUnreadable(f"{file.description.url} cannot be read: {error.strerror}") from error
        found.append(replace(file, description=replace(file.description, etag=checksum)))
    return found


def describe_local_file(url: str, status: os.stat_result) -> SourceFile:
    """Describe a local file as it is now. Its time is kept to the nanosecond, so that another write shows."""
    seconds, nanoseconds = divmod(status.st_mtime_ns, 1_000_000_000)
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return SourceFile(url, status.st_size, None, f"{moment:%Y-%m-%dT%H:%M:%S}.{nanoseconds:09d}Z")


# A fetched file of the source, for parsers, and its slices.


@dataclass(frozen=True, slots=True)
class LocalFile:
    """One file of the source, plain and uncompressed."""

    description: SourceFile
    """The identified object that it is a copy of."""
    format: Format
    delimiter: str
    path: Path
    bytes: int
    """Size of the plain file."""
    in_place: bool
    """True if it is the user's own file, which may change while we read."""
    table: TableFile | None = None
    """How to read the file as a part of a table, if it is one."""

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self.description.url

    def check_unchanged(self) -> None:
        """Raise BadSource if it is the user's own file and has changed since the build began."""
        if self.in_place:
            check_unchanged(self.description, self.path)


@contextmanager
def tell_changes(check: Callable[[], object]) -> Iterator[None]:
    """If the block fails and ``check`` finds a changed file, raise the error of ``check`` instead. The data may be
    half of each version."""
    try:
        yield
    except BadSource as error:
        if not error.may_pass:
            check()
        raise


def check_unchanged(description: SourceFile, path: Path) -> None:
    """Raise BadSource if the file at ``path`` no longer matches its description."""
    try:
        now = describe_local_file(description.url, path.stat())
    except OSError as error:
        kind = SourceMissing if isinstance(error, FileNotFoundError) else SourceUnreadable
        raise kind(f"{description.url} went away while it was read: {error.strerror}") from error
    if description.modified is not None and replace(now, etag=description.etag) != description:
        raise SourceUnreadable(f"{description.url} changed while it was read", hint="build again once it is complete")


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of one file: whole rows, if the cuts are right."""

    file: int
    """The file's number in the source."""
    start: int = 0
    """Offset of its first byte."""
    end: int | None = None
    """Offset of its end; None for the end of the file."""
    rows_before: int = 0
    """The file's rows and lines before it, for messages; 0 while unknown."""
    lines_before: int = 0
    extends_to_row_end: bool = False
    """True if the reader reads the last row to its end, even beyond the slice's end."""


class SliceFile(io.RawIOBase):
    """The bytes of a slice, as a file."""

    def __init__(self, path: Path, piece: Slice) -> None:
        self._file = FileIO(path)
        self._file.seek(piece.start)
        self._length = None if piece.end is None else piece.end - piece.start
        self._read = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into ``buffer``, as any raw file does."""
        with memoryview(buffer) as view:
            size = self._file.readinto(view if self._length is None else view[: self._length - self._read])
        self._read += size
        return size

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, at most ``size``, -1 for all, without the base class's second copy."""
        if size < 0:
            return super().read(size)
        data = self._file.read(size if self._length is None else min(size, self._length - self._read))
        self._read += len(data)
        return data

    def tell(self) -> int:
        """Return the number of the slice's bytes that were read."""
        return self._read

    def close(self) -> None:
        """Close the file. May be called twice."""
        self._file.close()
        super().close()
