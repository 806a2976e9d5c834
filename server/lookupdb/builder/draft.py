"""`lookupdb init`: a manifest for a source, guessed from its first rows, with a reason for each guess."""

from __future__ import annotations

import codecs
import csv
import glob
import io
import os
import re
import shlex
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, islice
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

from lookupdb.builder.explain import FirstColumn, FirstRows, read_first_rows, write_column, write_yaml
from lookupdb.builder.files import (
    ENDINGS,
    FIRST_BYTES,
    ICEBERG_ENDINGS,
    ICEBERG_FOLDER,
    LocatedFile,
    check_kind,
    recognize,
    wrong_kind_error,
)
from lookupdb.builder.json_rows import find_wrapped_array, split_objects
from lookupdb.builder.listing import FORMATS, SourceObject, find_files, open_source, read_beginning, split_suffixes
from lookupdb.builder.options import MIB, BuildBudget, format_quantity
from lookupdb.builder.rows import read_partitions, unknown_column_error
from lookupdb.dataset.schema import api_version
from lookupdb.dataset.spec import DatasetSpec, Key, parse_resource
from lookupdb.errors import BadSource, UsageError
from lookupdb.wording import escape_controls, format_count, format_some, join_clauses, strip_secrets

Json = dict[str, Any]
Notes = dict[str, str]
"""The name of each guess → the guess and its reason."""
T = TypeVar("T", LocatedFile, SourceObject)

# The sources on the command line, as source.url or source.urls.


def name_source(sources: Sequence[str], base: Path, table_format: str | None) -> Json:
    """Return spec.source for the files, folders, patterns or urls ``sources``. Paths become relative to ``base``, the
    manifest's folder. Raises UsageError, BadSource."""
    if any(source.startswith("volume://") for source in sources):
        raise UsageError(
            "volume:// is a path in a volume that only a manifest names",
            hint="give one of its files on this machine, and set source.url and source.volume afterwards",
        )
    named = [{"url": source} if "://" in source else _name_path(Path(source).expanduser(), base) for source in sources]
    if len(named) > 1 and any("format" in source for source in named):
        raise UsageError("a table cannot be combined with other sources", hint="give one table, or files")
    source = named[0] if len(named) == 1 else {"urls": [source["url"] for source in named]}
    return source if table_format is None else {**source, "format": table_format}


def _name_path(path: Path, base: Path) -> Json:
    if not path.is_dir():
        return {"url": os.path.relpath(path, base)}
    folder = os.path.relpath(path, base)
    if (path / "_delta_log").is_dir():
        return {"url": folder, "format": "delta"}
    metadata = [file for file in path.glob(f"{ICEBERG_FOLDER}/*") if file.name.endswith(ICEBERG_ENDINGS)]
    if metadata:
        newest = max(metadata, key=lambda file: file.stat().st_mtime)
        return {"url": os.path.relpath(newest, base), "format": "iceberg"}
    return {"url": f"{glob.escape(folder)}/{_find_pattern(path)}"}


def _find_pattern(folder: Path) -> str:
    """Return the pattern of the files in ``folder`` that can be read. Raises BadSource for files of several kinds."""
    found: dict[str, bool] = {}
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name[0] not in "._"]
        for name in files:
            suffix, compression = split_suffixes(name)
            if suffix in FORMATS and name[0] not in "._":
                ending = name[len(name) - len(suffix + ENDINGS.get(compression, "")) :]
                found[ending] = found.get(ending, False) or Path(root) != folder
    if len(found) != 1:
        names = format_some([f"*{ending}" for ending in sorted(found)], 5)
        endings = ", ".join(FORMATS)
        raise BadSource(
            f"{folder} is a folder with "
            + (f"files of several kinds: {names}" if names else f"no file whose name ends in {endings}"),
            hint="give the files of the source, or a pattern in quotes, such as 'folder/*.csv'",
        )
    ((ending, is_nested),) = found.items()
    return f"**/*{ending}" if is_nested else f"*{ending}"


# Guess the format of a file, and the dialect of CSV, from its first bytes.


