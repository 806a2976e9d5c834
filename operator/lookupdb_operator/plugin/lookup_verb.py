"""``kubectl lookupdb get``."""

from __future__ import annotations

import asyncio
import sys
from typing import Final

import click

from lookupdb.cli.options import token_file
from lookupdb.cli.value_output import print_value
from lookupdb.errors import KeyMissing, LookupFailed, Unavailable, UsageError
from lookupdb_operator.api.client import Answer
from lookupdb_operator.plugin.dataset import Dataset
from lookupdb_operator.plugin.options import check_generation, name_argument, output_option, run, with_target
from lookupdb_operator.plugin.session import ClusterSession, Target
from lookupdb_operator.plugin.views import lookup_view
from lookupdb_operator.plugin.views.lookup_view import AbsentKey, FoundKey, Lookup

_AT_ONCE: Final = 16


@click.command("get")
@name_argument()
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@with_target
@output_option
@click.option(
    "--generation",
    default=None,
    callback=check_generation,
    help="Ask this generation, e.g. a candidate, instead of the active one.",
)
@token_file("Routers are shown the token in this file (or in LOOKUPDB_TOKEN), through `kubectl port-forward`.")
@click.pass_context
def command(
    context: click.Context,
    name: str,
    keys: tuple[str, ...],
    target: Target,
    output: str | None,
    generation: str | None,
    token: str | None,
) -> None:
    """Look keys up in the dataset NAME, through its routers.

    They are asked through the API server's proxy of their Service. One key prints its value, as it was built: JSON as a
    line, a raw value byte for byte; only a terminal gets an end of line with it, if it has none. Several, or `-` for
    one key a line on standard input, or `-o json`, print a JSON object a line: {"key": …, "generation": …, "value": …},
    with "missing": true or "unavailable": why instead of a value, and raw values as base64. It is for a look: a program
    asks a router itself (status.endpoint).

    Needs the right to get services/proxy. The proxy keeps the header that shows a token, so with a token a router is
    asked through `kubectl port-forward` (the right to create pods/portforward). Exit code 3: a key is missing. 4: a key
    is unavailable, and may or may not exist.

    \b
        kubectl lookupdb get airports KJFK
        kubectl lookupdb get airports KJFK EGLL --generation g13
    """
    asked = list(_expand(keys))

    async def look(session: ClusterSession) -> list[Lookup]:
        dataset, turns = await session.get_dataset(name), asyncio.Semaphore(_AT_ONCE)

        async with session.open_router(dataset, token) as ask_router:

            async def ask(key: str) -> Lookup:
                async with turns:
                    return _read(dataset, key, await ask_router(key, generation))

            return await asyncio.gather(*map(ask, asked))

    lookups = run(target, look)
    if output is None and keys != ("-",) and len(asked) == 1:
        _print_one(name, lookups[0])
        return
    for lookup in lookups:
        click.echo(lookup_view.render_line(lookup))
    context.exit(_exit_code(lookups))


def _read(dataset: Dataset, key: str, answer: Answer) -> Lookup:
    subject = f"a router of {dataset.key}"
    lookup = lookup_view.read_answer(key, answer.status, answer.headers, answer.body)
    if lookup is None:
        if (why := lookup_view.read_unknown_generation(answer.status, answer.body)) is not None:
            raise LookupFailed(f"{subject} refused: {why}", hint="leave --generation out to ask what is active")
        if (why := lookup_view.read_denial(answer.status, answer.body)) is not None:
            raise LookupFailed(f"{subject} refused: {why}", hint="give a client's token, by --token-file")
        raise answer.make_error(subject)
    return lookup


def _print_one(name: str, lookup: Lookup) -> None:
    if isinstance(lookup, FoundKey):
        print_value(lookup.value, is_json=lookup.is_json)
    elif isinstance(lookup, AbsentKey):
        raise KeyMissing(f"{lookup.key!r} is not in {name}: {lookup.why}")
    else:
        raise Unavailable(f"{lookup.key!r} of {name} is unavailable: {lookup.why}")


def _exit_code(lookups: list[Lookup]) -> int:
    if not all(isinstance(lookup, FoundKey | AbsentKey) for lookup in lookups):
        return Unavailable.exit_code
    return KeyMissing.exit_code if any(isinstance(lookup, AbsentKey) for lookup in lookups) else 0


def _expand(keys: tuple[str, ...]) -> list[str]:
    expanded: list[str] = []
    for key in keys:
        expanded += _read_lines(sys.stdin.read()) if key == "-" else [key]
    if any("\udc80" <= character <= "\udcff" for key in expanded for character in key):
        raise UsageError("a key is not UTF-8; write it in UTF-8")
    return expanded


def _read_lines(text: str) -> list[str]:
    """The lines of ``text``. What Python takes for the end of one besides may be part of a key."""
    lines = text.split("\n")
    return lines if lines[-1] else lines[:-1]
