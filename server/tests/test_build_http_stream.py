"""A source whose server does not announce its length, for example because it makes the file on the fly."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote

import pytest
from support.sources import dataset, read
from support.web import QuietHandler, web_server

from lookupdb.builder.listing import fetch_files, resolve_source, source_fingerprint
from lookupdb.builder.options import SilentProgress
from lookupdb.errors import BadSource, NotEnoughRoom

CSV = b"k,v\n" + b"".join(b"%d,value\n" % number for number in range(5000))


class Web(QuietHandler):
    """/CODING/NAME is sent in chunks, /CODING/length/NAME with its length; - is no Content-Encoding."""

    def do_GET(self) -> None:  # noqa: N802 - http.server calls it so
        self.send_response(200)
        coding, *form, name = self.path.partition("?")[0].strip("/").split("/")
        if name == "until-closed.csv":
            self.end_headers()
            self.wfile.write(CSV)
            self.close_connection = True
            return
        if coding != "-":
            self.send_header("Content-Encoding", unquote(coding))
        is_packed = name.endswith(".gz") or name == "on-the-fly.csv"
        body = gzip.compress(CSV, mtime=0) if is_packed else CSV
        if form == ["length"]:
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for start in range(0, len(body), 10_000):
            piece = body[start : start + 10_000]
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            if name == "cut.csv" and start:
                self.close_connection = True
                return
        self.wfile.write(b"0\r\n\r\n")


@pytest.fixture
def web() -> Iterator[str]:
    with web_server(Web) as url:
        yield url


@pytest.mark.parametrize("path", ["f.csv", "f.csv.gz", "f.csv?sig=a%2Fb"])
def test_it_is_read_to_its_end(tmp_path: Path, web: str, path: str) -> None:
    found = read(dataset(None, f"{web}/-/{path}"), tmp_path)
    assert found.rows == len(found.records) == 5000


@pytest.mark.parametrize("form", ["", "length/"])
@pytest.mark.parametrize(
    ("coding", "name", "source"),
    [
        ("gzip", "f.csv.gz", {}),
        ("x-gzip", "on-the-fly.csv", {}),
        ("identity, GZIP", "on-the-fly.csv", {}),
        ("gzip", "on-the-fly.csv", {"compression": "gzip"}),
    ],
)
def test_what_is_sent_in_gzip_is_unpacked_once(
    tmp_path: Path, web: str, form: str, coding: str, name: str, source: dict[str, str]
) -> None:
    """Content-Encoding may describe the server's file, or what the server does to it on the way."""
    spec = dataset(None, f"{web}/{quote(coding)}/{form}{name}", source=source)
    (item,) = resolve_source(spec, volume=None)
    assert item.compression == "gzip"
    assert read(spec, tmp_path).rows == 5000


@pytest.mark.parametrize("form", ["", "length/"])
@pytest.mark.parametrize("coding", ["aws-chunked", "utf-8", "identity"])
def test_what_is_no_compression_is_read_as_it_is(tmp_path: Path, web: str, form: str, coding: str) -> None:
    for name in ("f.csv", "f.csv.gz"):
        assert read(dataset(None, f"{web}/{coding}/{form}{name}"), tmp_path).rows == 5000


@pytest.mark.parametrize("form", ["", "length/"])
@pytest.mark.parametrize("coding", ["br", "deflate", "gzip, br"])
def test_another_compression_is_refused(web: str, form: str, coding: str) -> None:
    said = rf"f\.csv is sent in the Content-Encoding {coding}, expected one of gzip, zstd, bzip2, xz\n"
    with pytest.raises(BadSource, match=said):
        resolve_source(dataset(None, f"{web}/{quote(coding)}/{form}f.csv"), volume=None)


@pytest.mark.parametrize("form", ["", "length/"])
def test_what_is_not_as_it_is_labelled_is_refused(tmp_path: Path, web: str, form: str) -> None:
    with pytest.raises(BadSource, match=r"f\.csv is not gzip"):
        read(dataset(None, f"{web}/gzip/{form}f.csv"), tmp_path)
    with pytest.raises(
        BadSource, match=r"on-the-fly\.csv is gzip by its first bytes.*\n  set source\.compression: gzip"
    ):
        read(dataset(None, f"{web}/-/{form}on-the-fly.csv"), tmp_path)


@pytest.mark.parametrize("form", ["", "length/"])
def test_what_is_of_no_format_by_its_name_is_looked_into(web: str, form: str) -> None:
    with pytest.raises(
        BadSource, match=r"data: its name does not show its format\n  set source\.format \(.*\), or name it \.csv"
    ):
        resolve_source(dataset(None, f"{web}/-/{form}data"), volume=None)
    with pytest.raises(BadSource, match=r"data\.gz: its name does not show its format\n  set source\.format"):
        resolve_source(dataset(None, f"{web}/-/{form}data.gz"), volume=None)


def test_its_content_identifies_it(tmp_path: Path, web: str) -> None:
    objects = resolve_source(dataset(None, f"{web}/-/f.csv"), volume=None)
    assert source_fingerprint(objects) is None
    (file,) = fetch_files(objects, tmp_path, SilentProgress())
    assert file.description.bytes == len(CSV)
    assert source_fingerprint([file]) is not None


def test_one_that_is_cut_short_is_refused(tmp_path: Path, web: str) -> None:
    with pytest.raises(BadSource, match="cut short"):
        read(dataset(None, f"{web}/-/cut.csv"), tmp_path)


def test_one_whose_end_is_not_marked_is_refused(tmp_path: Path, web: str) -> None:
    with pytest.raises(BadSource, match="sends neither its length nor a marked end"):
        read(dataset(None, f"{web}/-/until-closed.csv"), tmp_path)


def test_a_full_scratch_folder_is_named(tmp_path: Path, web: str) -> None:
    import resource

    objects = resolve_source(dataset(None, f"{web}/-/f.csv"), volume=None)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(NotEnoughRoom, match=f"no room left in the scratch folder {tmp_path}"):
            fetch_files(objects, tmp_path, SilentProgress())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
