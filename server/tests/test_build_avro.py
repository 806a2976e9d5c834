"""Avro: every type means what it means in Parquet; every codec; damaged and huge blocks fail with a sentence."""

from __future__ import annotations

import bz2
import datetime
import io
import json
import lzma
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cramjam
import duckdb
import fastavro
import pytest
import zstandard
from support.sources import dataset, read, read_file, small_rows

from lookupdb.builder.explain import describe_columns, describe_first_rows
from lookupdb.builder.listing import open_source
from lookupdb.builder.options import BuildBudget
from lookupdb.errors import BadSource, NotEnoughRoom

__all__ = ["small_rows"]

MARKER = bytes(range(16))
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": lambda data: zlib.compress(data, wbits=-15),
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "snappy": lambda data: bytes(cramjam.snappy.compress_raw(data)) + zlib.crc32(data).to_bytes(4, "big"),
    "zstandard": zstandard.compress,
}


def long(number: int) -> bytes:
    number, out = (number << 1) ^ (number >> 63), b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def text(content: bytes) -> bytes:
    return long(len(content)) + content


def record(*fields: Any) -> dict[str, Any]:
    """The schema of records with ``fields``, pairs of name and type, behind a key."""
    pairs = [("k", "string"), *fields]
    return {"type": "record", "name": "r", "fields": [{"name": name, "type": kind} for name, kind in pairs]}


def block(schema: Any, rows: list[Any]) -> bytes:
    out = io.BytesIO()
    for row in rows:
        fastavro.schemaless_writer(out, schema, row)
    return out.getvalue()


def container(schema: Any, blocks: list[tuple[int, bytes]], codec: str = "null", *, marker: bytes = MARKER) -> bytes:
    """A file of ``blocks``, numbers of rows and their bytes."""
    header = {b"avro.schema": json.dumps(schema).encode(), b"avro.codec": codec.encode()}
    out = b"Obj\x01" + long(len(header)) + b"".join(text(name) + text(value) for name, value in header.items())
    out += long(0) + MARKER
    pack = PACKERS.get(codec, bytes)
    return out + b"".join(long(count) + text(pack(content)) + marker for count, content in blocks)


def of_rows(schema: Any, rows: list[Any], codec: str = "null") -> bytes:
    return container(schema, [(len(rows), block(schema, rows))], codec)


def values(folder: Path, content: bytes, **spec: Any) -> dict[str, Any]:
    return {key: json.loads(value) for key, value in read_file(folder, "f.avro", content, **spec).values.items()}


INNER = {"type": "record", "name": "Inner", "fields": [{"name": "d", "type": {"type": "int", "logicalType": "date"}}]}


@pytest.mark.parametrize("codec", PACKERS)
def test_every_codec_and_several_blocks(tmp_path: Path, codec: str) -> None:
    schema = record(("v", "long"))
    blocks = [(100, block(schema, [{"k": f"k{start + n}", "v": n} for n in range(100)])) for start in (0, 100, 200)]
    found = values(tmp_path, container(schema, [*blocks, (0, b"")], codec))
    assert len(found) == 300
    assert found["k205"] == {"v": 5}


def test_fastavros_own_files(tmp_path: Path) -> None:
    out = io.BytesIO()
    fastavro.writer(
        out, record(("v", "int")), [{"k": str(n), "v": n} for n in range(5000)], "deflate", sync_interval=999
    )
    assert values(tmp_path, out.getvalue())["4999"] == {"v": 4999}
    assert values(tmp_path, out.getvalue(), source={"format": "avro"}, value={"field": "v"})["7"] == 7


