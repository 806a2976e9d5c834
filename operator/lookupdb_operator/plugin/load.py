"""``kubectl lookupdb load``: render the Job, run it, and print the result in its log."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click
import orjson

from lookupdb.cli.load import SAMPLE, make_plan, plan_options, read_keys, render_words
from lookupdb.errors import LimitExceeded, UsageError
from lookupdb.load.plan import LoadPlan, make_target, take_sample
from lookupdb.load.result import KIND, list_exceeded, parse_condition, render_summary
from lookupdb_operator import names
from lookupdb_operator.plugin.changes import Dataset, Members, NotPossible
from lookupdb_operator.plugin.job_run import JobFailed, Patience, run_job, start_timeout_option
from lookupdb_operator.plugin.jobs import (
    CONTAINER_MEMBERS,
    SCRATCH,
    SPARE_BYTES,
    STORAGE,
    choose_shard_set,
    find_fetcher,
    find_store_access,
    read_store_words,
    render_job,
)
from lookupdb_operator.plugin.options import (
    Seconds,
    check_name,
    name_argument,
    output_option,
    print_json,
    run,
    with_target,
)
from lookupdb_operator.plugin.session import ClusterSession, Target
from lookupdb_operator.plugin.views import clean

# Render the Job that puts a load on a dataset's routers, within the cluster.
#
# The Job copies a shard's StatefulSet, whose init container has the image, and access to the store for sampling keys.
# It has no token of the API server. It uses the routers' Service as any client does, so a NetworkPolicy that restricts
# clients must admit ``LABELS``.


LABELS: Final = {names.APP: "lookupdb", names.COMPONENT: names.LOAD}
"""Labels that the operator does not take for its own. NetworkPolicies of routers, and the chart's for the store, admit
them."""
MAX_KEY_BYTES: Final = 200_000
"""The most bytes of given keys: they are an annotation, and all annotations of an object have at most 256 KiB."""
KEYS_ANNOTATION: Final = f"{names.GROUP}/load-keys"
_KEYS_PATH: Final = "/etc/lookupdb/load"
_CA_PATH: Final = "/etc/lookupdb/load-ca"
_CA_FILE: Final = "ca.crt"
_SUFFIX_BYTES: Final = 4
_BASE_MEMORY: Final = 256
_SENDER_MEMORY: Final = 256
"""MiB of memory for each sender."""


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """A key of a Secret or ConfigMap."""

    name: str
    key: str


@dataclass(frozen=True, slots=True)
class LoadJobOptions:
    """The user's options."""

    words: Sequence[str]
    """Options of `lookupdb load`, without the router, the keys and the output."""
    processes: int
    keys: Sequence[str] | None
    """None: sample the active or requested generation."""
    largest_shard_bytes: int
    """Bytes of its largest shard; shards are copied from the store one by one."""
    token: ObjectKey | None = None
    """Secret with the token."""
    ca_secret: ObjectKey | None = None
    ca_config_map: ObjectKey | None = None
    deadline_seconds: int = 3600


def render_load_job(dataset: Dataset, shard_set: Members, options: LoadJobOptions) -> dict[str, Any]:
    """Return the Job, which logs the result as a line of JSON. Raises NotPossible if it could not use the routers."""
    endpoint = dataset.status.get("endpoint")
    if not endpoint:
        raise NotPossible(f"{dataset.key} has no routers yet", hint=f"kubectl lookupdb status -n {dataset.namespace}")
    tls = (dataset.spec.get("router") or {}).get("tls") or {}
    if "clientCA" in tls:
        raise NotPossible(f"the routers of {dataset.key} require a certificate of clients, and the Job has none")
    authority = _render_authority(options, str(tls.get("secretName", ""))) if tls else None
    template = shard_set["spec"]["template"]["spec"]
    token = find_store_access(template.get("volumes", ())) if options.keys is None else []
    return render_job(
        dataset,
        shard_set,
        names.load_job(dataset.name, secrets.token_hex(_SUFFIX_BYTES)),
        LABELS,
        _render_container(dataset, shard_set, options, str(endpoint), has_authority=authority is not None),
        [
            {"name": "scratch", "emptyDir": {"sizeLimit": str(_count_scratch_bytes(options))}},
            *([] if options.keys is None else [_KEYS_VOLUME]),
            *([] if authority is None else [{"name": "load-ca", **authority}]),
            *token,
        ],
        deadline_seconds=options.deadline_seconds,
        annotations=None if options.keys is None else {KEYS_ANNOTATION: "".join(f"{key}\n" for key in options.keys)},
    )


_KEYS_VOLUME: Final = {
    "name": "load-keys",
    "downwardAPI": {
        "items": [{"path": "keys", "fieldRef": {"fieldPath": f"metadata.annotations['{KEYS_ANNOTATION}']"}}]
    },
}


