"""Sources: each kind of place is read for real, and each failure has its message."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import itertools
import lzma
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
import zstandard
from support.buckets import s3_server, use_server
from support.sources import MEMORY, dataset, read, read_file
from support.web import QuietHandler, web_server

from lookupdb.builder import files as local_files
from lookupdb.builder import listing, remote
from lookupdb.builder.build import SortedRecords
from lookupdb.builder.explain import describe_columns
from lookupdb.builder.files import decompress
from lookupdb.builder.listing import fetch_files, resolve_source, source_fingerprint
from lookupdb.builder.options import BuildBudget, SilentProgress
from lookupdb.errors import BadSource, NotEnoughRoom, SourceUnreadable

CSV = b"k,v\na,1\n"
ROWS = b"k,v\n" + b"".join(b"%d,%d\n" % (number, number * number) for number in range(1000))


def urls(base: Path | None, url: str | list[str], volume: Path | None = None) -> list[str]:
    return [item.description.url for item in resolve_source(dataset(base, url), volume=volume)]


@pytest.mark.parametrize("url", ["https://[bad/f.csv", "https://me:secret@[bad/f.csv?key=secret", "file://[x/f.csv"])
def test_what_is_no_url_is_a_sentence(tmp_path: Path, url: str) -> None:
    with pytest.raises(BadSource, match="is not a url: Invalid IPv6 URL") as caught:
        listing.find_files(url, base=tmp_path, volume=None)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "https:/me:SECRET@host/f.csv",
        "https//me:SECRET@host/f.csv",
        "https//SECRET@host/f.csv",
        "https://me:SECRET@ho\u2100st/f.csv",
        "me:SECRET@host/f.csv",
        "file://me:SECRET@host/f.csv",
        "volume://me:SECRET@host/f.csv",
        "volume://f.csv?sig=SECRET",
        "example://f.csv?sig=SECRET",
        "az://folder/f.csv?sig=SECRET",
        "s3://folder?sig=SECRET",
        "ftp://me:SECRET@host/f.csv",
    ],
)
def test_no_message_about_a_mistyped_url_has_its_secrets(tmp_path: Path, url: str) -> None:
    for find in (
        lambda: listing.find_files(url, base=tmp_path, volume=tmp_path),
        lambda: listing.find_files(url, base=None, volume=None),
        lambda: listing.refuse_local_files([url, "f.csv"]),
    ):
        with pytest.raises(BadSource) as caught:
            find()
        assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("url", ["\0.csv", "volume://\0.csv", "file:///\0.csv"])
def test_a_path_that_no_file_has_is_a_sentence(tmp_path: Path, url: str) -> None:
    with pytest.raises(BadSource, match="is not a url: embedded null byte"):
        listing.find_files(url, base=tmp_path, volume=tmp_path)


@pytest.mark.parametrize("scheme", ["", "volume://", "file:///"])
def test_a_path_that_cannot_be_looked_for_is_a_sentence_and_may_be_there_later(tmp_path: Path, scheme: str) -> None:
    with pytest.raises(SourceUnreadable, match=r"x\.csv cannot be read: File name too long"):
        listing.find_files(f"{scheme}{'x' * 300}.csv", base=tmp_path, volume=tmp_path)


def test_relative_paths_absolute_paths_and_file_urls(tmp_path: Path) -> None:
    (tmp_path / "a b.csv").write_bytes(CSV)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "c.csv").write_bytes(CSV)
    assert urls(tmp_path, "a b.csv") == ["a b.csv"]
    assert urls(None, f"{tmp_path}/a b.csv") == [f"{tmp_path}/a b.csv"]
    assert urls(None, (tmp_path / "a b.csv").as_uri()) == [(tmp_path / "a b.csv").as_uri()]
    assert urls(tmp_path, ["sub/c.csv", "a b.csv"]) == ["sub/c.csv", "a b.csv"]


def test_wildcards_match_files_by_path(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "x/c.csv", "x/y/d.csv", "a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(CSV)
    assert urls(tmp_path, "*.csv") == ["a.csv", "b.csv"]
    assert urls(tmp_path, "[a].csv") == ["a.csv"]
    assert urls(tmp_path, "**/*.csv") == ["a.csv", "b.csv", "x/c.csv", "x/y/d.csv"]
    assert urls(None, f"file://{tmp_path}/x/*/?.csv") == [f"file://{tmp_path}/x/y/d.csv"]


def test_a_file_is_no_partition(tmp_path: Path) -> None:
    for name in ("_a=b.csv", "_a=b/1.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(CSV)
    assert urls(tmp_path, "**/*.csv") == ["_a=b/1.csv"]


def test_a_volume_is_a_folder_that_nothing_leads_out_of(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    (volume / "sub").mkdir(parents=True)
    (volume / "sub" / "a.csv").write_bytes(CSV)
    (tmp_path / "secret.csv").write_bytes(CSV)
    (volume / "link.csv").symlink_to(tmp_path / "secret.csv")
    spec = dataset(None, "volume://sub/*.csv", source={"volume": {"claimName": "c"}})
    assert [item.description.url for item in resolve_source(spec, volume=volume)] == ["volume://sub/a.csv"]
    for url in ("volume://link.csv", "volume://../secret.csv", "volume://sub/../../secret.csv"):
        with pytest.raises(BadSource, match="leads out of the volume"):
            resolve_source(dataset(None, url, source={"volume": {"claimName": "c"}}), volume=volume)
    with pytest.raises(BadSource, match=r"(?s)no volume is mounted.*--volume"):
        resolve_source(spec, volume=None)


def test_an_example_ships_with_lookupdb(tmp_path: Path) -> None:
    found = read(dataset(None, "example://airports.csv.gz", "icao", normalize=("strip", "lowercase")), tmp_path)
    assert found.rows == 28_298
    assert '"name":"John F Kennedy International Airport"' in found.values["kjfk"]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("none.csv", r"none\.csv: there is no such file"),
        ("*.nothing", r"\*\.nothing matches no file"),
        ("folder", "folder is a folder, expected a file"),
        ("file://host/a.csv", r"a file:// url has no host"),
        ("example://none.csv", "there is no such example"),
        ("example://../errors.py", "there is no such example"),
        ("http://example.com/a.csv", "plain http is read from this machine only"),
        ("s3://bucket", "expected s3://bucket/path"),
        ("data", r"(?s)data: its name does not show its format.*source\.format"),
    ],
)
def test_a_place_that_is_none(tmp_path: Path, url: str, message: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "data").write_bytes(CSV)
    with pytest.raises(BadSource, match=message):
        urls(tmp_path, url)


@pytest.mark.parametrize("url", ["none.csv", "*.csv", "volume://**/*.csv"])
def test_a_file_that_is_not_there_may_come(tmp_path: Path, url: str) -> None:
    with pytest.raises(SourceUnreadable):
        listing.find_files(url, base=tmp_path, volume=tmp_path)


@pytest.mark.parametrize("url", ["pipe.csv", "file://{folder}/pipe.csv", "volume://pipe.csv"])
def test_what_is_no_regular_file_is_refused_and_never_waited_for(tmp_path: Path, url: str) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(BadSource, match=r"pipe\.csv is not a regular file"):
        listing.find_files(url.format(folder=tmp_path), base=tmp_path, volume=tmp_path)


def test_a_scheme_that_is_none() -> None:
    """The CRD refuses it already; the builder does not count on that."""
    known = "file://, https://, http://, s3://, gs://, az://, example://, volume://"
    with pytest.raises(BadSource, match=rf"(?s)ftp:// is not a scheme .*{known}; http:// is for this machine alone"):
        listing.find_files("ftp://host/a.csv", base=None, volume=None)


def test_a_relative_path_needs_the_manifests_folder() -> None:
    with pytest.raises(BadSource, match=r"a\.csv is a relative path"):
        urls(None, "a.csv")


def test_of_files_too_large_to_be_read_for_it_the_fingerprint_changes_with_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_files, "MAX_CHECKSUM_BYTES", 2 * len(CSV) - 1)
    prints = []
    for moment in (1, 1, 2):
        for name in ("a.csv", "b.csv"):
            (tmp_path / name).write_bytes(CSV)
            os.utime(tmp_path / name, ns=(moment, moment))
        prints.append(source_fingerprint(resolve_source(dataset(tmp_path, "*.csv"), volume=None)))
    assert prints[0] == prints[1] != prints[2]


def test_the_fingerprint_changes_when_a_file_does(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(CSV)
    (tmp_path / "b.csv").write_bytes(CSV)

    def now(url: str = "*.csv") -> str | None:
        return source_fingerprint(resolve_source(dataset(tmp_path, url), volume=None))

    first = now()
    assert first == now()
    assert first != now("a.csv")
    (tmp_path / "a.csv").write_bytes(CSV.swapcase())
    assert now() != first
    (tmp_path / "a.csv").write_bytes(CSV)
    assert now() == first


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "zst": zstandard.ZstdCompressor(write_checksum=True).compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
}
COMPRESSIONS = {"gz": "gzip", "zst": "zstd", "bz2": "bzip2", "xz": "xz"}


def packed(kind: str, content: bytes) -> bytes:
    return PACKERS[kind](content)


@pytest.mark.parametrize("kind", PACKERS)
def test_compressed_files(tmp_path: Path, kind: str) -> None:
    rows = b"".join(b"%d,%d\n" % (number, number) for number in range(2000))
    parts = [b"k,v\n" + rows[:1000], rows[1000:2000], b"", rows[2000:]]
    content = b"".join(packed(kind, part) for part in parts)  # several members, frames or streams
    (tmp_path / f"a.csv.{kind}").write_bytes(content)
    assert read(dataset(tmp_path, f"a.csv.{kind}"), tmp_path / "scratch").rows == 2000
    (tmp_path / "a.bin").write_bytes(content)
    source = {"format": "csv", "compression": COMPRESSIONS[kind]}
    assert read(dataset(tmp_path, "a.bin", source=source), tmp_path / "scratch").rows == 2000


@pytest.mark.parametrize("kind", PACKERS)
def test_a_stream_may_be_cut_anywhere_on_its_way(kind: str) -> None:
    content = packed(kind, CSV) + packed(kind, b"") + packed(kind, b"b,2\n") + bytes(8)
    pieces = [content[place : place + 1] for place in range(len(content))]
    assert b"".join(decompress(pieces, COMPRESSIONS[kind], "a")) == CSV + b"b,2\n"


@pytest.mark.parametrize(("kind", "size", "most"), [("gz", 20, 17), ("bz2", 4, 1), ("xz", 4, 1)])
def test_what_expands_a_lot_is_unpacked_bit_by_bit(kind: str, size: int, most: int) -> None:
    content = packed(kind, bytes(size << 20))
    assert max(map(len, decompress([content], COMPRESSIONS[kind], "a"))) <= most << 20


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param(lambda data: data[:-1], "is cut short", id="without its last byte"),
        pytest.param(lambda data: data[: len(data) // 2], "is cut short", id="half of it"),
        pytest.param(lambda data: data[:1], "is cut short", id="its first byte"),
        pytest.param(lambda data: b"", "is cut short", id="empty"),
        pytest.param(lambda data: data + data[:7], "is cut short", id="second member cut short"),
        pytest.param(lambda data: CSV, "is not (gzip|zstd|bzip2|xz)\n", id="not compressed"),
        pytest.param(
            lambda data: data[:50] + b"\1" * 50 + data[100:], ".* cannot be decompressed near", id="damaged within"
        ),
        pytest.param(
            lambda data: data + b"\1junk-and-more", r"continues after its \w+ stream, near its byte", id="junk after it"
        ),
        pytest.param(lambda data: data + CSV, r"continues after its .*\n  only another", id="text after it"),
    ],
)
def test_a_damaged_stream_is_never_taken_for_a_whole_one(tmp_path: Path, kind: str, damage: Any, message: str) -> None:
    (tmp_path / f"a.csv.{kind}").write_bytes(damage(packed(kind, ROWS)))
    with pytest.raises(BadSource, match=rf"a\.csv\.{kind}:? {message}"):
        read(dataset(tmp_path, f"a.csv.{kind}"), tmp_path / "scratch")


@pytest.mark.parametrize(
    ("content", "looks_like"),
    [
        pytest.param(b"SECRET1,1\n" * 20, "", id="text"),
        pytest.param(b"SECRET1\xff", "", id="not UTF-8"),
        pytest.param(b"PK\x03\x04SECRET1", r": it looks like a zip archive or a spreadsheet \(.xlsx\)", id="zip"),
        pytest.param(b"\xfd7zXZ\0SECRET1", ": it looks like xz", id="xz"),
        pytest.param(b"BZh91AY&SYSECRET1\0", ": it looks like bzip2", id="bzip2"),
        pytest.param(packed("zst", b"SECRET1"), ": it looks like zstd", id="zstd"),
        pytest.param(b"PAR1\x15SECRET1", ": it looks like Parquet", id="Parquet"),
    ],
)
def test_what_is_not_compressed_as_it_is_named_is_described_and_not_quoted(
    tmp_path: Path, content: bytes, looks_like: str
) -> None:
    (tmp_path / "a.csv.gz").write_bytes(content)
    with pytest.raises(BadSource, match=rf"a\.csv\.gz is not gzip{looks_like}\n") as raised:
        read(dataset(tmp_path, "a.csv.gz"), tmp_path / "scratch")
    assert "SECRET" not in str(raised.value)


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("zeros", [4, 512, 40_000])
def test_a_stream_may_be_padded_with_zeros(tmp_path: Path, kind: str, zeros: int) -> None:
    """Tapes pad their blocks so. There may be more zeros than are unpacked at once."""
    content = packed(kind, CSV) + bytes(zeros) + packed(kind, b"b,2\n") + bytes(zeros)
    (tmp_path / f"a.csv.{kind}").write_bytes(content)
    assert list(read(dataset(tmp_path, f"a.csv.{kind}"), tmp_path / "scratch").values) == ["a", "b"]


def zstd_of_window(log: int, content: bytes) -> bytes:
    """A zstd frame of a window of 2 ** ``log`` bytes, as `zstd --long` writes one from a pipe."""
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=log)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return compressor.compress(content) + compressor.flush()


def zstd_of_dictionary(content: bytes) -> bytes:
    samples: list[bytes | bytearray | memoryview] = [
        b"k,v\n%d,text %d\n" % (number, number * number) for number in range(2000)
    ]
    return zstandard.ZstdCompressor(dict_data=zstandard.train_dictionary(1000, samples)).compress(content)


def xz_of_window(size: int, content: bytes) -> bytes:
    """An xz stream that declares a window of ``size`` bytes, a power of two. To compress with one takes much longer."""
    stream = bytearray(lzma.compress(content, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 16}]))
    assert stream[12:17] == b"\x02\0\x21\x01\x08", "the block's header: its size, one filter, which is LZMA2"
    stream[16] = 2 * (size.bit_length() - 13)
    stream[20:24] = zlib.crc32(stream[12:20]).to_bytes(4, "little")
    return bytes(stream)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        pytest.param("a.csv.zst", zstd_of_window(28, CSV), "too much memory", id="zstd --long=28"),
        pytest.param("a.csv.zst", packed("zst", CSV) + zstd_of_window(31, CSV), "too much memory", id="second frame"),
        pytest.param("a.csv.zst", zstd_of_dictionary(CSV), "Dictionary mismatch", id="dictionary"),
        pytest.param("a.csv.xz", xz_of_window(1 << 28, CSV), "Memory usage limit exceeded", id="xz of 256 MiB"),
        pytest.param("a.csv.gz", b"\x1f\x8b\x07" + gzip.compress(CSV)[3:], "unknown compression method", id="method"),
        pytest.param("a.csv.gz", b"\x1f\x8b\x08\x20" + gzip.compress(CSV)[4:], "unknown header flags", id="encrypted"),
    ],
)
def test_what_is_whole_and_cannot_be_unpacked_is_not_called_damaged(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadSource, match=rf"be decompressed near its byte .*{message}.*\n.*with the default options"):
        read(dataset(tmp_path, name), tmp_path / "scratch")


def test_the_largest_windows_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv.zst").write_bytes(zstd_of_window(27, CSV))
    (tmp_path / "b.csv.xz").write_bytes(xz_of_window(1 << 27, b"k,v\nb,2\n"))
    assert list(read(dataset(tmp_path, "*.csv.*"), tmp_path / "scratch").values) == ["a", "b"]


@pytest.mark.parametrize(
    ("outer", "inner"), [*((outer, "gz") for outer in PACKERS), *(("gz", inner) for inner in PACKERS if inner != "gz")]
)
def test_a_file_that_is_compressed_twice_is_reported(tmp_path: Path, outer: str, inner: str) -> None:
    name = f"a.csv.{outer}"
    (tmp_path / name).write_bytes(packed(outer, packed(inner, CSV * 1000)))
    said = (
        rf"{name} is compressed twice: its {COMPRESSIONS[outer]} stream holds {COMPRESSIONS[inner]}\n  compress it once"
    )
    with pytest.raises(BadSource, match=said) as raised:
        read(dataset(tmp_path, name), tmp_path / "scratch")
    assert "source.compression" not in str(raised.value)


def tar_file(name: str, content: bytes) -> bytes:
    """A tar archive of one file."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


