"""The program ``kubectl-lookupdb``, which kubectl runs as ``kubectl lookupdb``."""

from __future__ import annotations

import sys

import click

from lookupdb import __version__
from lookupdb.cli.program import run_program
from lookupdb.errors import LookupdbError
from lookupdb_operator.cluster.client import ApiError
from lookupdb_operator.plugin import change_verbs, diff, load, options, read_verbs
from lookupdb_operator.plugin.views import clean


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name=options.PROGRAM)
def cli() -> None:
    """Show LookupDatasets, and change what they serve.

    Begin with `kubectl lookupdb status`, which lists the datasets of the namespace, and `status NAME`, which shows
    one: what serves, what is in progress, what it waits for. `COMMAND --help` explains each command.

    Options follow the command: `kubectl lookupdb status airports -n shop`. kubectl passes none of its own on.

    Exit codes: 0 done, 1 failed, 2 usage; of `get`: 3 a key is missing, 4 a key is unavailable
    now; of `load`: 7 a condition of --fail-if holds; 130 interrupted.
    """


for _command in (
    read_verbs.status,
    read_verbs.get,
    change_verbs.refresh,
    change_verbs.promote,
    change_verbs.reject,
    change_verbs.rollback,
    change_verbs.unpin,
    diff.command,
    load.command,
    read_verbs.logs,
    read_verbs.top,
    options.command,
):
    cli.add_command(_command)


def complete_for_kubectl() -> None:
    """Run ``kubectl_complete-lookupdb``."""
    run_program(_complete)


def main() -> None:
    """Run the program."""
    run_program(_run, _describe)


def _complete() -> None:
    for line in options.answer_kubectl(cli, sys.argv[1:]):
        click.echo(line)


def _run() -> int | None:
    try:
        code: int | None = cli.main(prog_name=options.PROGRAM, standalone_mode=False)
    except ApiError as error:
        raise LookupdbError(str(error)) from error
    return code


def _describe(error: LookupdbError) -> str:
    """Return the error as text, including errors of a cluster."""
    return "\n".join(map(clean, str(error).split("\n")))
