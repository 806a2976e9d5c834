"""What a registry may answer: whatever it sends ends within a time, in an error that says what was sent, and shows
nobody's credentials to others."""

from __future__ import annotations

import base64
import gc
import socket
import socketserver
import ssl
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.registry import PASSWORD, TRICKLES, USER, Registry, serve_registry
from support.tls import authority, make_identity

from lookupdb.errors import RegistryDenied, RegistryError, UsageError
from lookupdb.image import registry as client
from lookupdb.image.address import add_query, find_origin, follow
from lookupdb.image.artifact import describe_blob
from lookupdb.image.docker_config import Credentials

pytest_plugins = ["support.registry_fixtures"]
pytestmark = pytest.mark.usefixtures("impatient")

CONTENT = b"content"
BLOB = describe_blob("application/octet-stream", CONTENT)
FAULTY = {
    "half an address": ("http://[::1/x", "its host or its port is none"),
    "no address": ("http://[fe80::1%25eth0]/x", "its host or its port is none"),
    "no address, with a port": ("http://[::1]x:5/", "its host or its port is none"),
    "a port too large": ("http://host:99999/", "its host or its port is none"),
    "a port of letters": ("http://host:x/", "its host or its port is none"),
    "a backslash": ("http://a.example\\b.example/", "its host or its port is none"),
    "letters of no host": ("http://\u00e4.example/", "its host or its port is none"),
    "a user": ("http://user:secret@host.example/x?secret", "it has a user name"),
    "a control character": ("http://host.example/\x01x", "it has a control character"),
    "an escape": ("\x1b[2Jx", "it has a control character"),
    "no host": ("https:///x", "it has no host"),
    "another scheme": ("ftp://host.example/x", "its scheme is another"),
    "a long one": ("/" + "x" * 10_000, "it has over 8192 characters"),
}
faulty = pytest.mark.parametrize(("url", "fault"), FAULTY.values(), ids=FAULTY)


def opened(
    to: Registry, credentials: Credentials | None = None, host: str = "", seconds: float = 60
) -> client.Registry:
    repository = client.parse_repository(f"{host or to.host}/lookups")
    return client.Registry(repository, credentials, plain_http=True, patience=0, answer_seconds=seconds)


def check_told(error: RegistryError, fault: str, what: str) -> None:
    assert fault in error.message
    assert f"names as {what} '" in error.message
    assert "expected a URL of http or https" in error.message
    assert error.message.isprintable()
    assert "secret" not in str(error)
    assert len(error.message) < 400


