"""The options that say what a load is: those of `lookupdb load`, and of `kubectl lookupdb load`, whose Job runs it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import click

from lookupdb.cli.options import F, GenerationAddress, option
from lookupdb.errors import UsageError
from lookupdb.load.plan import MAX_KEYS, LoadPlan, make_profile, parse_distribution, parse_ramp, take_sample

# The most that may be sent without FLAG: a typing error must not take a router down.
MAX_RATE: Final = 1000.0
MAX_KEYS_PER_SECOND: Final = 100_000.0
MAX_SECONDS: Final = 60.0  # with the warm-up
FLAG: Final = "--beyond-default-bounds"
SAMPLE: Final = "sample"
DEFAULT_DURATION: Final = 10.0
_LONGEST: Final = 86_400
_MAX_LINE_BYTES: Final = 1 << 16  # no key of a record is longer than 511 bytes
_MAX_FILE_KEY_BYTES: Final = 256 << 20


class TextLine(click.ParamType[str]):
    """Text of which an environment variable holds one a line."""

    name = "text"
    envvar_list_splitter = "\n"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """``value``."""
        return str(value)


class FileLine(click.Path):
    """A file's path, of which an environment variable holds one a line: names of files have colons, as times do."""

    envvar_list_splitter = "\n"


_PLAN_OPTIONS: Final = (
    option(
        "--rate",
        type=click.FloatRange(0.01, 1_000_000),
        default=100.0,
        envvar="LOOKUPDB_LOAD_RATE",  # LOOKUPDB_RATE is that of fetches, in bytes
        help="Requests a second.",
    ),
    option(
        "--ramp", metavar="START:END:SECONDS", help="Go from one rate to another, and stay there; instead of --rate."
    ),
    option("--arrivals", type=click.Choice(["poisson", "uniform"]), default="poisson", help="At random, or evenly."),
    option(
        "--duration",
        type=click.FloatRange(0.1, _LONGEST),
        show_default="10, or the ramp's seconds",
        help="Seconds that are measured.",
    ),
    option("--warmup", type=click.FloatRange(0, _LONGEST), default=1.0, help="Seconds before, which do not count."),
    option(
        "--batch", type=click.IntRange(1, 100_000), default=1, help="Keys of a request: 1 is a GET, more are a POST."
    ),
    option("--partial", is_flag=True, help="Let batches be answered in part where a shard is unavailable."),
    option(
        "--hit-ratio", type=click.FloatRange(0, 1), default=1.0, help="The share of --keys; other keys are made up."
    ),
    option("--distribution", default="uniform", metavar="uniform|zipf:S", help="How often which key is asked for."),
    option("--seed", type=click.IntRange(0), default=1, help="Of all that is random: sample, choice, arrivals."),
    option(
        "--max-in-flight", type=click.IntRange(1, 20_000), default=256, help="Unanswered requests, and connections."
    ),
    option(
        "--processes", type=click.IntRange(1, 64), default=1, help="Of senders: more where a processor is too slow."
    ),
    option(
        "--at",
        "generation",
        type=GenerationAddress(),
        metavar="gN",
        help="Ask this generation, a candidate say, or none.",
    ),
    option(
        "--header", "headers", type=TextLine(), metavar="'NAME: TEXT'", multiple=True, help="Send it with each request."
    ),
    option(
        "--fail-if",
        "conditions",
        type=TextLine(),
        metavar="CONDITION",
        multiple=True,
        help="End with 7 if it holds: 'p99>20ms', 'unavailable>0', 'missing>5%', 'rate<900'.",
    ),
    option(FLAG, "is_unbounded", is_flag=True, help="Allow more than 1,000 requests/s, or than 60 s."),
)


def check_bounds(plan: LoadPlan) -> None:
    """Raises UsageError if ``plan`` needs ``FLAG``."""
    rate, seconds, excess = plan.profile.highest, plan.profile.seconds, []
    if rate > MAX_RATE:
        excess.append(f"{rate:,g} requests/s ({MAX_RATE:,.0f} are the most)")
    if rate * plan.batch > MAX_KEYS_PER_SECOND:
        excess.append(f"{rate * plan.batch:,g} keys/s ({MAX_KEYS_PER_SECOND:,.0f} are the most)")
    if seconds > MAX_SECONDS:
        excess.append(f"{seconds:,g} s, the warm-up included ({MAX_SECONDS:g} are the most)")
    if excess:
        raise UsageError(
            f"a load of {', '.join(excess)} has to be asked for explicitly",
            hint=f"give {FLAG} if whoever runs the router knows of it",
        )