def _render_authority(options: LoadJobOptions, certificate_secret: str) -> dict[str, Any]:
    """Return the volume with the CA of the routers' certificate: the named one, or the one in the certificate's Secret,
    where cert-manager writes it. No other entry of that Secret is mounted."""
    if options.ca_config_map is not None:
        item = {"key": options.ca_config_map.key, "path": _CA_FILE}
        return {"configMap": {"name": options.ca_config_map.name, "items": [item]}}
    chosen = options.ca_secret or ObjectKey(certificate_secret, _CA_FILE)
    return {"secret": {"secretName": chosen.name, "items": [{"key": chosen.key, "path": _CA_FILE}]}}


def _render_container(
    dataset: Dataset, shard_set: Members, options: LoadJobOptions, endpoint: str, *, has_authority: bool
) -> dict[str, Any]:
    fetcher = find_fetcher(shard_set)
    is_sampled = options.keys is None
    # Kubernetes would replace $(NAME) by a variable such as the token, and $$ by $.
    given = [word.replace("$", "$$") for word in options.words]
    words = ["load", endpoint, *given, "--json=-"]
    words += ["--keys=sample", *read_store_words(fetcher, dataset)] if is_sampled else [f"--keys={_KEYS_PATH}/keys"]
    mounts: list[dict[str, Any]] = [{"name": "scratch", "mountPath": path} for path in (SCRATCH, "/tmp")]  # noqa: S108 - of the pod's own
    if not is_sampled:
        mounts.append({"name": "load-keys", "mountPath": _KEYS_PATH, "readOnly": True})
    if has_authority:
        mounts.append({"name": "load-ca", "mountPath": _CA_PATH, "readOnly": True})
        words.append(f"--ca-file={_CA_PATH}/{_CA_FILE}")
    environment = [*(fetcher.get("env", ()) if is_sampled else ()), {"name": "TMPDIR", "value": SCRATCH}]
    if options.token is not None:
        reference = {"secretKeyRef": {"name": options.token.name, "key": options.token.key}}
        environment.append({"name": "LOOKUPDB_TOKEN", "valueFrom": reference})
    return {
        **{member: fetcher[member] for member in CONTAINER_MEMBERS if member in fetcher},
        **({"envFrom": fetcher["envFrom"]} if is_sampled and "envFrom" in fetcher else {}),
        "name": names.LOAD,
        "resources": _render_resources(options),
        "args": words,
        "env": environment,
        "volumeMounts": [*mounts, *(find_store_access(fetcher.get("volumeMounts", ())) if is_sampled else ())],
    }


def _render_resources(options: LoadJobOptions) -> dict[str, Any]:
    """Return the resources: a CPU for each sender and one for the parent; half of them are requested."""
    memory = f"{_BASE_MEMORY + _SENDER_MEMORY * options.processes}Mi"
    storage = str(_count_scratch_bytes(options))
    return {
        "requests": {"cpu": f"{500 * (options.processes + 1)}m", "memory": memory, STORAGE: storage},
        "limits": {"cpu": str(options.processes + 1), "memory": memory, STORAGE: storage},
    }


def _count_scratch_bytes(options: LoadJobOptions) -> int:
    return SPARE_BYTES + (options.largest_shard_bytes if options.keys is None else 0)


_SAMPLING_SECONDS: Final = 600.0
"""Seconds for sampling keys, and for the pod to end."""
_RESULT_MARK: Final = f'"kind":"{KIND}"'


class LoadFailed(JobFailed):
    """The Job ended without a result."""


def _parse_object_key(default: str) -> Any:
    """Return the callback of an option NAME[/KEY]."""

    def parse(context: click.Context, parameter: click.Parameter, value: str | None) -> ObjectKey | None:
        if value is None:
            return None
        name, _, key = value.partition("/")
        check_name(context, parameter, name)
        return ObjectKey(name, key or default)

    return parse


