"""The command line: one program, a verb for each role. A verb's module is imported only when it is used,
so that a shard server does not carry the builder's libraries in its memory.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from typing import Final

import click

from lookupdb import __version__
from lookupdb.errors import LookupdbError

VERBS: Final = {
    "up": "Build, serve and route a dataset on this machine.",
    "build": "Build one generation of a dataset into a store.",
    "serve": "Serve one shard over RESP, the Redis protocol.",
    "route": "Answer lookups over HTTP from the shards of a routing table.",
    "get": "Look keys up, through a router.",
    "inspect": "Show what a shard file or a generation holds.",
    "diff": "Compare the records of two generations.",
}
"""Verb → the sentence in ``lookupdb --help``. Each is ``command`` in ``lookupdb.cli.<verb>``."""


class _Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            near = difflib.get_close_matches(cmd_name, VERBS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"No such command {cmd_name!r}.{hint}", ctx)
        command: click.Command = importlib.import_module(f"lookupdb.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="lookupdb")
def cli() -> None:
    """Large, read-mostly lookup datasets: built into shard files once, mapped by every server, found over HTTP.

    Begin with `lookupdb up -f examples/airports.yaml`; `lookupdb COMMAND --help` explains each command.
    Every option can be given as an environment variable, LOOKUPDB_ and its name.

    Exit codes: 0 done, 1 failed, 2 usage or invalid manifest, 3 bad source, 4 gate closed, 5 store,
    6 not enough memory or disk, 130 interrupted.
    """


def main() -> None:
    """Run the command line; the one place where an error becomes a sentence and an exit code."""
    try:
        sys.exit(cli.main(standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (KeyboardInterrupt, click.exceptions.Abort):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except LookupdbError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
