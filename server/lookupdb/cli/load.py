"""`lookupdb load`: send load to a router and measure it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import click

from lookupdb.cli.addressing import (
    DEFAULT_STORE,
    GenerationLocator,
    ca_file_option,
    complete_datasets,
    data_dir_option,
    find_router_url,
    is_url,
    locator_options,
)
from lookupdb.cli.options import F, GenerationAddress, Seconds, option, token_file
from lookupdb.cli.program import ended_in_time, temporary_folder
from lookupdb.errors import LimitExceeded, LookupdbError, UsageError
from lookupdb.load.plan import (
    DEFAULT_SAMPLE,
    MAX_KEYS,
    DatasetFacts,
    LoadOrder,
    LoadPlan,
    SenderPlan,
    make_profile,
    make_target,
    parse_distribution,
    parse_ramp,
    take_sample,
)
from lookupdb.load.result import list_exceeded, parse_condition, render_summary
from lookupdb.load.run import LoadDisplay, Preflight, run_load, sample_generation
from lookupdb.manifest import GENERATION
from lookupdb.wording import format_count, render_json

# The options that describe a load: those of `lookupdb load`, and of `kubectl lookupdb load`, whose Job runs `lookupdb
# load`.


# Limits unless FLAG is given: a typo must not overload a router.
MAX_RATE: Final = 1000.0
MAX_KEYS_PER_SECOND: Final = 100_000.0
MAX_SECONDS: Final = 60.0  # including the warm-up
FLAG: Final = "--beyond-default-bounds"
SAMPLE: Final = "sample"
DEFAULT_DURATION: Final = 10.0
_LONGEST: Final = 86_400
_MAX_LINE_BYTES: Final = 1 << 16  # no key of a record is longer than 511 bytes
_MAX_FILE_KEY_BYTES: Final = 256 << 20


class TextLine(click.types.StringParamType):
    """Text; an environment variable holds several, one a line."""

    envvar_list_splitter = "\n"


class FileLine(click.Path):
    """A file path; an environment variable holds several, one a line, because file names may contain colons."""

    envvar_list_splitter = "\n"


_PLAN_OPTIONS: Final = (
    option(
        "--rate",
        type=click.FloatRange(0.01, 1_000_000),
        default=100.0,
        envvar="LOOKUPDB_LOAD_RATE",  # LOOKUPDB_RATE is the fetch rate in bytes
        help="Requests per second.",
    ),
    option(
        "--ramp", metavar="START:END:SECONDS", help="Ramp from one rate to another and stay there; replaces --rate."
    ),
    option("--arrivals", type=click.Choice(["poisson", "uniform"]), default="poisson", help="Random or even spacing."),
    option(
        "--duration",
        type=Seconds(0.1, _LONGEST),
        show_default="10, or the ramp's seconds",
        help="Seconds to measure; also as 30s, 2m or 1h.",
    ),
    option("--warmup", type=Seconds(0, _LONGEST), default=1.0, help="Seconds of load before measuring."),
    option(
        "--batch", type=click.IntRange(1, 100_000), default=1, help="Keys per request: 1 sends GET, more send POST."
    ),
    option("--partial", is_flag=True, help="Accept partial answers to batches if a shard is unavailable."),
    option(
        "--hit-ratio",
        type=click.FloatRange(0, 1),
        default=1.0,
        help="Share of requests for --keys; the others use made-up keys.",
    ),
    option("--distribution", default="uniform", metavar="uniform|zipf:S", help="Distribution of requests over keys."),
    option("--seed", type=click.IntRange(0), default=1, help="Seed for sample, key choice and arrivals."),
    option(
        "--max-in-flight",
        type=click.IntRange(1, 20_000),
        default=256,
        help="Maximum unanswered requests and connections.",
    ),
    option(
        "--processes",
        type=click.IntRange(1, 64),
        default=1,
        help="Sender processes; raise it if one CPU cannot keep up.",
    ),
    option(
        "--at",
        "generation",
        type=GenerationAddress(),
        metavar="gN",
        help="Ask this generation only, for example a candidate.",
    ),
    option(
        "--header", "headers", type=TextLine(), metavar="'NAME: TEXT'", multiple=True, help="Header field of requests."
    ),
    option(
        "--fail-if",
        "conditions",
        type=TextLine(),
        metavar="CONDITION",
        multiple=True,
        help="Exit with 7 if this holds: 'p99>20ms', 'unavailable>0', 'missing>5%', 'rate<900'.",
    ),
    option(FLAG, "is_unbounded", is_flag=True, help="Allow more than 1,000 requests/s or 60 s."),
)


def check_bounds(plan: LoadPlan) -> None:
    """Raise UsageError if ``plan`` exceeds the limits that ``FLAG`` lifts."""
    rate, seconds, excess = plan.profile.highest, plan.profile.seconds, []
    if rate > MAX_RATE:
        excess.append(f"{rate:,g} requests/s (the limit is {MAX_RATE:,.0f})")
    if rate * plan.batch > MAX_KEYS_PER_SECOND:
        excess.append(f"{rate * plan.batch:,g} keys/s (the limit is {MAX_KEYS_PER_SECOND:,.0f})")
    if seconds > MAX_SECONDS:
        excess.append(f"{seconds:,g} s, the warm-up included (the limit is {MAX_SECONDS:g})")
    if excess:
        raise UsageError(
            f"a load of {', '.join(excess)} must be requested explicitly",
            hint=f"give {FLAG} if the people who run the router know of it",
        )


def read_key_lines(stream: BinaryIO, where: str, seed: int) -> list[str]:
    """Return the keys of ``stream``, one a line. Raises UsageError if it has none, or one is too long or not UTF-8."""
    keys = take_sample(_decode_lines(stream, where), MAX_KEYS, seed)
    if not keys:
        raise UsageError(f"{where} has no keys", hint="give a file with one key a line, or --keys sample")
    if sum(map(len, keys)) > _MAX_FILE_KEY_BYTES:
        raise UsageError(f"the keys of {where} take more than {_MAX_FILE_KEY_BYTES >> 20} MiB", hint="give fewer")
    return keys


def _decode_lines(stream: BinaryIO, where: str) -> Iterator[str]:
    for number, line in enumerate(iter(lambda: stream.readline(_MAX_LINE_BYTES + 1), b""), 1):
        if len(line) > _MAX_LINE_BYTES:
            raise UsageError(f"line {number} of {where} has more than {_MAX_LINE_BYTES:,} bytes, the limit of a line")
        if text := line.rstrip(b"\r\n"):
            try:
                yield text.decode()
            except UnicodeDecodeError as error:
                raise UsageError(f"line {number} of {where} is not UTF-8: {text[:80]!r}") from error


def read_keys(source: str, seed: int) -> list[str]:
    """Return the keys of the file ``source``, or of standard input if it is ``-``. Raises UsageError."""
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
    """Add the options that ``make_plan`` and ``render_words`` take."""
    for add in reversed(_PLAN_OPTIONS):
        command = add(command)
    return command


def make_plan(ctx: click.Context, options: Mapping[str, Any]) -> LoadPlan:
    """Return the plan that ``options``, including ``timeout``, describe.

    Raises UsageError, also for a plan that needs ``FLAG``.
    """
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
    """Return the options as words of a command line."""
    rate = ("--rate", options["rate"]) if options["ramp"] is None else ("--ramp", options["ramp"])
    names = ("arrivals", "duration", "warmup", "batch", "hit_ratio", "distribution", "seed", "max_in_flight")
    values = [rate, *(("--" + name.replace("_", "-"), options[name]) for name in (*names, "processes", "timeout"))]
    values += [("--at", options["generation"]), ("--partial", options["partial"] or None)]
    values += [("--header", header) for header in options["headers"]]
    values += [("--fail-if", condition) for condition in options["conditions"]]
    values.append((FLAG, options["is_unbounded"] or None))
    return [name if value is True else f"{name}={value}" for name, value in values if value is not None]


_OTHER_KEYS: Final = (
    "give keys in another way: --sample-from FOLDER takes those of a generation's folder, whatever its namespace, and"
    " --keys FILE those of a file"
)
_BY_SIGNAL: Final = 128
_JSON: Final = ".json"
_REPORT_SUFFIXES: Final = (".html", ".svg", _JSON)


def _read_keys(
    ctx: click.Context, router: str, facts: DatasetFacts, options: Mapping[str, Any]
) -> tuple[list[str], str]:
    """Return the keys and a description of their source. Raises UsageError, StoreError, CorruptFile.

    The generation to sample is the one that the router serves, from the store of the `lookupdb up` that serves
    ``router``, unless others are named. A folder's namespace is not compared: it may have been built elsewhere.
    """
    source, seed, named = options["keys"], options["seed"], options["dataset"]
    if source != SAMPLE:
        return read_keys(source, seed), "standard input" if source == "-" else source
    store_url = options["store_url"]
    is_default = ctx.get_parameter_source("store_url") is click.core.ParameterSource.DEFAULT
    if is_default and not is_url(router):
        store_url = str(options["data_dir"] / Path(DEFAULT_STORE).name)
    locator = GenerationLocator(store_url, options["cluster_id"], f"{facts.namespace}/{facts.name}", options["uid"])
    target = options["sample_from"] or facts.generation
    if not GENERATION.fullmatch(target):
        generation = locator.find(target)
        _check_sampled(f"--sample-from {target} is of", generation.manifest.name, facts)
    else:
        if named:
            _check_sampled("--dataset is", named, facts)
        try:
            generation = locator.find(target)
        except LookupdbError as error:
            error.hint = f"{error.hint}; or {_OTHER_KEYS}" if error.hint else _OTHER_KEYS
            raise
    with temporary_folder("lookupdb-load-") as scratch:
        keys = sample_generation(generation, scratch, seed, options["sample_size"])
    return keys, f"a sample of {generation.where}"


def _check_sampled(what: str, dataset: str, facts: DatasetFacts) -> None:
    namespace, _, name = dataset.rpartition("/")
    if name != facts.name or namespace not in ("", facts.namespace):
        raise UsageError(
            f"keys would be sampled from one dataset and looked up in another: {what} {dataset}, and the router serves"
            f" {facts.namespace}/{facts.name}",
            hint="leave --dataset and --sample-from out, unset LOOKUPDB_DATASET and LOOKUPDB_SAMPLE_FROM, or ask"
            f" another router; or {_OTHER_KEYS}",
        )


def _check_reports(_: click.Context, __: click.Parameter, paths: tuple[Path, ...]) -> tuple[Path, ...]:
    for path in paths:
        if path.suffix not in _REPORT_SUFFIXES:
            raise click.BadParameter(f"{path} has none of the endings {', '.join(_REPORT_SUFFIXES)}")
    return paths


@click.command("load")
@click.argument("router", metavar="DATASET", shell_complete=complete_datasets)
@plan_options
@option("--keys", metavar="FILE|-|sample", default=SAMPLE, help="One key a line, or a sample of the served generation.")
@option(
    "--sample-size",
    type=click.IntRange(1, MAX_KEYS),
    default=DEFAULT_SAMPLE,
    help="With --keys sample: number of keys.",
)
@option("--sample-from", metavar="FOLDER|gN", help="With --keys sample: a generation's folder, or another generation.")
@option("--timeout", type=Seconds(0.05, 60), default=5.0, help="Timeout in seconds after a request's scheduled time.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@option(
    "--report",
    "reports",
    type=FileLine(path_type=Path, dir_okay=False),
    metavar="FILE.html|FILE.svg|FILE.json",
    multiple=True,
    callback=_check_reports,
    help="Write the result here as a page with plots, as plots only, or as JSON. May be repeated.",
)
@data_dir_option
@ca_file_option
@token_file("Send the router the token in this file (or in LOOKUPDB_TOKEN).")
@locator_options
@click.pass_context
def command(ctx: click.Context, /, router: str, **options: Any) -> None:
    """Send load to a router and measure latency. DATASET is a name that `lookupdb up` serves ([NAMESPACE/]NAME), or a
    router's URL.

    Requests follow a fixed schedule at --rate, however slow the answers are. Latency counts from the scheduled time, so
    a router that stalls is charged for every request that it delays. At most --max-in-flight requests are unanswered;
    requests that wait for this limit are counted, and their latency includes the wait.

    Ctrl-C ends the run and prints the result so far. Exit code 7: a condition of --fail-if holds. 4: no router answers,
    or it serves nothing. 1: the router rejected the load, or this machine cannot send at that rate. 0: the load ran,
    whatever the router answered.

    \b
        lookupdb load airports --rate 500 --duration 30
        lookupdb load https://lookups.example.com --keys keys.txt --batch 100 --fail-if 'p99>20ms' --fail-if 'errors>0'
        lookupdb load airports --ramp 100:1000:60 --report load.html
    """
    conditions = [parse_condition(text) for text in options["conditions"]]
    reports: tuple[Path, ...] = options["reports"]
    for path in reports:
        if not path.parent.is_dir():
            raise UsageError(
                f"{path} cannot be written: there is no folder {path.parent}",
                hint="make the folder, or give another file",
            )
    if any(path.suffix != _JSON for path in reports):
        from lookupdb.load import report  # noqa: F401 - fail before the load if its library is missing
    with ended_in_time():
        order = _prepare(ctx, router, options)
    document, ended_by = run_load(order, LoadDisplay(), conditions)
    exceeded = list_exceeded(conditions, document)
    _write_result(document, reports, as_json=options["as_json"])
    if ended_by:
        sys.exit(_BY_SIGNAL + ended_by)
    if exceeded:
        raise LimitExceeded("\n".join(exceeded))


def _prepare(ctx: click.Context, router: str, options: dict[str, Any]) -> LoadOrder:
    """Ask the router once and read the keys."""
    plan = make_plan(ctx, options)
    generation, ca_file = options["generation"], options["ca_file"]
    target = make_target(find_router_url(router, options["data_dir"]), options["token"], generation, options["headers"])
    preflight = Preflight(target, ca_file)
    facts = preflight.read_dataset(generation)
    keys, source = _read_keys(ctx, router, facts, options)
    if len(keys) < plan.batch:
        raise UsageError(
            f"a batch has {format_count(plan.batch, 'key')}, found only {len(keys):,} in {source}",
            hint="give more keys, or a smaller --batch",
        )
    preflight.look_up(keys[: plan.batch], partial=plan.partial)
    sender = SenderPlan(plan, target, 0, str(ca_file) if ca_file else None, keys)
    return LoadOrder(sender, facts, is_asked_by_name=generation is not None, key_source=source)


def _write_result(document: Mapping[str, Any], reports: Sequence[Path], *, as_json: bool) -> None:
    """Print the result, and write every file that can be written. Raises UsageError for the first failure."""
    line = render_json(document)
    try:
        click.echo(line if as_json else render_summary(document))
    finally:  # also if standard output is closed
        contents = [(path, line + b"\n") for path in reports if path.suffix == _JSON]
        if drawn := [path for path in reports if path.suffix != _JSON]:
            from lookupdb.load.report import render_report

            contents += [(path, render_report(document, is_page=path.suffix == ".html").encode()) for path in drawn]
        failures = []
        for path, content in contents:
            try:
                path.write_bytes(content)
            except OSError as error:
                failures.append(UsageError(f"{path} cannot be written: {error.strerror}", hint="give another file"))
        if failures:
            raise failures[0]
