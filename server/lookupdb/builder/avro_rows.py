"""Avro object container files, block by block; every value becomes the same JSON as in Parquet.

| Avro | JSON |
| --- | --- |
| int, long, boolean, string, enum, null | as they are |
| float, double | the shortest number that reads back the same; NaN and infinities reject the row |
| decimal | a number, digit for digit; one of more than 38 digits is a BadSource |
| date, time, timestamp (in UTC, ending in Z), local timestamp | text, ISO 8601 |
| uuid, duration | text |
| bytes, fixed | base64, or text if ``source.parquet.columns`` says so; a key is text |
| array, map, record | array, object, object |
| union | its value; a BadSource if values of two of the union's types look alike |

fastavro decodes records. The container is parsed here, so that a block cannot take more memory than a row may.
"""

from __future__ import annotations

import bz2
import json
import lzma
import math
import struct
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from functools import partial
from io import BufferedReader, BytesIO
from typing import Any, Final

import orjson
import zstandard

from lookupdb.builder.files import LocalFile, Slice, SliceFile
from lookupdb.builder.rows import (
    BINARY_CONVERTS,
    MAX_DIGITS,
    NOT_FINITE,
    Convert,
    DictRows,
    Form,
    RowRejected,
    UnusableRow,
    check_binaries,
    check_names_once,
    choose_columns,
    convert_members,
    find_form,
    make_forms,
    shorten_name,
    unwritable_column_error,
)
from lookupdb.dataset.spec import DatasetSpec
from lookupdb.errors import BadSource, NotEnoughRoom

# Values of Avro's logical types as text. fastavro would return Python types, which hold fewer years and digits.


_DAYS_BEFORE_1970: Final = date(1970, 1, 1).toordinal() - 1
_DAYS_OF_400_YEARS: Final = 146_097


def _write_date(days: int) -> str:
    """Return the date ``days`` days after 1970-01-01, in any year."""
    cycles, day = divmod(days + _DAYS_BEFORE_1970, _DAYS_OF_400_YEARS)
    moment = date.fromordinal(day + 1)
    year = moment.year + 400 * cycles
    return f"{'-' if year < 0 else ''}{abs(year):04}-{moment:%m-%d}"


def _write_time(ticks: int, digits: int) -> str:
    """Return the time of day at ``ticks``, of which a second has 10 ** ``digits``."""
    seconds, fraction = divmod(ticks, 10**digits)
    if not 0 <= seconds < 86_400:
        raise RowRejected("holds a time of day that is out of range")
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{text}.{fraction:0{digits}}".rstrip("0") if fraction else text


def _make_moment_writer(digits: int, zone: str) -> Convert:
    a_day = 86_400 * 10**digits
    return lambda ticks: f"{_write_date(ticks // a_day)}T{_write_time(ticks % a_day, digits)}{zone}"


