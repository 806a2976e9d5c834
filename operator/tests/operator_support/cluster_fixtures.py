"""Fixtures with a cluster for an operator that runs. A test module names this one in its ``pytest_plugins``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from operator_support.kube import Kube, serving
from operator_support.kubelet import Kubelet, kubelet_of


@pytest.fixture
async def kube(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Kube]:
    """An API server in memory, named by the kubeconfig in the environment."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    async with serving(tmp_path) as server:
        yield server


@pytest.fixture
async def kubelet(kube: Kube) -> AsyncIterator[Kubelet]:
    """The kubelet that runs the pods of ``kube``."""
    async with kubelet_of(kube) as running:
        yield running
