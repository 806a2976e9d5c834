"""The small S3 server that tests of faults ask by the thousand answers as moto's does, request by request."""

from __future__ import annotations

import http.client
import re
import uuid
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest
from support.buckets import s3_server
from support.small_s3 import MIN_PART_BYTES, small_s3_server

PARTS = (b"1" * MIN_PART_BYTES, b"2")
AUTHORIZED = {"Authorization": "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request"}
COMPARED = ("ETag", "Content-Range")


class Answer(NamedTuple):
    """What a client of a store looks at."""

    status: int
    headers: dict[str, str]
    document: dict[str, list[str]]
    """The texts of an XML document by their paths."""
    body: bytes
    length: int
    is_dated: bool


class Client:
    """Sends the same requests to both servers."""

    def __init__(self, urls: tuple[str, str], bucket: str) -> None:
        self._connections = [http.client.HTTPConnection(urlsplit(url).netloc) for url in urls]
        self._bucket = bucket
        self.uploads: list[str] = []
        """Of moto and of the small one, what it called the upload that was begun last."""
        self.tokens: list[str] = []
        """Where the list that was cut goes on."""

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    def ask(self, method: str, path: str = "", body: bytes = b"", **headers: str) -> tuple[Answer, Answer]:
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        first, second = (self._answer(at, method, path, body, fields) for at in range(2))
        return first, second

    def same(self, method: str, path: str = "", body: bytes = b"", **headers: str) -> Answer:
        """The answer, which both give."""
        moto, small = self.ask(method, path, body, **headers)
        assert small == moto
        return small

    def _answer(self, at: int, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        path = path.replace("UPLOAD", self.uploads[at] if self.uploads else "none")
        path = path.replace("TOKEN", self.tokens[at] if self.tokens else "none")
        connection = self._connections[at]
        connection.request(method, f"{self._bucket}{path}", body or None, AUTHORIZED | headers)
        response = connection.getresponse()
        content = response.read()
        told = {name: value for name in COMPARED if (value := response.getheader(name))}
        document = texts(content) if content[:1] == b"<" else {}
        return Answer(
            response.status,
            told,
            document,
            b"" if document else content,
            0 if document or response.status > 299 else int(response.getheader("Content-Length") or 0),
            method in ("GET", "HEAD") and response.getheader("Last-Modified") is not None,
        )

    def begin_upload(self, path: str) -> None:
        self.uploads = []
        answers = [self._raw(at, "POST", f"{path}?uploads") for at in range(2)]
        self.uploads = [re.findall(r"<UploadId>([^<]+)<", answer)[0] for answer in answers]

    def cut_list(self, query: str) -> None:
        self.tokens = []
        answers = [self._raw(at, "GET", query) for at in range(2)]
        self.tokens = [re.findall(r"<NextContinuationToken>([^<]+)<", answer)[0] for answer in answers]

    def _raw(self, at: int, method: str, path: str) -> str:
        self._connections[at].request(method, f"{self._bucket}{path}", headers=AUTHORIZED)
        return self._connections[at].getresponse().read().decode()


LOOKED_AT = {"Key", "ETag", "Size", "Prefix", "IsTruncated", "KeyCount", "Code"}
"""Elements of which the texts are compared; of the rest, clients read when an object was modified."""


ECHOED = {"/ListBucketResult/Prefix", "/Error/Key", "/CompleteMultipartUploadResult/Key"}
"""What only repeats the request."""


def texts(content: bytes) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    root = ElementTree.fromstring(content)

    def walk(element: ElementTree.Element, path: str) -> None:
        name = element.tag.rpartition("}")[2]
        path = f"{path}/{name}"
        if name in LOOKED_AT and path not in ECHOED:
            found.setdefault(path, []).append(element.text or "")
        for child in element:
            walk(child, path)

    walk(root, "")
    return found


@pytest.fixture(scope="module")
def urls() -> Iterator[tuple[str, str]]:
    with s3_server() as moto, small_s3_server() as small:
        yield moto, small


@pytest.fixture
def client(urls: tuple[str, str]) -> Iterator[Client]:
    """Of a bucket of the test's own, empty in both."""
    client = Client(urls, f"/bucket-{uuid.uuid4().hex}")
    assert client.same("PUT").status == 200
    yield client
    client.close()


class TestObjects:
    def test_are_put_read_and_deleted(self, client: Client) -> None:
        assert client.same("GET", "/a").document["/Error/Code"] == ["NoSuchKey"]
        assert client.same("HEAD", "/a").status == 404
        assert client.same("PUT", "/a", b"one").headers["ETag"] == '"f97c5d29941bfb1b2fdab0874906ab82"'
        read = client.same("GET", "/a")
        assert (read.status, read.body, read.is_dated) == (200, b"one", True)
        assert client.same("HEAD", "/a").length == 3
        client.same("PUT", "/a", b"two")
        assert client.same("GET", "/a").body == b"two"
        assert client.same("DELETE", "/a").status == 204
        assert client.same("DELETE", "/a").status == 204
        assert client.same("GET", "/a").status == 404

    def test_may_be_empty_and_have_any_name(self, client: Client) -> None:
        for path in ("/empty", "/with%20space/%C3%BC%2B%26", "/a//b"):
            client.same("PUT", path, b"")
            assert client.same("GET", path).body == b""
        client.same("GET", "?list-type=2")

    @pytest.mark.parametrize("wanted", ["bytes=0-3", "bytes=4-", "bytes=-3", "bytes=4-100", "bytes=10-"])
    def test_are_read_in_ranges(self, client: Client, wanted: str) -> None:
        client.same("PUT", "/a", b"0123456789")
        assert client.same("GET", "/a", Range=wanted).status == (416 if wanted == "bytes=10-" else 206)

    def test_are_not_in_a_bucket_that_is_not_there(self, urls: tuple[str, str]) -> None:
        client = Client(urls, "/nowhere")
        for method, path in (("GET", "/a"), ("GET", "?list-type=2"), ("PUT", "/a"), ("DELETE", "/a")):
            assert client.same(method, path).document["/Error/Code"] == ["NoSuchBucket"], method
        client.close()


class TestConditions:
    def test_an_object_is_created_once(self, client: Client) -> None:
        assert client.same("PUT", "/a", b"first", If_None_Match="*").status == 200
        assert client.same("PUT", "/a", b"second", If_None_Match="*").document["/Error/Code"] == ["PreconditionFailed"]
        assert client.same("GET", "/a").body == b"first"

    def test_a_version_is_replaced_once(self, client: Client) -> None:
        etag = client.same("PUT", "/a", b"first").headers["ETag"]
        assert client.same("PUT", "/a", b"second", If_Match=etag).status == 200
        assert client.same("PUT", "/a", b"third", If_Match=etag).status == 412
        assert client.same("GET", "/a").body == b"second"

    def test_what_is_not_there_is_not_replaced(self, client: Client) -> None:
        assert client.same("PUT", "/a", b"first", If_Match='"x"').document["/Error/Code"] == ["NoSuchKey"]
        assert client.same("GET", "/a").status == 404

    def test_only_the_version_that_is_asked_for_is_read(self, client: Client) -> None:
        etag = client.same("PUT", "/a", b"first").headers["ETag"]
        assert client.same("GET", "/a", If_Match=etag).status == 200
        client.same("PUT", "/a", b"second")
        assert client.same("GET", "/a", If_Match=etag).status == 412


class TestLists:
    @pytest.fixture
    def listed(self, client: Client) -> Client:
        for name in ("a/g10/x", "a/g2/x", "a/g2/y", "a/note", "b/g1/%26%3C", "a.note"):
            client.same("PUT", f"/{name}", name.encode())
        return client

    @pytest.mark.parametrize("query", ["", "prefix=a/", "prefix=a/g2/", "prefix=none", "prefix=a"])
    @pytest.mark.parametrize("delimiter", ["", "&delimiter=/", "&delimiter=%2F&max-keys=100"])
    def test_have_objects_and_shared_prefixes(self, listed: Client, query: str, delimiter: str) -> None:
        found = listed.same("GET", f"?list-type=2&{query}{delimiter}")
        assert found.document["/ListBucketResult/IsTruncated"] == ["false"]

    @pytest.mark.parametrize("query", ["?list-type=2&max-keys=2", "?list-type=2&max-keys=2&prefix=a/&delimiter=/"])
    def test_are_cut_and_go_on(self, listed: Client, query: str) -> None:
        assert listed.same("GET", query).document["/ListBucketResult/IsTruncated"] == ["true"]
        listed.cut_list(query)
        listed.same("GET", f"{query}&continuation-token=TOKEN")

    def test_begin_behind_a_name(self, listed: Client) -> None:
        listed.same("GET", "?list-type=2&start-after=a/g2/x")

    def test_lose_what_is_deleted_in_one_request(self, listed: Client) -> None:
        keys = "".join(f"<Object><Key>{name}</Key></Object>" for name in ("a/note", "b/g1/&amp;&lt;", "none"))
        listed.same("POST", "?delete", f"<Delete>{keys}</Delete>".encode())
        assert listed.same("GET", "?list-type=2").document["/ListBucketResult/KeyCount"] == ["4"]


class TestUploads:
    def put_parts(self, client: Client, *parts: bytes) -> bytes:
        """The body that completes the upload."""
        client.begin_upload("/large")
        listed = ""
        for number, part in enumerate(parts, 1):
            etag = client.same("PUT", f"/large?partNumber={number}&uploadId=UPLOAD", part).headers["ETag"]
            listed += f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"
        return f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()

    def test_become_an_object_when_they_are_completed(self, client: Client) -> None:
        completion = self.put_parts(client, *PARTS)
        assert client.same("HEAD", "/large").status == 404
        assert client.same("POST", "/large?uploadId=UPLOAD", completion).status == 200
        assert client.same("HEAD", "/large").headers["ETag"].endswith('-2"')
        assert client.same("GET", "/large").body == b"".join(PARTS)

    def test_are_gone_once_they_are_completed(self, client: Client) -> None:
        """As AWS documents it; moto completes them again."""
        completion = self.put_parts(client, b"2")
        assert client.same("POST", "/large?uploadId=UPLOAD", completion).status == 200
        _, again = client.ask("POST", "/large?uploadId=UPLOAD", completion)
        assert again.document["/Error/Code"] == ["NoSuchUpload"]

    def test_need_large_parts(self, client: Client) -> None:
        completion = self.put_parts(client, b"small", b"2")
        assert client.same("POST", "/large?uploadId=UPLOAD", completion).document["/Error/Code"] == ["EntityTooSmall"]
        assert client.same("HEAD", "/large").status == 404

    def test_need_the_parts_that_were_put(self, client: Client) -> None:
        completion = self.put_parts(client, b"2").replace(b"<PartNumber>1<", b"<PartNumber>2<")
        assert client.same("POST", "/large?uploadId=UPLOAD", completion).document["/Error/Code"] == ["InvalidPart"]

    def test_are_gone_when_they_are_given_up(self, client: Client) -> None:
        self.put_parts(client, b"2")
        assert client.same("DELETE", "/large?uploadId=UPLOAD").status == 204
        assert client.same("GET", "?list-type=2").document["/ListBucketResult/KeyCount"] == ["0"]
