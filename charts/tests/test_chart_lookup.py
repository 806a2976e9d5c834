"""The script of `helm test`, against a fake router; and the notes after an installation."""

from __future__ import annotations

import importlib.util
import socket
import socketserver
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import pytest
from support.tls import authority, make_identity

from chart_support import CHART, NAMESPACE, Values, notes, render

PEER = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}


class _Router(BaseHTTPRequestHandler):
    strange = frozenset(("/v1/lookup/strange", "/v1/lookup/strange-value", "/v1/lookup/late"))
    """Paths that another server answers; the last one only the first time."""

    def do_GET(self) -> None:
        if self.path == "/v1/lookup/guarded":
            is_known = self.headers.get("Authorization") == "Bearer the-token"
            self.path = "/v1/lookup/KJFK" if is_known else "/v1/lookup/denied"
        status, body = {
            "/v1/lookup/denied": (401, b"unauthenticated"),
            "/v1/lookup/KJFK": (200, b'{"name": "John F Kennedy"}'),
            "/v1/lookup/a%2Fb": (200, b"{}"),
            "/v1/lookup/down": (503, b"unavailable"),
            "/v1/lookup/strange-value": (200, b"<html>"),
        }.get(self.path, (404, b"missing"))
        self.send_response(status)
        if self.path not in self.strange:
            self.send_header("Lookupdb-Generation", "g1")
        elif self.path == "/v1/lookup/late":
            self.strange = type(self).strange = self.strange - {self.path}
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def router() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Router) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("chart_lookup", CHART / "files" / "lookup.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class _TlsRouter(socketserver.ThreadingTCPServer):
    """A fake router with TLS, which records requests, in plain text or encrypted."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _TlsExchange)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(*make_identity("another-name", by=authority()).write(folder))
        self.plain = b""
        self.encrypted = b""


class _TlsExchange(socketserver.BaseRequestHandler):
    server: _TlsRouter

    def handle(self) -> None:
        peer: socket.socket = self.request
        if peer.recv(1, socket.MSG_PEEK) == b"\x16":
            peer = self.server.context.wrap_socket(peer, server_side=True)
            self.server.encrypted += peer.recv(65536)
            self._answer(peer, "200 OK", b'{"name": "John F Kennedy"}')
        else:
            self.server.plain += peer.recv(65536)
            self._answer(peer, "400 Bad Request", b'{"detail": "this port speaks TLS: use https"}')
        peer.close()

    def _answer(self, peer: socket.socket, status: str, body: bytes) -> None:
        head = f"HTTP/1.1 {status}\r\nLookupdb-Generation: g1\r\nContent-Length: {len(body)}\r\n\r\n"
        peer.sendall(head.encode() + body)


@pytest.fixture
def tls_router(tmp_path: Path) -> Iterator[_TlsRouter]:
    with _TlsRouter(tmp_path) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        yield server
        server.shutdown()


def test_where_tls_is_spoken_neither_token_nor_key_is_sent_in_plain_text(
    script: ModuleType, tls_router: _TlsRouter, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOOKUPDB_TOKEN", "the-token")
    port = tls_router.server_address[1]
    assert script.main("airports", "default", "KJFK", f"127.0.0.1:{port}") is None
    assert b"Authorization: Bearer the-token" in tls_router.encrypted
    assert b"the-token" not in tls_router.plain
    assert b"KJFK" not in tls_router.plain
    assert f"https://127.0.0.1:{port}/v1/lookup/KJFK g1" in capsys.readouterr().out


@pytest.mark.parametrize("reverse", [False, True], ids=["first", "last"])
def test_a_port_that_takes_no_connection_does_not_keep_from_the_one_that_does(
    script: ModuleType, tls_router: _TlsRouter, monkeypatch: pytest.MonkeyPatch, reverse: bool
) -> None:
    """One port refuses connections, and one never answers, as a Service does for unknown ports."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        waiting = [socket.socket() for _ in range(3)]
        for one in waiting:  # they fill its queue
            one.setblocking(False)
            one.connect_ex(silent.getsockname())
        ports = (1, silent.getsockname()[1], tls_router.server_address[1])
        monkeypatch.setattr(script, "PORTS", ports[::-1] if reverse else ports)
        assert script.main("airports", "default", "KJFK", "127.0.0.1") is None
        for one in waiting:
            one.close()


def test_the_usual_port_of_what_is_spoken_is_left_out(
    script: ModuleType, tls_router: _TlsRouter, router: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = tls_router.server_address[1]
    monkeypatch.setattr(script, "PORTS", (port,))
    assert script.find_router("127.0.0.1") == f"https://127.0.0.1:{port}"
    monkeypatch.setattr(script, "DEFAULT_PORTS", {"https": port, "http": int(router.rpartition(":")[2])})
    assert script.find_router("127.0.0.1") == "https://127.0.0.1"
    assert script.find_router(router) == "http://127.0.0.1"


def test_a_token_is_shown_where_one_is_asked_for(
    script: ModuleType, router: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOOKUPDB_TOKEN", raising=False)
    assert "answered 401" in str(script.main("airports", "default", "guarded", router))
    monkeypatch.setenv("LOOKUPDB_TOKEN", "the-token\n")
    assert script.main("airports", "default", "guarded", router) is None
    monkeypatch.setenv("LOOKUPDB_TOKEN", "the\ntoken")
    assert "the\ntoken" not in (told := str(script.main("airports", "default", "guarded", router)))
    assert "holds no token" in told


def test_the_test_gets_its_token_from_a_secret() -> None:
    (pod,) = render({"test": {"tokenSecret": "web"}}).find_all("Pod")
    (variable,) = pod["spec"]["containers"][0]["env"]
    assert variable == {"name": "LOOKUPDB_TOKEN", "valueFrom": {"secretKeyRef": {"name": "web", "key": "token"}}}


def test_a_key_that_is_there(script: ModuleType, router: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main("airports", "default", "KJFK", router) is None
    assert "g1" in capsys.readouterr().out


def test_a_key_is_quoted(script: ModuleType, router: str) -> None:
    assert script.main("airports", "default", "a/b", router) is None


@pytest.mark.parametrize(
    ("key", "sentence"), [("nowhere", "has no key 'nowhere': set test.key"), ("down", "answered 503: unavailable")]
)
def test_an_answer_that_is_not_the_value(script: ModuleType, router: str, key: str, sentence: str) -> None:
    assert sentence in script.main("airports", "default", key, router)


@pytest.mark.parametrize(("key", "status"), [("strange", 404), ("strange-value", 200)])
def test_what_another_server_answers_says_nothing_of_the_key(
    script: ModuleType, router: str, monkeypatch: pytest.MonkeyPatch, key: str, status: int
) -> None:
    monkeypatch.setattr(script, "STRANGER_SECONDS", 0.0)
    said = script.main("airports", "default", key, router)
    assert f"/v1/lookup/{key} with {status} is not a lookupdb router" in said


def test_another_server_is_asked_again_until_the_router_answers(script: ModuleType, router: str) -> None:
    """A new Service's address leads out of the cluster until all nodes know it."""
    assert "has no key 'late'" in script.main("airports", "default", "late", router)


def test_no_such_dataset(script: ModuleType) -> None:
    said = script.main("airports", "default", "KJFK", "127.0.0.1:1")
    assert said.startswith("No dataset airports in default answers")
    assert "Create one, e.g. with kubectl apply -n default -f examples/airports.yaml" in said
    assert "--set test.namespace=" in said


def test_the_first_namespace_counts_in_which_somebody_answers(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def ask(url: str, dataset: str, namespace: str, key: str) -> str | None:
        asked.append(namespace)
        if namespace == "default":
            raise OSError("no such host")
        return None

    monkeypatch.setattr(script, "find_router", lambda name: f"http://{name}")
    monkeypatch.setattr(script, "ask", ask)
    assert script.main("airports", "default,lookupdb,more", "KJFK") is None
    assert asked == ["default", "lookupdb"]


@pytest.mark.parametrize(
    ("values", "namespaces"),
    [
        ({}, f"default,{NAMESPACE}"),
        ({"test": {"namespace": "shop"}}, "shop"),
        ({"watchNamespaces": ["one", "two"]}, "one,two"),
        ({"watchNamespaces": ["one"], "test": {"namespace": "shop"}}, "shop"),
    ],
    ids=["where the notes and the README put it", "named", "watched", "named of those watched"],
)
def test_the_pod_looks_where_the_notes_say(values: Values, namespaces: str) -> None:
    (container,) = dict(render(values).pod_templates())["lookupdb-test-lookup"]["spec"]["containers"]
    assert container["args"][2] == namespaces
    first = namespaces.split(",")[0]
    told = notes(values)
    for command in ("kubectl apply", "kubectl wait", "kubectl port-forward"):
        assert f"{command} -n {first} " in told
    assert f"http://airports-router.{first}.svc/" in told


def test_the_pod_runs_that_script() -> None:
    (container,) = dict(render({"test": {"dataset": "people"}}).pod_templates())["lookupdb-test-lookup"]["spec"][
        "containers"
    ]
    text, *arguments = container["args"]
    assert text == (CHART / "files" / "lookup.py").read_text(encoding="utf-8")
    assert arguments == ["people", f"default,{NAMESPACE}", "KJFK"]
    done = subprocess.run(["python3", "-c", text, "x", "y", "z"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("No dataset x in y")


@pytest.mark.parametrize(
    ("values", "there", "absent"),
    [
        (
            {},
            ["airports-router.default.svc", "delete crd", "pvc/lookupdb-store"],
            ["kubectl apply --server-side", "Prometheus"],
        ),
        ({"crds": {"enabled": False}}, ["kubectl apply --server-side -f crds/"], ["delete crd"]),
        ({"watchNamespaces": ["one"]}, ["for datasets in one."], []),
        ({"podMonitor": {"enabled": True}}, ["cannot read the metrics yet", "networkPolicies:\n    monitoring:"], []),
        ({"podMonitor": {"enabled": True}, "networkPolicies": {"enabled": False}}, [], ["Prometheus"]),
        ({"podMonitor": {"enabled": True}, "networkPolicies": {"monitoring": [PEER]}}, [], ["Prometheus"]),
    ],
    ids=["defaults", "no CRD", "listed namespaces", "metrics shut off", "metrics open to all", "metrics open"],
)
def test_notes(values: Values, there: list[str], absent: list[str]) -> None:
    told = notes(values)
    assert [text for text in there if text not in told] == []
    assert [text for text in absent if text in told] == []