@pytest.mark.parametrize("name", ["f.csv", "f.csv.gz", "f.parquet", "f", "f.gz"])
@pytest.mark.parametrize(
    ("content", "kind", "hint"),
    [
        pytest.param(b"ORC\n\x06\x12\x04\x08\x02P\0", "ORC", "write Parquet", id="ORC"),
        pytest.param(b"ARROW1\0\0\xff\xff\xff\xff\xf0\x02\0\0", "Arrow", "write Parquet", id="Arrow file"),
        pytest.param(b"\xff\xff\xff\xff\xf0\x02\0\0\x10\0", "Arrow", "write Parquet", id="Arrow stream"),
        pytest.param(b"SQLite format 3\0\x10\0", "a SQLite database", "write Parquet", id="SQLite"),
        pytest.param(b"\x80\x04\x95\x0b", "a Python pickle", "write Parquet", id="pickle"),
        pytest.param(b"PK\x03\x04\x14\xff\xff", "a zip archive", "as CSV in UTF-8", id="a spreadsheet"),
        pytest.param(tar_file("f.csv", b"k,v\na,1\n"), "a tar archive", "unpack it", id="tar"),
        pytest.param(b"\x04\x22\x4d\x18h@\x0c\0", "lz4", "compress it with gzip, zstd, bzip2 or xz", id="lz4"),
        pytest.param(b"\xff\x06\0\0sNaPpY\x01\x10\0\0", "snappy", "compress it with gzip", id="snappy"),
        pytest.param(b"PARE\x15\x04", "Parquet with an encrypted footer", "decrypt it", id="encrypted Parquet"),
    ],
)
def test_what_is_not_read_is_named_by_its_first_bytes(
    tmp_path: Path, name: str, content: bytes, kind: str, hint: str
) -> None:
    """This holds for any name and compression, and if the format is set."""
    content = gzip.compress(content) if name.endswith(".gz") else content
    with pytest.raises(BadSource) as raised:
        read_file(tmp_path, name, content)
    assert raised.value.message.startswith(f"{name}")
    if name.endswith(".gz") and kind in ("a zip archive", "lz4", "snappy") and name != "f.gz":
        assert f"is compressed twice: its gzip stream holds {kind}" in raised.value.message
    else:
        assert f" is {kind}" in raised.value.message
        assert raised.value.message.endswith(" by its first bytes, which is not supported")
        assert hint in str(raised.value.hint)
    assert "name the file" not in str(raised.value.hint)
    with pytest.raises(BadSource, match=kind):
        read_file(
            tmp_path, "f.bin", content, source={"format": "csv", "compression": "gzip" if ".gz" in name else "none"}
        )


