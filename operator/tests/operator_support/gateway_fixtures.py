"""A gateway before a real S3 server. A test module names this one in its ``pytest_plugins``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from support.buckets import new_bucket, s3_server

from lookupdb.store.bucket import Bucket
from operator_support.gateways import MIB, Standing, standing


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """An S3 server."""
    with s3_server() as url:
        yield url


@pytest.fixture
def bucket(url: str, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A new bucket; the environment has its credentials."""
    return new_bucket(url, monkeypatch)


@pytest.fixture
async def gateway(bucket: Bucket, tmp_path: Path) -> AsyncIterator[Standing]:
    """A gateway in front of the bucket, with short timeouts for clients."""
    async with standing(tmp_path, bucket.url, part_bytes=5 * MIB, idle_seconds=2.0, keepalive_seconds=2.0) as gateway:
        yield gateway
