"""The command line: one program with a verb for each role, the extras that verbs need, and completion of shells.

A verb's module is imported only when it is used, so that a shard server does not load the builder's libraries.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import get_completion_class

from lookupdb import __version__
from lookupdb.cli.program import run_program
from lookupdb.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

VERBS: Final = {
    "up": "Build, serve and route a dataset on this machine.",
    "init": "Write the manifest for a source, from a look at its first rows.",
    "validate": "Check manifests offline, and print all problems.",
    "build": "Build one generation of a dataset into a store.",
    "push": "Push a generation of your rows to a dataset whose source is pushed.",
    "fetch": "Fetch one shard of a generation from a store into a folder.",
    "sync": "Keep the active generation of datasets in a folder, for programs that map it.",
    "serve": "Serve one shard over RESP, the Redis protocol.",
    "route": "Answer lookups over HTTP from the shards of a routing table.",
    "get": "Look keys up, through a router.",
    "load": "Send load to a router and measure lookup latency.",
    "token": "Create a client token for a router, and its hash.",
    "inspect": "Show the contents of a shard file or a generation.",
    "diff": "Compare the records of two generations.",
    "copy": "Copy generations between stores, or between clusters' parts of a store.",
    "image": "Package the shards of a generation as container images, and push them.",
    "sweep": "Remove data of deleted datasets from a store.",
    "prune": "Remove unneeded generations of a dataset.",
    "ls": "List the datasets of `lookupdb up`.",
    "status": "Show a dataset on one screen: what serves, what is in progress, what it waits for.",
    "history": "List the builds and generations of a dataset.",
    "refresh": "Build a dataset from the current state of its source.",
    "promote": "Promote the candidate of a dataset: let it serve.",
    "reject": "Reject the candidate of a dataset.",
    "override-gates": "Override the gates that rejected a generation of a dataset.",
    "rollback": "Serve an older generation of a dataset, and pin it.",
    "pin": "Pin a generation of a dataset.",
    "unpin": "Remove the pin of a dataset.",
    "logs": "Print the log of a build of a dataset.",
    "top": "Show the load of the servers and routers of a dataset.",
    "completion": "Print the completion script of a shell.",
}
"""Verb → the sentence in ``lookupdb --help``. Its code is ``lookupdb.cli.<verb>.command``, or in ``ELSEWHERE``."""

_READ, _CHANGE = "lookupdb_operator.plugin.read_verbs", "lookupdb_operator.plugin.change_verbs"
_SHARED: Final = {
    "build": ("push",),
    "copy": ("copy", "image"),
    "fetch": ("sync",),
    "manifests": ("init", "validate"),
    "route": ("token",),
    "stores": ("diff", "prune", "sweep"),
}
"""Module of ``lookupdb.cli`` → its functions that are verbs of the same name."""
ELSEWHERE: Final = {
    "completion": ("lookupdb.cli", "completion"),
    **{verb: (f"lookupdb.cli.{module}", verb) for module, verbs in _SHARED.items() for verb in verbs},
    "up": ("lookupdb_operator.local.up", "command"),
    **{verb: (_READ, verb) for verb in ("ls", "status", "history", "logs", "top")},
    **{verb: (_CHANGE, verb) for verb in ("refresh", "promote", "reject", "rollback", "pin", "unpin")},
    "override-gates": (_CHANGE, "override_gates"),
}
"""Verb → the names of its module and function, because the data plane does not import the operator."""

ENTRY_POINT_GROUP: Final = "lookupdb.verbs"  # entry points of other packages: verb → its command

OTHER_VERB_SENTENCES: Final = {
    "operator": "Run the Kubernetes operator.",
    "gateway": "Proxy a cluster's store, and give each namespace access to its own part.",
    "console": "Serve read-only pages about the datasets of a cluster.",
}
"""Help sentences of other packages' verbs, so that --help need not load them."""

# `pip install lookupdb` brings the client and `lookupdb.open`. Commands need extras.

_UP: Final = ("up", *(verb for verb, (module, _) in ELSEWHERE.items() if module in (_READ, _CHANGE)))
"""`lookupdb up` and the commands for it, which need the extras build and serve."""

EXTRAS: Final = {
    "build": (
        "duckdb",
        ("build", "copy", "diff", "image", "init", "inspect", "prune", "push", "sweep", "validate", *_UP),
    ),
    "serve": ("hiredis", ("fetch", "get", "load", "route", "serve", "sync", "token", *_UP)),
    "operator": ("kopf", ("console", "gateway", "operator", "kubectl-lookupdb")),
}
"""Extra → a package that only this extra installs, and the commands that need it."""