def test_explain_looks_into_compressed_files_and_documents(tmp_path: Path) -> None:
    for name, content in (
        ("a.csv.gz", packed("gz", packed("gz", CSV))),
        ("a.jsonl.zst", zstd_of_window(28, CSV)),
        ("a.json", packed("bz2", b"[]")),
    ):
        (tmp_path / name).write_bytes(content)
        spec = dataset(tmp_path, name)
        with pytest.raises(BadSource) as built:
            read(spec, tmp_path / "scratch")
        objects = resolve_source(spec, volume=None)
        with pytest.raises(BadSource) as explained:
            list(describe_columns(spec, objects, BuildBudget.for_build(MEMORY, shards=1, threads=1)))
        assert (explained.value.message, explained.value.hint) == (built.value.message, built.value.hint)


def test_parquet_may_be_compressed_from_outside_too(tmp_path: Path) -> None:
    plain = tmp_path / "plain.parquet"
    duckdb.sql(f"COPY (SELECT 'a' AS k, 1 AS v) TO '{plain}' (FORMAT parquet)")
    for kind in PACKERS:
        (tmp_path / f"f.parquet.{kind}").write_bytes(packed(kind, plain.read_bytes()))
        assert read(dataset(tmp_path, f"f.parquet.{kind}"), tmp_path / "scratch").values == {"a": '{"v":1}'}
    plain.rename(tmp_path / "f.csv")
    (tmp_path / "g.parquet").write_bytes(packed("gz", CSV))
    with pytest.raises(
        BadSource, match=r"f\.csv is Parquet by its first bytes, not text in UTF-8\n  set source\.format"
    ):
        read(dataset(tmp_path, "f.csv"), tmp_path / "scratch")
    with pytest.raises(
        BadSource, match=r"g\.parquet is gzip by its first bytes, not Parquet\n  set source\.compression"
    ):
        read(dataset(tmp_path, "g.parquet"), tmp_path / "scratch")