@click.command("load")
@name_argument()
@plan_options
@click.option(
    "--request-timeout",
    "timeout",
    type=Seconds(0.05, 60),
    default="5s",
    show_default=True,
    metavar="TIME",
    help="From a request's intended time.",
)
@click.option(
    "--keys",
    metavar="FILE|-|sample",
    default=SAMPLE,
    show_default=True,
    help="A file with one key a line; or sample: keys of the generation that answers.",
)
@click.option(
    "--token-secret",
    metavar="NAME[/KEY]",
    callback=_parse_object_key("token"),
    help="Send the token in this Secret of the namespace.",
)
@click.option(
    "--ca-secret",
    metavar="NAME[/KEY]",
    callback=_parse_object_key("ca.crt"),
    help="Trust the authority in this Secret; that beside the routers' certificate when absent.",
)
@click.option(
    "--ca-config-map",
    metavar="NAME[/KEY]",
    callback=_parse_object_key("ca.crt"),
    help="Trust the authority in this ConfigMap.",
)
@start_timeout_option
@with_target
@output_option
@click.pass_context
def command(context: click.Context, /, name: str, target: Target, output: str | None, **options: Any) -> None:
    """Put a load on the routers of the dataset NAME, within the cluster, and measure.

    A Job runs `lookupdb load` in the dataset's namespace, with the image of its servers and without a token of the API
    server. It uses the routers' Service as any client does. Progress goes to standard error, the result to standard
    output. The Job is deleted when the command ends, also by Ctrl-C.

    NetworkPolicies that restrict clients of routers must admit pods with the labels app.kubernetes.io/name: lookupdb
    and app.kubernetes.io/component: load. Exit code 7: a condition of --fail-if holds.

    \b
        kubectl lookupdb load airports --rate 500 --duration 30
        kubectl lookupdb load airports --at g13 --batch 100 --fail-if 'p99>20ms' --fail-if 'errors>0'
    """
    plan = make_plan(context, options)
    conditions = [parse_condition(text) for text in options["conditions"]]
    make_target("http://router", None, None, options["headers"])  # refuse it here rather than in a pod
    keys = None if options["keys"] == SAMPLE else fit_keys(read_keys(options["keys"], plan.seed), plan)

    async def measure(session: ClusterSession) -> Mapping[str, Any]:
        dataset = await session.get_dataset(name)
        shard_set = choose_shard_set(dataset, await session.list_shard_sets(dataset))
        running = plan.profile.seconds + plan.timeout + _SAMPLING_SECONDS
        patience = Patience(options["start_timeout"], options["start_timeout"] + running)
        job_options = LoadJobOptions(
            words=render_words(options),
            processes=plan.processes,
            keys=keys,
            largest_shard_bytes=_find_largest_shard(dataset, options["generation"]) if keys is None else 0,
            token=options["token_secret"],
            ca_secret=options["ca_secret"],
            ca_config_map=options["ca_config_map"],
            deadline_seconds=math.ceil(patience.end),
        )
        job = render_load_job(dataset, shard_set, job_options)
        ended = await run_job(session, dataset.namespace, job, names.LOAD, patience, _show_line)
        return read_result(ended.log.splitlines(), ended.progress.why)

    document = run(target, measure)
    print_json(document) if output else click.echo(render_summary(document))
    if exceeded := list_exceeded(conditions, document):
        raise LimitExceeded("\n".join(exceeded))


def _find_largest_shard(dataset: Dataset, generation: str | None) -> int:
    """Return the bytes of the largest shard file of the sampled generation. Raises NotPossible."""
    status = dataset.parse_status()
    sampled = generation or status.generation
    for stored in status.generations:
        if stored.generation == sampled:
            return stored.largest_shard_bytes
    raise NotPossible(
        f"{dataset.key} serves nothing yet" if not sampled else f"the store of {dataset.key} has no {sampled}",
        hint="give keys in a file, by --keys",
    )


def fit_keys(keys: list[str], plan: LoadPlan) -> list[str]:
    """Return as many of ``keys`` as a Job can hold, and say so if some are left out. Raises UsageError."""
    size = count_bytes(keys)
    kept = keys if size <= MAX_KEY_BYTES else take_sample(keys, len(keys) * MAX_KEY_BYTES // size, plan.seed)
    while (size := count_bytes(kept)) > MAX_KEY_BYTES:
        kept = kept[: len(kept) * MAX_KEY_BYTES // size]
    if len(kept) < len(keys):
        told = f"a Job holds {MAX_KEY_BYTES:,} bytes of keys: {len(kept):,} of {len(keys):,} are used, chosen at random"
        click.echo(told, err=True)
    if len(kept) < plan.batch:
        raise UsageError(
            f"batches of {plan.batch:,} keys need as many, and {len(kept):,} fit into the Job",
            hint="give a smaller --batch, or --keys sample",
        )
    return kept


def count_bytes(keys: Iterable[str]) -> int:
    """Return the size of the annotation with ``keys``."""
    return sum(len(key.encode()) + 1 for key in keys)


def _show_line(line: str) -> None:
    """Print a line of the Job's log, except for its result."""
    if _RESULT_MARK not in line:
        click.echo(clean(line), err=True)


def read_result(lines: list[str], why: str) -> Mapping[str, Any]:
    """Return the result in the Job's log. Raises LoadFailed with ``why`` if that is known, else with the last error."""
    for line in reversed(lines):
        if line.startswith("{") and _RESULT_MARK in line:
            try:
                document: Mapping[str, Any] = orjson.loads(line)
            except ValueError:
                continue
            return document
    said = [line for line in lines if line.strip()]
    first = next((place for place, line in enumerate(said) if line.startswith("error: ")), len(said) - 1)
    message = " ".join(clean(line).strip() for line in said[max(0, first) :]).removeprefix("error: ")
    raise LoadFailed(f"the Job failed: {why or message or 'it has logged nothing'}")
