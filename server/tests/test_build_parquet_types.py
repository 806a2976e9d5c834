"""Parquet's binary columns, INT96 timestamps and maps: what DuckDB would change, guess or refuse."""

from __future__ import annotations

import base64
import zlib
from pathlib import Path
from typing import Any

import pytest
from support.sources import read_file
from test_build_parquet import read_select, writer

from lookupdb.errors import BadSource

INT96_FILE = zlib.decompress(
    base64.b85decode(
        "c-m!=u};G<5QZ-%a;=hq<)T{3kR=u%T2YiRg@FyEs;W@MP^L6QqM}Vh5{gtYGO{4?1Uvw5!W%I0BIO*2C}7#Y?eq7aPxj#Wtc!p?`g<s"
        "7!I3)vz-S1=AdR$)wZvL3i5cSXAH1=NZx;<(z{i6Jb$dMWV72N$J@+Yx|HA8=nt#k&rdCVAdJ;6{eE=<9#8=5ILJnwotYut#(9=fbdRI"
        "a~nj%Bq3n?0yEps|4N@V(=kxY|WlImTJ+d?`rRN$Z`Jr0r*A_eV{JyPP-p~8UZkT5P42ui70{>_#ZyR?^T{KM`L$@nkw#7L_$>H;cbv%"
        "2KnSaT}D<T=xg?Di|Og%UKuwwp!y&23V)<1A}Oc|N~$7fD`B=Bayd*xB!NWk`?k)nS)@W<VeL2^Vie1O"
    )
)
"""Written by pyarrow 26 with use_deprecated_int96_timestamps; the day of row 4 was set to one of the year 299999."""

MAPS_FILE = zlib.decompress(
    base64.b85decode(
        "c-oy+U2hUW6umnv)0OagC%XxWyfCp1B|xMhP1D2|qX`ehG=!&GgjH+Vf<UW%_c!<pjPap;^>-M5h`*o@-aD|cA3(HZxw|`a&Y5%WOtS4"
        "~uWAUmhkIp|^dM0d06@@RS{BtFmp5GcG~L8z8FO)5MrOEv00w<tmK#DH;^8Lv$iQJS$UlPBu^z)4qzg9RzKO^J1Ubgzjo3S}RL`u`D_A"
        "L`lW-#p?{Qqaiq$npBRv2Et#Nr8iY7ZZH<L5Sktty~Ct=uGgo8EVHel~y87>=!v%Pz_0j`|(-}^xibAb7haIK3Hw3yzY=KuwYR+-;y_t"
        "Axa^ZL3syz<dzEVvmOS)kD-Zr02)Qw*6ZTSs%MJv^VzQ1Hx-KlB6ta`sSVYdY8YA8+}%x8UEYjga^tyGnWm?^Z(r^Il1UN6keVRBhGP&"
        "dUPw0TXaUFzIPJ0RSs((+XDWus$(!>QtTTZj7m=?HvdalI=8k5rFAu>P-K%R{ULNKNrFr)79Et+CH;o;byII(p6pkRYa_i4Jm}zAvLgL"
        "ZnnrpybaVq|A`3h8o9SD2XT8Ztm&HOIO;^5=--)`B`pQ#+b*y);i!)4=<jw)qLVh!q+^uwAdQFnqyW$kL9)d`%E6jQ+~r@{M3;dLLAuM"
        "^6eAhA(LZFY(ZG#{MMm{yM@j9_4W1Ooy~)Qbf41KrkN10%$>>w@+Mi6%N0-I=L8V%$dAD@vw_Na!B-`}C_zQz@=TQ"
    )
)
"""Written by pyarrow 26, which, like Parquet, lets a map have a key twice."""


def text_columns(*names: str) -> dict[str, Any]:
    return {"parquet": {"columns": [{"name": name, "type": "text"} for name in names]}}


def test_a_binary_key_is_its_text(tmp_path: Path) -> None:
    rows = "SELECT encode('user-1') AS k, 1 AS v UNION ALL SELECT encode('é'), 2"
    assert read_select(tmp_path, rows).values == {"user-1": '{"v":1}', "é": '{"v":2}'}
    several = read_select(tmp_path, f"SELECT *, 7 AS n FROM ({rows})", key=["k", "n"])
    assert list(several.values) == ["user-1:7", "é:7"]
    nested = read_select(tmp_path, f"SELECT {{'id': k}} AS s, v FROM ({rows})", key="s.id")
    assert nested.values == {"user-1": '{"s":{},"v":1}', "é": '{"s":{},"v":2}'}
    kept = read_select(tmp_path, rows, value={"columns": ["k"]})
    assert kept.values["é"] == '{"k":"é"}', "a key's column is text in values, too"


