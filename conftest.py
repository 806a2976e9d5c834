"""What all tests share."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack

import pytest
import uvloop

pytest_plugins = ["e2e.support.plugin"]

# Tests start hundreds of interpreters. Where the environment forbids to keep bytecode, each of them would compile
# everything it imports, and each of the processes that pytest runs in every test.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell that starts the tests in the background lets them ignore SIGINT, and their child processes would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The router's code runs on uvloop, in tests as in its workers; all other code on asyncio's own loop."""
    if item.path.name.startswith("test_route"):
        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """What a command line that runs in this process sets up would reach into the tests behind it."""
    root = logging.getLogger()
    level, handlers = root.level, set(root.handlers)
    yield
    root.setLevel(level)
    for handler in set(root.handlers) - handlers:
        if type(handler) is logging.StreamHandler:  # not what pytest put there
            root.removeHandler(handler)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    """What is entered here is left when the test ends."""
    async with AsyncExitStack() as stack:
        yield stack
