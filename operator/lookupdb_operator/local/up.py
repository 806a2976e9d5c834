"""Run `lookupdb up`: the operator's loop over a local cluster.

`up` does what a person does in a real cluster: it applies the manifest (``keep_pin``), and asks for a refresh when the
source has changed since the last one. The builder decides whether anything is to be built. At startup `up` forgets
what mattered only to the last run (``_forget_last_run``).
"""

from __future__ import annotations

import asyncio
import logging
import shlex
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click
import orjson

from lookupdb import store
from lookupdb.builder import existing
from lookupdb.builder.listing import describe_success_file, open_source, read_success_file
from lookupdb.cli.options import GenerationAddress, ManifestPath, Size, log_format, option
from lookupdb.dataset.spec import LOCAL, DatasetSpec, describe_left_out, parse_resource, read_resource
from lookupdb.errors import BadSource, InvalidManifest, LookupdbError, SourceUnreadable, UsageError
from lookupdb.manifest import Announcement, generation_number
from lookupdb.process import listeners
from lookupdb.process.launch import call_in_thread, drop_unwritten
from lookupdb.store import StoredDataset, sweep
from lookupdb.store.dataset import read_announcement, write_announcement
from lookupdb.telemetry import open_tracing
from lookupdb.up.run_state import DATA_DIRECTORY, RunFolder, shorten_name
from lookupdb.wording import format_command
from lookupdb_operator import names
from lookupdb_operator.cluster.api import ApiError
from lookupdb_operator.cluster.cache import Key, ObjectCache
from lookupdb_operator.cluster.cluster import Cluster
from lookupdb_operator.cluster.parse import find_condition, read_annotations, read_labels, read_status
from lookupdb_operator.console.source import PodClient
from lookupdb_operator.local.api import OBJECTS, LocalApi, Object, localize, localize_advice, merge_patch
from lookupdb_operator.local.kubelet import (
    HOST,
    MAX_SERVERS,
    Kubelet,
    LocalCluster,
    UpOptions,
    check_ports,
    check_servers,
)
from lookupdb_operator.loop.observe import Announcements, Announcer, Observer, RouterPolls
from lookupdb_operator.loop.queue import LookQueue, LookWorkers
from lookupdb_operator.loop.reconcile import Reconciler, TurnTaking
from lookupdb_operator.model import Config, NotAnnounced, StoreAccess, format_moment
from lookupdb_operator.plan import plan, reasons, turns
from lookupdb_operator.plan.lifecycle import RolloutPhase, rollout_phase
from lookupdb_operator.plan.turns import TurnQueues
from lookupdb_operator.status import DatasetStatus, GenerationStatus

_MOST_UNSETTLED_CHECKS: Final = 10
"""From this number of consecutive checks on, a source that changes at each of them is reported."""
_ROUTINE: Final = frozenset(
    {
        reasons.CONFIRMING,
        reasons.NO_ROUTER_READY,
        reasons.NO_ROUTING_TABLE,
        reasons.SHARDS_UNAVAILABLE,
        reasons.STARTING_SERVERS,
        reasons.UP_TO_DATE,
        reasons.WAITING_FOR_BUILD,
        reasons.HEALTHY,
    }
)
"""Reasons of events that are not printed, because each start or cutover has them."""
_PRINTED: Final = reasons.BUILDER_REASONS - {reasons.BUILD_FAILED, reasons.INTERRUPTED}
"""Reasons of failed builds whose error the builder has printed."""
_UNFINISHED: Final = _ROUTINE - {reasons.UP_TO_DATE, reasons.HEALTHY}
"""Reasons of an unfinished rollout that continues by itself."""
_RESYNC_SECONDS: Final = 300.0
_RETRY_SECONDS: Final = 1.0
_SOURCE: Final = f"{names.GROUP}/source"
"""The annotation with the identity of the source at the last refresh that `up` asked for."""
_PINNED_BY_MANIFEST: Final = f"{names.GROUP}/pinned-by-manifest"
"""The annotation with the generation that the manifest pins; empty if it pins none."""


# One dataset: its manifest, its source, and what is known of both.


def _read_manifest(path: Path) -> tuple[Object, DatasetSpec]:
    """Return the manifest at ``path``, as it is and parsed. Raises InvalidManifest, also for a pipe, which cannot be
    read twice."""
    with suppress(OSError):  # then reading it reports why
        if path.is_fifo():
            raise InvalidManifest(f"{path} is a pipe, expected a file", hint="write its content to a file first")
    resource = read_resource(path)
    spec = replace(parse_resource(resource, path.resolve().parent), uid=LOCAL)  # `localize` drops a cluster's uid
    try:
        return orjson.loads(orjson.dumps(resource, default=str, option=orjson.OPT_NON_STR_KEYS)), spec
    except TypeError as error:
        raise InvalidManifest(f"{path} cannot be written as JSON: {error}") from error


