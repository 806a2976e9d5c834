"""The plugin for pytest, with the fixture ``lookupdb_serve``. pytest finds it by an entry point. It imports nothing
else until a test uses the fixture."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lookupdb.testing import Serve, ServedDataset


@pytest.fixture
def lookupdb_serve() -> Iterator[Serve]:
    """Return a function that serves records until the test ends, with the arguments of ``lookupdb.testing.serve``."""
    with ExitStack() as stack:

        def serve_until_the_test_ends(*arguments: object, **options: object) -> ServedDataset:
            from lookupdb.testing import serve

            return stack.enter_context(serve(*arguments, **options))  # type: ignore[arg-type]

        yield serve_until_the_test_ends