_LOOK_BYTES: Final = 256 << 10
_LOOK_ROWS: Final = 1000
_EVEN_PART: Final = 0.9
"""Share of rows that must have as many fields as the first one, if the delimiter is right."""
_NULLS: Final = ("\\N", "NULL")
_DELIMITERS: Final = ",;\t|\x01"
_DATA: Final = re.compile(
    r"(?P<year>(?:18|19|20)[0-9]{2})"
    r"|(?P<number>[-+]?[0-9][0-9.,]*(?:[eE][-+]?[0-9]+)?)"
    r"|(?P<date>[0-9]{1,4}[-/.][0-9]{1,2}[-/.][0-9]{1,4}(?:[T ].*)?)"
    r"|(?P<other>[^@\s]+@[^@\s]+\.[^@\s]+|https?://.*|[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F-]+|true|false)",
    re.IGNORECASE,
)
"""Fields that are data. A year or a date above data of another kind may also be a column's name."""


def _guess_files(source: Json, base: Path, notes: Notes) -> Key:
    """Add to ``source`` what cannot be seen from the names of its files. Return a provisional key, enough to read the
    source's rows. Raises BadSource."""
    urls = source.get("urls") or [source["url"]]
    file = _choose_file(find_files(urls[0], base=base, volume=None))
    name = file.description.url
    suffix, compression = split_suffixes(name)
    if compression == "none":
        compression = file.coding
    if compression == "none" and (kind := recognize(read_beginning(file, "none"))) and kind.name in ENDINGS:
        source["compression"] = compression = kind.name
        notes["compression"] = f"{compression}, by the first bytes of {name}"
    look = read_beginning(file, compression, _LOOK_BYTES)
    named, found = source.get("format") or FORMATS.get(suffix), _guess_format(look, name)
    if named is None or (named, found) == ("json", "jsonl"):
        source["format"] = named = found
        notes["format"] = f"{found}, by the first bytes of {name}"
    check_kind(look[:FIRST_BYTES], name, named, compression)
    if named == "csv":
        return _guess_dialect(source, look, name, "\t" if suffix == ".tsv" else ",", notes)
    text = look.removeprefix(codecs.BOM_UTF8).lstrip()
    is_object = named == "json" and text.startswith(b"{")
    if is_object:
        notes["key"] = "the names of the object's members"
        if wrapped := find_wrapped_array(text.decode(errors="ignore"), 0):
            notes["key"] += f". If the member {wrapped!r} holds the records, make a file of that array alone"
    return Key((), ":", (), member_names=is_object)


def _choose_file(files: Sequence[T]) -> T:
    """Return the first file that is not empty."""
    return next((file for file in files if file.description.bytes), files[0])


def _guess_format(look: bytes, name: str) -> str:
    """Return the format of a file that begins with ``look``. Raises BadSource for an unsupported format."""
    kind = recognize(look)
    if kind is not None:
        if kind.name in ("Parquet", "Avro"):
            return kind.name.lower()
        raise wrong_kind_error(kind, name, "text in UTF-8")
    text = look.removeprefix(codecs.BOM_UTF8).lstrip()
    if text.startswith(b"{"):
        return "jsonl" if len(split_objects(text)[0]) > 1 else "json"
    return "json" if text.startswith(b"[") else "csv"


def _guess_dialect(source: Json, look: bytes, name: str, delimiter: str, notes: Notes) -> Key:
    """Add the delimiter to ``source``, and whether there is a header. Return the first column as a key. Raises
    BadSource for a file that is empty or not UTF-8."""
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(look)
    except UnicodeDecodeError as error:
        raise BadSource(
            f"{name} is not UTF-8: byte {error.start + 1} does not fit",
            hint="write it in UTF-8, as `iconv -f WINDOWS-1252 -t UTF-8 FILE > NEW` does for most files from Windows",
        ) from error
    if not text.strip():
        raise BadSource(f"{name} is empty", hint="give a file with a header, preferably with rows too")
    tables = {mark: _split_rows(text, mark, is_cut=len(look) == _LOOK_BYTES) for mark in (delimiter, *_DELIMITERS)}
    best = max(tables, key=lambda mark: _count_fields(tables[mark]))
    names = tables[best][0] if tables[best] else [""]  # then reading the file says why
    rows = [row for row in tables[best] if len(row) == len(names)]
    csv_fields: Json = {}
    if best != delimiter:
        csv_fields["delimiter"] = best
        notes["delimiter"] = f"{best!r}: it divides the first {len(rows)} rows into {len(names)} fields each"
    if nulls := [mark for mark in _NULLS if any(mark in row for row in rows)]:
        csv_fields["nullValues"] = nulls
        notes["nullValues"] = f"{' and '.join(nulls)} without quotes mean null"
    is_data = _looks_like_data(rows)
    if is_data:
        names = [f"column{number}" for number in range(1, len(names) + 1)]
        csv_fields |= {"header": False, "columns": [{"name": name} for name in names]}
        notes["header"] = "none: the first row looks like those below it. Give the columns better names in the manifest"
    elif is_data is None:
        notes["header"] = (
            f"the first row, {format_some(names, 3)}: its years and dates may be names. If it is data, write"
            " csv.header: false, and name the columns in csv.columns"
        )
    if csv_fields:
        source["csv"] = csv_fields
    return Key((names[0],), ":", ())


