"""Where a source can be: each place is read for real, and each way it can fail has a sentence."""

from __future__ import annotations

import contextlib
import gzip
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from support.buckets import s3_server, use_server
from support.sources import MEMORY, dataset, read
from support.web import QuietHandler, web_server

from lookupdb.build.progress import SilentProgress
from lookupdb.build.read.sorted_records import SortedRecords
from lookupdb.build.source import listing, local_files
from lookupdb.build.source.fetch import fetch_files
from lookupdb.build.source.listing import resolve_source, source_fingerprint
from lookupdb.build.source.remote_objects import pattern_to_regex
from lookupdb.errors import BadSource, NotEnoughRoom, SourceUnreadable

CSV = b"k,v\na,1\n"


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


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("a/*.csv", ["a/x.csv"], ["a/b/x.csv", "b/x.csv"]),
        ("a/**/x.csv", ["a/x.csv", "a/b/c/x.csv"], ["a/bx.csv"]),
        ("a/x[0-9].csv", ["a/x1.csv"], ["a/xa.csv", "a/x10.csv"]),
        ("a/[!x].csv", ["a/y.csv"], ["a/x.csv", "a//.csv"]),
        ("a.c?v", ["a.csv"], ["abcsv", "a.c/v"]),
    ],
)
def test_wildcards_in_buckets_mean_the_same(pattern: str, yes: list[str], no: list[str]) -> None:
    import re

    matches = re.compile(pattern_to_regex(pattern)).fullmatch
    assert all(matches(path) for path in yes)
    assert not any(matches(path) for path in no)


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
    with pytest.raises(BadSource, match=r"pipe\.csv is not a regular file, but a pipe"):
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


def packed(kind: str, content: bytes) -> bytes:
    return gzip.compress(content) if kind == "gz" else zstandard.compress(content)


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_compressed_files(tmp_path: Path, kind: str) -> None:
    rows = b"".join(b"%d,%d\n" % (number, number) for number in range(20_000))
    content = packed(kind, b"k,v\n" + rows[:1000]) + packed(kind, rows[1000:])  # two members, two frames
    (tmp_path / f"a.csv.{kind}").write_bytes(content)
    assert read(dataset(tmp_path, f"a.csv.{kind}"), tmp_path / "scratch").rows == 20_000
    (tmp_path / "a.bin").write_bytes(content)
    source = {"format": "csv", "compression": {"gz": "gzip", "zst": "zstd"}[kind]}
    assert read(dataset(tmp_path, "a.bin", source=source), tmp_path / "scratch").rows == 20_000


@pytest.mark.parametrize("kind", ["gz", "zst"])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param(lambda data: data[:-1], "is cut short", id="without its last byte"),
        pytest.param(lambda data: data[: len(data) // 2], "is cut short", id="half of it"),
        pytest.param(lambda data: b"", "is cut short", id="empty"),
        pytest.param(lambda data: data + data[:7], "is cut short", id="second member cut short"),
        pytest.param(lambda data: CSV, "is not (gzip|zstd): it looks like text\n", id="not compressed"),
        pytest.param(lambda data: data[:50] + b"\1" * 50 + data[100:], "is damaged: its", id="damaged within"),
        pytest.param(lambda data: data + b"\1junk-and-more", "is damaged: its", id="junk after it"),
    ],
)
def test_a_damaged_stream_is_never_taken_for_a_whole_one(tmp_path: Path, kind: str, damage: Any, message: str) -> None:
    (tmp_path / f"a.csv.{kind}").write_bytes(damage(packed(kind, CSV * 1000)))
    with pytest.raises(BadSource, match=rf"a\.csv\.{kind} {message}"):
        read(dataset(tmp_path, f"a.csv.{kind}"), tmp_path / "scratch")


