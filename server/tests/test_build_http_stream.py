"""A source whose server does not say how long it is, as one that makes it on the fly does."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.sources import dataset, read
from support.web import QuietHandler, web_server

from lookupdb.build.progress import SilentProgress
from lookupdb.build.source.fetch import fetch_files
from lookupdb.build.source.listing import resolve_source, source_fingerprint
from lookupdb.errors import BadSource, NotEnoughRoom

CSV = b"k,v\n" + b"".join(b"%d,value\n" % number for number in range(50_000))


class Web(QuietHandler):
    def do_GET(self) -> None:  # noqa: N802 - http.server calls it so
        self.send_response(200)
        path = self.path.partition("?")[0]
        if path == "/until-closed.csv":
            self.end_headers()
            self.wfile.write(CSV)
            self.close_connection = True
            return
        if path == "/on-the-fly.csv":
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        body = gzip.compress(CSV) if path in ("/f.csv.gz", "/on-the-fly.csv") else CSV
        for start in range(0, len(body), 10_000):
            piece = body[start : start + 10_000]
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            if path == "/cut.csv" and start:
                self.close_connection = True
                return
        self.wfile.write(b"0\r\n\r\n")


@pytest.fixture
def web() -> Iterator[str]:
    with web_server(Web) as url:
        yield url


@pytest.mark.parametrize("path", ["f.csv", "f.csv.gz", "on-the-fly.csv", "f.csv?sig=a%2Fb"])
def test_it_is_read_to_its_end(tmp_path: Path, web: str, path: str) -> None:
    found = read(dataset(None, f"{web}/{path}"), tmp_path)
    assert found.rows == len(found.records) == 50_000


def test_its_content_identifies_it(tmp_path: Path, web: str) -> None:
    objects = resolve_source(dataset(None, f"{web}/f.csv"), volume=None)
    assert source_fingerprint(objects) is None
    (file,) = fetch_files(objects, tmp_path, SilentProgress())
    assert file.description.bytes == len(CSV)
    assert source_fingerprint([file]) is not None


def test_one_that_is_cut_short_is_refused(tmp_path: Path, web: str) -> None:
    with pytest.raises(BadSource, match="cut short"):
        read(dataset(None, f"{web}/cut.csv"), tmp_path)


def test_one_whose_end_is_not_marked_is_refused(tmp_path: Path, web: str) -> None:
    with pytest.raises(BadSource, match="sends neither its length nor a marked end"):
        read(dataset(None, f"{web}/until-closed.csv"), tmp_path)


def test_a_full_scratch_folder_is_named(tmp_path: Path, web: str) -> None:
    import resource

    objects = resolve_source(dataset(None, f"{web}/f.csv"), volume=None)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(NotEnoughRoom, match=f"no room left in the scratch folder {tmp_path}"):
            fetch_files(objects, tmp_path, SilentProgress())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