def _split_rows(text: str, delimiter: str, *, is_cut: bool) -> list[list[str]]:
    """Return the first rows, without blank lines."""
    rows: list[list[str]] = []
    with suppress(csv.Error):
        for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True):
            rows += [row] if row else []
            if len(rows) > _LOOK_ROWS:
                break
    return rows[: max(1, len(rows) - is_cut)]


def _count_fields(rows: Sequence[Sequence[str]]) -> int:
    """Return the number of fields of nearly all ``rows``; 0 if rows differ, or have only one field."""
    width = len(rows[0]) if rows else 0
    is_even = sum(len(row) == width for row in rows) >= _EVEN_PART * len(rows)
    return width if is_even and width > 1 else 0


def _looks_like_data(rows: Sequence[Sequence[str]]) -> bool | None:
    """Return whether the first row is data; None if it may be, because its only names are years and dates.

    Only columns with nothing but data below the first row decide. There, a first field of the same kind is data, and
    text is a name. A year or a date above data of another kind may be either.
    """
    same: set[str | None] = set()
    others: set[str | None] = set()
    for first, *fields in zip(*rows, strict=True):
        kinds = {_find_kind(field) for field in fields if field not in ("", *_NULLS)}
        if kinds and None not in kinds:
            kind = _find_kind(first)
            (same if first in _NULLS or kind in kinds else others).add(kind)
    if others - {"year", "date"}:
        return False
    if same - {"year", "date"} or not others:
        return bool(same)
    return None


def _find_kind(field: str) -> str | None:
    """Return the kind of data in ``field``; None for text."""
    match = _DATA.fullmatch(field.strip())
    return match.lastgroup if match else None


# The key, and the columns of CSV that look typed.


_OWN_ID: Final = "<the dataset's name>_id"
_ANY_ID: Final = "<another name>_id"
_NAMES: Final = ("id", _OWN_ID, "key", "uuid", "guid", "code", "iata", "sku", "isbn", "ean", _ANY_ID, "email", "name")
_ID_ENDINGS: Final = ("_id", "Id", "ID")
_KEY_ENDINGS: Final = ("_key", "Key", "_code", "Code", "email", "Email")
_DIGITS_AS_TEXT: Final = re.compile(
    r"(?i:(?:^|[_ .-])(?:id|code|plz|fax|tel|mobile|isbn|ean|sku)$|zip|phone|postal|postcode|version)|(?:Id|ID|Code)$",
    re.ASCII,
)
"""Names of columns whose digits are not numbers: some may begin or end with a zero, as version 1.10 does."""
_SHOWN_BETTER: Final = 3
"""The most columns to list that are not the key in spite of their names."""
_MAX_COLUMNS: Final = 1024
_MAX_COLUMN_NAME: Final = 256
"""The limits of source.csv.columns."""


def _rank(column: FirstColumn, dataset: str) -> int:
    """Return the rank of a column by its name: the lower, the more likely it is the key of ``dataset``."""
    spelled = re.sub("[ .-]", "_", column.name)
    name = spelled.lower()
    if name != "id" and spelled.endswith(_ID_ENDINGS):
        name = _OWN_ID if dataset.startswith(name[:-2].rstrip("_").replace("_", "-")) else _ANY_ID
    if name in _NAMES:
        return _NAMES.index(name)
    return len(_NAMES) + (not spelled.endswith(_KEY_ENDINGS))


