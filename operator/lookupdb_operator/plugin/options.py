"""Options that commands share: cluster and namespace, name, output, waiting; and running a command's requests."""

from __future__ import annotations

import asyncio
import math
import re
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import Any, Final, TypeVar

import click
import orjson

from lookupdb.errors import LookupdbError
from lookupdb_operator.cluster.client import ApiError
from lookupdb_operator.plugin.session import ClusterSession, Target, open_session

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

JSON: Final = "json"
_PATIENCE: Final = 3.0
"""Seconds for completion."""
_BY_SIGNAL: Final = 128
"""Added to a signal's number: the exit code of a program that it ended."""
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
"""Name of a namespace or an object. In a URL, an empty name would mean the collection, and ``..`` all namespaces."""
_MOST_SECONDS: Final = 604800
"""A week."""
_UNIT_SECONDS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(h|ms|m|s)")
_DURATION: Final = re.compile(f"(?:{_PART.pattern})+")
_GENERATION: Final = re.compile(r"g[1-9][0-9]{0,8}")


def check_name(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """Return ``value`` if it is a valid name of an object."""
    if value is not None and not _NAME.fullmatch(value):
        raise click.BadParameter(f"{value!r} is not a name: use only a-z, 0-9, - and ., and no dot first")
    return value


def check_generation(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """Return ``value`` if it is a valid name of a generation: it is sent in a header."""
    if value is not None and not _GENERATION.fullmatch(value):
        raise click.BadParameter(f"{value!r} is not a generation, such as g13")
    return value


class Seconds(click.FloatRange):
    """A finite number of seconds, also in kubectl's format: 20s, 5m, 1h30m. NaN would pass every range check."""

    def __init__(self, least: float, most: float = _MOST_SECONDS) -> None:
        super().__init__(least, most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return ``value`` in seconds."""
        try:
            is_duration = isinstance(value, str) and _DURATION.fullmatch(value)
            parts = _PART.findall(value) if is_duration else ()
            seconds = sum(float(number) * _UNIT_SECONDS[unit] for number, unit in parts) if parts else float(value)
        except ValueError:
            self.fail(f"{value!r} is not a time: expected 20s, 5m, 1h or a number of seconds.", param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value} is not a number of seconds.", param, ctx)
        return super().convert(seconds, param, ctx)


def with_target(command: F) -> F:
    """Give ``command`` the argument ``target``, from kubectl's options."""

    @click.option(
        "-n",
        "--namespace",
        default=None,
        callback=check_name,
        help="The namespace; without it, the one of the context.",
    )
    @click.option("--context", default=None, help="The context of the kubeconfig; without it, the current one.")
    @click.option("--kubeconfig", default=None, help="The kubeconfig; without it, $KUBECONFIG or ~/.kube/config.")
    @wraps(command)
    def wrapped(*args: Any, namespace: str | None, context: str | None, kubeconfig: str | None, **rest: Any) -> Any:
        return command(*args, target=Target(kubeconfig, context, namespace), **rest)

    return wrapped  # type: ignore[return-value]


def _complete_datasets(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the datasets whose names begin with ``incomplete``; none if the API server does not answer at once."""
    values: dict[str, Any] = context.params
    target = Target(values.get("kubeconfig"), values.get("context"), values.get("namespace"))

    async def list_names() -> list[str]:
        async with asyncio.timeout(_PATIENCE), open_session(target) as session:
            return [dataset.name for dataset in await session.list_datasets()]

    try:
        return [name for name in asyncio.run(list_names()) if name.startswith(incomplete)]
    except (ApiError, LookupdbError, TimeoutError):
        return []


def name_argument(**settings: Any) -> Callable[[F], F]:
    """Return the argument for the dataset's name, which shells complete."""
    return click.argument("name", callback=check_name, shell_complete=_complete_datasets, **settings)


def output_option(command: F) -> F:
    """Give ``command`` the argument ``output``: "json" or None."""
    return click.option("-o", "--output", type=click.Choice([JSON]), default=None, help="Print everything as JSON.")(
        command
    )


def wait_options(command: F) -> F:
    """Give ``command`` the arguments ``wait`` and ``timeout``."""
    command = click.option(
        "--timeout",
        type=Seconds(0),
        default="1h",
        show_default=True,
        metavar="TIME",
        help="Time limit of --wait, as 20s, 5m, 1h or a number of seconds.",
    )(command)
    return click.option(
        "--wait", is_flag=True, help="Wait until it is done. Exit code 1: it failed, or the time is up."
    )(command)


def run(target: Target, work: Callable[[ClusterSession], Awaitable[T]]) -> T:
    """Return the result of ``work`` in a session with ``target``. SIGTERM and SIGHUP cancel ``work``, which cleans up
    first; asyncio does so for Ctrl-C. An ignored signal stays ignored, for example under nohup."""
    ended_by: list[int] = []

    async def in_session() -> T:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None, "it is called in a task"

        def cancel(number: int) -> None:
            ended_by.append(number)
            task.cancel()

        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) != signal.SIG_IGN:
                    loop.add_signal_handler(number, cancel, number)
        async with open_session(target) as session:
            return await work(session)

    try:
        return asyncio.run(in_session())
    except asyncio.CancelledError:
        if not ended_by:
            raise
        sys.exit(_BY_SIGNAL + ended_by[0])


def print_json(document: Mapping[str, Any] | list[Any]) -> None:
    """Print ``document`` as JSON."""
    click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2))
