"""`lookupdb get`: look keys up through a router, with the client for threads."""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, Final

import click
import orjson

from lookupdb.cli.addressing import advise_options, ca_file_option, complete_datasets, data_dir_option, find_router_url
from lookupdb.cli.options import GenerationAddress, option, token_file
from lookupdb.cli.program import print_value
from lookupdb.client.settings import ClientOptions, check_settings
from lookupdb.client.sync_client import Lookups
from lookupdb.client.sync_transport import RouterLink
from lookupdb.client.wire import LookupResults
from lookupdb.errors import InvalidAnswer, KeyMissing, LookupFailed, Unavailable, UsageError
from lookupdb.keys import MAX_KEY_BYTES
from lookupdb.records import refuse_constant
from lookupdb.wording import format_count

BATCH_KEYS: Final = 500
_OPTIONS: Final[ClientOptions] = {
    "timeout": 120.0,
    "connect_timeout": 30.0,
    "read_timeout": 30.0,
    "max_connections": 1,
    "max_keys": BATCH_KEYS,
}


class _Json(bytes):
    """A JSON value as the router sent it."""


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
    ca_file: Path | None,
) -> None:
    """Look keys up in DATASET: the name of one that `lookupdb up` serves ([NAMESPACE/]NAME), or a router's URL.

    For one key, print its value: JSON as a line, a raw value byte for byte, so that `> FILE` saves it unchanged. Only a
    terminal gets a final newline, if the value has none. For several keys, or `-` for one key per line on standard
    input, print a JSON object per line: {"key": …, "value": …}, with base64 for raw values;
    {"key": …, "value": null, "missing": true} for a missing key; {"key": …, "unavailable": true} for a key that may or
    may not exist. A null value is not missing.

    Exit code 3: a key is missing. 4: a key is unavailable, no router answers, or no `lookupdb up` serves DATASET; this
    takes precedence over 3. 1: the router rejected the request, or does not serve --generation.

    Connects directly, also if the environment names an HTTP proxy.

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
    options: ClientOptions = {**_OPTIONS, "token": token}
    if url.startswith("https:"):
        options["ca_file"] = ca_file
    with advise_options(), closing(RouterLink(check_settings(url, options))) as link:
        link.core.decode_value, link.core.decode = _Json, _decode_exactly
        lookups = Lookups(link, generation)
        if len(keys) > 1 or keys == ("-",):
            ctx.exit(_print_values(lookups, _expand_keys(keys)))
        found = lookups.lookup(keys[0])
    if not found.is_found:
        is_key = 0 < len(keys[0].encode()) <= MAX_KEY_BYTES
        why = f"{found.generation or 'it'} has no record with it" if is_key else f"a key has 1 to {MAX_KEY_BYTES} bytes"
        raise KeyMissing(f"{keys[0]!r} is not in {dataset}: {why}")
    value = found.value if isinstance(found.value, bytes) else _Json(_render(keys[0], found.value))
    print_value(value, is_json=isinstance(value, _Json))


def _print_values(lookups: Lookups, keys: Iterable[str]) -> int:
    """Print a line for each key, and return the exit code."""
    missing = unavailable = 0
    remaining = iter(keys)
    while batch := [*islice(remaining, BATCH_KEYS)]:
        results = _look_up(lookups, batch)
        for key in batch:
            if key in results.found:
                value = results.found[key]
                text = _render(key, value) if not isinstance(value, bytes) else b'"%b"' % b64encode(value)
                line = b'{"key":%b,"value":%b}' % (orjson.dumps(key), text)
            elif key in results.unavailable:
                unavailable += 1
                line = orjson.dumps({"key": key, "unavailable": True})
            else:
                missing += 1
                line = orjson.dumps({"key": key, "value": None, "missing": True})
            click.echo(line)
    if unavailable:
        raise Unavailable(
            f"{format_count(unavailable, 'key')} could not be looked up: the shards that may have them are unavailable",
            hint="retry the keys marked unavailable: they may or may not exist",
        )
    return KeyMissing.exit_code if missing else 0


def _look_up(lookups: Lookups, keys: list[str]) -> LookupResults:
    """Return the results for ``keys``. If one unavailable shard has them all, all are unavailable."""
    try:
        return lookups.get_many(keys, partial=True)
    except Unavailable as error:
        if error.shard is None:
            raise
        return LookupResults({}, [], keys, None, ())


def _render(key: str, value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError as error:  # half a surrogate pair, or nested too deeply for orjson
        raise LookupFailed(
            f"the value of {key!r} cannot be shown as JSON: {error}", hint="look it up with curl"
        ) from error


def _decode_exactly(text: bytes | bytearray) -> Any:
    """Parse JSON. Numbers keep all digits, as ``orjson.Fragment`` if Python or orjson would round them. Raises
    InvalidAnswer."""
    try:
        return json.loads(text, parse_float=orjson.Fragment, parse_int=_parse_digits, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidAnswer(f"the answer is not valid JSON: {error}") from error


def _parse_digits(text: str) -> int | orjson.Fragment:
    return int(text) if len(text) < 19 and text != "-0" else orjson.Fragment(text)


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
