"""A web application that looks up in its own process: every worker maps the same files, and sees each new generation.

    pip install gunicorn
    LOOKUPDB_SYNC_DIR=/var/lib/lookupdb gunicorn --workers 8 app:app

`lookupdb sync` beside it keeps the files; deployment.yaml has both. Without --preload: each worker opens the dataset,
and the files are in memory once all the same. The master would hold on to the generation of its start.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import unquote

import lookupdb

people = lookupdb.open(os.environ.get("DATASET", "team/people"))


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """GET /people/KEY."""
    key = unquote(environ["PATH_INFO"].removeprefix("/people/"))
    value = people.get(key)
    status = "404 Not Found" if value is None else "200 OK"
    start_response(status, [("Content-Type", "application/json")])
    return [json.dumps(value).encode()]