def test_a_binary_key_that_is_not_utf8_rejects_its_row(tmp_path: Path) -> None:
    found = read_select(tmp_path, "SELECT '\\xFF'::BLOB AS k, 1 AS v UNION ALL SELECT encode('b'), 2")
    assert list(found.values) == ["b"]
    assert found.reasons == [(1, "the key column k is binary that is not UTF-8; a key is text or an integer")]


BINARIES = "SELECT 'a' AS k, encode('x') AS b, {'b': encode('y'), 'n': [encode('z')]} AS s, MAP {'m': encode('u')} AS m"


def test_binary_values_are_base64_unless_the_manifest_says_text(tmp_path: Path) -> None:
    whole = '{"b":"eA==","s":{"b":"eQ==","n":["eg=="]},"m":{"m":"dQ=="}}'
    assert read_select(tmp_path, BINARIES).values == {"a": whole}
    text = read_select(tmp_path, BINARIES, source=text_columns("b", "s", "m"))
    assert text.values == {"a": '{"b":"x","s":{"b":"y","n":["z"]},"m":{"m":"u"}}'}
    part = read_select(tmp_path, BINARIES, source=text_columns("s.n"), value={"columns": ["s"]})
    assert part.values == {"a": '{"s":{"b":"eQ==","n":["z"]}}'}
    assert read_select(tmp_path, BINARIES, source=text_columns("b"), value={"field": "b"}).values == {"a": '"x"'}


def test_what_is_to_be_text_and_is_not_utf8_rejects_its_row(tmp_path: Path) -> None:
    rows = "SELECT 'a' AS k, ['\\xFF'::BLOB] AS v UNION ALL SELECT 'b', [encode('x'), NULL]"
    found = read_select(tmp_path, rows, source=text_columns("v"))
    assert found.values == {"b": '{"v":["x",null]}'}
    assert found.reasons == [
        (1, "the column v holds binary that is not UTF-8, but source.parquet.columns says that it is text")
    ]
    nested = read_select(tmp_path, "SELECT 'a' AS k, [{'b': encode('x')}] AS v", source=text_columns("v.b"))
    assert nested.values == {"a": '{"v":[{"b":"x"}]}'}


def test_text_is_for_columns_that_are_there_and_binary(tmp_path: Path) -> None:
    with pytest.raises(BadSource, match=r"source.parquet.columns names the column 'k', which is not binary"):
        read_select(tmp_path, BINARIES, source=text_columns("k"))
    with pytest.raises(BadSource, match=r"source.parquet.columns names the column 's.x', which is not there"):
        read_select(tmp_path, BINARIES, source=text_columns("s.x"))


def test_binary_json_is_json_and_not_its_base64(tmp_path: Path) -> None:
    rows = """SELECT 'a' AS k, encode('{"x": 1}') AS v, {'j': encode('[2]')} AS s
        UNION ALL SELECT 'b', from_base64('null'), NULL UNION ALL SELECT 'c', '\\xFF'::BLOB, NULL"""
    found = read_select(tmp_path, rows, value={"column": "v"})
    assert found.values == {"a": '{"x": 1}'}
    assert [row for row, _ in found.reasons] == [2, 3], "three bytes whose base64 would be JSON are none"
    assert all("the column v is not JSON" in reason for _, reason in found.reasons)
    assert read_select(tmp_path, rows, value={"column": "s.j"}).values == {"a": "[2]"}


def test_raw_values_within_a_struct_are_the_bytes(tmp_path: Path) -> None:
    found = read_select(
        tmp_path, "SELECT 'a' AS k, {'png': '\\x89PNG'::BLOB} AS s", value={"column": "s.png", "format": "raw"}
    )
    assert [value for _, value, *_ in found.records] == [b"\x89PNG"]


def test_geometry_is_its_bytes(tmp_path: Path) -> None:
    point = "\\x01\\x01\\x00\\x00\\x00" + "\\x00" * 16
    path = tmp_path / "geo.parquet"
    columns = '{"version": "1.0.0", "primary_column": "g", "columns": {"g": {"encoding": "WKB", "geometry_types": []}}}'
    writer().execute(
        f"COPY (SELECT 'a' AS k, '{point}'::BLOB AS g) TO '{path}' (FORMAT parquet, KV_METADATA {{geo: '{columns}'}})"
    )
    file = path.read_bytes()
    assert read_file(tmp_path, "f.parquet", file).values == {"a": '{"g":"AQEAAAAAAAAAAAAAAAAAAAAAAAAA"}'}
    raw = read_file(tmp_path, "f.parquet", file, value={"column": "g", "format": "raw"})
    assert [value for _, value, *_ in raw.records] == [b"\1\1" + bytes(19)]


