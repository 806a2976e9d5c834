"""``kubectl lookupdb get``: look keys up through the routers of a cluster. `lookupdb get` goes to a router directly."""

from __future__ import annotations

import asyncio
import sys
from typing import Final

import click

from lookupdb.cli.options import token_file
from lookupdb.cli.program import print_value
from lookupdb.errors import KeyMissing, LookupFailed, Unavailable, UsageError
from lookupdb_operator.cluster.api import Answer
from lookupdb_operator.console.answers import AbsentKey, FoundKey, Lookup, read_answer, read_refusal
from lookupdb_operator.console.dataset import Dataset
from lookupdb_operator.plugin import views
from lookupdb_operator.plugin.cluster_session import ClusterSession, open_cluster_session
from lookupdb_operator.plugin.options import (
    check_generation,
    complete_generations,
    json_option,
    name_argument,
    run_in,
    with_cluster,
)
from lookupdb_operator.plugin.session import Target

_AT_ONCE: Final = 16


@click.command("get")
@name_argument()
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@with_cluster
@json_option
@click.option(
    "--generation",
    default=None,
    callback=check_generation,
    shell_complete=complete_generations,
    help="Look up in this generation, for example a candidate, instead of the active one.",
)
@token_file("Send the token in this file (or in LOOKUPDB_TOKEN), through `kubectl port-forward`.")
@click.pass_context
def command(
    context: click.Context,
    name: str,
    keys: tuple[str, ...],
    target: Target,
    as_json: bool,
    generation: str | None,
    token: str | None,
) -> None:
    """Look keys up in the DATASET, through its routers.

    For one key it prints the value: JSON as a line, a raw value byte for byte (on a terminal, followed by a line end).
    For several keys, `-` (one key a line on standard input) or `--json`, it prints a JSON object for each key: {"key":
    …, "generation": …, "value": …}, with "missing": true or "unavailable": reason instead of a value, and raw values as
    base64. Programs should use a router directly (status.endpoint).

    It uses the API server's proxy of the routers' Service, and needs the right to get services/proxy. The proxy drops
    tokens, so with a token it uses `kubectl port-forward`, and needs the right to create pods/portforward. Exit code 3:
    a key is missing. 4: a key is unavailable, and may or may not exist.

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

    lookups = run_in(open_cluster_session(target), look)
    if not as_json and keys != ("-",) and len(asked) == 1:
        _print_one(name, lookups[0])
        return
    for lookup in lookups:
        click.echo(views.render_line(lookup))
    context.exit(_exit_code(lookups))


def _read(dataset: Dataset, key: str, answer: Answer) -> Lookup:
    subject = f"a router of {dataset.key}"
    lookup = read_answer(key, answer.status, answer.headers, answer.body)
    if lookup is None:
        if (refusal := read_refusal(answer.status, answer.body)) is not None:
            raise LookupFailed(f"{subject} refused: {refusal[0]}", hint=refusal[1])
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
        if key != "-":
            expanded.append(key)
            continue
        # Only line feeds end lines: a key may hold other characters that Python takes for line ends.
        lines = sys.stdin.read().split("\n")
        expanded += lines if lines[-1] else lines[:-1]
    if any("\udc80" <= character <= "\udcff" for key in expanded for character in key):
        raise UsageError("a key is not UTF-8; write it in UTF-8")
    return expanded