def test_types_mean_what_they_mean_in_parquet(tmp_path: Path) -> None:
    """DuckDB writes the same values in Parquet, and both files give the same."""
    moments = [0, 1, 1_500_000, -1, -62_135_596_800_000_000, 253_402_300_800_000_000, 1_700_000_000_123_456]
    days = [0, -1, 18_321, -719_163, -719_528, 2_932_897, 60_000_000]
    floats = [0.1, 1e20, -0.0, 1.5e-7, 16_777_216.0, 3.4028235e38, 1e-45]
    times = [0, 1, 43_200_000_000, 86_399_999_999, 500_000, 3_661_000_000, 1_000]
    durations = [(0, 0, 0), (1, 2, 3_004), (25, 0, 0), (0, 1, 80_061_000), (12, 0, 1), (0, 0, 60_000), (13, 33, 0)]
    schema = record(
        ("f", "float"),
        ("d", "double"),
        ("day", {"type": "int", "logicalType": "date"}),
        ("t", {"type": "long", "logicalType": "time-micros"}),
        ("utc", {"type": "long", "logicalType": "timestamp-micros"}),
        ("local", {"type": "long", "logicalType": "local-timestamp-micros"}),
        ("ms", {"type": "long", "logicalType": "timestamp-millis"}),
        ("dec", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3}),
        ("u", {"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}),
        ("span", {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"}),
    )
    plain = record(
        *(("f", "float"), ("d", "double"), ("day", "int"), ("t", "long"), ("utc", "long"), ("local", "long")),
        *(("ms", "long"), ("dec", "bytes"), ("u", {"type": "fixed", "name": "U", "size": 16})),
        ("span", {"type": "fixed", "name": "D", "size": 12}),
    )
    unscaled = [0, 1, -1, 1_500, -123_456_789, 999_999_999, -10]
    rows = [
        {
            "k": str(n),
            "f": floats[n],
            "d": floats[n],
            "day": days[n],
            "t": times[n],
            "utc": moments[n],
            "local": moments[n],
            "ms": moments[n] // 1000,
            "u": bytes([n]) * 16,
            "dec": unscaled[n].to_bytes(5, "big", signed=True),
            "span": struct.pack("<3I", *durations[n]),
        }
        for n in range(7)
    ]
    file = container(schema, [(7, block(plain, rows))])
    found = read_file(tmp_path, "f.avro", file).values
    selects = [
        f"SELECT '{n}' AS k, CAST({floats[n]!r} AS FLOAT) AS f, CAST({floats[n]!r} AS DOUBLE) AS d, "
        f"DATE '1970-01-01' + CAST({days[n]} AS INTEGER) AS day, "
        f"CAST(TIME '00:00:00' + INTERVAL ({times[n]}) MICROSECONDS AS TIME) AS t, "
        f"make_timestamptz({moments[n]}) AS utc, make_timestamp({moments[n]}) AS local, "
        f"make_timestamptz({moments[n] // 1000 * 1000}) AS ms, CAST({unscaled[n] / 1000!r} AS DECIMAL(9, 3)) AS dec, "
        f"CAST('{bytes([n]).hex() * 16}' AS UUID) AS u, to_months({durations[n][0]}) + to_days({durations[n][1]}) + "
        f"to_milliseconds({durations[n][2]}) AS span"
        for n in range(7)
    ]
    duckdb.execute(f"COPY ({' UNION ALL '.join(selects)}) TO '{tmp_path}/p.parquet'")
    expected = read_file(tmp_path, "f.parquet", (tmp_path / "p.parquet").read_bytes()).values
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert json.loads(found[key]) == json.loads(value)


def test_nested_types_names_used_again_and_unions(tmp_path: Path) -> None:
    schema = record(
        ("one", INNER),
        ("again", ["null", "Inner"]),
        ("list", {"type": "array", "items": ["null", "Inner"]}),
        ("map", {"type": "map", "values": {"type": "float"}}),
        ("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}),
        ("any", ["null", "long", "string", "boolean", "double", {"type": "array", "items": "E"}]),
    )
    day = datetime.date(2020, 2, 29)
    rows: list[dict[str, Any]] = [
        {
            "k": "a",
            "one": {"d": day},
            "again": {"d": day},
            "list": [None, {"d": day}],
            "map": {"x": 0.1},
            "e": "B",
            "any": 7,
        },
        {"k": "b", "one": {"d": day}, "again": None, "list": [], "map": {}, "e": "A", "any": ["A", "B"]},
    ]
    shown = {"d": "2020-02-29"}
    assert values(tmp_path, of_rows(schema, rows)) == {
        "a": {"one": shown, "again": shown, "list": [None, shown], "map": {"x": 0.1}, "e": "B", "any": 7},
        "b": {"one": shown, "again": None, "list": [], "map": {}, "e": "A", "any": ["A", "B"]},
    }
    chosen = values(tmp_path, of_rows(schema, rows), value={"columns": ["again.d", "list"]})
    assert chosen == {"a": {"again.d": "2020-02-29", "list": [None, shown]}, "b": {"again.d": None, "list": []}}


def test_a_value_of_a_union_keeps_its_type_whichever_columns_are_read(tmp_path: Path) -> None:
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    schema = record(
        ("unread", "long"),
        ("n", ["double", "long"]),
        ("b", ["string", "bytes"]),
        ("t", ["bytes", "string"]),
        ("d", ["null", "string", decimal]),
        ("l", {"type": "array", "items": ["null", "float", "long"]}),
    )
    out = text(b"a") + long(5) + long(1) + long(2**53 + 1) + long(1) + text(b"hi") + long(1) + text(b"hi")
    out += long(2) + text(b"\x7d") + long(1) + long(2) + long(2**53 + 1) + long(0)
    file = container(schema, [(1, out)])
    expected = {"n": 2**53 + 1, "b": "aGk=", "t": "hi", "d": 1.25, "l": [2**53 + 1]}
    assert values(tmp_path, file)["a"] == {"unread": 5, **expected}
    assert values(tmp_path, file, value={"columns": list(expected)})["a"] == expected


def test_binaries_have_the_form_that_the_spec_gives(tmp_path: Path) -> None:
    schema = record(
        ("b", "bytes"), ("f", {"type": "fixed", "name": "F", "size": 2}), ("s", {"type": "array", "items": "bytes"})
    )
    file = of_rows(
        schema, [{"k": "a", "b": b"hi", "f": b"\xff\0", "s": [b"x"]}, {"k": "c", "b": b"\xff", "f": b"ok", "s": []}]
    )
    forms = {"parquet": {"columns": [{"name": "b", "type": "text"}]}}
    found = read_file(tmp_path, "f.avro", file, source=forms)
    assert found.values == {"a": '{"b":"hi","f":"/wA=","s":["eA=="]}'}
    assert [reason for _, reason in found.reasons] == [
        "the column b holds binary that is not UTF-8, but source.parquet.columns says that it is text"
    ]
    raw = read_file(tmp_path, "f.avro", file, value={"column": "f", "format": "raw"}).records
    assert [value for _, value, _, _ in raw] == [b"\xff\0", b"ok"]
    spec = dataset(tmp_path, "f.avro")
    lines = list(
        describe_columns(spec, open_source(spec, volume=None).list_files(), BuildBudget.for_build(1 << 30, shards=1))
    )
    assert lines[:2] == [
        "b is binary: base64; to store it as text, set its `type: text` in source.parquet.columns",
        "f is binary: base64; to store it as text, set its `type: text` in source.parquet.columns",
    ]
    assert lines[-1] == "all that the manifest names are in the schema of 1 avro file"
    objects = open_source(spec, volume=None).list_files()
    shown = list(describe_first_rows(spec, objects, BuildBudget.for_build(1 << 30, shards=1)))
    assert [line.split()[0] for line in shown[1:]] == ["column", "k", "b", "f", "s"]


def test_numbers_that_json_does_not_have_reject_their_rows(tmp_path: Path) -> None:
    schema = record(("f", ["null", "float"]), ("d", "double"))
    rows: list[dict[str, Any]] = [
        {"k": "a", "f": float("nan"), "d": 1.0},
        {"k": "b", "f": None, "d": float("-inf")},
        {"k": "c", "f": 0.5, "d": 2.0},
    ]
    found = read_file(tmp_path, "f.avro", of_rows(schema, rows))
    assert list(found.values) == ["c"]
    assert [row for row, _ in found.reasons] == [1, 2]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 39},
            "has decimals of 39 digits, but only 38 can be read",
        ),
        (
            ["string", "bytes", {"type": "fixed", "name": "F", "size": 1}],
            "is a union of bytes and fixed, which look alike",
        ),
        ([{"type": "map", "values": "int"}, INNER], "is a union of map and record, which look alike"),
        (["int", {"type": "long", "logicalType": "timestamp-micros"}], "is a union of two logical types"),
        ({"type": "array", "items": "null"}, "is an array of values that take no bytes in the file"),
        (
            {"type": "record", "name": "Link", "fields": [{"name": "next", "type": ["null", "Link"]}]},
            "is of the type Link, which contains itself",
        ),
    ],
)
def test_a_column_that_cannot_be_kept_is_refused_unless_it_is_left_out(tmp_path: Path, kind: Any, said: str) -> None:
    schema = record(("v", "int"), ("bad", kind))
    with pytest.raises(BadSource, match=said):
        read_file(tmp_path, "f.avro", container(schema, []))
    assert values(tmp_path, container(schema, []), value={"columns": ["v"]}) == {}


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadSource, match=r"key\.columns names the column 'kk', which is not there; did you mean 'k'"):
        read_file(tmp_path, "f.avro", container(record(("v", "int")), []), "kk")