def test_a_zstd_stream_may_begin_with_a_frame_to_skip(tmp_path: Path) -> None:
    """pzstd writes such streams."""
    (tmp_path / "a.csv.zst").write_bytes(b"\x50\x2a\x4d\x18\x04\0\0\0\x19\0\0\0" + packed("zst", b"k,v\na,1\n"))
    assert read(dataset(tmp_path, "a.csv.zst"), tmp_path / "scratch").values == {"a": '{"v":"1"}'}


def test_a_flipped_bit_is_seen(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(CSV * 1000))
    data[-6] ^= 1  # in its checksum
    (tmp_path / "a.csv.gz").write_bytes(data)
    with pytest.raises(BadSource, match=r"a\.csv\.gz: its gzip stream .*: incorrect data check"):
        read(dataset(tmp_path, "a.csv.gz"), tmp_path / "scratch")


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(CSV if name == "a.csv" else gzip.compress(CSV))
    objects = resolve_source(dataset(tmp_path, name), volume=None)
    path.write_bytes(b"k,v\na,2\n" if name == "a.csv" else gzip.compress(b"k,v\na,2\n"))
    os.utime(path, ns=(1, 1))
    with pytest.raises(BadSource, match=f"{name} changed while it was read"):
        fetch_files(objects, tmp_path, SilentProgress())


