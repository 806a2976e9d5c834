"""What verbs have in common: which cluster and namespace, the form of the output, and how a verb's requests are run."""

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

# Completion: in shells, of ``kubectl-lookupdb``; and of ``kubectl lookupdb``, for which kubectl asks the program
# ``kubectl_complete-lookupdb``.


PROGRAM: Final = "kubectl-lookupdb"
VARIABLE: Final = "_KUBECTL_LOOKUPDB_COMPLETE"
"""What click looks for in the environment of a program of this name."""
_PATIENCE: Final = 3.0
_NO_FILES: Final = ":4"
"""To kubectl: what is listed is all, file names are none of it."""


def complete_datasets(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The datasets whose names begin so; none when the API server does not say so at once."""
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
    """The lines that kubectl understands: the words so far are the arguments of ``cli``, the last one is to be
    completed."""
    *arguments, incomplete = words or [""]
    for item in ShellComplete(cli, {}, PROGRAM, VARIABLE).get_completions(arguments, incomplete):
        yield f"{item.value}\t{item.help}" if item.help else item.value
    yield _NO_FILES


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print what completes `kubectl-lookupdb` in a shell.

    \b
        source <(kubectl-lookupdb completion bash)
        kubectl-lookupdb completion fish > ~/.config/fish/completions/kubectl-lookupdb.fish

    `kubectl lookupdb` is completed by kubectl's own completion, from kubectl 1.26 on: it asks
    kubectl_complete-lookupdb, which is installed beside kubectl-lookupdb and must be on PATH too.
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click knows all three"
    click.echo(kind(context.find_root().command, {}, PROGRAM, VARIABLE).source())


F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

JSON: Final = "json"
_BY_SIGNAL: Final = 128
"""Plus its number: the exit code of a program that a signal has ended."""
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
"""Of a namespace or an object. In a path, nothing would be the whole collection, and ``..`` all namespaces."""
_MOST_SECONDS: Final = 604800
"""A week."""
_UNIT_SECONDS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(h|ms|m|s)")
_DURATION: Final = re.compile(f"(?:{_PART.pattern})+")
_GENERATION: Final = re.compile(r"g[1-9][0-9]{0,8}")


def check_name(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """``value``, if an object can be called so."""
    if value is not None and not _NAME.fullmatch(value):
        raise click.BadParameter(f"{value!r} is no name: it holds a-z, 0-9, - and . only, and begins with no dot")
    return value


def check_generation(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """``value``, if a generation can be called so: a header of a request holds it."""
    if value is not None and not _GENERATION.fullmatch(value):
        raise click.BadParameter(f"{value!r} is no generation, such as g13")
    return value


class Seconds(click.FloatRange):
    """A finite number of seconds, also written as kubectl takes it: 20s, 5m, 1h30m. What is no number is within every
    range, and no clock gets to infinity."""

    def __init__(self, least: float, most: float = _MOST_SECONDS) -> None:
        super().__init__(least, most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """``value`` as a number."""
        try:
            seconds = _parse_duration(value) if isinstance(value, str) else float(value)
        except ValueError:
            self.fail(f"{value!r} is no time: expected 20s, 5m, 1h or a number of seconds.", param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value} is no number of seconds.", param, ctx)
        return super().convert(seconds, param, ctx)


def _parse_duration(text: str) -> float:
    """Seconds of what is written as Go writes durations, or as a plain number. Raises ValueError."""
    if not _DURATION.fullmatch(text):
        return float(text)
    return sum(float(number) * _UNIT_SECONDS[unit] for number, unit in _PART.findall(text))


def with_target(command: F) -> F:
    """Give ``command`` the argument ``target``, from the options that kubectl has for it."""

    @click.option(
        "-n", "--namespace", default=None, callback=check_name, help="The namespace; that of the context when absent."
    )
    @click.option("--context", default=None, help="The context of the kubeconfig; the current one when absent.")
    @click.option("--kubeconfig", default=None, help="The kubeconfig; $KUBECONFIG or ~/.kube/config when absent.")
    @wraps(command)
    def wrapped(*args: Any, namespace: str | None, context: str | None, kubeconfig: str | None, **rest: Any) -> Any:
        return command(*args, target=Target(kubeconfig, context, namespace), **rest)

    return wrapped  # type: ignore[return-value]


def name_argument(**settings: Any) -> Callable[[F], F]:
    """The dataset's name, which shells complete."""
    return click.argument("name", callback=check_name, shell_complete=complete_datasets, **settings)


def output_option(command: F) -> F:
    """Whether to print JSON: ``output`` is "json" or None."""
    return click.option(
        "-o", "--output", type=click.Choice([JSON]), default=None, help="For machines: all of it, as JSON."
    )(command)


def wait_options(command: F) -> F:
    """``wait`` and ``timeout``."""
    command = click.option(
        "--timeout",
        type=Seconds(0),
        default="1h",
        show_default=True,
        metavar="TIME",
        help="With --wait: how long, as 20s, 5m, 1h or a number of seconds.",
    )(command)
    return click.option(
        "--wait", is_flag=True, help="Return when it is done: exit code 0; 1 when it fails or time is up."
    )(command)


def run(target: Target, work: Callable[[ClusterSession], Awaitable[T]]) -> T:
    """What ``work`` comes to in a session with ``target``. A program that is asked to end undoes first what ``work``
    undoes when it is cancelled."""
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
    """Have the running task cancelled by what asks a program to end; asyncio does so for Ctrl-C. What somebody, nohup
    say, has ignored stays ignored."""
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
    """Print ``document`` for machines."""
    click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2))
