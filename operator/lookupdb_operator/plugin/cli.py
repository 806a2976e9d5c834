"""The program ``kubectl-lookupdb``, which kubectl runs as ``kubectl lookupdb``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Final

import click
from click.shell_completion import ShellComplete, get_completion_class

from lookupdb import __version__
from lookupdb.cli.program import run_program
from lookupdb.errors import LookupdbError
from lookupdb_operator.cluster.client import ApiError
from lookupdb_operator.plugin import change_verbs, job_verbs, read_verbs
from lookupdb_operator.plugin.views import clean

PROGRAM: Final = "kubectl-lookupdb"
VARIABLE: Final = "_KUBECTL_LOOKUPDB_COMPLETE"
"""The environment variable by which click recognises a request for completion."""
_NO_FILES: Final = ":4"
"""Tells kubectl not to complete file names."""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name=PROGRAM)
def cli() -> None:
    """Show LookupDatasets, and change what they serve.

    Begin with `kubectl lookupdb status`, which lists the datasets of the namespace, and `status NAME`, which shows
    one: what serves, what is in progress, what it waits for. `COMMAND --help` explains each command.

    Options follow the command: `kubectl lookupdb status airports -n shop`. kubectl does not pass its own options on.

    Exit codes: 0 done, 1 failed, 2 usage; of `get`: 3 a key is missing, 4 a key is unavailable
    now; of `load`: 7 a condition of --fail-if holds; 130 interrupted.
    """


def answer_kubectl(cli: click.Command, words: Sequence[str]) -> Iterator[str]:
    """Yield the completions of the last of ``words``, the arguments of ``cli`` so far, in kubectl's format."""
    *arguments, incomplete = words or [""]
    for item in ShellComplete(cli, {}, PROGRAM, VARIABLE).get_completions(arguments, incomplete):
        yield f"{item.value}\t{item.help}" if item.help else item.value
    yield _NO_FILES


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
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


for _command in (
    read_verbs.status,
    read_verbs.get,
    change_verbs.refresh,
    change_verbs.promote,
    change_verbs.reject,
    change_verbs.rollback,
    change_verbs.unpin,
    job_verbs.diff,
    job_verbs.load,
    read_verbs.logs,
    read_verbs.top,
    completion,
):
    cli.add_command(_command)


def complete_for_kubectl() -> None:
    """Run ``kubectl_complete-lookupdb``, which kubectl runs to complete ``kubectl lookupdb``."""
    run_program(lambda: click.echo("\n".join(answer_kubectl(cli, sys.argv[1:]))))


def main() -> None:
    """Run the program."""
    run_program(_run, lambda error: "\n".join(map(clean, str(error).split("\n"))))


def _run() -> int | None:
    try:
        code: int | None = cli.main(prog_name=PROGRAM, standalone_mode=False)
    except ApiError as error:
        raise LookupdbError(str(error)) from error
    return code
