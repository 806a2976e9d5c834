"""An operator that starts while the CustomResourceDefinition is created: kopf runs discovery once."""

from __future__ import annotations

import pytest
from operator_support.kube import KINDS, Kube
from operator_support.kube_story import dataset, seen, step_to_build
from operator_support.running import operating, options, until

from lookupdb_operator import names

pytest_plugins = ["operator_support.cluster_fixtures"]

_ALL = {kind.plural for kind in KINDS if kind.group == names.DATASET_KIND.group}


@pytest.mark.parametrize("plurals", [{names.DATASET_KIND.plural}, _ALL], ids=["resource", "group"])
async def test_datasets_that_are_not_named_yet_are_waited_for(kube: Kube, plurals: set[str]) -> None:
    kube.undiscovered = plurals
    kube.put(dataset())
    async with operating(options()):
        await until(lambda: kube.reads.count(("GET", "/apis")) > 1, "a second look", lambda: seen(kube))
        assert not kube.all("Job")
        kube.undiscovered = set()
        await step_to_build(kube)
