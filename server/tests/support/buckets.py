"""A real S3 server over HTTP, and a bucket in it."""

from __future__ import annotations

import contextlib
import logging
import urllib.request
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from moto.server import ThreadedMotoServer

from lookupdb.store.bucket import Bucket


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """Its URL."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server: Any = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def variables(url: str) -> dict[str, str]:
    """The environment in which the server at ``url`` is reached."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }


def new_bucket(url: str, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """An empty one, reached by this process's environment, with a lease short enough to wait for."""
    use_server(url, monkeypatch)
    return Bucket(create_bucket(url), heartbeat=0.05, lease=0.5)


def use_server(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process's environment lead to the server at ``url``."""
    for name, value in variables(url).items():
        monkeypatch.setenv(name, value)


def create_bucket(url: str) -> str:
    """The URL of a folder in a new bucket of the server at ``url``."""
    name = f"bucket-{uuid.uuid4().hex}"
    urllib.request.urlopen(urllib.request.Request(f"{url}/{name}", method="PUT")).close()
    return f"s3://{name}/some/prefix"
