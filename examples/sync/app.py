"""A web application that looks up in its own process: every worker maps the same files, and sees each new generation.

    pip install gunicorn
    LOOKUPDB_SYNC_DIR=/var/lib/lookupdb gunicorn --workers 8 app:app

`lookupdb sync` beside it keeps the files; deployment.yaml has both. Do not use --preload: each worker opens the
dataset, and the files are still in memory only once. gunicorn's master would keep the first generation mapped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import Any

import lookupdb

people = lookupdb.open(os.environ.get("DATASET", "team/people"))


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """GET /people/KEY."""
    path = environ["PATH_INFO"].encode("latin-1").decode(errors="replace")  # WSGI has decoded all escapes
    try:
        status, value = "200 OK", people[path.removeprefix("/people/")]
    except KeyError:
        status, value = "404 Not Found", None
    start_response(status, [("Content-Type", "application/json")])
    return [json.dumps(value).encode()]
