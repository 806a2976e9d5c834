"""The program ``kubectl-lookupdb``, which kubectl runs as ``kubectl lookupdb``."""

from __future__ import annotations

import sys
from typing import NoReturn

import click

from lookupdb import __version__
from lookupdb.errors import LookupdbError
from lookupdb.runtime.launch import end_interrupted
from lookupdb.runtime.standard_streams import open_closed_streams
from lookupdb_operator.api.client import ApiError
from lookupdb_operator.plugin import (
    change_verbs,
    completion,
    diff_verb,
    load_verb,
    log_verb,
    lookup_verb,
    status_verb,
    top_verb,
)
from lookupdb_operator.plugin.views.wording import clean


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name=completion.PROGRAM)
def cli() -> None:
    """Look at LookupDatasets and change what they serve.

    Begin with `kubectl lookupdb status`, which lists the datasets of the namespace, and `status NAME`, which shows
    one: what serves, what is under way, what it waits for. `COMMAND --help` explains each command.

    Options stand behind the command: `kubectl lookupdb status airports -n shop`. kubectl hands none of its own on.

    Exit codes: 0 done, 1 failed, 2 usage; of `get`: 3 a key is missing, 4 a key is unavailable: nothing can be said
    of it now; of `load`: 7 a condition of --fail-if holds; 130 interrupted.
    """


for _command in (
    status_verb.command,
    lookup_verb.command,
    change_verbs.refresh,
    change_verbs.promote,
    change_verbs.reject,
    change_verbs.rollback,
    change_verbs.unpin,
    diff_verb.command,
    load_verb.command,
    log_verb.command,
    top_verb.command,
    completion.command,
):
    cli.add_command(_command)


def complete_for_kubectl() -> None:
    """Run ``kubectl_complete-lookupdb``."""
    for line in completion.answer_kubectl(cli, sys.argv[1:]):
        click.echo(line)


def main() -> None:
    """Run the program."""
    open_closed_streams()
    try:
        sys.exit(cli.main(prog_name=completion.PROGRAM, standalone_mode=False) or 0)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (KeyboardInterrupt, click.exceptions.Abort):
        end_interrupted()
    except ApiError as error:
        _end_with_message(str(error), 1)
    except LookupdbError as error:
        _end_with_message(str(error), error.exit_code)


def _end_with_message(message: str, exit_code: int) -> NoReturn:
    """End as every program of lookupdb does, with what may come from a cluster."""
    print("error:", "\n".join(map(clean, message.split("\n"))), file=sys.stderr)
    sys.exit(exit_code)