def _guess_key(found: FirstRows, dataset: str, notes: Notes) -> list[str]:
    """Return the columns of the key. Raises BadSource if no column can be one."""
    rank = partial(_rank, dataset=dataset)
    kinds = {name: column.guess_type(is_csv=found.is_csv) for name, column in found.columns.items()}
    usable = [found.columns[name] for name, kind in kinds.items() if kind in ("text", "integer", "integer or text")]
    usable = usable or (list(found.columns.values()) if found.is_csv or not found.rows else [])
    usable = sorted((column for column in usable if column.name), key=rank)
    if not usable:
        raise BadSource(
            f"{found.file}: no column is text or an integer, as a key must be",
            hint="name the columns of the key with --key; a dot reaches into objects, as in user.id",
        )
    best, where = usable[0], found.describe_rows()
    why = "by its name" if rank(best) <= len(_NAMES) else "the first that can be a key"
    if not found.rows:
        notes["key"] = f"{best.name}, {why}: the file has no rows"
        return [best.name]
    unique = [column for column in usable if column.is_unique]
    if unique:
        others = format_some([column.name for column in unique[1:]], 5)
        why = " and named like a key" if others and rank(unique[0]) < rank(unique[1]) else ""
        further = f"; other unique columns: {others}" if others else ""
        notes["key"] = f"{unique[0].name}: unique in {where}{why}{further}{_describe_better(usable, unique[:1], rank)}"
        return [unique[0].name]
    full = [column for column in usable if not column.has_empty]
    for pair in combinations(full[:10], 2):
        if len(set(zip(*(column.values for column in pair), strict=True))) == found.rows:
            names = [column.name for column in pair]
            notes["key"] = f"{' and '.join(names)}: together they are unique in {where}, and no column alone is"
            notes["key"] += _describe_better(usable, pair, rank)
            return names
    notes["key"] = f"{best.name}, {why}, but no column is unique: {_describe_repeats([best], found)}"
    return [best.name]


def _note_objects(found: FirstRows, notes: Notes) -> None:
    """Note the first column that holds objects."""
    for column in () if found.is_csv else found.columns.values():
        if member := re.match(r'\{"([^"\\]+)":', column.sample):
            path = shlex.quote(f"{column.name}.{member[1]}")
            notes["objects"] = f"{column.name} holds objects: a dot reaches into them, as in --key {path}"
            return


def _describe_better(
    usable: Sequence[FirstColumn], key: Sequence[FirstColumn], rank: Callable[[FirstColumn], int]
) -> str:
    """Return why columns are not the key although their names are more like a key's than those of ``key``, a line
    each."""
    better = [column for column in usable if rank(column) < min(map(rank, key))]
    if not better:
        return ""
    lines = [f"{column.name} is no key: {_explain_repeats(column)}." for column in better[:_SHOWN_BETTER]]
    name = better[0].name
    advice = f"To look up by {name}, correct these rows and run init again, or give --key {shlex.quote(name)}."
    return "\n".join((".", *lines, advice))


def _explain_repeats(column: FirstColumn) -> str:
    """Return why ``column`` is not unique, with the first rows that show it."""
    empty, repeats = [], []
    rows: dict[int, int] = {}
    for row, value in enumerate(column.values, 1):
        if value is None:
            empty.append(row)
        elif (first := rows.setdefault(value, row)) != row:
            repeats.append((first, row))
    clauses = []
    if empty:
        clauses.append(f"it is empty in row {empty[0]}" + _count_all(empty))
    if repeats:
        first, row = repeats[0]
        clauses.append(f"rows {first} and {row} have the same {column.name}" + _count_all(repeats))
    return join_clauses(*clauses)


def _count_all(found: Sequence[object]) -> str:
    return f" (the first of {len(found):,})" if len(found) > 1 else ""


def _describe_repeats(columns: Sequence[FirstColumn], found: FirstRows) -> str:
    keys = list(zip(*(column.values for column in columns), strict=True))
    whole = [key for key in keys if None not in key]
    counts = {"repeat an earlier key": len(whole) - len(set(whole)), "have no key": len(keys) - len(whole)}
    listed = "; ".join(f"rows that {what}: {count:,} of {found.rows:,}" for what, count in counts.items() if count)
    return f"{listed}; the build will fail: choose columns with --key, or set duplicates or gates.maxRejectedRows"