@pytest.mark.parametrize(
    ("name", "before", "meanwhile"),
    [
        ("a.csv", b'k,v\na,"1"\nb,"2"\n', b'k,v\na,"1"\nb,"2'),
        ("a.csv", CSV, b"<html>maintenance</html>"),
        ("a.jsonl", b'{"k":"a"}\n{"k":"b"}\n', b'{"k":"a"}\n{"k":'),
        ("a.json", b'[{"k":"a"},{"k":"b"}]', b'[{"k":"a"},{"k":'),
    ],
    ids=["half a row", "other columns", "half a line", "half a document"],
)
def test_what_cannot_be_used_because_it_changes_is_reported_as_changed(
    tmp_path: Path, name: str, before: bytes, meanwhile: bytes
) -> None:
    (tmp_path / name).write_bytes(before)
    spec = dataset(tmp_path, name)
    files = fetch_files(resolve_source(spec, volume=None), tmp_path, SilentProgress())
    (tmp_path / name).write_bytes(meanwhile)
    with pytest.raises(SourceUnreadable, match=f"{name} changed while it was read"):
        SortedRecords(spec, files, tmp_path, MEMORY, 1, SilentProgress()).__enter__()
    with pytest.raises(BadSource) as caught:
        read(spec, tmp_path / "scratch")
    assert not caught.value.may_pass, "that is how it is now"


def test_a_compressed_file_that_is_cut_short_after_it_was_listed_is_reported_as_changed(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(CSV * 1000))
    objects = resolve_source(dataset(tmp_path, path.name), volume=None)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(SourceUnreadable, match=r"a\.csv\.gz changed while it was read"):
        fetch_files(objects, tmp_path, SilentProgress())


