"""What verbs have in common: which cluster and namespace, the form of the output, and how a verb's requests are run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import Any, Final, TypeVar

import click
import orjson

from lookupdb_operator.plugin.completion import complete_datasets
from lookupdb_operator.plugin.session import ClusterSession, Target, open_session

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

JSON: Final = "json"


def with_target(command: F) -> F:
    """Give ``command`` the argument ``target``, from the options that kubectl has for it."""

    @click.option("-n", "--namespace", default=None, help="The namespace; that of the context when absent.")
    @click.option("--context", default=None, help="The context of the kubeconfig; the current one when absent.")
    @click.option("--kubeconfig", default=None, help="The kubeconfig; $KUBECONFIG or ~/.kube/config when absent.")
    @wraps(command)
    def wrapped(*args: Any, namespace: str | None, context: str | None, kubeconfig: str | None, **rest: Any) -> Any:
        return command(*args, target=Target(kubeconfig, context, namespace), **rest)

    return wrapped  # type: ignore[return-value]


def name_argument(**settings: Any) -> Callable[[F], F]:
    """The dataset's name, which shells complete."""
    return click.argument("name", shell_complete=complete_datasets, **settings)


def output_option(command: F) -> F:
    """Whether to print JSON: ``output`` is "json" or None."""
    return click.option(
        "-o", "--output", type=click.Choice([JSON]), default=None, help="For machines: all of it, as JSON."
    )(command)


def wait_options(command: F) -> F:
    """``wait`` and ``timeout``."""
    command = click.option(
        "--timeout",
        type=click.FloatRange(min=0),
        default=3600.0,
        show_default=True,
        metavar="SECONDS",
        help="With --wait: how long.",
    )(command)
    return click.option(
        "--wait", is_flag=True, help="Return when it is done: exit code 0; 1 when it fails or time is up."
    )(command)


def run(target: Target, work: Callable[[ClusterSession], Awaitable[T]]) -> T:
    """What ``work`` comes to in a session with ``target``."""

    async def in_session() -> T:
        async with open_session(target) as session:
            return await work(session)

    return asyncio.run(in_session())


def print_json(document: Mapping[str, Any] | list[Any]) -> None:
    """Print ``document`` for machines."""
    click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2))
