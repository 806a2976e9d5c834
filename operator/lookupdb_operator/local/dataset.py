"""One dataset of `lookupdb up`: its manifest, its source, and what is known of both.

`up` does what a person does in a cluster: it applies the manifest (``keep_pin``), and asks for a refresh when the
source has changed. ``LocalDataset`` remembers what it needs. At startup `up` forgets what mattered only to the last run
(``forget_failure``, ``forget_drained``), and rejects more servers than this machine should run (``check_servers``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import orjson

from lookupdb.builder import existing
from lookupdb.builder.listing import describe_success_file, open_source, read_success_file
from lookupdb.dataset.spec import LOCAL, DatasetSpec, parse_resource, read_resource
from lookupdb.errors import InvalidManifest, LookupdbError, UsageError
from lookupdb.manifest import generation_number
from lookupdb.process.launch import call_in_thread
from lookupdb.store import StoredDataset
from lookupdb.store.dataset import read_announcement
from lookupdb.up.run_state import RunFolder
from lookupdb_operator import names
from lookupdb_operator.cluster.cache import Key
from lookupdb_operator.local.api import LocalApi, Object
from lookupdb_operator.local.kubelet import SEEN
from lookupdb_operator.plan.lifecycle import RolloutPhase, rollout_phase
from lookupdb_operator.status import DatasetStatus, GenerationStatus

MAX_SERVERS: Final = 64
"""Default of --max-servers: a manifest made for a cluster could overload a laptop."""
_SUPERVISOR_MIB: Final = 30
_WORKER_MIB: Final = 12
"""Approximate private memory of each process of a shard server (measured), without the page cache."""
_PINNED_BY_MANIFEST: Final = f"{names.GROUP}/pinned-by-manifest"
"""The annotation with the generation that the manifest pins; empty if it pins none."""


def read_manifest(path: Path) -> tuple[Object, DatasetSpec]:
    """Return the manifest at ``path``, as it is and parsed. Raises InvalidManifest, also for a pipe, which cannot be
    read twice."""
    with suppress(OSError):  # then reading it reports why
        if path.is_fifo():
            raise InvalidManifest(f"{path} is a pipe, expected a file", hint="write what it gives to a file first")
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
    """The identity of the source at the last check."""
    refresh: str = ""
    """The last refresh that was asked for, and the identity of the source then."""
    refresh_of: str | None = None
    tried: str | None = None
    """The source of a first build that failed. The operator retries it, so it is no change."""
    unsettled: int = 0
    said: str = ""
    """The last problem that was printed."""
    active: str = ""
    """The generation that serves; empty until it is announced."""
    has_failed: bool = False
    """True if there is nothing to serve, and the first build has failed."""
    pruned: set[str] = field(default_factory=set)
    """The generations that were in use at the last removal of others."""
    left_out: tuple[str, ...] = field(default=())

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.spec.namespace, self.spec.name

    @property
    def awaited(self) -> str:
        """What must be there before anything is read; empty for nothing."""
        if self.spec.source.takes_pushes:
            return f"the first push to {self.inbox.url}"
        return "" if self.spec.refresh.success_file is None else describe_success_file(self.spec)

    def identify_source(self, volume: Path | None) -> str | None:
        """Return what changes with the source: the newest push, its success file if it names one, else its fingerprint.
        None if what is awaited is not there, or nothing identifies it. Raises LookupdbError."""
        if self.spec.source.takes_pushes:
            from lookupdb.builder.build import find_push, fingerprint_push  # here, because it loads all parsers

            push = find_push(self.inbox)
            return None if push is None else fingerprint_push(push)
        if self.spec.refresh.success_file is not None:
            return read_success_file(self.spec, volume=volume)
        return open_source(self.spec, volume=volume).fingerprint

    async def choose_refresh(self, resource: Object | None, volume: Path | None) -> str:
        """Return the refresh to ask for: the source's identity, unless it was built. If nothing identifies the source,
        each start reads it."""
        before = "" if resource is None else read_refresh(resource)
        if resource is None and self.stored.next_generation() == "g1":
            return before  # it is built anyway, and the builder identifies it
        now = datetime.now(UTC).isoformat()
        try:
            self.seen = await call_in_thread(self.identify_source, volume)
        except LookupdbError:  # the builder reports it
            return before or now
        if self.seen is None:
            return before if self.awaited else now
        return before if resource is not None and self.is_built(resource) else self.seen

    async def note_whole(self, annotations: Mapping[str, str], volume: Path | None) -> dict[str, str]:
        """Return the annotation with the source's fingerprint of when its present success file was first seen."""
        seen, held = self.seen, annotations.get(SEEN, "")
        if seen is None or self.spec.refresh.success_file is None or held.startswith(seen):
            return {}
        with suppress(LookupdbError):  # the builder reports it
            source = await call_in_thread(partial(open_source, self.spec, volume=volume))
            return {SEEN: f"{seen} {source.fingerprint or ''}"}
        return {}

    def is_overridden(self, generation: str | None) -> bool:
        """Return whether `lookupdb build --override-gates` has overridden the gates of the refused ``generation``."""
        manifest = None if generation is None else existing.read_or_none(self.stored, generation)
        return manifest is not None and bool(manifest.overridden)

    def is_built(self, resource: Object) -> bool:
        """Return whether the newest generation is of the manifest and of the source as it was last seen."""
        newest = ((resource.get("status") or {}).get("generations") or [{}])[-1]
        identity = (newest.get("fingerprint"), newest.get("successFile"))
        return newest.get("content") == self.spec.content_hash() and self.seen in identity

    def is_asked_for(self, current: Object) -> bool:
        """Return whether a build from the source as it was last seen is asked for, by `up` or by a command that is not
        answered yet."""
        refresh = read_refresh(current)
        if refresh != self.refresh:
            self.refresh, self.refresh_of = refresh, self.seen
        is_pending = (current.get("status") or {}).get("refreshed") != refresh
        return refresh == self.seen or (is_pending and self.refresh_of == self.seen)

    def find_stored_status(self) -> DatasetStatus | None:
        """Return the status of a dataset that the store knows and the cluster does not: an earlier version's, or one
        that `lookupdb build` has built. None if there is nothing. Raises LookupdbError."""
        last = generation_number(self.stored.next_generation()) - 1
        if last == 0:
            return None
        content = self.spec.content_hash()
        found = [item for item in existing.readable_manifests(self.stored) if item.content == content]
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
                value_format=item.value_format,
                built_at=item.built_at,
                source_modified_at=item.source_modified_at or "",
                overridden="\n".join(item.overridden),
            )
            for item in reversed(found[: self.spec.keep_generations])
        )
        is_answered = bool(found) and self.seen in (found[0].fingerprint, found[0].success_file)
        table = 0
        with suppress(LookupdbError):
            table = announced.version if (announced := read_announcement(self.stored)) else 0
        refreshed = (self.seen or "") if is_answered else ""
        return DatasetStatus(generations=generations, last_generation=last, last_table=table, refreshed=refreshed)