@pytest.mark.parametrize(
    ("content", "looks_like"),
    [
        pytest.param(b"SECRET1,1\n" * 20, "text", id="text"),
        pytest.param("SECRET1é".encode() * 20, "text", id="text that is cut within a character"),
        pytest.param(b"SECRET1\xff", "no format that is known", id="not UTF-8"),
        pytest.param(b"SECRET1\0", "no format that is known", id="binary"),
        pytest.param(b"PK\x03\x04SECRET1", "zip", id="zip"),
        pytest.param(b"\xfd7zXZ\0SECRET1", "xz", id="xz"),
        pytest.param(b"BZh9SECRET1", "bzip2", id="bzip2"),
        pytest.param(packed("zst", b"SECRET1"), "zstd", id="zstd"),
        pytest.param(b"PAR1SECRET1", "Parquet", id="Parquet"),
    ],
)
def test_what_is_not_compressed_as_it_is_named_is_described_and_not_quoted(
    tmp_path: Path, content: bytes, looks_like: str
) -> None:
    (tmp_path / "a.csv.gz").write_bytes(content)
    with pytest.raises(BadSource, match=rf"a\.csv\.gz is not gzip: it looks like {looks_like}\n") as raised:
        read(dataset(tmp_path, "a.csv.gz"), tmp_path / "scratch")
    assert "SECRET" not in str(raised.value)


@pytest.mark.parametrize("zeros", [1, 512, 40_000])
def test_a_gzip_stream_may_be_padded_with_zeros(tmp_path: Path, zeros: int) -> None:
    """As a tape's blocks are, and more of them than are unpacked at once."""
    (tmp_path / "a.csv.gz").write_bytes(packed("gz", CSV) + bytes(zeros) + packed("gz", b"b,2\n") + bytes(zeros))
    assert list(read(dataset(tmp_path, "a.csv.gz"), tmp_path / "scratch").values) == ["a", "b"]


def test_a_zstd_stream_may_begin_with_a_frame_to_skip(tmp_path: Path) -> None:
    """As pzstd writes it."""
    (tmp_path / "a.csv.zst").write_bytes(b"\x50\x2a\x4d\x18\x04\0\0\0\x19\0\0\0" + packed("zst", b"k,v\na,1\n"))
    assert read(dataset(tmp_path, "a.csv.zst"), tmp_path / "scratch").values == {"a": '{"v":"1"}'}


def test_a_flipped_bit_is_seen(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(CSV * 1000))
    data[-6] ^= 1  # in its checksum
    (tmp_path / "a.csv.gz").write_bytes(data)
    with pytest.raises(BadSource, match=r"a\.csv\.gz is damaged: its gzip stream .* \(incorrect data check\)"):
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
def test_what_cannot_be_used_because_it_changes_is_told_as_changed(
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


def test_a_compressed_file_that_is_cut_short_after_it_was_listed_is_told_as_changed(tmp_path: Path) -> None:
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


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    import boto3  # type: ignore[import-untyped]  # takes a while, and few tests need it

    with s3_server() as url:
        use_server(url, monkeypatch)
        with contextlib.closing(boto3.client("s3", region_name="us-east-1")) as client:
            client.create_bucket(Bucket="data")
            yield client
            # All servers of a process share what they keep.
            for entry in client.list_objects_v2(Bucket="data")["Contents"]:
                client.delete_object(Bucket="data", Key=entry["Key"])


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


def test_an_object_that_changes_is_refused(tmp_path: Path, bucket: Any) -> None:
    bucket.put_object(Bucket="data", Key="a.csv", Body=CSV)
    objects = resolve_source(dataset(None, "s3://data/a.csv"), volume=None)
    before = source_fingerprint(objects)
    bucket.put_object(Bucket="data", Key="a.csv", Body=b"k,v\na,2\n")
    assert source_fingerprint(resolve_source(dataset(None, "s3://data/a.csv"), volume=None)) != before
    with pytest.raises(BadSource, match=r"s3://data/a\.csv changed while it was read"):
        fetch_files(objects, tmp_path, SilentProgress())