def check_extras(command: str) -> None:
    """Raise UsageError, with what to install, if an extra that ``command`` needs is missing."""
    check_installed("this command", [name for name, (_, commands) in EXTRAS.items() if command in commands])


def check_installed(what: str, extras: Iterable[str]) -> None:
    """Raise UsageError, with what to install, if one of the ``extras`` that ``what`` needs is missing."""
    missing = [name for name in extras if not find_spec(EXTRAS[name][0])]
    if missing:
        raise UsageError(
            f"{what} needs extras of lookupdb that are not installed: {', '.join(missing)}",
            hint=f"pip install 'lookupdb[{','.join(missing)}]'",
        )


@cache
def other_verbs() -> dict[str, EntryPoint]:
    """Return the verbs of other packages. They cannot replace a built-in verb."""
    from importlib.metadata import entry_points  # here, because servers do not need it

    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP) if point.name not in VERBS}


class _Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*VERBS, *other_verbs()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        try:
            check_extras(cmd_name)
        except UsageError:
            if ctx.resilient_parsing:  # shell completion omits the command
                return None
            raise
        if cmd_name in VERBS:
            module, name = ELSEWHERE.get(cmd_name, (f"lookupdb.cli.{cmd_name}", "command"))
            command: click.Command = getattr(importlib.import_module(module), name)
            return command
        if cmd_name not in other_verbs():
            matches = difflib.get_close_matches(cmd_name, self.list_commands(ctx), n=1)
            hint = f" Did you mean {matches[0]!r}?" if matches else ""
            raise click.UsageError(f"No such command {cmd_name!r}.{hint}", ctx)
        loaded: click.Command = other_verbs()[cmd_name].load()
        return loaded

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            others = {
                verb: OTHER_VERB_SENTENCES.get(verb, f"Of {point.module}.") for verb, point in other_verbs().items()
            }
            formatter.write_dl(list({**VERBS, **others}.items()))


def _show_version(ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked and not ctx.resilient_parsing:
        from lookupdb import native  # here, because it loads the kernels

        click.echo(f"lookupdb, version {__version__} ({native.describe()})")
        ctx.exit()


@click.group("lookupdb", cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and the kernels in use, and exit.",
)
def cli() -> None:
    """Build large, read-mostly lookup datasets once, map them in every server, and read them by HTTP or Redis.

    Start with `lookupdb init people.csv`, then `lookupdb up -f people.yaml`; `lookupdb COMMAND --help` explains each.
    Commands need extras of the package: `pip install 'lookupdb[all]'` is enough for all.
    Most options have an environment variable, which --help names: LOOKUPDB_ and the option's name, for example
    LOOKUPDB_DATA_DIR for --data-dir. One exception: --rate of `load` is LOOKUPDB_LOAD_RATE (requests), because
    LOOKUPDB_RATE is in bytes. Command-line options override environment variables. Options that only shape one result
    have no variable: --json, --verify, --exit-code. The commands from ls to top, as in `kubectl lookupdb`, read only
    LOOKUPDB_DATA_DIR. LOOKUPDB_NATIVE=0 runs without the native kernels; 1 requires them.

    Exit codes: 0 success, 1 failure, 2 usage or invalid manifest, 3 bad source, 4 gate failed, 5 store,
    6 not enough memory or disk, 7 a condition of `load --fail-if` holds, 130 interrupted. For `lookupdb get`, 3 means
    a missing key and 4 an unavailable one. For `lookupdb validate`, 1 means an invalid manifest.
    """


def find_variable(program: str) -> str:
    """Return the environment variable by which click recognises a request for completion."""
    return f"_{program.replace('-', '_').upper()}_COMPLETE"


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell: commands, options, datasets and generations.

    \b
        source <(lookupdb completion bash)
        kubectl-lookupdb completion fish > ~/.config/fish/completions/kubectl-lookupdb.fish

    `kubectl lookupdb` is completed by kubectl's own completion, from kubectl 1.26 on: it runs
    kubectl_complete-lookupdb, which is installed beside kubectl-lookupdb and must be on PATH, too.
    """
    kind, root = get_completion_class(shell), context.find_root().command
    assert kind is not None, "click knows all three"
    program = root.name or "lookupdb"
    click.echo(kind(root, {}, program, find_variable(program)).source())


def main() -> None:
    """Run the command line."""
    run_program(lambda: cli.main(standalone_mode=False))
