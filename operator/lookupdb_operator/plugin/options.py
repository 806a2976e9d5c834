"""Options that commands share: cluster and namespace, name, output, waiting; and running a command's requests."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import orjson

from lookupdb.cli.options import GenerationAddress, Seconds
from lookupdb.errors import LookupdbError, UsageError
from lookupdb.up.run_state import DATA_DIRECTORY, DEFAULT_NAMESPACE
from lookupdb_operator.cluster.api import ApiError
from lookupdb_operator.plugin.session import DatasetSession, LocalSession, Target

F = TypeVar("F", bound=Callable[..., Any])
S = TypeVar("S", bound=DatasetSession)
T = TypeVar("T")

KUBECTL: Final = "kubectl-lookupdb"
"""The program whose commands use a cluster, unless --data-dir is given. Those of `lookupdb` use a data folder."""
_PATIENCE: Final = 3.0
"""Seconds for completion."""
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
"""Name of a namespace or an object. In a URL, an empty name would mean the collection, and ``..`` all namespaces."""


class Verb(click.Command):
    """A command of both programs. Its help is written for `kubectl lookupdb`, and shown for the program that runs."""

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the description."""
        written = self.help
        try:
            self.help = written if _is_of_kubectl() else (written or "").replace("kubectl lookupdb", "lookupdb")
            super().format_help_text(ctx, formatter)
        finally:
            self.help = written


def check_name(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """Return ``value`` if it is a valid name of an object."""
    if value is not None and not _NAME.fullmatch(value):
        raise click.BadParameter(f"{value!r} is not a name: use only a-z, 0-9, - and ., but neither - nor . at an end")
    return value


def _check_dataset(context: click.Context, parameter: click.Parameter, value: str) -> str:
    for part in value.split("/", 1):
        check_name(context, parameter, part)
    return value


def with_cluster(command: F) -> F:
    """Give ``command`` ``target``, the cluster that kubectl's options name. ``name`` may begin with a namespace."""

    @click.option(
        "-n",
        "--namespace",
        callback=check_name,
        help="The namespace; without it, the one of the context. DATASET may be NAMESPACE/NAME instead.",
    )
    @click.option("--context", help="The context of the kubeconfig; without it, the current one.")
    @click.option("--kubeconfig", help="The kubeconfig; without it, $KUBECONFIG or ~/.kube/config.")
    @wraps(command)
    def wrapped(*args: Any, **rest: Any) -> Any:
        target = _find_target(rest)
        for name in ("namespace", "context", "kubeconfig", "data"):
            rest.pop(name, None)
        if rest.get("name"):
            rest["name"] = rest["name"].rpartition("/")[2]
        return command(*args, target=target, **rest)

    return wrapped  # type: ignore[return-value]


def with_target(command: F) -> F:
    """Give ``command`` the argument ``target``: a cluster, or the data folder of a `lookupdb up`."""
    return click.option(
        "--data-dir",
        "--data",
        "data",
        type=click.Path(path_type=Path, file_okay=False),
        help=f"Ask the `lookupdb up` of this data folder, not a cluster. Default of `lookupdb`: {DATA_DIRECTORY}",
    )(with_cluster(command))


def _find_target(values: Mapping[str, Any]) -> Target:
    """Return the target that the options and the name specify. Raises UsageError."""
    kubeconfig, context, data = values.get("kubeconfig"), values.get("context"), values.get("data")
    if data is None and kubeconfig is None and context is None and not _is_of_kubectl():
        data = Path(os.environ.get("LOOKUPDB_DATA_DIR") or DATA_DIRECTORY)
    namespace, named = values.get("namespace"), (values.get("name") or "").rpartition("/")[0] or None
    if namespace and named and namespace != named:
        raise UsageError(f"-n {namespace} and {values['name']} name two namespaces", hint="leave one of them out")
    return Target(kubeconfig, context, namespace or named, data)


def _is_of_kubectl() -> bool:
    return click.get_current_context().find_root().command.name == KUBECTL


@asynccontextmanager
async def open_session(target: Target) -> AsyncIterator[DatasetSession]:
    """Open a session with ``target``. Only what it needs is loaded: the client of a cluster takes half a second."""
    if target.data is not None:
        yield LocalSession(target.data, target.namespace or DEFAULT_NAMESPACE)
    else:
        from lookupdb_operator.plugin.cluster_session import open_cluster_session

        async with open_cluster_session(target) as session:
            yield session


def _complete(
    context: click.Context,
    begin: str,
    ask: Callable[[DatasetSession], Awaitable[T]],
    list_names: Callable[[T], Iterable[str]],
) -> list[str]:
    """Return the names in the answer to ``ask`` that begin with ``begin``; none if the API server is slow or fails."""

    async def ask_in_time() -> T:
        async with asyncio.timeout(_PATIENCE), open_session(_find_target(context.params)) as session:
            return await ask(session)

    try:
        with context:
            found = list_names(asyncio.run(ask_in_time()))
    except (ApiError, LookupdbError, TimeoutError, OSError):
        return []
    return [name for name in found if name.startswith(begin)]


def complete_datasets(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the datasets whose names begin with ``incomplete``."""
    return _complete(
        context, incomplete, lambda session: session.list_datasets(), lambda found: (dataset.name for dataset in found)
    )


def complete_generations(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the generations of the dataset on the command line that begin with ``incomplete``, newest first."""
    dataset = (context.params.get("name") or "").rpartition("/")[2]
    if not dataset:
        return []
    return _complete(
        context,
        incomplete,
        lambda session: session.get_dataset(dataset),
        lambda found: (stored["generation"] for stored in reversed(found.status.get("generations") or ())),
    )


name_argument: Final = click.argument(
    "name", metavar="DATASET", callback=_check_dataset, shell_complete=complete_datasets
)
"""The dataset's name, which shells complete."""


def generation_argument(name: str = "generation", *, required: bool = False, **settings: Any) -> Callable[[F], F]:
    """Return the argument for a generation, which shells complete."""
    settings |= {"type": GenerationAddress(), "shell_complete": complete_generations}
    return click.argument(name, required=required, **settings)


json_option: Final = click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")


def wait_options(command: F) -> F:
    """Give ``command`` the arguments ``wait`` and ``timeout``."""
    command = click.option(
        "--timeout",
        type=Seconds(0),
        default="1h",
        show_default=True,
        help="Time limit of --wait, as 20s, 5m, 1h or a number of seconds.",
    )(command)
    return click.option(
        "--wait", is_flag=True, help="Wait until it is done. Exit code 1: it failed, or the time is up."
    )(command)


def run(target: Target, work: Callable[[DatasetSession], Awaitable[T]]) -> T:
    """Return the result of ``work`` in a session with ``target``; see ``run_in``."""
    return run_in(open_session(target), work)


def run_in(opened: AbstractAsyncContextManager[S], work: Callable[[S], Awaitable[T]]) -> T:
    """Return the result of ``work`` in the session ``opened``. SIGTERM and SIGHUP cancel ``work``, which cleans up
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
        async with opened as session:
            return await work(session)

    try:
        return asyncio.run(in_session())
    except ApiError as error:
        raise LookupdbError(str(error)) from error
    except asyncio.CancelledError:
        if not ended_by:
            raise
        sys.exit(128 + ended_by[0])  # the exit code of a program that this signal ends


def print_json(document: Mapping[str, Any] | list[Any]) -> None:
    """Print ``document`` as JSON."""
    click.echo(render_json(document))


def render_json(document: Mapping[str, Any] | list[Any]) -> str:
    """Return ``document`` as JSON."""
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()