@dataclass(slots=True)
class LocalDataset:
    """One manifest, and what was last seen of it and of its source."""

    path: Path
    spec: DatasetSpec
    resource: Object
    folder: RunFolder
    stored: StoredDataset
    inbox: StoredDataset
    seen: str | None = None
    """The identity of the source at the last check; None if nothing identifies it, or it is awaited."""
    unsettled: int = 0
    """Number of consecutive checks, up to the last, that found the source changed again."""
    first: str | None = None
    """The identity of the source when `up` began. If the first build failed, it read this source."""
    said: str = ""
    """What was printed last about manifest and source."""
    problem: str = ""
    """Why the manifest or the source cannot be read; empty if they can."""
    problem_since: str = ""
    """When ``problem`` was last seen to change, ISO 8601, UTC."""
    active: str = ""
    """The generation that serves; empty until it is announced."""
    has_failed: bool = False
    """True if there is nothing to serve, and the first build has failed."""
    pruned: frozenset[str] = frozenset()
    """The generations that were in use when others were last removed."""
    left_out: tuple[str, ...] = ()
    applied: Mapping[str, Any] | None = None
    """The spec in the cluster, when ``spec`` was last taken from it."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """What its ``up.json`` holds."""
    failure: Mapping[str, Any] = field(default_factory=dict)
    """How the last build failed, from its status; empty if it did not."""

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.spec.namespace, self.spec.name

    @property
    def awaited(self) -> str:
        """What must exist before the source is read, in words; empty if nothing."""
        if self.spec.source.takes_pushes:
            return f"the first push to {self.inbox.url}"
        return "" if self.spec.refresh.success_file is None else describe_success_file(self.spec)

    def follow(self, resource: Object) -> bool:
        """Take the spec of ``resource`` if it is this dataset: a command or `kubectl` may have changed it. Return
        whether another build has failed for the same reason, which no event reports."""
        if (resource["metadata"]["namespace"], resource["metadata"]["name"]) != self.key:
            return False
        if resource["spec"] != self.applied:
            self.applied = resource["spec"]
            with suppress(LookupdbError):  # the operator reports it
                self.spec = replace(parse_resource(resource, self.path.resolve().parent), uid=LOCAL)
        before, self.failure = self.failure, read_status(resource).get("failure") or {}
        is_new = self.failure.get("generation") != before.get("generation")
        shown = find_condition(resource, "Degraded").get("reason")
        return is_new and self.failure.get("reason") == before.get("reason") == shown

    def identify_source(self, volume: Path | None) -> str | None:
        """Return what changes with the source: the newest push, the success file if one is named, or a fingerprint.
        None if the awaited object is not there, or nothing identifies the source. Raises LookupdbError."""
        if self.spec.source.takes_pushes:
            from lookupdb.builder.build import find_push, fingerprint_push  # here, because it loads all parsers

            push = find_push(self.inbox)
            return None if push is None else fingerprint_push(push)
        if self.spec.refresh.success_file is not None:
            return read_success_file(self.spec, volume=volume)
        return open_source(self.spec, volume=volume).fingerprint

    def is_new(self, resource: Object) -> bool:
        """Return whether the source has changed since the last refresh by `up`, or else since the newest build."""
        if asked_for := read_annotations(resource).get(_SOURCE):
            return self.seen != asked_for
        newest = (read_status(resource).get("generations") or [{"fingerprint": self.first}])[-1]
        return self.seen not in (newest.get("fingerprint"), newest.get("successFile"))

    def find_override(self, resource: Object | None) -> dict[str, str]:
        """Return the annotation that lets the refused generation serve, if `lookupdb build --override-gates` has
        overridden its gates; else nothing."""
        refused = (read_status(resource or {}).get("refused") or {}).get("generation")
        manifest = None if refused is None else self.stored.whole_manifests().get(refused)
        return {names.OVERRIDE_GATES: str(refused)} if manifest is not None and manifest.overridden else {}

    def make_refresh(self) -> dict[str, str]:
        """Return the annotations that ask for a build from the source as it was last seen."""
        return {names.REFRESH: datetime.now(UTC).isoformat(), _SOURCE: self.seen or ""}

    def find_stored_status(self) -> DatasetStatus | None:
        """Return the status of a dataset that is in the store but not in the cluster: made by an earlier version, or by
        `lookupdb build`. None if there is nothing. Raises LookupdbError."""
        last = generation_number(self.stored.next_generation()) - 1
        if last == 0:
            return None
        content = self.spec.content_hash()
        found = [item for item in existing.usable_manifests(self.stored) if item.content == content]
        generations = tuple(
            GenerationStatus(
                generation=item.generation,
                content=item.content,
                fingerprint=item.fingerprint,
                success_file=item.success_file or "",
                records=item.totals.records,
                bytes=item.totals.file_bytes,
                largest_shard_bytes=max(shard.bytes for shard in item.shards),
                shards=len(item.shards),
                normalize=item.normalize,
                key_columns=item.key_columns,
                separator=item.separator,
                value_format=item.value_format,
                built_at=item.built_at,
                refreshed_at=item.built_at,
                source_modified_at=item.source_modified_at or "",
                overridden="\n".join(item.overridden),
            )
            for item in reversed(found[: self.spec.keep_generations])
        )
        table = 0
        with suppress(LookupdbError):
            table = announced.version if (announced := read_announcement(self.stored)) else 0
        return DatasetStatus(generations=generations, last_generation=last, last_table=table)


def keep_pin(body: Object, current: Object | None, annotations: dict[str, str]) -> Object:
    """Return ``body`` with the pin that a command has set. As `kubectl apply` does, drop that pin if the manifest has
    or had a pin of its own. Note the manifest's pin in ``annotations``."""
    pinned = ((current or {}).get("spec") or {}).get("generation")
    if pinned is not None and "generation" not in body["spec"] and not annotations.get(_PINNED_BY_MANIFEST):
        body["spec"]["generation"] = pinned
    else:
        annotations[_PINNED_BY_MANIFEST] = body["spec"].get("generation", "")
    return body


