"""`lookupdb get`: look keys up through a router."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import orjson

from lookupdb.cli.addressing import ca_file_option, complete_datasets, data_dir_option, find_router_url
from lookupdb.cli.options import GenerationAddress, option, token_file
from lookupdb.cli.program import print_value
from lookupdb.errors import KeyMissing, LookupFailed, Unavailable, UsageError
from lookupdb.up import client
from lookupdb.up.client import Trust
from lookupdb.wording import format_count


@click.command("get")
@click.argument("dataset", shell_complete=complete_datasets)
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@data_dir_option
@option(
    "--generation",
    type=GenerationAddress(),
    metavar="gN",
    help="Ask this generation only, for example a candidate, not the active one.",
)
@ca_file_option
@token_file("Send the router the token in this file (or in LOOKUPDB_TOKEN).")
@click.pass_context
def command(
    ctx: click.Context,
    dataset: str,
    keys: tuple[str, ...],
    data_dir: Path,
    generation: str | None,
    token: str | None,
    trust: Trust,
) -> None:
    """Look keys up in DATASET: the name of one that `lookupdb up` serves ([NAMESPACE/]NAME), or a router's URL.

    For one key, print its value: JSON as a line, a raw value byte for byte, so that `> FILE` saves it unchanged. Only a
    terminal gets a final newline, if the value has none. For several keys, or `-` for one key per line on standard
    input, print a JSON object per line: {"key": …, "value": …}, with base64 for raw values;
    {"key": …, "value": null, "missing": true} for a missing key; {"key": …, "unavailable": true} for a key that may or
    may not exist. A null value is not missing.

    Exit code 3: a key is missing. 4: a key is unavailable, no router answers, or no `lookupdb up` serves DATASET; this
    takes precedence over 3. 1: the router rejected the request, or does not serve --generation.

    \b
        lookupdb get airports KJFK
        cut -d, -f1 codes.csv | lookupdb get http://127.0.0.1:8080 -
    """
    url = find_router_url(dataset, data_dir)
    for key in keys:
        try:
            key.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"the key {key!r} is not UTF-8; write it in UTF-8") from error
    if len(keys) == 1 and keys != ("-",):
        try:
            found = client.find_value(url, keys[0], generation, token, trust)
        except KeyMissing as error:
            raise KeyMissing(f"{keys[0]!r} is not in {dataset}: {error.message}") from error
        print_value(found.value, is_json=found.is_json)
        return
    ctx.exit(_print_values(client.find_in_batches(url, _expand_keys(keys), generation, token=token, trust=trust)))


def _print_values(batches: Iterable[tuple[list[str], client.BatchAnswer]]) -> int:
    """Print a line for each key, and return the exit code."""
    missing = unavailable = 0
    for batch, answer in batches:
        for key in batch:
            if key in answer.unavailable:
                unavailable += 1
                click.echo(orjson.dumps({"key": key, "unavailable": True}))
                continue
            if key not in answer.found:
                missing += 1
                click.echo(orjson.dumps({"key": key, "value": None, "missing": True}))
                continue
            try:
                line = orjson.dumps({"key": key, "value": answer.found[key]})
            except TypeError as error:  # half a surrogate pair, or deeper than orjson writes
                raise LookupFailed(
                    f"the value of {key!r} cannot be shown in a line of JSON: {error}", hint="look up its key alone"
                ) from error
            click.echo(line)
    if unavailable:
        raise Unavailable(
            f"{format_count(unavailable, 'key')} could not be looked up: the shards that may have them are unavailable",
            hint="ask again for those whose line says so: they may or may not exist",
        )
    return KeyMissing.exit_code if missing else 0


def _expand_keys(keys: Iterable[str]) -> Iterator[str]:
    for key in keys:
        if key != "-":
            yield key
            continue
        for number, line in enumerate(sys.stdin.buffer, 1):
            try:
                yield line.rstrip(b"\r\n").decode()
            except UnicodeDecodeError as error:
                raise UsageError(f"line {number} of standard input is not UTF-8: {line[:80]!r}") from error