def test_a_compressed_file_that_goes_away_after_it_was_listed_may_come_back(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(CSV))
    objects = resolve_source(dataset(tmp_path, path.name), volume=None)
    path.unlink()
    with pytest.raises(SourceUnreadable, match=r"a\.csv\.gz cannot be read: No such file or directory"):
        fetch_files(objects, tmp_path, SilentProgress())


def test_a_full_scratch_folder_is_named(tmp_path: Path) -> None:
    import resource

    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(bytes(4 << 20)))
    objects = resolve_source(dataset(tmp_path, "a.csv.gz"), volume=None)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(NotEnoughRoom, match=f"no room left in the scratch folder {tmp_path}"):
            fetch_files(objects, tmp_path, SilentProgress())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class Web(QuietHandler):
    def do_GET(self) -> None:  # noqa: N802 - http.server calls it so
        path, _, query = self.path.partition("?")
        status = {"/secret.csv": 403, "/login.csv": 401}.get(path, 200 if path == "/a%20b.csv" else 404)
        if path == "/signed.csv":
            status = 200 if query == "sig=a%2Fb" else 403
        body = CSV if status == 200 else b"no"
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{zlib.crc32(body)}"')
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def web() -> Iterator[str]:
    with web_server(Web) as url:
        yield url


def test_http(tmp_path: Path, web: str) -> None:
    assert read(dataset(None, f"{web}/a%20b.csv"), tmp_path).values == {"a": '{"v":"1"}'}


def test_a_signed_url_works_and_its_signature_is_not_shown(tmp_path: Path, web: str) -> None:
    assert urls(None, f"{web}/signed.csv?sig=a%2Fb") == [f"{web}/signed.csv"]
    assert read(dataset(None, f"{web}/signed.csv?sig=a%2Fb"), tmp_path).rows == 1


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("none.csv", r"there is no such object \(404\)"),
        ("secret.csv", r"access denied \(403\)"),
        ("login.csv", r"access denied \(401\)"),
    ],
)
def test_http_errors(web: str, path: str, message: str) -> None:
    with pytest.raises(BadSource, match=message):
        urls(None, f"{web}/{path}")


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    """A client of a server that has the empty bucket ``data``."""
    import boto3  # type: ignore[import-untyped]  # takes a while, and few tests need it

    with s3_server() as url, pytest.MonkeyPatch.context() as environment:
        use_server(url, environment)
        with contextlib.closing(boto3.client("s3", region_name="us-east-1")) as client:
            client.create_bucket(Bucket="data")
            yield client


@pytest.fixture
def bucket(s3: Any) -> Iterator[Any]:
    yield s3
    for entry in s3.list_objects_v2(Bucket="data")["Contents"]:
        s3.delete_object(Bucket="data", Key=entry["Key"])


def test_objects_are_unpacked_by_their_name_and_known_by_their_first_bytes(tmp_path: Path, bucket: Any) -> None:
    """An encoding in their metadata is ignored."""
    for kind in PACKERS:
        bucket.put_object(
            Bucket="data", Key=f"a.csv.{kind}", Body=packed(kind, CSV), ContentEncoding=COMPRESSIONS[kind]
        )
        assert read(dataset(None, f"s3://data/a.csv.{kind}"), tmp_path).values == {"a": '{"v":"1"}'}
    for name, content, said in (
        (
            "b.csv",
            packed("gz", CSV),
            r"b\.csv is gzip by its first bytes, not text in UTF-8\n  set source\.compression: gzip",
        ),
        ("b.csv.gz", packed("gz", packed("xz", CSV)), r"b\.csv\.gz is compressed twice: its gzip stream holds xz"),
        ("b.avro", b"Obj\x01\x04\x16avro.schema\xd4", r"b\.avro is damaged: it is cut short"),
        (
            "b",
            packed("gz", CSV),
            r"b: its name does not show its format; by its first bytes it is gzip\n.*compression: gzip",
        ),
    ):
        bucket.put_object(Bucket="data", Key=name, Body=content, ContentEncoding="gzip")
        with pytest.raises(BadSource, match=said):
            read(dataset(None, f"s3://data/{name}"), tmp_path)


def test_s3(tmp_path: Path, bucket: Any) -> None:
    for name in ("in/2.csv", "in/1.csv", "in/deep/3.csv", "in/x.txt"):
        bucket.put_object(Bucket="data", Key=name, Body=CSV)
    assert urls(None, "s3://data/in/*.csv") == ["s3://data/in/1.csv", "s3://data/in/2.csv"]
    assert len(urls(None, "s3://data/**/*.csv")) == 3
    assert read(dataset(None, "s3://data/in/1.csv"), tmp_path).values == {"a": '{"v":"1"}'}
    for url, message in {
        "s3://data/none.csv": r"s3://data/none\.csv: there is no such object \(404\)",
        "s3://data/none/*.csv": r"s3://data/none/\*\.csv matches no file",
        "s3://nowhere/a.csv": r"s3://nowhere/a\.csv",
    }.items():
        with pytest.raises(BadSource, match=message):
            urls(None, url)