def _forget_last_run(api: LocalApi, dataset: Key) -> None:
    """Forget what mattered only to the last `up`: a failed build, because the source may have been corrected; and
    draining rollouts, because their servers only wait for lookups of the last run's routers."""
    held = api.get(names.DATASET_KIND, *dataset)
    if held is None:
        return
    try:
        status = DatasetStatus.from_json(read_status(held))
    except ValueError:  # of another version; the operator says so
        return
    drained: set[str] = set()
    if status.table and status.table.confirmed_at and not (held["spec"].get("rollout") or {}).get("keepPrevious"):
        phases = {rollout.rollout: rollout_phase(rollout.rollout, status) for rollout in status.rollouts}
        drained = {rollout for rollout, phase in phases.items() if phase is RolloutPhase.DRAINING}
    left = tuple(rollout for rollout in status.rollouts if rollout.rollout not in drained)
    if drained or status.failure:
        api.put_status(held, replace(status, failure=None, rollouts=left).to_json())
    for item in api.all(names.STATEFUL_SET):
        meta, labels = item["metadata"], read_labels(item)
        if (meta["namespace"], labels.get(names.DATASET)) == dataset and labels.get(names.ROLLOUT) in drained:
            api.remove(names.STATEFUL_SET, meta["namespace"], meta["name"])


# The command.


class BuildFailed(LookupdbError):
    """The first build ended with an error, which it wrote to standard error, or its source is not there yet."""

    reason = "BuildFailed"

    def __init__(self, code: int, remedy: str) -> None:
        super().__init__("the build failed", hint=remedy)
        self.exit_code = code


async def _operate(api: LocalApi, cluster: Cluster, config: Config, announcer: Announcer) -> None:
    """Run the operator's loop over ``api`` until cancelled: no kopf, no informers; changes of objects go straight into
    its cache."""
    from lookupdb_operator.metrics import Metrics  # loads prometheus_client, after servers have started

    cache, queue = ObjectCache(), LookQueue[Key]()
    polls, announcements = RouterPolls(cluster, queue.add), Announcements(announcer, queue.add)
    queues = TurnQueues(builds=turns.DEFAULT_LIMIT, rollouts=turns.DEFAULT_LIMIT)
    reconciler = Reconciler(
        cache=cache,
        observer=Observer(cache, cluster, polls),
        cluster=cluster,
        config=config,
        store=StoreAccess,
        metrics=Metrics(),
        announcements=announcements,
        decide=plan,
        turns=TurnTaking(queues, cache=cache, config=config, wake=queue.add),
    )

    kinds = {kind.name: kind for kind in (names.DATASET_KIND, *names.WATCHED)}

    def note(event: str, item: Object) -> None:
        kind, meta = item["kind"], item["metadata"]
        if kind not in kinds:
            return
        if event == "DELETED":
            key = cache.drop(kind, meta["namespace"], meta["name"], meta["uid"], meta["resourceVersion"])
        else:
            key = cache.put(kind, item)
        if key is not None:
            queue.add(key)

    for kind in kinds.values():
        for item in api.all(kind):
            note("ADDED", item)
    api.watchers.append(note)
    workers = LookWorkers(queue, reconciler.look, 2)
    workers.start()
    try:
        while True:
            for key in tuple(cache.dataset_keys()):
                queue.add(key)
            await asyncio.sleep(_RESYNC_SECONDS)
    finally:
        await workers.stop()
        await polls.close()
        await announcements.close()


