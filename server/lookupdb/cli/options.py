"""Options that verbs share (environment variables, sizes, secrets, logging, results)."""

from __future__ import annotations

import math
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from lookupdb import telemetry
from lookupdb.credentials import MAX_TOKEN_BYTES
from lookupdb.errors import UsageError
from lookupdb.manifest import GENERATION

F = TypeVar("F", bound=Callable[..., Any])

FILE: Final = click.Path(dir_okay=False, path_type=Path)
FOLDER: Final = click.Path(file_okay=False, path_type=Path)
EXISTING_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
EXISTING_FOLDER: Final = click.Path(exists=True, file_okay=False, path_type=Path)

MAX_PASSWORD_BYTES: Final = 1024
"""Limited, because an unauthenticated client may send only little (see ``shard.limits``)."""
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_UNITS: Final = {
    "": 1,
    "K": 1000,
    "M": 1000**2,
    "G": 1000**3,
    "T": 1000**4,
    "KI": 1 << 10,
    "MI": 1 << 20,
    "GI": 1 << 30,
    "TI": 1 << 40,
}

_UNIT_SECONDS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(h|ms|m|s)")
_DURATION: Final = re.compile(f"(?:{_PART.pattern})+")


def option(name: str, *names: str, **settings: Any) -> Callable[[F], F]:
    """Return a ``click.option`` whose environment variable is LOOKUPDB_ and the option's long name, shown in --help."""
    settings.setdefault("envvar", "LOOKUPDB_" + name.removeprefix("--").split("/")[0].replace("-", "_").upper())
    settings.setdefault("show_envvar", True)
    settings.setdefault("show_default", True)
    kind = settings.get("type")
    if kind and type(kind) in (click.IntRange, click.FloatRange):  # else messages say "a valid integer range"
        kind.name = "number" if isinstance(kind, click.FloatRange) else "integer"
    return click.option(name, *names, **settings)


class Size(click.ParamType[int]):
    """A number of bytes, written as 1GiB, 512Mi, 2G or 1048576."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of bytes, or fail with a usage error."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]I?)?B?", str(value).strip(), re.IGNORECASE)
        size = int(float(match[1]) * _UNITS[(match[2] or "").upper()]) if match else 0
        if size <= 0:
            self.fail(f"{value!r} is not a size; write it as 1GiB, 512MiB or a number of bytes", param, ctx)
        return size


class Seconds(click.FloatRange):
    """A finite number of seconds, also in kubectl's format: 20s, 5m, 1h30m. NaN would pass every range check."""

    name = "time"

    def __init__(self, least: float, most: float = 604800) -> None:
        super().__init__(least, most)  # by default a week

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return ``value`` in seconds."""
        try:
            is_duration = isinstance(value, str) and _DURATION.fullmatch(value)
            parts = _PART.findall(value) if is_duration else ()
            seconds = sum(float(number) * _UNIT_SECONDS[unit] for number, unit in parts) if parts else float(value)
        except ValueError:
            self.fail(f"{value!r} is not a time: expected 20s, 5m, 1h or a number of seconds.", param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"{value} is not a number of seconds.", param, ctx)
        return super().convert(seconds, param, ctx)


class NameList(click.ParamType[tuple[str, ...]]):
    """Names separated by commas."""

    name = "a,b,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Parse ``value`` without empty parts."""
        if isinstance(value, tuple):
            return value
        return tuple(part.strip() for part in value.split(",") if part.strip())


