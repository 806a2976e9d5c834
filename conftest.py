"""What all tests share."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop

from lookupdb import native
from lookupdb.process import launch

if native.kernels() is None and "built from other code" in native.describe():
    raise pytest.UsageError(f"{native.describe()}: run `make native`, or set {native.VARIABLE}=0 to test Python alone")

pytest_plugins = ["e2e.support.plugin"]

# Tests start hundreds of interpreters. If the environment forbids bytecode files, each of them compiles everything that
# it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Every process that a test starts prints its stack when it crashes, or is aborted because it does not end.
os.environ["PYTHONFAULTHANDLER"] = "1"

# Imported modules and collected tests live until the end. Searching them for garbage again and again took a tenth of
# the processor time of the whole suite.
gc.disable()

# Messages name this program. In one process, too, it shall not be pytest.
sys.argv[0] = "-c"

# A command that a test runs in this process must not end the process.
vars(launch)["end_at_once"] = sys.exit

# Restore the signals that the tests were started with ignored: SIGINT by a shell's background job, SIGHUP by nohup.
# Otherwise the child processes of tests would ignore them too.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems() -> None:
    """Hypothesis would read all code of the project for constants, in every process: that takes seconds, and examples
    would change with what is imported.
    """
    if "hypothesis" in sys.modules:
        from hypothesis.internal.conjecture import providers

        vars(providers)["is_local_module_file"] = lambda _path: False


def pytest_collection_finish() -> None:
    """From now on collect the garbage of tests. The default threshold of 700 objects finds mostly live ones."""
    gc.freeze()
    gc.set_threshold(10_000)
    gc.enable()


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The router's code runs on uvloop, in tests as in its workers; all other code on asyncio's own loop."""
    if item.path.name.startswith("test_route"):
        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let xdist's workers send one message for a test that passes, not six. The others, which are of use only to
    ``--durations``, took some seconds of the whole suite.
    """
    if session.config.option.durations is None:
        for worker in session.config.pluginmanager.get_plugins():
            if hasattr(worker, "sendevent"):
                worker.sendevent = partial(_send_results, worker.sendevent)


def _send_results(send: Callable[..., None], name: str, **members: Any) -> None:
    report = members["data"] if name == "testreport" else {"when": "call"}
    if name not in ("logstart", "logfinish") and (report["when"] == "call" or report["outcome"] != "passed"):
        send(name, **members)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Undo what a command line sets up in this process, so that later tests do not see it. No fixture does this: three
    for each test took some seconds of the whole suite.
    """
    root = logging.getLogger()
    level, handlers = root.level, set(root.handlers)
    try:
        return (yield)
    finally:
        root.setLevel(level)
        for handler in set(root.handlers) - handlers:
            if type(handler) is logging.StreamHandler:  # not what pytest put there
                root.removeHandler(handler)


collect_ignore_glob = (
    [
        f"server/tests/test_native_{module}.py"
        for module in ("batch", "lookups", "mapped", "packing", "reader", "resp", "rows", "sort", "values", "warmer")
    ]
    if native.kernels() is None
    else []
)
"""Modules that compare native kernels with the Python fallback: without kernels there is nothing to compare."""


TLS_TESTS: tuple[str, ...] = ("test_route_http_connection", "test_route_http_request", "test_route_resp_connection")
"""The modules whose tests run twice: with clients that speak plain HTTP, and with TLS. Their module-scoped
fixtures use ``transport``, so that they are made for each."""


def pytest_report_header() -> str:
    """Say which kernels are tested."""
    return native.describe()


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makemodule(module_path: Path) -> Generator[None, pytest.Module, pytest.Module]:
    """Make the tests of ``TLS_TESTS`` run twice, once for each transport."""
    module = yield
    if module_path.stem in TLS_TESTS:
        module.add_marker(pytest.mark.usefixtures("transport"))
    return module


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what asks for them with both."""
    if "transport" in metafunc.fixturenames:
        metafunc.parametrize("transport", ("plain", "tls"), indirect=True, scope="module")


@pytest.fixture(scope="module")
def transport(request: pytest.FixtureRequest) -> Iterator[str]:
    """How clients speak to the servers of ``support.http``: ``plain`` or ``tls``."""
    from support import http

    with pytest.MonkeyPatch.context() as changes:
        changes.setattr(http, "speaks_tls", request.param == "tls")
        yield str(request.param)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    """A stack of contexts that end with the test."""
    async with AsyncExitStack() as stack:
        yield stack
