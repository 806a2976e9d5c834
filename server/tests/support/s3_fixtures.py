"""A store that speaks S3. A test module names this one in its ``pytest_plugins``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.buckets import s3_server


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Its URL."""
    with s3_server() as url:
        yield url
