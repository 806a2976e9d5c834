"""kubectl lookupdb and an operator at one API server: changes are made, and shown."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from operator_support.kube import Kube, serving
from operator_support.kube_story import all_steps, dataset, seen, status_of
from operator_support.kubelet import Kubelet, kubelet_of
from operator_support.plugin_program import Ended, run_plugin
from operator_support.running import operating, options, until

SPEC: dict[str, Any] = {"router": {"deadlineMilliseconds": 100}, "rollout": {"drainSeconds": 0}}


async def _ended(running: Awaitable[Ended], kube: Kube, kubelet: Kubelet, **result: Any) -> Ended:
    """Run a program that waits, while the cluster does its part."""
    task = asyncio.ensure_future(running)

    def goes_on() -> bool:
        kubelet.end_builds(**result)
        kubelet.start_servers()
        return task.done()

    await until(goes_on, "the program's end", lambda: seen(kube))
    return await task


@pytest.mark.timeout(240)
async def test_a_refresh_a_rollback_and_an_unpin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))

    def plugin(*words: str) -> Awaitable[Ended]:
        return run_plugin(tmp_path / "kubeconfig", *words, "-n", "shop")

    async with serving(tmp_path) as kube, kubelet_of(kube) as kubelet:
        kube.put(dataset(**SPEC))
        async with operating(options(admin_port=kubelet.admin_port)):
            await all_steps(kube, kubelet)
            await _serves(kube, "g1")
            await _refreshes(kube, kubelet, plugin)
            await _goes_back(kube, kubelet, plugin)


async def _serves(kube: Kube, generation: str) -> None:
    await until(lambda: status_of(kube).get("generation") == generation, f"{generation} to serve", lambda: seen(kube))


async def _refreshes(kube: Kube, kubelet: Kubelet, plugin: Callable[..., Awaitable[Ended]]) -> None:
    ended = await _ended(plugin("refresh", "airports", "--wait"), kube, kubelet)
    assert ended.code == 0, ended.err
    assert ended.out == "shop/airports: the refresh is done: g2 serves\n"
    assert status_of(kube)["generation"] == "g2"
    await until(lambda: status_of(kube).get("phase") == "Ready", "the end of g1's servers", lambda: seen(kube))
    shown = await plugin("status", "airports")
    assert shown.out.startswith("shop/airports: Ready, serves g2")
    assert "r2  g2  active" in shown.out


async def _goes_back(kube: Kube, kubelet: Kubelet, plugin: Callable[..., Awaitable[Ended]]) -> None:
    ended = await _ended(plugin("rollback", "airports", "--wait"), kube, kubelet)
    assert (ended.code, ended.out) == (0, "shop/airports: g1 serves, and is pinned\n"), ended.err
    shown = await plugin("status", "airports")
    assert "serves g1" in shown.out
    assert "pinned to g1" in shown.out
    assert (await plugin("unpin", "airports")).code == 0
    await until(lambda: status_of(kube).get("phase") == "RolledBack", "it to stay", lambda: seen(kube))
    assert status_of(kube)["generation"] == "g1", "what was rolled back from stays out until the source changes"