GOOD = of_rows(record(("v", "string")), [{"k": "a", "v": "x"}, {"k": "b", "v": "y"}])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(GOOD[:40], "is damaged: it is cut short", id="header cut"),
        pytest.param(GOOD[:-20], "is damaged: it is cut short", id="block cut"),
        pytest.param(GOOD[:-16] + b"?" * 16, "a block does not end in the file's marker", id="marker"),
        pytest.param(
            container(record(("v", "string")), [(2, block(record(("v", "string")), [{"k": "a", "v": "x"}]))]),
            r"is damaged in or after row 2: \(EOFError\)",
            id="fewer records",
        ),
        pytest.param(
            container(record(), [(1, text(b"a") + text(b"b"))]),
            "a block has bytes after its last record",
            id="more records",
        ),
        pytest.param(container(record(), [(1, long(-3) + b"abc")]), "is damaged", id="a negative length"),
        pytest.param(container(record(), [(1, long(9) + b"abc")]), "is damaged", id="a text beyond the block"),
        pytest.param(container(record(), [(1, text(b"\xff"))]), "is damaged in or after row 1", id="no UTF-8"),
        pytest.param(container(record(), [(5, b"")]), "a block has fewer bytes than records", id="rows of nothing"),
        pytest.param(container(record(), [(1, text(b"a"))], "lz4"), "compressed by the codec 'lz4'", id="codec"),
        pytest.param(container("string", [(1, text(b"a"))]), "holds no records", id="no records"),
        pytest.param(container({"type": "x"}, []), "its schema is not valid Avro", id="no schema"),
        pytest.param(b"Obj\x01" + b"\xff" * 30, "a number is out of range", id="a long beyond 64 bits"),
    ],
)
def test_a_damaged_file_fails_with_a_sentence(tmp_path: Path, content: bytes, said: str) -> None:
    with pytest.raises(BadSource, match=said):
        read_file(tmp_path, "f.avro", content)


