"""The console of the release under test, through its Service, and clients that browse it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import unescape
from typing import Any, Final
from urllib.parse import quote, urlencode

import urllib3
from e2e.support import release
from e2e.support.kubectl import Manifest, find, ready_pod

AUDIENCE: Final = "lookupdb:console"
OVERSEER: Final = (release.NAMESPACE, "default")
"""The service account that sees all datasets: e2e/run sets console.token.subjects."""
_ADDRESS: Final = re.compile(r"Forwarding from (127\.0\.0\.1:\d+) ")
_SHOWN: Final = re.compile(r'href="/datasets/([^"?/]+/[^"?/]+)"')
_SECONDS: Final = 30.0


def service() -> str:
    """Return the name of the console's Service."""
    (found,) = find("services", release.NAMESPACE, release.CONSOLE)
    return str(found["metadata"]["name"])


def pod() -> Manifest:
    """Wait until the console's only pod is ready, and return it."""
    return ready_pod(release.NAMESPACE, release.CONSOLE, "the console")


@contextmanager
def forwarded() -> Iterator[str]:
    """Yield a URL of the console's Service, which works until the block ends."""
    words = ["kubectl", "port-forward", f"service/{service()}", ":80", "--namespace", release.NAMESPACE]
    process = subprocess.Popen([*words, "--address", "127.0.0.1"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = _ADDRESS.match(line)
        assert found, f"kubectl port-forward printed {line!r}"
        yield f"http://{found[1]}"
    finally:
        process.terminate()
        process.communicate()


@dataclass(frozen=True)
class Page:
    """An answer of the console."""

    status: int
    headers: Mapping[str, str]
    body: str

    @property
    def text(self) -> str:
        """The page without its tags."""
        return unescape(re.sub(r"<[^>]*>", " ", self.body))

    @property
    def shown(self) -> set[str]:
        """The datasets that it links to, as ``namespace/name``."""
        return set(_SHOWN.findall(self.body))


@dataclass
class Browser:
    """Asks for pages of ``url`` with the cookie of its login."""

    url: str
    cookie: str = ""
    _http: urllib3.PoolManager = field(default_factory=lambda: urllib3.PoolManager(timeout=_SECONDS, retries=False))

    def ask(self, path: str, form: Mapping[str, str] | None = None, **headers: str) -> Page:
        """Return the page at ``path``; with ``form``, the answer to it. Redirects are answers."""
        sent = {"Accept": "text/html", "Connection": "close", **headers}
        if self.cookie:
            sent["Cookie"] = self.cookie
        body = None
        if form is not None:
            sent |= {"Origin": self.url, "Content-Type": "application/x-www-form-urlencoded"}
            body = urlencode(form)
        answer = self._http.request(
            "GET" if form is None else "POST", self.url + path, body=body, headers=sent, redirect=False
        )
        return Page(answer.status, answer.headers, answer.data.decode())

    def log_in(self, token: str) -> Page:
        """Send the form of the login, and keep the cookie. Return the answer."""
        answer = self.ask("/login", {"token": token})
        self.cookie = answer.headers.get("Set-Cookie", "").partition(";")[0]
        return answer

    def list_rows(self, query: str = "") -> list[dict[str, Any]]:
        """Return the rows of all pages of the list, as JSON."""
        rows: dict[tuple[str, str], dict[str, Any]] = {}
        number = 1
        while True:
            page = self.ask(f"/live.json?sort=name&q={quote(query)}&page={number}")
            assert page.status == 200, page
            found = {(row["namespace"], row["name"]): row for row in json.loads(page.body)}
            if found.keys() <= rows.keys():  # beyond the last page, the last one is the answer
                return list(rows.values())
            rows |= found
            number += 1