def _check_key(key: Sequence[str], found: FirstRows, notes: Notes) -> list[str]:
    """Return ``key``, which the user has named. Raises BadSource for a column that is missing."""
    names = list(found.columns)
    for name in key:
        if name not in names and name.partition(".")[0] not in names:
            if "," in name:
                again = " ".join(f"--key {shlex.quote(part.strip())}" for part in name.split(","))
                raise BadSource(f"{found.file}: there is no column {name!r}", hint=f"repeat --key for each: {again}")
            raise unknown_column_error(found.file, "--key", name, names)
    columns = [found.columns[name] for name in key if name in names]
    keys = set(zip(*(column.values for column in columns), strict=True))
    is_unique = len(columns) < len(key) or (len(keys) == found.rows and not any(column.has_empty for column in columns))
    notes["key"] = f"{', '.join(key)}, as --key says" + (
        "" if is_unique else f", but {_describe_repeats(columns, found)}"
    )
    return list(key)


def _guess_types(found: FirstRows, key: Sequence[str], notes: Notes) -> dict[str, str]:
    """Return the types of the columns of CSV that are not text."""
    looks = {name: kind for name, kind in found.list_typed(key).items() if 0 < len(name) <= _MAX_COLUMN_NAME}
    digits = [name for name, kind in looks.items() if kind in ("integer", "number") and _DIGITS_AS_TEXT.search(name)]
    types = dict(islice(((name, kind) for name, kind in looks.items() if name not in digits), _MAX_COLUMNS))
    if types:
        listed = format_some([f"{name} {kind}" for name, kind in types.items()], 20)
        notes["types"] = f"{listed}: as in {found.describe_rows()}; all others are text"
    if digits:
        says = "stays text: its name says" if len(digits) == 1 else "stay text: their names say"
        notes["text"] = f"{format_some(digits, 20)} {says} that the digits are not a number"
    return types


# The manifest, with the reason for each guess as a comment.


@dataclass(frozen=True, slots=True)
class Draft:
    """A manifest for a source."""

    name: str
    """The dataset's name."""
    text: str
    found: FirstRows
    notes: Notes