class Up:
    """Serves datasets on this machine: ``run()`` until cancelled. ``say`` prints a line for the user."""

    def __init__(self, options: UpOptions, say: Callable[[str], None]) -> None:
        self._options = options
        self._say = say
        store_path = str((options.data / "store").absolute())
        self._store = store.open_store(store_path, cluster=LOCAL)
        self._config = Config(
            image="lookupdb",
            store=store_path,
            cluster=LOCAL,
            network_policies=False,
            pod_host=HOST,
            announces=True,
            spark_image="local",
            watches_sources=options.watch,
        )
        self._api = LocalApi()
        self._api.check = self._check_servers
        self._datasets = self._read_all(options.manifests)
        check_servers([dataset.spec for dataset in self._datasets], options.max_servers)
        bases = {dataset.key: dataset.path.resolve().parent for dataset in self._datasets}
        self._kubelet = Kubelet(self._api, options, bases)
        self._changed = asyncio.Event()

    def _read_all(self, paths: Iterable[Path]) -> list[LocalDataset]:
        """Return the datasets of files and folders. Leaves out a bad manifest if there are others. Raises
        LookupdbError."""
        files: dict[Path, None] = {}
        for path in paths:
            found = sorted([*path.glob("*.yaml"), *path.glob("*.yml")]) if path.is_dir() else [path]
            files |= dict.fromkeys(found)
        read: dict[str, LocalDataset] = {}
        for path in files:
            try:
                resource, spec = _read_manifest(path)
                folder = RunFolder(self._options.data, spec.namespace, spec.name)
                stored, inbox = self._store.dataset(spec), self._store.inbox(spec)
                dataset = LocalDataset(path, spec, resource, folder, stored, inbox)
            except LookupdbError as error:
                if len(files) == 1:
                    raise
                self._say(f"{path} is left out: {error.message}")
                continue
            if (other := read.setdefault(dataset.spec.name, dataset)) is not dataset:
                raise UsageError(
                    f"{other.path} and {path} both describe a dataset {dataset.spec.name}",
                    hint="give them different names, or start an `up` with a --data-dir of its own for one of them",
                )
        if not read:
            raise InvalidManifest(f"no manifest of a dataset in {', '.join(map(str, paths))}")
        if len(read) > 1 and self._options.resp_port is not None:
            raise UsageError("--resp-port serves one dataset", hint="start an `up` with this dataset alone")
        if len(read) > 1 and (generation := self._options.override_gates):
            command = format_command("override-gates", "DATASET", generation)
            raise UsageError("--override-gates is for one dataset", hint=f"run this instead: {command}")
        return list(read.values())

    async def run(self) -> None:
        """Serve until cancelled, then stop everything. Raises LookupdbError if it cannot start."""
        logging.getLogger("lookupdb_operator").setLevel(logging.WARNING)  # `up` prints events itself
        logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # a bad request is the client's matter
        for name in ("loop.reconcile", "local.kubelet"):  # `up` prints their warnings, or the status has them
            logging.getLogger(f"lookupdb_operator.{name}").setLevel(logging.ERROR)
        async with AsyncExitStack() as held:
            for dataset in self._datasets:
                held.enter_context(dataset.folder.lock())
            check_ports(self._options.port, self._options.resp_port)
            listener = held.enter_context(listeners.bind(HOST, 0))
            self._kubelet.console = "{}:{}".format(*listener.getsockname())
            self._api.watchers.append(self._note)
            for dataset in self._datasets:
                self._api.add_folder(*dataset.key, dataset.folder.path / OBJECTS)
                _forget_last_run(self._api, dataset.key)
            pods = PodClient()
            held.push_async_callback(pods.close)
            tasks = [asyncio.create_task(self._kubelet.run(), name="kubelet")]
            try:
                await self._start_servers(held, pods, listener)
                await asyncio.gather(*map(self._apply, self._datasets))  # a slow source delays no other dataset
                cluster = LocalCluster(self._api, self._kubelet, pods)
                tasks.append(asyncio.create_task(_operate(self._api, cluster, self._config, self), name="operator"))
                tasks.append(asyncio.create_task(self._serve(), name="up"))
                if self._options.watch:
                    tasks.append(asyncio.create_task(self._follow(), name="follow"))
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await self._kubelet.stop()
                for dataset in self._datasets:
                    with suppress(OSError):
                        dataset.folder.state_file.unlink(missing_ok=True)

    async def _start_servers(self, stack: AsyncExitStack, pods: PodClient, console: socket.socket) -> None:
        """Serve commands, `kubectl` and the console until ``stack`` ends. Raises UsageError."""
        # It loads aiohttp: in a thread, because the servers of the last `up` are starting.
        await call_in_thread(import_module, "lookupdb_operator.local.server")
        from lookupdb_operator.local import server

        folders = [dataset.folder.path / OBJECTS for dataset in self._datasets]
        url = await stack.enter_async_context(server.ApiServer(self._api, pods).listening(folders))
        if (path := self._options.kubeconfig) is not None:
            stack.enter_context(server.writing_kubeconfig(path, url))
        source = server.LocalSource(self._api, self._options.data, self._find_url, pods)
        await stack.enter_async_context(server.serving_console(source, console))

    async def announce(self, announcement: Announcement) -> None:
        """Write ``announcement`` into the local store, for `lookupdb sync`. Raises NotAnnounced."""
        due, key = announcement, (announcement.namespace, announcement.name)
        stored = next(dataset.stored for dataset in self._datasets if dataset.key == key)
        members = (due.uid, due.generation, due.version, due.announced_at)
        try:
            await call_in_thread(write_announcement, stored, *members)
        except (LookupdbError, OSError) as error:
            raise NotAnnounced(str(error)) from error

    def _note(self, event: str, item: Object) -> None:
        self._changed.set()
        if item["kind"] == names.KIND:
            for dataset in self._datasets:
                if dataset.follow(item):
                    self._say_why(item["metadata"], find_condition(item, "Degraded"))
        if item["kind"] == names.EVENT.name and event == "ADDED" and item["reason"] not in _ROUTINE:
            self._say_why(item["involvedObject"], item)

    def _say_why(self, subject: Object, found: Mapping[str, Any]) -> None:
        """Print the message of an event or a condition, without an error that the builder has printed."""
        url, message = self._find_url(subject["namespace"], subject["name"]), found["message"]
        if found["reason"] in _PRINTED:
            held = self._api.get(names.DATASET_KIND, subject["namespace"], subject["name"]) or {}
            failure = reasons.join_lines((read_status(held).get("failure") or {}).get("message", ""))
            message = message.removeprefix(failure).lstrip(".;")
        message = message.replace(names.endpoint(subject["name"], subject["namespace"]), url)
        message = localize_advice(message, subject["namespace"], subject["name"], self._options.data)
        if not any(dataset.active for dataset in self._datasets):  # a failed start is not retried
            message = message.partition(" The next ")[0]
        if message:
            self._say(f"{subject['name']}: {message.strip()}")

    # Manifests and sources

    async def _apply(self, dataset: LocalDataset) -> None:
        """Put a dataset's manifest into the cluster, with the current identity of its source."""
        for sentence in describe_left_out(path for path in dataset.spec.cluster_fields if path not in dataset.left_out):
            self._say(f"{dataset.spec.name}: {sentence}")
        dataset.left_out = dataset.spec.cluster_fields
        is_known = self._api.get(names.DATASET_KIND, *dataset.key) is not None
        status = None if is_known else await call_in_thread(dataset.find_stored_status)
        dataset.seen, is_first = None, not is_known and status is None
        if not is_first:  # else the builder identifies it
            with suppress(LookupdbError):  # the builder reports it
                dataset.seen = await call_in_thread(dataset.identify_source, self._options.volume)
        held = self._api.get(names.DATASET_KIND, *dataset.key)  # a command may have changed it meanwhile
        annotations = {**read_annotations(held or dataset.resource), **read_annotations(dataset.resource)}
        if not is_first and (held is None or dataset.seen is None or dataset.is_new(held)):
            annotations |= dataset.make_refresh()
        annotations |= dataset.find_override(held)
        if generation := self._options.override_gates:
            gates = "\n".join(dataset.stored.admit(generation).overridden)
            self._say(f"{dataset.spec.name}: {generation} passes despite:\n{gates}")
            annotations[names.OVERRIDE_GATES] = generation
        body = keep_pin(localize(dataset.resource), held, annotations)
        body["metadata"]["annotations"] = annotations
        self._api.put({**body, "status": read_status(held or {}) if status is None else status.to_json()})

    def _check_servers(self, resource: Object) -> None:
        """Raise UsageError if ``resource`` is invalid, or the datasets would need too many servers."""
        spec = parse_resource(resource)
        others = [other.spec for other in self._datasets if other.key != (spec.namespace, spec.name)]
        check_servers([spec, *others], self._options.max_servers)

    def _annotate(self, dataset: LocalDataset, annotations: Mapping[str, str]) -> None:
        """Set ``annotations`` of a dataset. Raises Refused if they cannot be saved."""
        held = self._api.get(names.DATASET_KIND, *dataset.key)
        self._api.put(merge_patch(held, {"metadata": {"annotations": annotations}}), must_save=True)

    async def _follow(self) -> None:
        """Check manifests and sources every ``watch_seconds``, until cancelled."""
        for dataset in self._datasets:
            with suppress(LookupdbError):  # the builder reports it
                dataset.first = dataset.seen or await call_in_thread(dataset.identify_source, self._options.volume)
        while True:
            await asyncio.sleep(self._options.watch_seconds)
            for dataset in self._datasets:
                if not dataset.active and not dataset.has_failed:
                    continue  # its first build goes on
                problem = ""
                try:
                    why = await self._check(dataset)
                except (LookupdbError, ApiError) as error:
                    why = problem = error.message
                if problem != dataset.problem:
                    dataset.problem, dataset.problem_since = problem, format_moment(datetime.now(UTC))
                    self._changed.set()
                serving = f"{dataset.active} keeps serving" if dataset.active else "nothing serves"
                self._report(dataset, f"not rebuilt: {why}; {serving}" if why else "")

    async def _check(self, dataset: LocalDataset) -> str:
        """Apply a changed manifest, and ask for a refresh from a changed source. Return why the source cannot be
        compared, or nothing. Raises LookupdbError and ApiError."""
        resource, spec = await call_in_thread(_read_manifest, dataset.path)
        if resource != dataset.resource:
            if (spec.namespace, spec.name) != dataset.key:
                raise InvalidManifest(
                    f"the manifest now describes {spec.namespace}/{spec.name}, and a running `up` cannot change to"
                    " another dataset",
                    hint="stop it and start it again",
                )
            self._check_servers(resource)
            dataset.resource, dataset.spec = resource, spec
            await self._apply(dataset)
        if override := dataset.find_override(self._api.get(names.DATASET_KIND, *dataset.key)):
            self._annotate(dataset, override)
        before, dataset.seen = dataset.seen, await call_in_thread(dataset.identify_source, self._options.volume)
        if dataset.seen is None:
            return f"waiting for {dataset.awaited}" if dataset.awaited else "its source's changes are not watched"
        held = self._api.get(names.DATASET_KIND, *dataset.key)
        if held is None:
            return ""
        # A changed source may be half written: wait for two equal checks.
        is_new = dataset.is_new(held)
        dataset.unsettled = dataset.unsettled + 1 if is_new and dataset.seen != before else 0
        if dataset.unsettled >= _MOST_UNSETTLED_CHECKS:
            raise BadSource("the source changes at each check, and may be half written: a refresh builds it as it is")
        if is_new and not dataset.unsettled:
            self._annotate(dataset, dataset.make_refresh())
            self._say(f"{dataset.spec.name}: the source has changed, building")
        return ""

    def _report(self, dataset: LocalDataset, problem: str) -> None:
        """Print ``problem`` once, and print when it is over."""
        if problem != dataset.said:
            dataset.said = problem
            self._say(f"{dataset.spec.name}: {problem or 'it can be rebuilt again'}")

    # Serving

    async def _serve(self) -> None:
        """Wait until everything is served, say so, and keep the files with its addresses. Raises BuildFailed if nothing
        can be served."""
        said = ""
        while True:
            self._changed.clear()
            problem = ""
            for dataset in self._datasets:
                if dataset.active or self._is_settled(dataset):
                    problem = await self._keep_state(dataset) or problem
            problem = self._api.flush() or self._kubelet.problem or problem
            if problem and not said:
                serving = "active generations keep serving, " if any(other.active for other in self._datasets) else ""
                self._say(f"{problem}; {serving}retrying every second")
            said = problem
            with suppress(TimeoutError):
                async with asyncio.timeout(_RETRY_SECONDS):  # wait_for could lose a cancellation
                    await self._changed.wait()

    def _is_settled(self, dataset: LocalDataset) -> bool:
        """Return whether the dataset is served, from the current source and manifest if these can be served. Raises
        BuildFailed if there is nothing to serve."""
        held = self._api.get(names.DATASET_KIND, *dataset.key)
        if held is None:
            return False
        status = read_status(held)
        if not status.get("generation"):
            dataset.has_failed = bool(status.get("failure") and not status.get("generations"))
            if all(other.has_failed for other in self._datasets):
                is_early = status["failure"]["reason"] == reasons.WAITING_FOR_SOURCE
                remedy = f"make {dataset.awaited}" if is_early else "correct what failed"
                raise BuildFailed(self._kubelet.exit_codes.get(dataset.key) or SourceUnreadable.exit_code, remedy)
            return False
        is_held = held["spec"].get("suspend") or held["spec"].get("generation")
        is_refreshed = status.get("refreshed", "") == read_annotations(held).get(names.REFRESH, "")
        is_answered = is_held or status.get("failure") or is_refreshed
        is_known = status.get("observedGeneration") == held["metadata"]["generation"]
        is_rolled_out = find_condition(held, "RolledOut").get("reason", reasons.WAITING_FOR_BUILD) not in _UNFINISHED
        is_done = is_answered and is_rolled_out and not status.get("build")
        is_degraded = find_condition(held, "Degraded").get("status") == "True"
        is_served = self._kubelet.router is not None and self._kubelet.router.report is not None
        return is_served and is_known and (is_done or is_degraded)

    async def _keep_state(self, dataset: LocalDataset) -> str:
        """Write the file with the addresses of a dataset's servers, and remove generations that are not kept. Return
        why the file cannot be written; empty if it is."""
        status, router = read_status(self._api.get(names.DATASET_KIND, *dataset.key) or {}), self._kubelet.router
        generation = status.get("generation", "")
        if router is None or router.report is None or not generation:
            return ""
        urls = {"url": self._find_url(*dataset.key), "admin": f"http://{HOST}:{self._kubelet.admin_port}"}
        if len(self._datasets) == 1:
            urls["redis"] = f"redis://{HOST}:{self._kubelet.resp_port}"
        table = status.get("table") or {}
        rollouts = {table.get("rollout"), *(part.get("rollout") for part in table.get("parts", ()))}
        shards = list(self._kubelet.describe(*dataset.key, rollouts))
        about = {"router": router.pid, "generation": generation, "watch": self._options.watch, "shards": shards}
        about |= {"problem": dataset.problem, "problemSince": dataset.problem_since}
        state, problem = {**urls, **about}, ""
        if state != dataset.state or not dataset.folder.state_file.exists():
            try:
                dataset.folder.write_state(state)
                dataset.state = state
            except OSError as error:
                problem = f"{dataset.folder.state_file} cannot be written: {error.strerror or error}"
        if generation != dataset.active:
            if dataset.active:
                self._say(f"{dataset.spec.name}: cut over to {generation}")
            else:
                self._announce(dataset)
            dataset.active = generation
        try:
            used = DatasetStatus.from_json(status).protected_generations(dataset.spec.pinned or "")
        except ValueError:  # of another version; the operator says so
            return problem
        if used != dataset.pruned:
            dataset.pruned = used
            try:
                await call_in_thread(sweep.prune, dataset.stored, dataset.spec.keep_generations, protect=used)
            except LookupdbError as error:
                self._say(f"{dataset.spec.name}: older generations are not removed: {error}")
        return problem

    def _find_url(self, namespace: str, name: str) -> str:
        url = f"http://{HOST}:{self._kubelet.port}"
        return url if len(self._datasets) == 1 else f"{url}/v1/datasets/{name}"

    def _announce(self, dataset: LocalDataset) -> None:
        spec, data, kubelet = dataset.spec, self._options.data, self._kubelet
        key = spec.gates.required_keys[0] if spec.gates.required_keys else "KEY"
        flag = [] if data == DATA_DIRECTORY else ["--data-dir", str(data)]
        is_alone, is_first = len(self._datasets) == 1, not any(other.active for other in self._datasets)
        path = "/v1/lookup" if is_alone else "/lookup"
        console = f"  http://{HOST}:{kubelet.port}/  # the console, in a browser\n" if is_first else ""
        redis = f"  {shlex.join(['redis-cli', '-p', str(kubelet.resp_port), 'GET', key])}\n" if is_alone else ""
        self._say(
            f"\n{console}  curl {self._find_url(*dataset.key)}{path}/{quote(key, safe='')}\n"
            f"  {format_command('get', *flag, shorten_name(*dataset.key), key)}\n{redis}"
            f"  lookupdb.open({dataset.stored.url!r})  # in Python, on this machine\n\n"
            f"  Shard servers and admin ports: {dataset.folder.state_file}; logs: {dataset.folder.path}/*.log"
            + ("\n  Ctrl-C stops everything." if is_first else "")
        )


