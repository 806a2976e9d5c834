"""Kubernetes' messages about missing things that a dataset names, reported with the field that names them."""

from __future__ import annotations

import pytest

from lookupdb_operator import names
from lookupdb_operator.cluster.workloads import diagnose_scheduling, diagnose_warning
from lookupdb_operator.plan import reasons


@pytest.mark.parametrize(
    ("component", "field"),
    [
        (names.BUILDER, "spec.source.volume"),
        (names.SHARDS, "spec.serving.storageClassName or spec.serving.delivery.volume"),
    ],
)
def test_a_volume_that_does_not_come_is_reported_with_the_field_that_asks_for_it(component: str, field: str) -> None:
    found = diagnose_scheduling(
        "x", component, "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims."
    )
    assert found.reason == reasons.VOLUME_MISSING
    assert found.message.endswith(f"or correct {field}")


@pytest.mark.parametrize(
    "missing",
    [
        pytest.param(
            'error looking up service account shop/reader: serviceaccount "reader" not found', id="service account"
        ),
        pytest.param("no PriorityClass with name high was found", id="priority class"),
    ],
)
def test_what_pods_name_and_nobody_has_keeps_them_from_being_made(missing: str) -> None:
    message = f'Error creating: pods "x-abcde" is forbidden: {missing}'
    found = diagnose_warning("StatefulSet", "x", "FailedCreate", message)
    assert found is not None
    assert found.reason == reasons.APPLY_REFUSED
    assert (
        found.message
        == f"StatefulSet x cannot create its pods: {missing}; create what is missing, or correct what names it"
    )