class GenerationAddress(click.ParamType[str]):
    """The name of a generation: g1, g2, …"""

    name = "gN"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name, or fail with a usage error."""
        if not GENERATION.fullmatch(str(value)):
            self.fail(f"a generation is called g1, g2, …, found {value!r}", param, ctx)
        return str(value)


def _take_one(ctx: click.Context, param: click.Parameter, files: tuple[Path, ...]) -> Path | None:
    """Return the manifest. Reject a second one, because users may expect that both are used."""
    if len(files) > 1 and not ctx.resilient_parsing:  # shell completion must not fail
        names, found = "/".join(param.opts), " and ".join(repr(str(file)) for file in files)
        raise click.UsageError(
            f"{names} takes one manifest, found {found}; give each LookupDataset a run of its own.", ctx
        )
    return files[0] if files else None


class ManifestPath(click.Path):
    """The path of a manifest."""

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        """Return what to do, because users often give the path without -f."""
        return "Give the manifest as -f people.yaml."


def manifest_option(help_text: str) -> Callable[[F], F]:
    """Return the option --file, for one manifest."""
    return option(
        "--file",
        "-f",
        required=True,
        metavar="MANIFEST",
        type=ManifestPath(path_type=Path),
        multiple=True,
        callback=_take_one,
        help=help_text,
    )


def password_file(help_text: str) -> Callable[[F], F]:
    """Return an option whose command takes ``password``: text from the file, or from LOOKUPDB_PASSWORD, or None.

    A command-line flag would show it in process listings.
    """
    return option("--password-file", "password", type=EXISTING_FILE, callback=_password, help=help_text)


def _password(_ctx: click.Context, _param: click.Parameter, file: Path | None) -> str | None:
    text = os.environ.get("LOOKUPDB_PASSWORD") if file is None else file.read_text().strip()
    if text == "":
        raise UsageError("the password is empty", hint="unset LOOKUPDB_PASSWORD, or write one into the file")
    if text is not None and len(text.encode()) > MAX_PASSWORD_BYTES:
        raise UsageError(f"the password has {len(text.encode())} bytes, the limit is {MAX_PASSWORD_BYTES}")
    return text


def token_file(help_text: str) -> Callable[[F], F]:
    """Return an option whose command takes ``token``: text from the file, or from LOOKUPDB_TOKEN, or None.

    A command-line flag would show it in process listings.
    """
    return option("--token-file", "token", type=EXISTING_FILE, callback=_read_token, help=help_text)


def _read_token(_ctx: click.Context, _param: click.Parameter, file: Path | None) -> str | None:
    if file is None:
        text = os.environ.get("LOOKUPDB_TOKEN")
        where = "LOOKUPDB_TOKEN"
    else:
        with file.open("rb") as stream:
            text = stream.read(MAX_TOKEN_BYTES + 2).decode("ascii", "replace").strip()
        where = str(file)
    if text is not None and (len(text) > MAX_TOKEN_BYTES or not _TOKEN.fullmatch(text)):
        raise UsageError(
            f"{where} holds no token: expected a word of at most {MAX_TOKEN_BYTES} bytes, of A-Z a-z 0-9 - . _ ~ + / =",
            hint="give a file that has the token and nothing else",
        )
    return text


_LOG_FORMAT: Final = "lookupdb.log_format"


def _log_format(ctx: click.Context, _param: click.Parameter, value: str) -> None:
    telemetry.configure_logging(value)
    ctx.meta[_LOG_FORMAT] = value


def chosen_log_format() -> str:
    """Return the value of ``--log-format`` of the command that runs."""
    style: str = click.get_current_context().meta[_LOG_FORMAT]
    return style


log_format = option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    expose_value=False,
    is_eager=True,
    callback=_log_format,
    help="How log lines are written to standard error.",
)


def scratch_option(help_text: str, kind: click.Path = FOLDER) -> Callable[[F], F]:
    """Return an option for a scratch folder, by default the system's."""
    where = "the system's temporary folder"
    return option("--scratch", type=kind, default=tempfile.gettempdir, show_default=where, help=help_text)


progress_option = option(
    "--progress",
    "style",
    type=click.Choice(["auto", "rich", "plain", "none"]),
    default="auto",
    help="How to show progress on standard error.",
)


termination_log_option = option(
    "--termination-log", type=FILE, help="Also write the result, or the failure, to this file, in at most 4096 bytes."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result, or the failure, as JSON.")