@click.command("up")
@option(
    "--file",
    "-f",
    "manifests",
    type=ManifestPath(path_type=Path),
    required=True,
    multiple=True,
    help="A manifest, or a folder of manifests, listed at startup. May be repeated: several datasets share one router.",
)
@option(
    "--port", type=click.IntRange(0, 65535), default=8080, help="Port of the router on 127.0.0.1; 0 takes a free one."
)
@option(
    "--resp-port",
    type=click.IntRange(0, 65535),
    help="Port for the Redis protocol, on 127.0.0.1; 0 takes a free one.  [default: 6379, or the next free one]",
)
@option(
    "--watch/--no-watch",
    default=False,
    help="Rebuild and cut over while serving when the manifest or the source changes.",
)
@option("--watch-seconds", type=click.FloatRange(0.05, 86400), default=2.0, help="Interval of --watch.")
@option(
    "--data-dir",
    "--data",
    "data",
    type=click.Path(path_type=Path, file_okay=False),
    default=DATA_DIRECTORY,
    help="Folder of generations and logs.",
)
@option(
    "--memory-limit",
    type=Size(),
    help="Memory limit of a build, for example 512MiB; the default is that of `lookupdb build`.",
)
@option("--volume", type=click.Path(path_type=Path, file_okay=False), help="Folder that volume:// URLs refer to.")
@option(
    "--max-servers",
    type=click.IntRange(min=1),
    default=MAX_SERVERS,
    help="Reject a dataset with more shard servers (shards × replicas). Each is two or more processes.",
)
@option("--override-gates", type=GenerationAddress(), help="Override the gates that rejected this generation.")
@option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a file for `kubectl --kubeconfig FILE`, and answer kubectl: get lds, apply, annotate.",
)
@log_format
def command(**values: Any) -> None:
    """Build datasets, serve their shards and route lookups to them, all on this machine.

    Reads the same YAML as `kubectl apply`. A complete generation is reused if its source has not changed. Dead
    processes are restarted. Ctrl-C stops everything. Listens on 127.0.0.1 only.

    It is the operator's loop with processes for pods: pins (spec.generation), suspend, promotion, rollouts and
    refresh.schedule work as in a cluster. Fields for clusters only are checked but have no effect here: adopt,
    deletionPolicy, sync, store (generations are in --data-dir), router.tls, router.auth, and settings of pods.

    With several datasets, requests name one, as /v1/datasets/NAME/lookup/KEY. There is no port for the Redis protocol
    then, and spec.router of the first dataset applies. If one dataset fails, the others keep serving.

    \b
        lookupdb up -f examples/airports.yaml
        curl http://127.0.0.1:8080/v1/lookup/KJFK
        redis-cli GET KJFK
    """
    up = Up(UpOptions(**values), _say)
    try:
        with open_tracing("lookupdb-up"):
            asyncio.run(_run_until_signal(up))
    except BuildFailed as error:  # the builder has printed why
        _say(f"nothing can be served, so `up` ends; {error.hint}, then start it again")
        sys.exit(error.exit_code)
    finally:
        drop_unwritten()


async def _run_until_signal(up: Up) -> None:
    """Run ``up`` until SIGINT or SIGTERM."""
    running = asyncio.create_task(up.run(), name="up")
    for number in (signal.SIGINT, signal.SIGTERM):
        # Another signal must not disturb the end.
        asyncio.get_running_loop().add_signal_handler(number, lambda: running.cancelling() or running.cancel())
    with suppress(asyncio.CancelledError):
        await running
        return
    _say("stopped")


def _say(line: str) -> None:
    """Print ``line``, or drop it if standard output is closed, so that serving continues."""
    with suppress(OSError):
        click.echo(line)