def put(base: Path, bucket: Any, *names: str) -> None:
    """Write the same files into a folder and a bucket. A name that ends in a slash is an empty folder."""
    for name in names:
        content = b"" if name.endswith(("/", "$folder$")) else CSV
        bucket.put_object(Bucket="data", Key=name, Body=content)
        path = base / name
        if not name.endswith("$folder$"):
            (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if content:
            path.write_bytes(content)


def found_twice(base: Path, pattern: str, **source: str) -> list[str]:
    """Return the matches of ``pattern``, which are the same in the folder and in the bucket."""
    local = [item.description.url for item in resolve_source(dataset(base, pattern, source=source), volume=None)]
    remote = resolve_source(dataset(None, f"s3://data/{pattern}", source=source), volume=None)
    assert [item.description.url.removeprefix("s3://data/") for item in remote] == local
    return local


PATTERNS = [
    ("a/*.csv", "a/[1].csv a/x.csv a/y-1.csv a/é.csv"),
    ("a/**.csv", "a/[1].csv a/x.csv a/y-1.csv a/é.csv"),
    ("a/**/x.csv", "a/b/c/x.csv a/x.csv"),
    ("**/c/*", "a/b/c/x.csv"),
    ("*/b/?/x.csv", "a/b/c/x.csv"),
    ("a/b/**", "a/b/c/x.csv"),
    ("a/y-[0-9].csv", "a/y-1.csv"),
    ("a/[!x-z]*.csv", "a/[1].csv a/é.csv"),
    ("a/[^x-z]*.csv", "a/[1].csv a/é.csv"),
    ("a/?.csv", "a/x.csv a/é.csv"),
    ("a/[[]1[]].csv", "a/[1].csv"),
    ("a/[1].csv", "a/[1].csv"),
    ("a/[é].csv", "a/é.csv"),
    ("a/X.[c]sv", ""),
    ("a/x?csv*/*", ""),
    ("[ab]/*x.csv", "a/x.csv b/a+x.csv"),
    ("_a=[1]/*.csv", "_a=1/x.csv"),
    ("*/x.csv", "_a=1/x.csv a/x.csv"),
    ("a/_*.csv", "a/_x.csv"),
    ("a/.*", "a/.x.csv"),
    ("a/_t/*", "a/_t/x.csv"),
    ("**/_t/**/x.csv", "a/_t/x.csv"),
    ("*/_t/.u/*.csv", "a/_t/.u/x.csv"),
]


def test_patterns_mean_the_same_in_folders_and_buckets(
    tmp_path: Path, bucket: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket is listed folder by folder, or all that is below."""
    put(tmp_path, bucket, "a/x.csv", "a/y-1.csv", "a/é.csv", "a/[1].csv", "a/b/c/x.csv", "b/a+x.csv", "_a=1/x.csv")
    put(tmp_path, bucket, "a/_x.csv", "a/.x.csv", "a/_t/x.csv", "a/_t/.u/x.csv", "a/x.csv._COPYING_", "_SUCCESS")
    for pattern, expected in PATTERNS:
        for levels, base, url in (
            (0, tmp_path, pattern),
            *((levels, None, f"s3://data/{pattern}") for levels in (100, 0)),
        ):
            monkeypatch.setattr(remote, "_MAX_LEVELS", levels)
            if expected:
                assert [found.removeprefix("s3://data/") for found in urls(base, url)] == expected.split(), pattern
            else:
                with pytest.raises(SourceUnreadable, match="matches no file"):
                    urls(base, url)


def test_of_hidden_names_alone_it_is_said_that_they_were_left_out(tmp_path: Path, bucket: Any) -> None:
    put(tmp_path, bucket, "out/_temporary/0/part-0.csv", "out/_SUCCESS")
    for base, url in ((tmp_path, "out/**/*.csv"), (None, "s3://data/out/*")):
        with pytest.raises(SourceUnreadable, match=r"(?s)matches no file.*not data, so out/_\w+ was left out"):
            urls(base, url)


@pytest.mark.parametrize("levels", [100, 0], ids=["folder by folder", "all below"])
def test_a_folder_is_no_file_and_its_files_are_never_left_out_silently(
    tmp_path: Path, bucket: Any, monkeypatch: pytest.MonkeyPatch, levels: int
) -> None:
    monkeypatch.setattr(remote, "_MAX_LEVELS", levels)
    put(tmp_path, bucket, "out/", "out/part-0", "out/empty/", "out/hadoop_$folder$", "out/hidden/_SUCCESS")
    put(tmp_path, bucket, "day1.csv/deep/part-0.csv", "day2.csv")
    assert found_twice(tmp_path, "out/*", format="csv") == ["out/part-0"]
    assert found_twice(tmp_path, "**/*.csv") == ["day1.csv/deep/part-0.csv", "day2.csv"]
    assert found_twice(tmp_path, "*/**", format="csv") == ["day1.csv/deep/part-0.csv", "out/part-0"]
    for base, prefix in ((tmp_path, ""), (None, "s3://data/")):
        with pytest.raises(BadSource, match=r"matches the folder day1\.csv/, but not the file day1.*\.csv in it"):
            urls(base, f"{prefix}*.csv")
        with pytest.raises(BadSource, match=r"(?s)day1\.csv is a folder, expected a file.*match its files"):
            urls(base, f"{prefix}day1.csv")


def test_an_empty_object_is_a_file_and_a_folders_mark_is_none(bucket: Any) -> None:
    for name in ("in/a.jsonl", "in/b.jsonl/"):
        bucket.put_object(Bucket="data", Key=name, Body=b"")
    for pattern in ("in/*", "**/*"):
        found = resolve_source(dataset(None, f"s3://data/{pattern}", source={"format": "jsonl"}), volume=None)
        assert [item.description.url for item in found] == ["s3://data/in/a.jsonl"]


def test_objects_with_odd_names_are_refused_if_a_pattern_may_match_them(bucket: Any) -> None:
    for name in ("logs//x.txt", "logs/-.csv", "exports/y z+%.csv", "exports/part-0.csv"):
        bucket.put_object(Bucket="data", Key=name, Body=CSV)
    assert urls(None, "s3://data/exp*/*.csv") == ["s3://data/exports/part-0.csv", "s3://data/exports/y z+%.csv"]
    for url, message in {
        "s3://data/logs/**/*.txt": r"cannot be read: .*logs//x\.txt(.|\n)*copy the object to another name, or begin",
        "s3://data/logs/*.csv": r"cannot be read: .*(.|\n)*copy the object to another name, or begin the pattern",
        "s3://data/logs//x.txt": "objects with such names are not read",
        "s3://data/logs//*.txt": "objects with such names are not read",
        "s3://data//logs/y.csv": "objects with such names are not read",
    }.items():
        with pytest.raises(BadSource, match=message):
            urls(None, url)


def test_links_are_followed_and_not_in_circles(tmp_path: Path) -> None:
    for name in ("a/x.csv", "b/y.csv"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(CSV)
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "a" / "b").symlink_to(tmp_path / "b")
    assert urls(tmp_path, "**/*.csv") == ["a/b/y.csv", "a/x.csv", "b/y.csv"]


def test_what_matches_and_cannot_be_read_is_never_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(CSV)
    (tmp_path / "gone.csv").symlink_to("nowhere.csv")
    with pytest.raises(BadSource, match=r"gone\.csv: there is no such file"):
        urls(tmp_path, "*.csv")


TABLE_PATTERNS = ["t/*.parquet", "t/a.parquet", "t/**/*.parquet", "**/*.parquet", "t/c=1/*.parquet", "*/c=*/b.parquet"]


@pytest.mark.parametrize(
    ("mark", "patterns"),
    [
        ("_delta_log/0.json", TABLE_PATTERNS),
        (".hoodie/hoodie.properties", TABLE_PATTERNS[:1]),
        ("metadata/v1.metadata.json", TABLE_PATTERNS[:1]),
    ],
    ids=["Delta", "Hudi", "Iceberg"],
)
def test_a_tables_files_are_refused(
    tmp_path: Path, bucket: Any, monkeypatch: pytest.MonkeyPatch, mark: str, patterns: list[str]
) -> None:
    put(tmp_path, bucket, "t/a.parquet", "t/c=1/b.parquet", f"t/{mark}")
    for levels, pattern in itertools.product([100, 0], patterns):
        monkeypatch.setattr(remote, "_MAX_LEVELS", levels)
        for base, prefix in ((tmp_path, ""), (None, "s3://data/")):
            with pytest.raises(BadSource, match=r"(?s)is a file of an? (Delta|Hudi|Iceberg) table at \S+/t: .*export"):
                urls(base, prefix + pattern)


def test_what_only_looks_like_a_tables_folder_is_read(tmp_path: Path, bucket: Any) -> None:
    put(tmp_path, bucket, "t/a.parquet", "t/metadata/notes.json", "u/_delta_log/0.json", "u/x.csv")
    assert found_twice(tmp_path, "t/*.parquet") == ["t/a.parquet"]
    assert found_twice(tmp_path, "u/*.csv") == ["u/x.csv"]


def test_an_object_that_changes_is_refused(tmp_path: Path, bucket: Any) -> None:
    bucket.put_object(Bucket="data", Key="a.csv", Body=CSV)
    objects = resolve_source(dataset(None, "s3://data/a.csv"), volume=None)
    before = source_fingerprint(objects)
    bucket.put_object(Bucket="data", Key="a.csv", Body=b"k,v\na,2\n")
    assert source_fingerprint(resolve_source(dataset(None, "s3://data/a.csv"), volume=None)) != before
    with pytest.raises(BadSource, match=r"s3://data/a\.csv changed while it was read"):
        fetch_files(objects, tmp_path, SilentProgress())
