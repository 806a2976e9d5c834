"""What a start of `up` forgets of the last one."""

from __future__ import annotations

from dataclasses import replace

from lookupdb_operator import names
from lookupdb_operator.cluster.cache import Key
from lookupdb_operator.local.api import LocalApi
from lookupdb_operator.plan.lifecycle import RolloutPhase, rollout_phase
from lookupdb_operator.status import DatasetStatus


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