def keep_pin(body: Object, current: Object | None, annotations: dict[str, str]) -> Object:
    """Return ``body`` with the pin that a command has set, as `kubectl apply` would keep it: unless the manifest has
    one, or had one. Notes in ``annotations`` whether it has one."""
    pinned = ((current or {}).get("spec") or {}).get("generation")
    if pinned is not None and "generation" not in body["spec"] and not annotations.get(_PINNED_BY_MANIFEST):
        body["spec"]["generation"] = pinned
    else:
        annotations[_PINNED_BY_MANIFEST] = body["spec"].get("generation", "")
    return body


def read_refresh(item: Object) -> str:
    """Return the refresh annotation of a dataset; empty for none."""
    return str((item["metadata"].get("annotations") or {}).get(names.REFRESH, ""))


def forget_failure(api: LocalApi, dataset: Key) -> None:
    """Forget that the last build failed, so that a start builds at once: the source may have been corrected."""
    held = api.get(names.DATASET_KIND, *dataset)
    if held is not None and (status := held.get("status") or {}).get("failure"):
        api.put_status(held, {name: value for name, value in status.items() if name != "failure"})


def forget_drained(api: LocalApi, dataset: Key) -> None:
    """Remove the rollouts that only earlier routing tables reference. Their servers wait for lookups of routers that
    have ended with the last `up`."""
    held = api.get(names.DATASET_KIND, *dataset)
    if held is None or ((held.get("spec") or {}).get("rollout") or {}).get("keepPrevious"):
        return
    try:
        status = DatasetStatus.from_json(held.get("status") or {})
    except ValueError:  # of another version; the operator says so
        return
    if status.table is None or not status.table.confirmed_at:
        return
    phases = {rollout.rollout: rollout_phase(rollout.rollout, status) for rollout in status.rollouts}
    drained = {rollout for rollout, phase in phases.items() if phase is RolloutPhase.DRAINING}
    if not drained:
        return
    left = tuple(rollout for rollout in status.rollouts if rollout.rollout not in drained)
    api.put_status(held, replace(status, rollouts=left).to_json())
    for item in list(api.all(names.STATEFUL_SET)):
        meta = item["metadata"]
        labels = meta.get("labels") or {}
        if (meta["namespace"], labels.get(names.DATASET)) == dataset and labels.get(names.ROLLOUT) in drained:
            api.remove(names.STATEFUL_SET, meta["namespace"], meta["name"])


def check_servers(specs: Sequence[DatasetSpec], max_servers: int) -> None:
    """Raises UsageError when the datasets need more than ``max_servers`` shard servers together."""
    counts = [(spec.shards * spec.replicas, spec.serving_workers) for spec in specs]
    servers = sum(count for count, _ in counts)
    if servers <= max_servers:
        return
    workers = sum(count * workers_per_server for count, workers_per_server in counts)
    mebibytes = servers * _SUPERVISOR_MIB + workers * _WORKER_MIB
    needing = f"{specs[0].name} needs" if len(specs) == 1 else f"{', '.join(spec.name for spec in specs)} need"
    sizes = " + ".join(f"spec.shards {spec.shards:,} × spec.replicas {spec.replicas:,}" for spec in specs)
    raise UsageError(
        f"{needing} {servers:,} shard servers ({sizes}), and `lookupdb up` starts at most {max_servers:,}: they would "
        f"be {servers + workers:,} processes with about {mebibytes / 1024:,.1f} GiB of memory, twice that while a new "
        "generation is rolled out",
        hint="to try it out, lower spec.shards (a shard holds millions of records) or spec.replicas; "
        f"on a machine that is large enough, give --max-servers {servers}",
    )