class TestUrls:
    @faulty
    def test_of_an_upload_that_are_none_are_told(self, registry: Registry, url: str, fault: str) -> None:
        registry.location = lambda _: url
        with pytest.raises(RegistryError) as caught:
            opened(registry).put_blob(BLOB, lambda: [CONTENT])
        check_told(caught.value, fault, "the place of an upload")
        assert caught.value.message.startswith(registry.host)

    @faulty
    @pytest.mark.parametrize("method", ["GET", "HEAD"])
    def test_of_a_redirect_that_are_none_are_told(self, registry: Registry, url: str, fault: str, method: str) -> None:
        registry.redirect_to = url
        asking = opened(registry)
        with pytest.raises(RegistryError) as caught:
            asking.get_index("a") if method == "GET" else asking.has_blob(BLOB)
        check_told(caught.value, fault, "another place")

    @pytest.mark.parametrize(
        ("url", "fault"),
        [
            *(case for case in FAULTY.values() if "\\" not in case[0] and not case[0].startswith(("/", "\x1b"))),
            ("tokens.example/token", "it has no scheme"),
            ("/token", "it has no scheme"),
        ],
    )
    def test_of_tokens_that_are_none_are_told(self, url: str, fault: str) -> None:
        with serve_registry("bearer") as registry:
            registry.challenge = f'Bearer realm="{url}"'
            with pytest.raises(RegistryError) as caught:
                opened(registry, Credentials(USER, PASSWORD)).get_index("a")
        if "\x01" not in url:  # no challenge has such a character
            check_told(caught.value, fault, f"the realm of tokens for {registry.host}/lookups")

    def test_that_python_will_not_read_show_no_password(self) -> None:
        with pytest.raises(RegistryError, match="its host or its port is none") as caught:
            follow("https://a.example/", "http://u\u2100:secret@host.example/", "x")
        assert "secret" not in str(caught.value)

    def test_that_lead_in_a_circle_are_followed_some_times(self, registry: Registry) -> None:
        registry.redirect_to = "/v2/lookups/manifests/a"
        with pytest.raises(RegistryError, match="leads on more than 3 times"):
            opened(registry).get_index("a")
        assert len(registry.asked) == 4

    @pytest.mark.parametrize(
        "location",
        [
            lambda path: f"{path}#place",
            lambda path: path.replace("?state=x", "?state=x#a?b"),
            lambda path: f"1{path[path.index('?') :]}",
            lambda path: f" {path}\t",
        ],
    )
    def test_of_an_upload_keep_their_query_and_get_the_digest(
        self, registry: Registry, location: Callable[[str], str]
    ) -> None:
        registry.location = location
        assert opened(registry).put_blob(BLOB, lambda: [CONTENT])
        assert registry.blobs == {BLOB.digest: CONTENT}

    def test_are_read_beside_the_one_that_was_asked(self) -> None:
        base = "https://a.example/v2/x/blobs/uploads/"
        assert follow(base, "7?s=1#f", "x") == f"{base}7?s=1"
        assert follow(base, "/u", "x") == "https://a.example/u"
        assert follow(base, "//b.example/u", "x") == "https://b.example/u"
        assert follow(base, "HTTP://B.example:/u", "x") == "http://B.example:/u"
        assert add_query("https://a.example/u?", {"a": "/"}) == "https://a.example/u?a=%2F"
        assert add_query("https://a.example/u?s=%2f", {"a": "b"}) == "https://a.example/u?s=%2f&a=b"

    @pytest.mark.parametrize(
        ("one", "other", "is_same"),
        [
            ("https://a.example/x", "https://A.Example:443/y", True),
            ("http://a.example", "http://a.example:80/", True),
            ("https://[::1]:5/", "https://[0:0::1]:5/", True),
            ("https://a.example/", "http://a.example/", False),
            ("https://a.example/", "https://a.example:5000/", False),
            ("https://a.example/", "https://b.a.example/", False),
        ],
    )
    def test_of_one_host_are_known_however_they_are_written(self, one: str, other: str, is_same: bool) -> None:
        assert (find_origin(one) == find_origin(other)) == is_same

    @pytest.mark.parametrize(
        "host", ["host.example:99999", "[::::]", "[1:2]:5", "a..example", ".a.example", f"{'a' * 64}.example"]
    )
    def test_that_no_repository_can_have(self, host: str) -> None:
        with pytest.raises(UsageError, match="is no repository"):
            client.parse_repository(f"{host}/lookups")

    def test_of_a_proxy_that_are_none_are_told_without_their_password(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("https_proxy", "ftp://user:secret@proxy.example")
        with pytest.raises(UsageError, match="the proxy that the environment names for https") as caught:
            client.Registry(client.parse_repository("r.example/x"), None, plain_http=False, patience=0)
        assert "secret" not in str(caught.value)

    def test_of_a_proxy_have_a_name_and_a_password_for_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        asked: list[bytes] = []

        class Proxy(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                asked.append(self.request.recv(4096))
                self.request.sendall(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")

        with socketserver.TCPServer(("127.0.0.1", 0), Proxy) as proxy:
            threading.Thread(target=proxy.handle_request, daemon=True).start()
            monkeypatch.setenv("https_proxy", f"http://ada:sec%20ret@127.0.0.1:{proxy.server_address[1]}")
            asking = client.Registry(client.parse_repository("r.example/x"), None, plain_http=False, patience=0)
            with pytest.raises(RegistryError) as caught:
                asking.get_index("a")
        assert b"CONNECT r.example:443 " in asked[0]
        shown = base64.b64encode(b"ada:sec ret")
        assert b"proxy-authorization: basic " + shown.lower() in asked[0].lower()
        assert "sec" not in caught.value.message.replace("seconds", "")


def test_an_answer_that_is_compressed_is_told(registry: Registry) -> None:
    """One that breaks off would be taken for whole, and so for an index of somebody else's."""
    registry.faults["GET manifests/"] = [(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n", b"\x1f\x8b", 0.02)]
    with pytest.raises(RegistryError, match="answers with Content-Encoding gzip, which was not asked for"):
        opened(registry).get_index("a")
    registry.faults["HEAD blobs/"] = [(b"HTTP/1.1 200 OK\r\nContent-Encoding: aws-chunked\r\n\r\n", b"", 0.02)]
    assert opened(registry).has_blob(BLOB), "it has no body"


class TestTime:
    @pytest.mark.parametrize(
        ("where", "what"),
        [
            (where, what)
            for where in ("GET manifests/", "HEAD blobs/", "POST blobs/uploads/", "PUT blobs/uploads/")
            for what in TRICKLES
            if not where.startswith("HEAD") or what in ("status", "fields", "continue", "silence")  # it has no body
        ],
    )
    def test_ends_an_answer_that_does_not(self, registry: Registry, what: str, where: str) -> None:
        registry.faults[where] = [TRICKLES[what]]
        asking, begun = opened(registry, seconds=0.3), time.monotonic()
        with pytest.raises(RegistryError, match=r"has not answered whole within 0\.3 seconds"):
            asking.get_index("a") if where.startswith("GET") else asking.put_blob(BLOB, lambda: [CONTENT])
        assert time.monotonic() - begun < 5

    @pytest.mark.parametrize("what", ["fields", "chunks", "continue"])
    def test_ends_where_a_token_is_asked_for(self, what: str) -> None:
        with serve_registry("bearer") as registry:
            registry.faults["GET /token"] = [TRICKLES[what]]
            with pytest.raises(RegistryError, match="has not answered whole"):
                opened(registry, Credentials(USER, PASSWORD), seconds=0.3).get_index("a")

    @pytest.mark.parametrize("what", ["fields", "chunks"])
    def test_ends_an_answer_over_tls(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
        identity = make_identity("localhost", by=authority())
        authority().write(tmp_path, "authority")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.crt"))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*identity.write(tmp_path))
        with serve_registry(tls=context) as registry:
            registry.faults["GET manifests/"] = [TRICKLES[what]]
            repository = client.parse_repository(f"localhost:{registry.host.rpartition(':')[2]}/lookups")
            asking = client.Registry(repository, None, plain_http=False, patience=0, answer_seconds=1)
            assert not asking.has_blob(BLOB)
            with pytest.raises(RegistryError, match=r"has not answered whole within 1 seconds"):
                asking.get_index("a")
            asking.close()

    def test_is_one_for_all_that_redirects_lead_to(self, registry: Registry) -> None:
        with serve_registry() as other:
            registry.redirect_to, registry.redirects_after = f"http://{other.host}/x", 1.2
            other.faults["GET /x"] = [TRICKLES["chunks"]]
            begun = time.monotonic()
            with pytest.raises(RegistryError, match="has not answered whole within 2 seconds"):
                opened(registry, seconds=2).get_index("a")
            assert other.asked
            assert time.monotonic() - begun < 3.1

    def test_does_not_count_while_an_upload_is_sent(self, registry: Registry) -> None:
        def slowly() -> Iterator[bytes]:
            for byte in CONTENT:
                time.sleep(0.1)
                yield bytes([byte])

        assert opened(registry, seconds=0.5).put_blob(BLOB, slowly)
        assert registry.blobs == {BLOB.digest: CONTENT}

    def test_is_each_requests_own(self, registry: Registry) -> None:
        asking = opened(registry, seconds=0.3)
        for _ in range(4):
            time.sleep(0.1)
            assert not asking.has_blob(BLOB)

    def test_that_is_over_leaves_no_thread_and_no_socket(self, registry: Registry) -> None:
        registry.faults["GET manifests/"] = [TRICKLES["chunks"], TRICKLES["fields"]] * 3
        asking = opened(registry, seconds=0.05)
        names = {thread.name for thread in threading.enumerate()}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(6):
                with pytest.raises(RegistryError):
                    asking.get_index("a")
            asking.close()
            gc.collect()
            ours = [one for one in gc.get_objects() if isinstance(one, socket.socket) and _is_open_to(one, registry)]
        assert not ours
        assert not [warning for warning in caught if issubclass(warning.category, ResourceWarning)]
        assert not [
            thread
            for thread in threading.enumerate()
            if thread.name not in names and "process_request" not in thread.name
        ]


def _is_open_to(one: socket.socket, registry: Registry) -> bool:
    try:
        return bool(one.getpeername() == ("127.0.0.1", int(registry.host.rpartition(":")[2])))
    except OSError:
        return False


class TestSizes:
    @pytest.mark.parametrize("told", ["{}", "0{}", "{}, {}", "00{},{}"])
    def test_that_are_written_otherwise_are_no_damage(self, registry: Registry, told: str) -> None:
        registry.blobs[BLOB.digest] = CONTENT
        registry.size = lambda size: told.format(size, size)
        registry.tells_sizes = True
        assert opened(registry).has_blob(BLOB)

    @pytest.mark.parametrize("told", ["8", "-7", "x", "+7", "\u00b2", "9" * 5000])
    def test_that_are_others_are_told(self, registry: Registry, told: str) -> None:
        registry.blobs[BLOB.digest] = CONTENT
        registry.size = lambda _: told
        registry.tells_sizes = True
        with pytest.raises(RegistryError, match=f"says that {BLOB.digest} has .* bytes, it has 7"):
            opened(registry).has_blob(BLOB)


class TestCredentials:
    @pytest.mark.parametrize("written", ["LOCALHOST", "localhost"])
    def test_are_shown_to_the_registry_however_it_calls_itself(self, written: str) -> None:
        with serve_registry("basic") as registry:
            port = registry.host.rpartition(":")[2]
            registry.location = lambda path: f"http://LocalHost:{port}{path}"
            asking = opened(registry, Credentials(USER, PASSWORD), host=f"{written}:{port}")
            assert asking.put_blob(BLOB, lambda: [CONTENT])
            assert registry.blobs == {BLOB.digest: CONTENT}

    def test_do_not_follow_a_redirect_to_another_host(self) -> None:
        with serve_registry("basic") as registry, serve_registry() as storage:
            storage.blobs[BLOB.digest] = CONTENT
            asking = opened(registry, Credentials(USER, PASSWORD))
            assert not asking.has_blob(BLOB)
            registry.redirect = f"http://{storage.host}"
            registry.shown.clear()
            assert asking.has_blob(BLOB)
            assert registry.shown
            assert storage.asked
            assert not storage.shown

    def test_are_not_for_where_the_realm_of_tokens_leads(self) -> None:
        with serve_registry("bearer") as registry, serve_registry() as other:
            registry.redirect, registry.redirects = f"http://{other.host}", "/token"
            with pytest.raises(RegistryDenied):
                opened(registry, Credentials(USER, PASSWORD)).get_index("a")
            assert other.asked
            assert not other.shown
