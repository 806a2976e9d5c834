"""`lookupdb load`."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import orjson

from lookupdb.cli.addressing import DEFAULT_STORE, GenerationLocator, locator_options
from lookupdb.cli.options import option, token_file
from lookupdb.cli.router_address import ca_file_option, data_dir_option, find_router_url, is_url
from lookupdb.errors import LimitExceeded, UsageError
from lookupdb.load import bounds, fail_if, key_source
from lookupdb.load.display import open_display
from lookupdb.load.key_choice import parse_distribution
from lookupdb.load.preflight import DatasetFacts, Preflight
from lookupdb.load.run import LoadEnd, LoadOrder, run_load
from lookupdb.load.schedule import make_profile, parse_ramp
from lookupdb.load.sender_plan import LoadPlan
from lookupdb.load.summary import render_summary
from lookupdb.load.target import make_target
from lookupdb.local.trust import Trust
from lookupdb.manifest import GENERATION
from lookupdb.store.stored_generation import StoredGeneration
from lookupdb.wording import format_count

SAMPLE: Final = "sample"
_BY_SIGNAL: Final = 128
_MAX_SECONDS: Final = 86_400
_REPORT_SUFFIXES: Final = (".html", ".svg")


@dataclass(frozen=True, slots=True)
class _KeyOptions:
    """Where keys come from."""

    keys: str
    size: int
    sample_from: str | None
    seed: int
    locator: GenerationLocator

    def read(self, facts: DatasetFacts) -> tuple[list[str], str]:
        """The keys, and what they are from. Raises UsageError, StoreError, CorruptFile."""
        if self.keys == SAMPLE:
            generation = self._find(facts)
            with tempfile.TemporaryDirectory(prefix="lookupdb-load-") as folder:
                keys = key_source.sample_generation(generation, Path(folder), self.seed, self.size)
            return keys, f"a sample of {generation.where}"
        if self.keys == "-":
            return key_source.read_key_lines(sys.stdin.buffer, "standard input", self.seed), "standard input"
        try:
            with Path(self.keys).open("rb") as stream:
                return key_source.read_key_lines(stream, self.keys, self.seed), self.keys
        except OSError as error:
            raise UsageError(
                f"--keys {self.keys} cannot be read: {error.strerror}",
                hint=f"give a file with one key a line, - for standard input, or {SAMPLE}",
            ) from error

    def _find(self, facts: DatasetFacts) -> StoredGeneration:
        """The generation that is sampled: the one that answers, unless another is named."""
        return self.locator.find(self.sample_from or facts.generation)


class _Line(click.ParamType[str]):
    """Text of which an environment variable holds one a line."""

    name = "text"
    envvar_list_splitter = "\n"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """``value``."""
        return str(value)


def _check_report(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
    if path is not None and path.suffix not in _REPORT_SUFFIXES:
        raise click.BadParameter(f"{path} has neither ending: {' or '.join(_REPORT_SUFFIXES)}")
    return path


def _check_generation(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is not None and not GENERATION.fullmatch(value):
        raise click.BadParameter(f"a generation is called g1, g2, …, found {value!r}")
    return value


@click.command("load")
@click.argument("router", metavar="DATASET")
@option("--rate", type=click.FloatRange(0.01, 1_000_000), default=100.0, help="Requests a second.")
@option("--ramp", metavar="START:END:SECONDS", help="Go from one rate to another, and stay there; instead of --rate.")
@option("--arrivals", type=click.Choice(["poisson", "uniform"]), default="poisson", help="At random, or evenly.")
@option(
    "--duration",
    type=click.FloatRange(0.1, _MAX_SECONDS),
    show_default="10, or the ramp's seconds",
    help="Seconds that are measured.",
)
@option("--warmup", type=click.FloatRange(0, _MAX_SECONDS), default=1.0, help="Seconds before, which do not count.")
@option("--batch", type=click.IntRange(1, 100_000), default=1, help="Keys of a request: 1 is a GET, more are a POST.")
@option("--partial", is_flag=True, help="Let batches be answered in part where a shard is unavailable.")
@option("--keys", metavar="FILE|-|sample", default=SAMPLE, help="One key a line; or a sample of what answers.")
@option(
    "--sample-size",
    type=click.IntRange(1, key_source.MAX_KEYS),
    default=key_source.DEFAULT_SAMPLE,
    help="Of --keys sample: so many keys.",
)
@option("--sample-from", metavar="FOLDER|gN", help="Of --keys sample: a generation's folder, or another generation.")
@option("--hit-ratio", type=click.FloatRange(0, 1), default=1.0, help="The share of --keys; other keys are made up.")
@option("--distribution", default="uniform", metavar="uniform|zipf:S", help="How often which key is asked for.")
@option("--seed", type=click.IntRange(0), default=1, help="Of all that is random: sample, choice, arrivals.")
@option("--max-in-flight", type=click.IntRange(1, 20_000), default=256, help="Unanswered requests, and connections.")
@option("--processes", type=click.IntRange(1, 64), default=1, help="Of senders: more where a processor is too slow.")
@option("--timeout", type=click.FloatRange(0.05, 60), default=5.0, help="Seconds from a request's intended time.")
@option("--at", "generation", metavar="gN", callback=_check_generation, help="Ask this generation: a candidate, say.")
@option("--header", "headers", type=_Line(), metavar="'NAME: TEXT'", multiple=True, help="Send it with each request.")
@option(
    "--fail-if",
    "conditions",
    type=_Line(),
    metavar="CONDITION",
    multiple=True,
    help="End with 7 if it holds: 'p99>20ms', 'unavailable>0', 'missing>5%', 'rate<900'.",
)
@option(bounds.FLAG, "is_unbounded", is_flag=True, help="Allow more than 1,000 requests/s, or than 60 s.")
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="The result, as JSON; - is stdout."
)
@option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.html|FILE.svg",
    callback=_check_report,
    help="The result, as a page with plots, or as plots alone.",
)
@data_dir_option
@ca_file_option
@token_file("The router is shown the token in this file (or in LOOKUPDB_TOKEN).")
@locator_options
@click.pass_context
def command(ctx: click.Context, /, router: str, **options: Any) -> None:
    """Put a load on a router of DATASET, and measure: the name of one that `lookupdb up` serves ([NAMESPACE/]NAME), or
    a router's URL.

    Requests leave by the clock, at --rate, however slowly others are answered, and latencies count from that time on: a
    router that stalls is charged for all that it keeps waiting. At most --max-in-flight are unanswered; what has to
    wait for that is counted, and its latency includes it.

    Ctrl-C ends it with the result so far. Exit code 7: a condition of --fail-if holds. 4: no router answers, or it
    serves nothing. 1: the router refuses, or this machine cannot send as fast as it is asked to. 0 says that the load
    has run, whatever was answered.

    \b
        lookupdb load airports --rate 500 --duration 30
        lookupdb load https://lookups.example.com --keys keys.txt --batch 100 --fail-if 'p99>20ms' --fail-if 'errors>0'
        lookupdb load airports --ramp 100:1000:60 --report load.html
    """
    conditions = [fail_if.parse_condition(text) for text in options["conditions"]]
    order = _prepare(ctx, router, conditions, options)
    with open_display() as display:
        end = run_load(order, display)
    _write_result(end, options["json_file"], options["report"])
    _finish(end, conditions)


def _prepare(
    ctx: click.Context, router: str, conditions: Sequence[fail_if.FailCondition], options: dict[str, Any]
) -> LoadOrder:
    """What is to be done, after the router has been asked once."""
    plan = _make_plan(ctx, options)
    if not options["is_unbounded"]:
        bounds.check_bounds(plan)
    generation, trust = options["generation"], options["trust"]
    assert isinstance(trust, Trust)
    url = find_router_url(router, options["data_dir"])
    target = make_target(url, options["token"], generation, options["headers"])
    preflight = Preflight(target, trust.context, trust.hint_for)
    facts = preflight.read_dataset(generation)
    keys, source = _key_options(ctx, router, facts, options).read(facts)
    if len(keys) < plan.batch:
        raise UsageError(
            f"batches of {format_count(plan.batch, 'key')} need as many, found {len(keys):,} in {source}",
            hint="give more keys, or a smaller --batch",
        )
    answer = preflight.look_up(keys[: plan.batch], partial=plan.partial)
    return LoadOrder(
        plan=plan,
        target=target,
        facts=facts,
        generation=generation,
        keys=keys,
        key_source=source,
        ca_file=str(trust.file) if trust.file else None,
        sample_answer=answer.render(),
        conditions=conditions,
    )


def _make_plan(ctx: click.Context, options: dict[str, Any]) -> LoadPlan:
    rate, duration, ramp_seconds = options["rate"], options["duration"], 0.0
    start = end = rate
    if options["ramp"] is not None:
        if ctx.get_parameter_source("rate") is not click.core.ParameterSource.DEFAULT:
            raise UsageError("--rate and --ramp say different things", hint="give one of them")
        start, end, ramp_seconds = parse_ramp(options["ramp"])
        duration = duration or ramp_seconds
    return LoadPlan(
        profile=make_profile(start, end, ramp=ramp_seconds, duration=duration or 10.0, warmup=options["warmup"]),
        arrivals=options["arrivals"],
        warmup=options["warmup"],
        batch=options["batch"],
        partial=options["partial"],
        hit_ratio=options["hit_ratio"],
        distribution=parse_distribution(options["distribution"]),
        seed=options["seed"],
        max_in_flight=options["max_in_flight"],
        processes=min(options["processes"], options["max_in_flight"]),
        timeout=options["timeout"],
    )


def _key_options(ctx: click.Context, router: str, facts: DatasetFacts, options: dict[str, Any]) -> _KeyOptions:
    """The store of the `lookupdb up` that serves ``router`` is the one that is meant, unless another is named."""
    store_url = options["store_url"]
    is_default = ctx.get_parameter_source("store_url") is click.core.ParameterSource.DEFAULT
    if is_default and not is_url(router):
        store_url = str(options["data_dir"] / Path(DEFAULT_STORE).name)
    locator = GenerationLocator(
        store_url, options["cluster_id"], options["dataset"] or f"{facts.namespace}/{facts.name}", options["uid"]
    )
    return _KeyOptions(options["keys"], options["sample_size"], options["sample_from"], options["seed"], locator)


def _write_result(end: LoadEnd, json_file: Path | None, report: Path | None) -> None:
    is_for_machines = str(json_file) == "-"
    if not is_for_machines:
        click.echo(render_summary(end.document))
    if json_file is not None:
        line = orjson.dumps(end.document)
        click.echo(line) if is_for_machines else _write_file(json_file, line + b"\n")
    if report is not None:
        from lookupdb.load.plots import render_report

        _write_file(report, render_report(end.document, is_page=report.suffix == ".html").encode())


def _write_file(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}", hint="give another file") from error


def _finish(end: LoadEnd, conditions: Sequence[fail_if.FailCondition]) -> None:
    """End with what the load has shown."""
    if end.ended_by:
        sys.exit(_BY_SIGNAL + end.ended_by)
    exceeded = [
        f"--fail-if '{condition.text}' holds: it is {condition.format_value(judged['value'])}"
        for condition, judged in zip(conditions, end.document["failIf"], strict=True)
        if judged["holds"]
    ]
    if exceeded:
        raise LimitExceeded("\n".join(exceeded))
