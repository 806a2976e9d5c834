"""GET by `kubectl proxy`. Needs no cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.support import kubectl
from e2e.support.command import CommandFailed

PROXY = """#!{python}
import http.server, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(404 if self.path == "/absent" else 200)
        self.end_headers()
        self.wfile.write(b"path " + self.path.encode())

if sys.argv[1] == "get":
    sys.exit(print("by kubectl", *sys.argv[2:]))
if {starts}:
    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    print(f"Starting to serve on 127.0.0.1:{{server.server_port}}", flush=True)
    server.serve_forever()
"""
POD_LIST = (
    '{"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {"name": "a", "managedFields": []}, "spec": {}}]}'
)


@pytest.fixture(autouse=True)
def _forget_proxy() -> Iterator[None]:
    kubectl.proxy_address.cache_clear()
    yield
    kubectl.proxy_address.cache_clear()


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, *, starts: bool) -> None:
    program = folder / "kubectl"
    program.write_text(PROXY.format(python=sys.executable, starts=starts))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_a_path_is_read_through_the_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, starts=True)
    assert [kubectl.raw(path) for path in ("/one", "/two")] == ["path /one", "path /two"]
    with pytest.raises(CommandFailed, match="GET /absent: 404 path /absent"):
        kubectl.raw("/absent")


def test_kubectl_itself_reads_if_there_is_no_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, starts=False)
    assert kubectl.raw("/one") == "by kubectl --raw /one\n"


def test_pods_are_listed_by_their_path_as_kubectl_prints_them(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = {"/api/v1/namespaces/team/pods?labelSelector=dataset%3Da": POD_LIST}
    monkeypatch.setattr(kubectl, "raw", listed.__getitem__)
    (pod,) = kubectl.find("pods", "team", "dataset=a")
    assert pod == {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {}}
