"""A real S3 server over HTTP, and a bucket in it."""

from __future__ import annotations

import contextlib
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
    for name, value in variables(url).items():
        monkeypatch.setenv(name, value)
    name = f"bucket-{uuid.uuid4().hex}"
    urllib.request.urlopen(urllib.request.Request(f"{url}/{name}", method="PUT")).close()
    return Bucket(f"s3://{name}/some/prefix", heartbeat=0.05, lease=0.5)