def _write_duration(content: bytes) -> str:
    """Return months, days and milliseconds as text, in DuckDB's form, which Parquet intervals have too."""
    months, days, milliseconds = struct.unpack("<3I", content)
    words = [(months // 12, "year"), (months % 12, "month"), (days, "day")]
    parts = [f"{count} {word}{'s' if count != 1 else ''}" for count, word in words if count]
    if milliseconds or not parts:
        hours, rest = divmod(milliseconds, 3_600_000)
        parts.append(f"{hours:02}{_write_time(rest, 3)[2:]}")
    return " ".join(parts)


def _write_decimal(content: bytes, scale: int) -> orjson.Fragment:
    unscaled = int.from_bytes(content, "big", signed=True)
    digits = f"{abs(unscaled):0{scale + 1}}"
    whole, fraction = digits[: len(digits) - scale], digits[len(digits) - scale :]
    return orjson.Fragment(f"{'-' if unscaled < 0 else ''}{whole}{'.' if fraction else ''}{fraction}")


_SMALLEST_NORMAL: Final = 2.0**-126
"""Floats nearer to zero have fewer than six exact digits."""


def _write_float(value: float) -> Any:
    """Return the double with the fewest digits among those that round to the float."""
    if not math.isfinite(value):
        return NOT_FINITE
    for digits in range(6 if abs(value) >= _SMALLEST_NORMAL else 1, 9):
        shorter = float(f"{value:.{digits}g}")
        if struct.pack("<f", shorter) == struct.pack("<f", value):
            return shorter
    return float(f"{value:.9g}")


_CONVERTS: Final[dict[tuple[str, str], Convert | None]] = {
    ("int", "date"): _write_date,
    ("int", "time-millis"): lambda ticks: _write_time(ticks, 3),
    ("long", "time-micros"): lambda ticks: _write_time(ticks, 6),
    **{
        ("long", f"{local}timestamp-{unit}"): _make_moment_writer(digits, zone)
        for local, zone in (("", "Z"), ("local-", ""))
        for unit, digits in (("millis", 3), ("micros", 6), ("nanos", 9))
    },
    ("float", ""): _write_float,
    ("double", ""): lambda value: value if math.isfinite(value) else NOT_FINITE,
}
"""Maps type and logical type to the function for its values. Other logical types are ignored."""
_PYTHON_TYPES: Final[dict[str, type]] = {
    "null": type(None),
    "boolean": bool,
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "bytes": bytes,
    "fixed": bytes,
    "string": str,
    "enum": str,
    "array": list,
    "map": dict,
    "record": dict,
}
"""Maps each type to the Python type that fastavro returns."""


class _Schema:
    """The types of a file: how its records are decoded, and how their values become JSON."""

    def __init__(self, where: str, text: bytes, forms: Mapping[str, Form]) -> None:
        import fastavro  # imported here, because other formats do not need it

        self._where, self._forms = where, forms
        try:
            parsed: Any = fastavro.parse_schema(json.loads(text))
        except Exception as error:
            raise BadSource(f"{where} is damaged: its schema is not valid Avro ({type(error).__name__})") from error
        if not isinstance(parsed, dict) or parsed.get("type") != "record":
            raise BadSource(f"{where} holds no records: its schema must be a record, whose fields are the columns")
        self._types: dict[str, dict[str, Any]] = {}
        """The named types, by name."""
        self._collect_types(parsed)
        self._record = parsed
        self.fields: dict[str, Any] = {field["name"]: field["type"] for field in parsed["fields"]}
        self.nested: list[str] = []
        self.binaries: list[str] = []
        """The names of the binary fields in planned columns."""
        self.has_choices = False
        """True if a planned column has a union of several types that are not null."""

    def _collect_types(self, schema: Any) -> None:
        for inner in schema if isinstance(schema, list) else [schema]:
            if not isinstance(inner, dict):
                continue
            if "name" in inner:
                self._types[inner["name"]] = inner
            for part in [inner["type"], inner.get("items"), inner.get("values")]:
                self._collect_types(part)
            for field in inner.get("fields", ()):
                self._collect_types(field["type"])

    def plain(self, columns: Iterator[str]) -> dict[str, Any]:
        """Return a schema of ``columns`` alone, without logical types."""
        emitted: set[str] = set()
        fields = [{"name": name, "type": self._plain(self.fields[name], emitted)} for name in columns]
        return {"type": "record", "name": self._record["name"], "fields": fields}

    def _plain(self, schema: Any, emitted: set[str]) -> Any:
        if isinstance(schema, list):
            return [self._plain(inner, emitted) for inner in schema]
        if isinstance(schema, str):
            return (
                schema if schema in emitted or schema not in self._types else self._plain(self._types[schema], emitted)
            )
        if not isinstance(schema["type"], str):
            return self._plain(schema["type"], emitted)
        if "name" in schema:
            emitted.add(schema["name"])
        kept = {name: schema[name] for name in ("type", "name", "size", "symbols") if name in schema}
        for part in ("items", "values"):
            if part in schema:
                kept[part] = self._plain(schema[part], emitted)
        if "fields" in schema:
            kept["fields"] = [
                {"name": field["name"], "type": self._plain(field["type"], emitted)} for field in schema["fields"]
            ]
        return kept

    def plan(self, schema: Any, path: str, column: str, owners: tuple[str, ...] = ()) -> Convert | None:
        """Return the function that converts values of ``schema`` other than null; None if they need no conversion. The
        schema is within ``column`` and the named types ``owners``. Raises BadSource."""
        schema = self._resolve(schema)
        if isinstance(schema, list):
            return self._plan_union(schema, path, column, owners)
        kind, name = schema["type"], schema.get("name", "")
        if name and name in owners:
            raise unwritable_column_error(self._where, column, f"is of the type {name}, which contains itself")
        owners = (*owners, name)
        if kind in ("bytes", "fixed"):
            return self._plan_bytes(schema, path, column)
        if kind in ("array", "map"):
            items = schema["items" if kind == "array" else "values"]
            if kind == "array" and self._is_empty(items, owners):
                problem = "is an array of values that take no bytes in the file (such as null)"
                raise unwritable_column_error(self._where, column, problem)
            convert_item = self.plan(items, path, column, owners)
            if convert_item is None:
                return None
            if kind == "array":
                return lambda items: [None if item is None else convert_item(item) for item in items]
            return lambda members: {
                name: item if item is None else convert_item(item) for name, item in members.items()
            }
        if kind == "record":
            converts = []
            for field in schema["fields"]:
                inner = f"{path}.{field['name']}"
                self.nested.append(inner)
                if convert := self.plan(field["type"], inner, column, owners):
                    converts.append((field["name"], convert))
            return partial(convert_members, converts) if converts else None
        return _CONVERTS.get((kind, schema.get("logicalType", "")), _CONVERTS.get((kind, "")))

    def _resolve(self, schema: Any) -> Any:
        while isinstance(schema, dict) and not isinstance(schema["type"], str):
            schema = schema["type"]
        if isinstance(schema, str):
            return self._types.get(schema, {"type": schema})
        if isinstance(schema, dict) and schema["type"] in self._types:
            return self._types[schema["type"]]
        return schema

    def _plan_bytes(self, schema: dict[str, Any], path: str, column: str) -> Convert | None:
        logical, size = schema.get("logicalType"), schema.get("size")
        if logical == "decimal" and isinstance(schema.get("precision"), int):
            if schema["precision"] > MAX_DIGITS:
                why = f"has decimals of {schema['precision']} digits, but only {MAX_DIGITS} can be read exactly"
                raise unwritable_column_error(self._where, column, why)
            scale = schema.get("scale", 0)
            return lambda content: _write_decimal(content, scale)
        if logical == "uuid" and size == 16:
            return lambda content: str(uuid.UUID(bytes=content))
        if logical == "duration" and size == 12:
            return _write_duration
        self.binaries.append(path)
        return BINARY_CONVERTS[find_form(path, self._forms)]

    def _plan_union(self, schemas: list[Any], path: str, column: str, owners: tuple[str, ...]) -> Convert | None:
        converts: dict[type, Convert | None] = {}
        kinds: dict[type, Any] = {}
        for schema in map(self._resolve, schemas):
            kind = _PYTHON_TYPES[schema["type"]]
            if kind in kinds and not {kinds[kind]["type"], schema["type"]} <= {"int", "long", "string", "enum"}:
                raise unwritable_column_error(
                    self._where, column, f"is a union of {kinds[kind]['type']} and {schema['type']}, which look alike"
                )
            convert = self.plan(schema, path, column, owners)
            if kind in kinds and (convert or converts[kind]):
                raise unwritable_column_error(self._where, column, "is a union of two logical types, which look alike")
            converts[kind], kinds[kind] = convert, schema
        is_choice = len(schemas) - (type(None) in converts) > 1
        self.has_choices |= is_choice
        if not any(converts.values()):
            return None
        if not is_choice:
            return next(convert for kind, convert in converts.items() if kind is not type(None))
        return lambda value: value if (convert := converts[type(value)]) is None else convert(value)

    def _is_empty(self, schema: Any, owners: tuple[str, ...]) -> bool:
        """Return whether values take no bytes in the file: a small file could hold any number of such values."""
        schema = self._resolve(schema)
        if isinstance(schema, list) or schema.get("name") in owners:
            return False
        if schema["type"] == "record":
            inner = (*owners, schema["name"])
            return all(self._is_empty(field["type"], inner) for field in schema["fields"])
        return bool(schema["type"] == "null" or schema.get("size") == 0)


# The container: a header with the schema, and blocks of records, each followed by the file's marker.


_MAGIC: Final = b"Obj\x01"
_MARKER_BYTES: Final = 16
_MAX_HEADER: Final = 16 << 20
_LONG_BYTES: Final = 10
_WINDOW: Final = 1 << 18


class _Damaged(Exception):
    """The file violates the format. The text says how."""


class _TooLong(Exception):
    """A block has more bytes than memory allows."""


def _unpack_snappy(data: bytes, limit: int) -> bytes:
    import cramjam

    packed, checksum = data[:-4], data[-4:]
    try:
        if cramjam.snappy.decompress_raw_len(packed) > limit:
            raise _TooLong
        content = bytes(cramjam.snappy.decompress_raw(packed))
    except cramjam.DecompressionError as error:
        raise _Damaged("a block cannot be decompressed") from error
    if zlib.crc32(content).to_bytes(4, "big") != checksum:
        raise _Damaged("the checksum of a block does not match")
    return content


def _unpack_zstandard(data: bytes, limit: int) -> bytes:
    with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(data, read_across_frames=True) as reader:
        return reader.read(limit + 1)


def _unpack_by(make: Callable[[], Any], data: bytes, limit: int) -> bytes:
    decoder = make()
    content: bytes = decoder.decompress(data, limit + 1)
    if len(content) <= limit and not decoder.eof:
        raise _Damaged("a block is cut short")
    return content


_CODECS: Final[dict[str, Callable[[bytes, int], bytes]]] = {
    "null": lambda data, _: data,
    "deflate": partial(_unpack_by, lambda: zlib.decompressobj(-15)),
    "bzip2": partial(_unpack_by, bz2.BZ2Decompressor),
    "xz": partial(_unpack_by, lzma.LZMADecompressor),
    "snappy": _unpack_snappy,
    "zstandard": _unpack_zstandard,
}


class AvroParser(DictRows):
    """Parse one Avro file. Rows are dicts."""

    def __init__(self, spec: DatasetSpec, file: LocalFile, piece: Slice, raw: SliceFile, max_row_bytes: int) -> None:
        super().__init__(spec, file, raw)
        self._max_block = max_row_bytes
        self._stream = BufferedReader(raw, _WINDOW)
        self._row = 0
        try:
            metadata = self._read_header()
        except _Damaged as damage:
            raise self._damaged_error(damage) from damage
        codec = metadata.get("avro.codec", b"null").decode(errors="replace")
        if codec not in _CODECS:
            raise BadSource(
                f"{file.name} is compressed by the codec {shorten_name(codec)!r}, which is not supported",
                hint=f"write it with one of {', '.join(_CODECS)}",
            )
        self._unpack = _CODECS[codec]
        schema = _Schema(file.name, metadata.get("avro.schema", b""), make_forms(spec))
        names = list(schema.fields)
        check_names_once(names, f"{file.name}: its schema")
        chosen = [names[number] for number in choose_columns(spec, names)]
        self._converts = [
            (name, convert) for name in chosen if (convert := schema.plan(schema.fields[name], name, name))
        ]
        self.declare(names, schema.nested)
        self.binaries = [(path, find_form(path, make_forms(spec))) for path in schema.binaries]
        check_binaries(spec, file.name, set(schema.binaries), names, schema.nested)
        self._writer = self._reader = schema.plain(iter(names))
        self._unread: list[str] = []
        """Columns that are decoded although they are not needed, and then dropped."""
        if schema.has_choices:
            # If the reader's schema differs, fastavro may convert a union's value to an earlier type that can hold it.
            self._unread = [name for name in names if name not in chosen]
        else:
            self._reader = schema.plain(iter(chosen))

    def _read_header(self) -> dict[str, bytes]:
        if self._stream.read(len(_MAGIC)) != _MAGIC:
            raise _Damaged("it does not begin like an Avro file")
        metadata: dict[str, bytes] = {}
        while count := self._read_long():
            if count < 0:
                self._read_long()
            for _ in range(abs(count)):
                name = self._read_bytes().decode(errors="replace")
                metadata[name] = self._read_bytes()
        self._marker = self._read_exactly(_MARKER_BYTES)
        return metadata

    def _read_bytes(self) -> bytes:
        size = self._read_long()
        if not 0 <= size <= _MAX_HEADER:
            raise _Damaged("a length in its header is out of range")
        return self._read_exactly(size)

    def _read_exactly(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) != size:
            raise _Damaged("it is cut short")
        return data

    def _read_long(self) -> int:
        number = 0
        for place in range(_LONG_BYTES):
            byte = self._read_exactly(1)[0]
            number |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1)
        raise _Damaged("a number is out of range")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        import fastavro

        writer, reader = fastavro.parse_schema(self._writer), fastavro.parse_schema(self._reader)
        read, converts = fastavro.schemaless_reader, self._converts
        for count, content in self._blocks():
            block = BytesIO(content)
            for _ in range(count):
                self._row += 1
                try:
                    record: Any = read(block, writer, reader)
                except Exception as error:  # many kinds, and their text may quote a value
                    raise self._damaged_error(_Damaged(f"({type(error).__name__})")) from error
                for name in self._unread:
                    del record[name]
                try:
                    for name, convert in converts:
                        if record[name] is not None:
                            record[name] = convert(record[name])
                except RowRejected as rejected:
                    record = UnusableRow(f"the column {shorten_name(name)} {rejected}")
                else:
                    record |= self.partitions
                yield record
            if block.tell() != len(content):
                raise self._damaged_error(_Damaged("a block has bytes after its last record"))

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        """Yield each block's number of records and its content. Raises BadSource, NotEnoughRoom."""
        try:
            while self._stream.peek(1):
                count, size = self._read_long(), self._read_long()
                if count < 0 or size < 0:
                    raise _Damaged("a block has a negative length")
                if size > self._max_block:
                    raise _TooLong
                data = self._read_exactly(size)
                if self._read_exactly(_MARKER_BYTES) != self._marker:
                    raise _Damaged("a block does not end in the file's marker")
                content = self._unpack(data, self._max_block)
                if len(content) > self._max_block:
                    raise _TooLong
                if count > len(content):
                    raise _Damaged("a block has fewer bytes than records")
                yield count, content
        except _TooLong:
            raise NotEnoughRoom(
                f"{self._file.name}: a block after row {self._row:,} has more than {self._max_block:,} bytes, "
                "more than the memory limit allows",
                hint="raise --memory-limit, or write the file with smaller blocks",
            ) from None
        except _Damaged as damage:
            raise self._damaged_error(damage) from damage
        except (zlib.error, OSError, ValueError, EOFError, lzma.LZMAError, zstandard.ZstdError) as error:
            raise self._damaged_error(_Damaged("a block cannot be decompressed")) from error

    def _damaged_error(self, damage: _Damaged) -> BadSource:
        after = f" in or after row {self._row:,}" if self._row else ""
        return BadSource(f"{self._file.name} is damaged{after}: {damage}", hint="fetch or write it again")
