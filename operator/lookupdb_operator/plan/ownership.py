"""Whether this operator may act on a dataset: two that did would undo each other's work for ever."""

from __future__ import annotations

from lookupdb_operator.config import Config
from lookupdb_operator.model import Dataset


def not_ours(dataset: Dataset, config: Config) -> str:
    """Why nothing is done about ``dataset``, as a sentence; empty when it is ours to act on.

    The user's annotation decides; without one, who came first. Taking over another one's dataset is done by
    annotating it.
    """
    owner = dataset.assigned or dataset.status.operator
    if dataset.deleting:
        return "it is being deleted: Kubernetes collects what belongs to it"
    if dataset.status_problem:
        return f"its status cannot be read, so that no number can be claimed safely: {dataset.status_problem}"
    if owner not in ("", config.identity):
        return f"it belongs to the operator {owner}; this one is {config.identity}"
    return ""
