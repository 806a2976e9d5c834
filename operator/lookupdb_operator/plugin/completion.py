"""Completion: in shells, of ``kubectl-lookupdb``; and of ``kubectl lookupdb``, for which kubectl asks the program
``kubectl_complete-lookupdb``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, Final

import click
from click.shell_completion import ShellComplete, get_completion_class

from lookupdb.errors import LookupdbError
from lookupdb_operator.api.client import ApiError
from lookupdb_operator.plugin.session import Target, open_session

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