def test_int96_keeps_nanoseconds_and_years(tmp_path: Path) -> None:
    assert read_file(tmp_path, "f.parquet", INT96_FILE).values == {
        "a": '{"t":"2020-01-01T00:00:00.123456789","n":[{"t":"2020-01-01T00:00:00.123456789"}]}',
        "b": '{"t":"1970-01-01T00:00:00","n":[]}',
        "c": '{"t":null,"n":null}',
        "d": '{"t":"299999-04-04T23:59:59.999999999","n":[{"t":null},null]}',
    }
    keys = read_file(tmp_path, "f.parquet", INT96_FILE, key="t", value={"columns": ["k"]})
    assert keys.values["2020-01-01T00:00:00.123456789"] == '{"k":"a"}'
    with pytest.raises(BadSource, match=r"key.columns names the column 't.date', which is not there"):
        read_file(tmp_path, "f.parquet", INT96_FILE, key="t.date")


def test_of_a_key_that_a_map_has_twice_the_last_value_counts(tmp_path: Path) -> None:
    assert read_file(tmp_path, "f.parquet", MAPS_FILE).values == {
        "a": '{"m":{"x":2,"y":null},"lm":[{"x":3},null],"s":{"m":{"x":"NA=="}},"mm":{"o":{"x":5}}}',
        "b": '{"m":{},"lm":[],"s":{"m":null},"mm":{"o":null}}',
        "c": '{"m":null,"lm":null,"s":null,"mm":null}',
    }


def test_a_map_with_binary_keys_is_an_object_where_they_are_text(tmp_path: Path) -> None:
    rows = "SELECT 'a' AS k, MAP {encode('x'): 1} AS m UNION ALL SELECT 'b', MAP {'\\xFF'::BLOB: 1}"
    with pytest.raises(BadSource, match="the column m is of type MAP"):
        read_select(tmp_path, rows)
    found = read_select(tmp_path, rows, source=text_columns("m"))
    assert found.values == {"a": '{"m":{"x":1}}'}
    assert len(found.reasons) == 1


def test_what_is_within_null_is_null(tmp_path: Path) -> None:
    rows = "SELECT 'a' AS k, {'x': {'y': 1}} AS u UNION ALL SELECT 'b', {'x': NULL} UNION ALL SELECT 'c', NULL"
    assert read_select(tmp_path, rows, value={"field": "u.x.y"}).values == {"a": "1", "b": "null", "c": "null"}
    columns = read_select(tmp_path, rows, value={"columns": ["u.x.y"]})
    assert columns.values == {"a": '{"u.x.y":1}', "b": '{"u.x.y":null}', "c": '{"u.x.y":null}'}
    lines = b'{"k":"a","u":{"x":{"y":1}}}\n{"k":"b","u":{"x":null}}\n{"k":"c","u":null}\n{"k":"d","u":{}}\n'
    found = read_file(tmp_path, "f.jsonl", lines, value={"field": "u.x.y"})
    assert found.values == {"a": "1", "b": "null", "c": "null"}
    assert found.reasons == [(4, "it has no u.x.y")], "what is absent is not null"


def test_the_last_nanoseconds_are_no_infinity(tmp_path: Path) -> None:
    last = "TIMESTAMP_NS '2262-04-11 23:47:16.854775806'"
    assert read_select(tmp_path, f"SELECT 'a' AS k, {last} AS v").values == {
        "a": '{"v":"2262-04-11T23:47:16.854775806"}'
    }
    infinity = "SELECT 'a' AS k, 'infinity'::TIMESTAMP_NS AS v UNION ALL SELECT 'b', '-infinity'::TIMESTAMP_NS"
    assert read_select(tmp_path, infinity).values == {
        "a": '{"v":"2262-04-11T23:47:16.854775807"}',
        "b": '{"v":"1677-09-21T00:12:43.145224193"}',
    }


def test_an_int96_that_is_no_moment_rejects_its_row(tmp_path: Path) -> None:
    whole = (86399999999999).to_bytes(8, "little")
    assert INT96_FILE.count(whole) == 1
    found = read_file(tmp_path, "f.parquet", INT96_FILE.replace(whole, (86_400_000_000_000).to_bytes(8, "little")))
    assert found.reasons == [(4, "the column t holds an INT96 timestamp whose day or time is out of range")]
