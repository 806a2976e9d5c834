"""The README's commands: apply the airports beside the chart, wait, and let `helm test` look one up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from e2e.support import helm, release
from e2e.support.kubectl import delete, kubectl
from e2e.support.scenario import EXAMPLES, LDS

pytestmark = pytest.mark.side_by_side


@pytest.fixture
def airports() -> Iterator[None]:
    """The example, in the installation's namespace, where `helm test` looks for it."""
    kubectl("apply", "--namespace", release.NAMESPACE, "-f", str(EXAMPLES / "airports.yaml"))
    yield
    delete(LDS, "airports", release.NAMESPACE)


@pytest.mark.usefixtures("airports")
def test_helm_test_looks_an_airport_up() -> None:
    wait = ("wait", "--namespace", release.NAMESPACE, "--for=condition=Ready", "lds/airports", "--timeout=180s")
    kubectl(*wait, timeout=200)
    result = helm.helm("test", release.RELEASE, "--logs", "--timeout", "2m")
    assert "Phase:          Succeeded" in result
    assert "KJFK" in result
