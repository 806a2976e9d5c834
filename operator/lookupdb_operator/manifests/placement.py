"""Where pods run, and as whom: what a dataset says of the pods of one component, and our own where it says nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lookupdb_operator.manifests.metadata import drop_unsaid

Placement = dict[str, Any]
"""Members of a pod's spec."""

_MEMBERS: Final = ("nodeSelector", "tolerations", "priorityClassName", "serviceAccountName")
_POD_TERMS: Final = ("podAffinity", "podAntiAffinity")
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


def render_placement(
    scheduling: Mapping[str, Any], pod: Mapping[str, Any], selector: Mapping[str, str], *, spreads: bool
) -> Placement:
    """The placement of the pods that ``selector`` selects: a field of ``pod`` stands for itself, whole; else that of
    ``scheduling`` does, else with ``spreads`` our own spreading over nodes and zones."""
    own = _spread_pods(selector) if spreads else {}
    given = {**own, **scheduling, **pod}
    constraints = [_with_selector(constraint, selector) for constraint in given.get("topologySpreadConstraints", ())]
    affinity = own.get("affinity", {}) | _complete_affinity(pod.get("affinity", {}), selector)
    members = {name: given.get(name) for name in _MEMBERS}
    placement: Placement = drop_unsaid({**members, "affinity": affinity, "topologySpreadConstraints": constraints})
    return placement


def _spread_pods(selector: Mapping[str, str]) -> Placement:
    """Over nodes and zones where there are several; on one node pods run all the same.

    Zones are no second spread constraint: the scheduler leaves nodes that lack the label of any one out of the count
    for all of them, so that on a cluster without zones nothing would be spread at all.
    """
    pods = {"labelSelector": {"matchLabels": dict(selector)}}
    by_zone = {"weight": 100, "podAffinityTerm": {"topologyKey": "topology.kubernetes.io/zone", **pods}}
    by_node = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway", **pods}
    return {"affinity": {"podAntiAffinity": {_PREFERRED: [by_zone]}}, "topologySpreadConstraints": [by_node]}


def _complete_affinity(affinity: Mapping[str, Any], selector: Mapping[str, str]) -> Placement:
    """``affinity`` with every term about pods saying which."""
    return {
        name: _complete_terms(member, selector) if name in _POD_TERMS else member for name, member in affinity.items()
    }


def _complete_terms(affinity: Mapping[str, Any], selector: Mapping[str, str]) -> Placement:
    required = [_with_selector(term, selector) for term in affinity.get(_REQUIRED, ())]
    preferred = [
        {**term, "podAffinityTerm": _with_selector(term["podAffinityTerm"], selector)}
        for term in affinity.get(_PREFERRED, ())
    ]
    return {_REQUIRED: required, _PREFERRED: preferred}


def _with_selector(term: Mapping[str, Any], selector: Mapping[str, str]) -> dict[str, Any]:
    """``term`` about the pods that ``selector`` selects, unless it says which ones itself: nobody can write down the
    labels of a rollout that is to come."""
    return {**term, "labelSelector": term.get("labelSelector", {"matchLabels": dict(selector)})}