@pytest.mark.parametrize("codec", ["bzip2", "xz", "snappy"])
def test_a_damaged_block_of_a_codec_with_checksums_is_noticed(tmp_path: Path, codec: str) -> None:
    content = of_rows(record(("v", "string")), [{"k": "a", "v": str(n)} for n in range(100)], codec)
    for position in range(len(content) - 40, len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 0x55
        with pytest.raises(BadSource, match=r"f\.avro is damaged"):
            values(tmp_path, bytes(damaged))


@pytest.mark.parametrize("codec", ["deflate", "zstandard"])
def test_a_block_that_is_cut_short_is_noticed(tmp_path: Path, codec: str) -> None:
    schema = record(("v", "string"))
    data = PACKERS[codec](block(schema, [{"k": "a", "v": str(n)} for n in range(100)]))
    header = container(schema, [], codec)
    for cut in (1, 5, len(data) // 2, len(data) - 1):
        with pytest.raises(BadSource, match=r"f\.avro is damaged"):
            values(tmp_path, header + long(100) + text(data[:-cut]) + MARKER)


@pytest.mark.usefixtures("small_rows")
@pytest.mark.parametrize("codec", PACKERS)
def test_a_block_beyond_the_memory_limit_is_refused(tmp_path: Path, codec: str) -> None:
    file = of_rows(record(("v", "string")), [{"k": "a", "v": "x" * (2 << 20)}], codec)
    with pytest.raises(NotEnoughRoom, match="a block after row 0 has more than 1,048,576 bytes"):
        read_file(tmp_path, "f.avro", file)


def test_slices_are_read_by_a_crew_alike(tmp_path: Path) -> None:
    schema = record(("v", "string"))
    for name in ("a", "b"):
        rows = [{"k": f"{name}{n}", "v": "x" * n} for n in range(200)]
        (tmp_path / f"{name}.avro").write_bytes(of_rows(schema, rows, "deflate"))
    spec = dataset(tmp_path, "*.avro")
    assert read(spec, tmp_path / "s", parallel_from=500) == read(spec, tmp_path / "s")


def test_files_of_a_source_have_the_same_columns(tmp_path: Path) -> None:
    (tmp_path / "a.avro").write_bytes(container(record(("v", "int")), []))
    (tmp_path / "b.avro").write_bytes(container(record(("w", "int")), []))
    with pytest.raises(BadSource, match=r"b.avro has other columns than a.avro: it lacks 'v' and adds 'w'"):
        read(dataset(tmp_path, "*.avro"), tmp_path / "s")
