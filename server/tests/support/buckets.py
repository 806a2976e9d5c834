"""A real S3 server over HTTP, and a bucket in it."""

from __future__ import annotations

import contextlib
import logging
import threading
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lookupdb.store.bucket import Bucket

Application = Callable[..., Any]
"""A WSGI application."""


def s3_application() -> Application:
    """moto's S3 alone: for each request its own server looks through the folders of all its services, which takes as
    long as all else.
    """
    from moto.moto_server.werkzeug_app import create_backend_app  # takes a while, and few tests need it

    application: Application = create_backend_app("s3")
    return application


@contextlib.contextmanager
def s3_server(application: Application | None = None, port: int = 0) -> Iterator[str]:
    """Yield the URL of an S3 server on a free port or ``port``. ``application`` replaces the usual one."""
    from moto.moto_server.werkzeug_app import MotoRequestHandler
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    application = application or s3_application()
    server = make_server("127.0.0.1", port, application, threaded=True, request_handler=MotoRequestHandler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


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
    """An empty bucket, reached through this process's environment, with a lease short enough to wait for."""
    use_server(url, monkeypatch)
    return Bucket(create_bucket(url), heartbeat=0.05, lease=0.5)


def read_object(bucket: Bucket, path: str) -> bytes:
    """The content of the object at ``path``, which is there."""
    body = bucket.read(path).body
    assert body is not None, path
    return body


def mark_folder(server: str, bucket: Bucket, path: str) -> None:
    """Put what consoles of stores make for a folder: an object without content whose key ends in a slash."""
    key = bucket.url.removeprefix("s3://")
    urllib.request.urlopen(urllib.request.Request(f"{server}/{key}/{path}/", b"", method="PUT")).close()


def use_server(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process's environment lead to the server at ``url``."""
    for name, value in variables(url).items():
        monkeypatch.setenv(name, value)


def create_bucket(url: str) -> str:
    """The URL of a folder in a new bucket of the server at ``url``."""
    name = f"bucket-{uuid.uuid4().hex}"
    urllib.request.urlopen(urllib.request.Request(f"{url}/{name}", method="PUT")).close()
    return f"s3://{name}/some/prefix"