def read_key_lines(stream: BinaryIO, where: str, seed: int) -> list[str]:
    """The keys of ``stream``, one a line. Raises UsageError if they are not UTF-8, or not keys."""
    keys = take_sample(_decode_lines(stream, where), MAX_KEYS, seed)
    if not keys:
        raise UsageError(f"{where} has no keys", hint="give a file with one key a line, or --keys sample")
    if sum(map(len, keys)) > _MAX_FILE_KEY_BYTES:
        raise UsageError(f"the keys of {where} take more than {_MAX_FILE_KEY_BYTES >> 20} MiB", hint="give fewer")
    return keys


def _decode_lines(stream: BinaryIO, where: str) -> Iterator[str]:
    for number, line in enumerate(iter(lambda: stream.readline(_MAX_LINE_BYTES + 1), b""), 1):
        if len(line) > _MAX_LINE_BYTES:
            raise UsageError(f"line {number} of {where} has more than {_MAX_LINE_BYTES:,} bytes, it is no key")
        if text := line.rstrip(b"\r\n"):
            try:
                yield text.decode()
            except UnicodeDecodeError as error:
                raise UsageError(f"line {number} of {where} is not UTF-8: {text[:80]!r}") from error


def read_keys(source: str, seed: int) -> list[str]:
    """The keys of the file ``source``, or of standard input if it is ``-``. Raises UsageError."""
    if source == "-":
        return read_key_lines(sys.stdin.buffer, "standard input", seed)
    try:
        with Path(source).open("rb") as stream:
            return read_key_lines(stream, source, seed)
    except OSError as error:
        raise UsageError(
            f"--keys {source} cannot be read: {error.strerror}",
            hint=f"give a file with one key a line, - for standard input, or {SAMPLE}",
        ) from error


def plan_options(command: F) -> F:
    """The options, for ``make_plan`` and ``render_words``."""
    for add in reversed(_PLAN_OPTIONS):
        command = add(command)
    return command


def make_plan(ctx: click.Context, options: Mapping[str, Any]) -> LoadPlan:
    """The load that ``options`` say, ``timeout`` among them. Raises UsageError, also for one that has to be asked for
    explicitly."""
    rate, duration, ramp_seconds = options["rate"], options["duration"], 0.0
    start = end = rate
    if options["ramp"] is not None:
        if ctx.get_parameter_source("rate") is not click.core.ParameterSource.DEFAULT:
            raise UsageError("--rate and --ramp say different things", hint="give one of them")
        start, end, ramp_seconds = parse_ramp(options["ramp"])
        duration = duration or ramp_seconds
    plan = LoadPlan(
        profile=make_profile(
            start, end, ramp=ramp_seconds, duration=duration or DEFAULT_DURATION, warmup=options["warmup"]
        ),
        arrivals=options["arrivals"],
        warmup=options["warmup"],
        batch=options["batch"],
        partial=options["partial"],
        hit_ratio=options["hit_ratio"],
        distribution=options["distribution"],
        seed=options["seed"],
        max_in_flight=options["max_in_flight"],
        processes=min(options["processes"], options["max_in_flight"]),
        timeout=options["timeout"],
    )
    parse_distribution(plan.distribution)
    if not options["is_unbounded"]:
        check_bounds(plan)
    return plan


def render_words(options: Mapping[str, Any]) -> list[str]:
    """The words of a command line that say the same."""
    return [name if value is True else f"{name}={value}" for name, value in _list_values(options)]


def _list_values(options: Mapping[str, Any]) -> list[tuple[str, Any]]:
    rate = ("--rate", options["rate"]) if options["ramp"] is None else ("--ramp", options["ramp"])
    names = ("arrivals", "duration", "warmup", "batch", "hit_ratio", "distribution", "seed", "max_in_flight")
    values = [rate, *(("--" + name.replace("_", "-"), options[name]) for name in (*names, "processes", "timeout"))]
    values += [("--at", options["generation"]), ("--partial", options["partial"] or None)]
    values += [("--header", header) for header in options["headers"]]
    values += [("--fail-if", condition) for condition in options["conditions"]]
    values.append((FLAG, options["is_unbounded"] or None))
    return [(name, value) for name, value in values if value is not None]
