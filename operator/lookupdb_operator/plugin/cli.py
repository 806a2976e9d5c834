"""The program ``kubectl-lookupdb``, which kubectl runs as ``kubectl lookupdb``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import click
from click.shell_completion import ShellComplete

from lookupdb import __version__
from lookupdb.cli import completion, find_variable
from lookupdb.cli.program import run_program
from lookupdb_operator.console.facts import clean
from lookupdb_operator.plugin import change_verbs, cluster_verbs, read_verbs
from lookupdb_operator.plugin.options import KUBECTL

_NO_FILES: Final = ":4"
"""Tells kubectl not to complete file names."""


@click.group(KUBECTL, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name=KUBECTL)
def cli() -> None:
    """Show LookupDatasets, and change what they serve.

    Begin with `kubectl lookupdb ls`, which lists the datasets of the namespace, and `status DATASET`, which shows one:
    what serves, what is in progress, what it waits for. `COMMAND --help` explains each command. `lookupdb` has the same
    commands for datasets that `lookupdb up` serves.

    Options follow the command: `kubectl lookupdb status airports -n shop`. kubectl does not pass its own options on.

    Exit codes: 0 done, 1 failed, 2 usage, 130 interrupted; of `get`: 3 a key is missing, 4 a key is unavailable
    now; of `load`: 7 a condition of --fail-if holds.
    """


def answer_kubectl(cli: click.Command, words: Sequence[str]) -> Iterator[str]:
    """Yield the completions of the last of ``words``, the arguments of ``cli`` so far, in kubectl's format."""
    *arguments, incomplete = words or [""]
    for item in ShellComplete(cli, {}, KUBECTL, find_variable(KUBECTL)).get_completions(arguments, incomplete):
        yield f"{item.value}\t{item.help}" if item.help else item.value
    yield _NO_FILES


for _command in (
    read_verbs.ls,
    read_verbs.status,
    read_verbs.history,
    cluster_verbs.get,
    change_verbs.refresh,
    change_verbs.promote,
    change_verbs.reject,
    change_verbs.override_gates,
    change_verbs.rollback,
    change_verbs.pin,
    change_verbs.unpin,
    cluster_verbs.diff,
    cluster_verbs.prune,
    cluster_verbs.load,
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
    run = partial(cli.main, prog_name=KUBECTL, standalone_mode=False)
    run_program(run, lambda error: "\n".join(map(clean, str(error).split("\n"))))
