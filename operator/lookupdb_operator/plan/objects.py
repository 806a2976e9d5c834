"""The objects of a dataset: which should exist, which of them are written now, and which are deleted; the Secrets and
the announcement in the store; and when to look again after a refused write, or while pods report nothing.
``loop.reconcile`` writes and deletes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from lookupdb.manifest import Announcement
from lookupdb_operator import manifests, names
from lookupdb_operator.model import (
    BuildJob,
    ExistingObject,
    Manifest,
    ObjectRef,
    Observed,
    ShardSet,
    format_moment,
    seconds_until,
)
from lookupdb_operator.plan import builds, lifecycle, reasons, rollouts, routing_tables
from lookupdb_operator.plan.lifecycle import GenerationPhase, RolloutPhase
from lookupdb_operator.plan.rollouts import PassTarget
from lookupdb_operator.plan.turns import Situation, Stamp, read_stamps, render_table
from lookupdb_operator.status import (
    ALL,
    AnnouncedStatus,
    DatasetStatus,
    GenerationStatus,
    RolloutStatus,
    parse_shards,
    replace,
)

Name = tuple[str, str]
"""Kind and name."""
REFUSED_RETRY_SECONDS: Final = 30.0
"""Seconds until a refused write is retried, if nothing happens before. A raised quota causes no event."""
SILENT_RECHECK_SECONDS: Final = 10.0
"""Seconds until the next pass if pods make no progress and do not report why. Only events say why. They are not
watched, so each pass reads them."""


def plan_changes(
    status: DatasetStatus, target: PassTarget, secrets: tuple[Manifest, ...], situation: Situation
) -> tuple[tuple[Manifest, ...], tuple[ObjectRef, ...]]:
    """Return the objects to write, in this order, and those to delete afterwards. That leaves exactly the objects that
    ``status`` requires. ``secrets`` are the Secrets that are due: the store's, and the password key's."""
    observed, dataset, config = situation.observed, situation.dataset, situation.config
    # In the order in which they are written. Builds, rollouts and routing tables that are as they should be are left
    # out: rendering a thousand shards takes long.
    digests = _read_digests(existing for existing in observed.objects if not existing.deleting)
    present = {(*name, digest) for name, digest in digests.items()}
    password_key = manifests.password_key(dataset, config)
    keys = tuple(sorted({password_key, *(rollout.password_key for rollout in status.rollouts)} - {""}))
    router_keys: tuple[Manifest, ...] = ()
    if manifests.uses_service_accounts(dataset) and observed.account_keys:  # else the last ones stay
        router_keys = (manifests.render_router_keys(dataset, observed.account_keys),)
    replicas = _observed_replicas(observed)
    # The objects that exist from the first pass on.
    permanent = situation.render_once(
        ("always", keys),
        lambda: (
            *manifests.render_network_policies(dataset, config),
            *manifests.render_routers(dataset, config, keys),
            *manifests.render_sync(dataset, config),
        ),
    )
    manifests_due = (
        *_list_build_objects(status, situation, present),
        *(
            # The routers' Deployment keeps its number of pods, which an autoscaler may have chosen.
            manifests.scale_routers(manifest, dataset, replicas.get(object_name(manifest), 0))
            if manifest["kind"] == "Deployment"
            else manifest
            for manifest in permanent
        ),
        *router_keys,
        *_list_serving_objects(status, target, situation, present),
    )
    is_suspended = situation.desired.is_suspended
    repairable = without_edits(manifests_due, permanent, observed) if is_suspended else manifests_due
    repairs = (*find_outdated_manifests(repairable, observed), *render_scale_changes(status, target, situation))
    nudges = (  # for router pods whose kubelets were not yet nudged to sync the newest routing table
        manifests.render_nudge(observed.dataset, pod, status.table.version)
        for pod in routing_tables.list_live_routers(observed)
        if status.table is not None and pod.table_version != str(status.table.version)
    )
    known = without_permanent_objects(observed) if is_suspended else observed
    overdue = rollouts.list_overdue_pushes(status, situation)
    apply = (*secrets, *without_contested_manifests(repairs, observed), *nudges)
    return apply, (*find_garbage(status, known, manifests_due), *overdue)


def _list_build_objects(status: DatasetStatus, situation: Situation, present: set[Stamp]) -> Iterator[Manifest]:
    build = status.build
    if build is None or build.digest != situation.desired.build_digest:
        return  # the inputs of an older spec's build are not known any more, and its pod may still read them
    is_lost = builds.has_lost_result(build, situation.observed)
    identity = replace(build, stall=None)
    stamps = situation.render_once(
        ("build", identity),
        lambda: read_stamps(manifests.render_builder(situation.dataset, identity, situation.config)),
    )
    if not is_lost and not stamps <= present:
        yield from manifests.render_builder(situation.dataset, build, situation.config)


def _list_serving_objects(
    status: DatasetStatus, target: PassTarget, situation: Situation, present: set[Stamp]
) -> Iterator[Manifest]:
    for rollout in status.rollouts:
        generation = status.find_generation(rollout.generation)
        if generation is not None:
            replicas = rollouts.desired_replicas(rollout, status, target, situation)
            is_current = rollouts.is_current(rollout, status, situation)
            yield from _list_shard_objects(rollout, generation, replicas if is_current else None, situation, present)
    table = status.table
    known = None if table is None else routing_tables.find_generations(table, status)
    if table is not None and known is not None and render_table(situation, table, known)[0] not in present:
        yield manifests.render_routing_table(situation.dataset, table, known)


def _list_shard_objects(
    rollout: RolloutStatus,
    generation: GenerationStatus,
    replicas: int | None,
    situation: Situation,
    present: set[Stamp],
) -> Iterator[Manifest]:
    """The objects of ``rollout`` unless all are there; ``replicas`` is None if its pod template is outdated."""
    dataset, config, observed = situation.dataset, situation.config, situation.observed
    # The objects depend only on the rollout's name, generation and shard ranges.
    name = rollout.rollout, rollout.shard_ranges, generation
    if replicas is None:  # only its Service and budgets are still written, because it may serve
        stamps = situation.render_once(
            ("services", *name),
            lambda: read_stamps(manifests.render_service_and_budgets(dataset, rollout, generation)),
        )
        if not stamps <= present:
            yield from manifests.render_service_and_budgets(dataset, rollout, generation)
        return
    stamps = situation.render_once(
        ("shards", *name, replicas),
        lambda: frozenset(manifests.shard_digests(dataset, rollout, generation, replicas, config)),
    )
    sets = (item for item in observed.shard_sets if item.rollout == rollout.rollout)
    if not stamps <= present or any(shard_set.replicas != replicas for shard_set in sets):
        rendered = manifests.render_shards(dataset, rollout, generation, replicas, config)
        yield from rollouts.without_early_servers(rendered, rollout, observed)


def find_outdated_manifests(manifests_due: Iterable[Manifest], observed: Observed) -> tuple[Manifest, ...]:
    """Return the ``manifests_due`` whose object is missing or differs. Leave out objects whose name an earlier
    dataset, or an object being deleted, still has. Leave out Jobs that exist, because a Job cannot be changed.
    """
    digests, replicas = _read_digests(observed.objects), _observed_replicas(observed)
    taken = {(predecessor.kind, predecessor.name) for predecessor in observed.predecessors}
    taken |= {(existing.ref.kind, existing.ref.name) for existing in observed.objects if existing.deleting}

    def differs(manifest: Manifest) -> bool:
        name = object_name(manifest)
        if name in taken or (manifest["kind"] == "Job" and name in digests):
            return False
        # If another manager or a person scales it, its digest stays the same.
        is_scaled = name in replicas and replicas[name] != manifest["spec"]["replicas"]
        return is_scaled or digests.get(name) != manifests.read_digest(manifest)

    return tuple(filter(differs, manifests_due))


def without_edits(
    manifests_due: Iterable[Manifest], permanent: Iterable[Manifest], observed: Observed
) -> tuple[Manifest, ...]:
    """Return ``manifests_due`` without ``permanent`` ones that exist unedited, even from an earlier spec."""
    intact = {
        (existing.ref.kind, existing.ref.name)
        for existing in observed.other_objects
        if not existing.changed and not existing.deleting
    }
    kept = intact & set(map(object_name, permanent))
    return tuple(manifest for manifest in manifests_due if object_name(manifest) not in kept)


def without_permanent_objects(observed: Observed) -> Observed:
    """Return ``observed`` with only those other objects that belong to a rollout or a generation."""
    numbered = (existing for existing in observed.other_objects if existing.rollout or existing.generation)
    return replace(observed, other_objects=tuple(numbered))


def render_scale_changes(status: DatasetStatus, target: PassTarget, situation: Situation) -> tuple[Manifest, ...]:
    """Return manifests with new numbers of servers for StatefulSets of an older pod template: of these, nothing else is
    written."""
    return tuple(
        manifests.render_scale(situation.dataset, rollout, shard_set.shard, replicas)
        for rollout in status.rollouts
        if not rollouts.is_current(rollout, status, situation)
        for replicas in (rollouts.desired_replicas(rollout, status, target, situation),)
        for shard_set in situation.observed.shard_sets
        if shard_set.rollout == rollout.rollout and shard_set.replicas != replicas and not shard_set.deleting
    )


def without_contested_manifests(repairs: Iterable[Manifest], observed: Observed) -> tuple[Manifest, ...]:
    """Return ``repairs``, except those in backoff because another writer undoes them each time."""
    paused = {((contest.kind, contest.name), contest.mark) for contest in observed.contests if contest.is_held}
    return tuple(
        manifest for manifest in repairs if (object_name(manifest), manifests.write_mark(manifest)) not in paused
    )


def with_pending_refusals(apply: Iterable[Manifest], observed: Observed) -> Observed:
    """``observed`` without refused writes that are no longer needed. Refusals of Secrets stay, because the operator
    cannot read Secrets to check them."""
    pending = {object_name(manifest) for manifest in apply}
    refusals = {name: why for name, why in observed.refusals.items() if name in pending or name[0] == "Secret"}
    return replace(observed, refusals=refusals)


def object_name(manifest: Manifest) -> Name:
    """Kind and name of ``manifest``."""
    return manifest["kind"], manifest["metadata"]["name"]


def find_garbage(status: DatasetStatus, observed: Observed, manifests_due: Iterable[Manifest]) -> tuple[ObjectRef, ...]:
    """Return the objects to delete: those of builds that are not under way and of rollouts that are gone, a Job that
    must run again, and our other unneeded objects. Objects with a number beyond those in ``status`` are left alone."""
    # A routing table stays as long as the dataset: routers that start answer from it, whatever the status says.
    table: Name = "ConfigMap", names.routing_table(observed.dataset.name)
    due = {object_name(manifest) for manifest in manifests_due} | {table}
    if manifests.uses_service_accounts(observed.dataset):  # while the keys cannot be read, the last known ones stay
        due.add(("ConfigMap", names.router_keys(observed.dataset.name)))
    lost_job = None
    if status.build is not None and builds.has_lost_result(status.build, observed):
        lost_job = builds.find_job(observed, status.build)
    return (
        *(job.ref for job in observed.jobs if not job.deleting and _is_past_build(job.generation, status)),
        *((lost_job.ref,) if lost_job is not None and not lost_job.deleting else ()),
        *(
            item.ref
            for item in observed.shard_sets
            if not item.deleting and _has_no_servers(item.rollout, item.shard, status)
        ),
        *(other.ref for other in observed.other_objects if not other.deleting and _is_garbage(other, status, due)),
    )


def _is_garbage(existing: ExistingObject, status: DatasetStatus, desired_names: set[Name]) -> bool:
    if existing.rollout:
        is_budget = existing.ref.kind == "PodDisruptionBudget"
        return _has_no_servers(existing.rollout, names.read_shard(existing.ref.name) if is_budget else None, status)
    if existing.generation:
        return _is_past_build(existing.generation, status)
    # An object without a digest was not written by us.
    return bool(existing.digest) and (existing.ref.kind, existing.ref.name) not in desired_names


def _is_past_build(generation: str, status: DatasetStatus) -> bool:
    """Return whether the Job of ``generation`` is no longer needed. A failed one stays for its log until the retry."""
    failure = status.failure
    if failure is not None and failure.generation == generation and status.build is None:
        return False
    phase = lifecycle.generation_phase(generation, status)
    return phase not in (GenerationPhase.UNCLAIMED, GenerationPhase.BUILDING)


def _has_no_servers(name: str, shard: int | None, status: DatasetStatus) -> bool:
    """Return whether the rollout ``name`` is gone, or has no servers of ``shard``. Unknown rollouts may have some."""
    rollout = status.find_rollout(name)
    if rollout is None:
        return lifecycle.rollout_phase(name, status) is RolloutPhase.GONE
    return shard is not None and rollout.shard_ranges != ALL and shard not in parse_shards(rollout.shard_ranges)


def next_look_in(apply: Iterable[Manifest], observed: Observed) -> float | None:
    """Return the seconds until the next pass if ``apply`` is written now. That pass retries a refused write, or checks
    pods that make no progress and report no cause."""
    pods = {(pod.rollout, pod.shard) for pod in observed.pods if not pod.deleting}
    building = {pod.generation for pod in observed.pods if not pod.deleting}
    if (
        any(manifest["kind"] in ("Job", "StatefulSet") for manifest in apply)  # its pods may be refused
        or any(pod.phase == "Pending" and pod.trouble is None and not pod.deleting for pod in observed.pods)
        or any(job.state == "Running" and job.generation not in building for job in observed.jobs)
        or any(item.replicas and (item.rollout, item.shard) not in pods for item in observed.shard_sets)
    ):
        return SILENT_RECHECK_SECONDS
    return REFUSED_RETRY_SECONDS if observed.refusals or observed.lacks_image_volumes else None


def _read_digests(objects: Iterable[BuildJob | ShardSet | ExistingObject]) -> dict[Name, str]:
    """The digest of each object as the operator wrote it; empty if somebody else has changed it since."""
    return {
        (item.ref.kind, item.ref.name): item.digest if isinstance(item, BuildJob) or not item.changed else ""
        for item in objects
    }


def _observed_replicas(observed: Observed) -> dict[Name, int]:
    """The number of pods that the spec of each StatefulSet and Deployment asks for."""
    routers = (other for other in observed.other_objects if other.ref.kind == "Deployment")
    scaled: tuple[ShardSet | ExistingObject, ...] = (*observed.shard_sets, *routers)
    return {(workload.ref.kind, workload.ref.name): workload.replicas for workload in scaled}


# The announcement of the active generation in the store, for machines that map it themselves and ask no router
# (``lookupdb sync``).
#
# It is due once every router has confirmed a table of a new generation. The status notes it when the store has it.
# Until then it is written again; writing it twice does no harm. Nothing else waits for it.
#
# A dataset with its own store is announced by its routing table alone. So is every dataset if the store has no
# gateway: the operator writes announcements only through a gateway.


def note_announced(status: DatasetStatus, situation: Situation) -> DatasetStatus:
    """Note the announced generation once the store has its announcement. While another announcement is due, note none:
    its write may have succeeded although the answer was lost.
    """
    due, done = find_due(status, situation), situation.observed.announcement.written
    if due is None:
        return status
    if done is not None and (done.uid, done.generation, done.version) == (due.uid, due.generation, due.version):
        return replace(status, announced=AnnouncedStatus(due.generation, due.version))
    return status if status.announced is None else replace(status, announced=None)


def find_due(status: DatasetStatus, situation: Situation) -> Announcement | None:
    """The announcement that is due; None if none is, or the operator cannot write it."""
    table, dataset = status.table, situation.dataset
    if not situation.config.announces or not situation.shares_store:
        return None
    if table is None or not table.confirmed_at or table.is_mixed:
        return None
    if status.announced is not None and status.announced.generation == table.generation:
        return None
    return Announcement(
        dataset.namespace, dataset.name, dataset.uid, table.generation, table.version, table.confirmed_at
    )


# The key from which the passwords of a dataset's shard servers are derived: which keys routers need, and when the
# Secret of the present one is made in the dataset's namespace.
#
# The operator has no right to read that Secret. The status notes that it was made, and is written before the Secret is.
# If the Secret is lost after that, or deleted later, it is made again when a rollout is claimed, or when a router
# reports that it lacks the key. Making it again changes nothing: its name determines its content. A Secret of that name
# from another writer stays, and routers report that its key is wrong.
#
# The servers of a rollout keep the key that they were started with. The status records which key each rollout has; so
# do the StatefulSets, in case the status is lost. After a change of the release's key, earlier keys cannot be derived
# again. So their Secrets stay in the namespace, and are mounted, as long as a rollout needs them.


MAKE_AGAIN_AFTER: Final = 60.0
"""Seconds between two writes while routers lack the key: a kubelet mounts a new Secret in that time."""


def plan_key_secret(
    status: DatasetStatus, situation: Situation
) -> tuple[DatasetStatus, tuple[Manifest, ...], float | None]:
    """Return ``status``, the Secret of the present key if it is needed now, and the seconds until the next write if
    nothing changes."""
    observed, present = situation.observed, manifests.password_key(situation.dataset, situation.config)
    if not present:
        return replace(status, password_key="", password_key_written_at=""), (), None
    secrets: tuple[Manifest, ...] = ()
    is_lacking = any(present in report.missing_keys for report in observed.routers.values())
    if (
        status.password_key != present
        or status.last_rollout != situation.dataset.status.last_rollout
        # A refused write is retried at each pass: otherwise the refusal would be forgotten.
        or ("Secret", names.password_key_secret(situation.dataset.name, present)) in observed.refusals
        or (is_lacking and not _remaining_wait(status.password_key_written_at, MAKE_AGAIN_AFTER, situation))
    ):
        secrets = (manifests.render_key_secret(situation.dataset, situation.config),)
        status = replace(status, password_key=present, password_key_written_at=format_moment(situation.now))
    wait = _remaining_wait(status.password_key_written_at, MAKE_AGAIN_AFTER, situation) if is_lacking else None
    return status, secrets, wait


# The Secret with the store's address and credentials, and when it is written into the dataset's namespace.
#
# The operator has no right to read Secrets there. The status notes what was written (``plan_store_secret``), and is
# written before the Secret is. If the Secret's write is lost after that, ``plan_store_secret`` has it written again
# when a build or a rollout begins, the credentials change again, or a pod is in trouble because of the store.
#
# If the store has a gateway, there is no such Secret, and the status forgets what was written. If the gateway is
# removed, the Secret is written again. The operator cannot delete the Secrets from before the gateway: a person does.


WRITE_AGAIN_AFTER: Final = 30.0
"""Seconds between two writes while pods are in trouble."""


def plan_store_secret(
    status: DatasetStatus, situation: Situation
) -> tuple[DatasetStatus, tuple[Manifest, ...], float | None]:
    """Return ``status``, the Secret if it is to be written now, and the seconds until it is written again if nothing
    changes. It is written at first, when its content changes, when a build or a rollout begins, and now and then while
    pods lack it."""
    observed, dataset, before = situation.observed, situation.dataset, situation.dataset.status
    if not situation.shares_store or situation.config.gateway:  # its pods need no Secret of ours
        return replace(status, store_digest="", store_written_at=""), (), None
    if observed.store.problem is not None:
        return status, (), None
    secrets: tuple[Manifest, ...] = ()
    troubles = (pod.trouble for pod in observed.pods if not pod.deleting)
    seems_missing = ("Secret", names.store_secret(dataset.name, dataset.uid)) in observed.refusals or any(
        trouble is not None and trouble.reason in reasons.STORE_REASONS for trouble in troubles
    )
    if (
        not status.store_written_at
        or builds.is_store_access_new(status, situation)
        or (before.last_generation, before.last_rollout) != (status.last_generation, status.last_rollout)
        or (seems_missing and not _remaining_wait(status.store_written_at, WRITE_AGAIN_AFTER, situation))
    ):
        secrets = (manifests.render_store_secret(dataset, observed.store),)
        now = format_moment(situation.now)
        status = replace(status, store_digest=observed.store.digest, store_written_at=now)
    wait = _remaining_wait(status.store_written_at, WRITE_AGAIN_AFTER, situation) if seems_missing else None
    return status, secrets, wait


def _remaining_wait(written_at: str, seconds: float, situation: Situation) -> float:
    return seconds_until(written_at, seconds, situation.now) if written_at else 0.0
