"""Options that commands share: completion, cluster and namespace, output, waiting; and running a command's requests."""

from __future__ import annotations

import asyncio
import math
import re
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, Final, TypeVar

import click
import orjson
from click.shell_completion import ShellComplete, get_completion_class

from lookupdb.errors import LookupdbError
from lookupdb_operator.cluster.client import ApiError
from lookupdb_operator.plugin.session import ClusterSession, Target, open_session

# Completion: of ``kubectl-lookupdb`` by the shell, and of ``kubectl lookupdb`` by kubectl, which runs the program
# ``kubectl_complete-lookupdb``.


PROGRAM: Final = "kubectl-lookupdb"
VARIABLE: Final = "_KUBECTL_LOOKUPDB_COMPLETE"
"""The environment variable by which click recognises a request for completion."""
_PATIENCE: Final = 3.0
_NO_FILES: Final = ":4"
"""Tells kubectl not to complete file names."""


def complete_datasets(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the datasets whose names begin with ``incomplete``; none if the API server does not answer at once."""
    values: dict[str, Any] = context.params
    target = Target(values.get("kubeconfig"), values.get("context"), values.get("namespace"))
    try:
        names = asyncio.run(asyncio.wait_for(_list_names(target), _PATIENCE))
    except (ApiError, LookupdbError, TimeoutError):
        return []
    return [name for name in names if name.startswith(incomplete)]


async def _list_names(target: Target) -> list[str]:
    async with open_session(target) as session:
        return [dataset.name for dataset in await session.list_datasets()]


def answer_kubectl(cli: click.Command, words: Sequence[str]) -> Iterator[str]:
    """Yield the completions of the last of ``words``, the arguments of ``cli`` so far, in kubectl's format."""
    *arguments, incomplete = words or [""]
    for item in ShellComplete(cli, {}, PROGRAM, VARIABLE).get_completions(arguments, incomplete):
        yield f"{item.value}\t{item.help}" if item.help else item.value
    yield _NO_FILES


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell for `kubectl-lookupdb`.

    \b
        source <(kubectl-lookupdb completion bash)
        kubectl-lookupdb completion fish > ~/.config/fish/completions/kubectl-lookupdb.fish

    `kubectl lookupdb` is completed by kubectl's own completion, from kubectl 1.26 on: it runs
    kubectl_complete-lookupdb, which is installed beside kubectl-lookupdb and must be on PATH, too.
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click knows all three"
    click.echo(kind(context.find_root().command, {}, PROGRAM, VARIABLE).source())


F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

JSON: Final = "json"
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
            seconds = _parse_duration(value) if isinstance(value, str) else float(value)
        except ValueError:
            self.fail(f"{value!r} is not a time: expected 20s, 5m, 1h or a number of seconds.", param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value} is not a number of seconds.", param, ctx)
        return super().convert(seconds, param, ctx)


def _parse_duration(text: str) -> float:
    """Return the seconds of a duration in Go's format or of a plain number. Raises ValueError."""
    if not _DURATION.fullmatch(text):
        return float(text)
    return sum(float(number) * _UNIT_SECONDS[unit] for number, unit in _PART.findall(text))


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


def name_argument(**settings: Any) -> Callable[[F], F]:
    """Return the argument for the dataset's name, which shells complete."""
    return click.argument("name", callback=check_name, shell_complete=complete_datasets, **settings)


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
    """Return the result of ``work`` in a session with ``target``. A signal cancels ``work``, which cleans up first."""
    ended_by: list[int] = []

    async def in_session() -> T:
        _cancel_on_signals(ended_by)
        async with open_session(target) as session:
            return await work(session)

    try:
        return asyncio.run(in_session())
    except asyncio.CancelledError:
        if not ended_by:
            raise
        sys.exit(_BY_SIGNAL + ended_by[0])


def _cancel_on_signals(ended_by: list[int]) -> None:
    """Cancel the running task on SIGTERM and SIGHUP; asyncio does so for Ctrl-C. An ignored signal stays ignored, for
    example under nohup."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None, "it is called in a task"

    def cancel(number: int) -> None:
        ended_by.append(number)
        task.cancel()

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                loop.add_signal_handler(number, cancel, number)


def print_json(document: Mapping[str, Any] | list[Any]) -> None:
    """Print ``document`` as JSON."""
    click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2))