def draft_manifest(
    sources: Sequence[str],
    base: Path,
    scratch: Path,
    *,
    name: str | None,
    key: Sequence[str],
    source_format: str | None,
) -> Draft:
    """Draft a manifest in the folder ``base`` for ``sources``: files, folders, patterns or urls. Reads a bounded part
    of one file. Raises UsageError, BadSource and InvalidManifest."""
    notes: Notes = {}
    source = name_source(sources, base, source_format)
    name = name or guess_name(sources[0])
    is_table = source.get("format") in ("iceberg", "delta")
    readable = Key((), ":", ()) if is_table else _guess_files(source, base, notes)
    spec = _make_spec(name, source, base)
    found, files, total, is_compressed = _look(replace(spec, key=readable), scratch)
    if found.error is not None and found.is_csv:
        csv_fields = {**source.get("csv", {}), "escape": "\\"}
        escaped = _make_spec(name, {**source, "csv": csv_fields}, base)
        again, *_ = _look(replace(escaped, key=readable), scratch)
        if again.error is None:
            found, source["csv"] = again, csv_fields
            notes["escape"] = "a backslash: rows cannot be read without it"
    found = replace(found, is_all=found.is_all and files == 1)
    if found.error is not None:
        raise found.error
    chosen: list[str] = []
    if key or not readable.member_names:
        chosen = _check_key(key, found, notes) if key else _guess_key(found, name, notes)
    if not key and chosen and _rank(found.columns[chosen[0]], name) > len(_NAMES):  # its name is not like a key's
        _note_objects(found, notes)
    partitions = list(read_partitions(found.file))
    if partitions and not is_table:
        notes["folders"] = f"their names hold {format_some(partitions, 5)}: only read if key or value.columns has them"
    types = _guess_types(found, chosen, notes)
    shards = min(1024, 1 + total // (1 << 30))
    size = f"about {format_quantity(total, 'bytes')} uncompressed" if is_compressed else format_quantity(total, "bytes")
    notes["shards"] = f"{shards}: one for each GiB; the source has {format_count(files, 'file')}, {size} in all"
    csv_fields = source.setdefault("csv", {})
    names = [column["name"] for column in csv_fields.pop("columns", [])] or list(types)
    if columns := [write_column(column, types.get(column, "text")) for column in names]:
        csv_fields["columns"] = columns
    if not csv_fields:
        del source["csv"]
    draft = Draft(name, "", found, notes)
    draft = replace(draft, text="\n".join([*_write_lines(draft, source, chosen, shards), ""]))
    parse_resource(yaml.safe_load(draft.text), base)
    return draft


def guess_name(source: str) -> str:
    """Return a name for the dataset, from the last part of ``source`` that is not a pattern."""
    parts = [part for part in re.split(r"[/?#]", strip_secrets(source)) if part and not set(part) & set("*[]")]
    stem = re.sub(r"[^a-z0-9]+", "-", parts[-1].partition(".")[0].lower()) if parts else ""
    return stem.lstrip("-0123456789")[:40].strip("-") or "dataset"


def _make_spec(name: str, source: Json, base: Path) -> DatasetSpec:
    """Raises InvalidManifest."""
    resource = {
        "apiVersion": api_version(),
        "kind": "LookupDataset",
        "metadata": {"name": name},
        "spec": {"source": source, "key": {"columns": ["?"]}},
    }
    return parse_resource(resource, base)


def _look(spec: DatasetSpec, scratch: Path) -> tuple[FirstRows, int, int, bool]:
    """Return the first rows of the source, its number of files, their bytes uncompressed, and whether these are an
    estimate, because a file is compressed."""
    objects = open_source(spec, volume=None).list_files()
    if not objects:
        raise BadSource("the table has no files yet, so there are no columns to look at")
    budget = BuildBudget.for_build(1024 * MIB, shards=1)
    total = sum(item.description.bytes * (1 if item.compression == "none" else 4) for item in objects)
    is_compressed = any(item.compression != "none" for item in objects)
    return read_first_rows(spec, _choose_file(objects), budget, scratch), len(objects), total, is_compressed


def _write_lines(draft: Draft, source: Json, key: Sequence[str], shards: int) -> Iterator[str]:
    notes = draft.notes
    yield "# Written by `lookupdb init` after a look at the first rows of the source. Change guesses that are wrong."
    yield "# `lookupdb build -f FILE --explain` shows what a build would do, `lookupdb validate FILE` checks this file."
    yield f"apiVersion: {api_version()}"
    yield "kind: LookupDataset"
    yield "metadata:"
    yield f"  name: {write_yaml(draft.name)}"
    yield "spec:"
    yield "  source:"
    if "://" not in str(source.get("url") or source["urls"][0]):
        yield "    # Relative to this file. A cluster needs https://, s3://, gs://, az:// or volume://."
    for field in ("url", "urls", "format", "compression"):
        if field in source:
            yield from _comment(notes.get(field), 4)
            yield f"    {field}: {write_yaml(source[field])}"
    if "header" not in source.get("csv", {}):
        yield from _comment(notes.get("header"), 4)
    if (csv_fields := source.get("csv")) is not None:
        yield "    csv:"
        for field in ("delimiter", "escape", "nullValues", "header"):
            if field in csv_fields:
                yield from _comment(notes.get(field), 6)
                yield f"      {field}: {write_yaml(csv_fields[field])}"
        if "columns" in csv_fields:
            yield from _comment(notes.get("types"), 6)
            yield from _comment(notes.get("text"), 6)
            yield "      columns:"
            yield from (f"        - {entry}" for entry in csv_fields["columns"])
    yield "  key:"
    yield from _comment(notes["key"], 4)
    yield from _comment(notes.get("folders"), 4)
    yield from _comment(notes.get("objects"), 4)
    if key:
        yield f"    columns: {write_yaml(list(key))}"
    else:
        yield "    memberNames: true"
    yield '    # To make " Ada@Example.com" and "ada@example.com" one key, in the source and in lookups:'
    yield "    # normalize: [strip, lowercase]"
    others = [name for name in draft.found.columns if name not in key]
    if others:
        yield "  # To return these columns alone:"
        yield f"  # value: {write_yaml({'columns': others[:2]})}"
    if key:
        yield "  # To keep the last of several rows with the same key, instead of failing the build:"
        yield "  # duplicates: last"
    yield from _comment(notes["shards"], 2)
    yield f"  shards: {shards}"


def _comment(text: str | None, indent: int) -> Iterator[str]:
    if text:
        first, other = " " * indent + "# Guess: ", " " * indent + "# "
        yield from textwrap.wrap(escape_controls(text), 110, initial_indent=first, subsequent_indent=other)
