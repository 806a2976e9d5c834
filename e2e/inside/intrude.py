"""Sends requests unchanged: ``python intrude.py < {"requests": […]}``, and prints the answers as one JSON document.

A request has ``method``, ``url``, and optionally ``token`` (the name of its file), ``headers`` and ``body``. Its answer
is ``[status, body]`` with the first 4,000 characters of the body. Status 0 means no answer; the body says why.
"""

from __future__ import annotations

import json
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

TOKENS = Path("/tokens")
AUTHORITY = "/ca/ca.crt"
SECONDS = 10.0
CHARACTERS = 4000


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer like any other."""

    def redirect_request(self, *_: Any) -> None:
        """Follow no redirect."""


def main() -> None:
    """Read requests from standard input, and print the answers."""
    context = ssl.create_default_context(cafile=AUTHORITY)
    opener = urllib.request.build_opener(_NoRedirects, urllib.request.HTTPSHandler(context=context))
    answers = [_send(opener, asked) for asked in json.load(sys.stdin)["requests"]]
    print(json.dumps({"answers": answers}))


def _send(opener: urllib.request.OpenerDirector, asked: dict[str, Any]) -> tuple[int, str]:
    body = asked.get("body")
    headers = dict(asked.get("headers", {}))
    if token := asked.get("token"):
        headers["Authorization"] = f"Bearer {(TOKENS / token).read_text().strip()}"
    request = urllib.request.Request(
        asked["url"], None if body is None else body.encode(), headers, method=asked["method"]
    )
    try:
        with opener.open(request, timeout=SECONDS) as answer:
            return answer.status, answer.read(CHARACTERS).decode(errors="replace")
    except urllib.error.HTTPError as error:
        return error.code, error.read(CHARACTERS).decode(errors="replace")
    except OSError as error:
        return 0, str(error)


if __name__ == "__main__":
    main()
