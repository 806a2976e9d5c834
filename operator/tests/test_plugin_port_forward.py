"""A pod's port through kubectl port-forward: its arguments, and that it ends with the request."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web
from operator_support.loopback import listening

from lookupdb_operator.cluster.api import Unreachable
from lookupdb_operator.plugin.cluster_session import read_through, render_kubectl
from lookupdb_operator.plugin.session import Target

KUBECTL = """#!/bin/sh
echo "$$ $*" > "{told}"
{does}
"""


@pytest_asyncio.fixture(name="pod_port")
async def _pod_port() -> AsyncIterator[int]:
    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text="lookupdb_shard_lookups_total 5\n")

    async with listening(metrics, "/metrics") as port:
        yield port


def _kubectl(folder: Path, does: str) -> tuple[list[str], Path]:
    """Write a program in place of kubectl, and return the file in which it notes its process and its arguments."""
    program, told = folder / "kubectl", folder / "told"
    program.write_text(KUBECTL.format(told=told, does=does))
    program.chmod(0o755)
    return [str(program), *render_kubectl(Target("/config", "prod", "shop"), "shop")[1:]], told


async def test_what_the_pod_answers_and_the_end_of_the_program(tmp_path: Path, pod_port: int) -> None:
    does = f"echo 'Forwarding from 127.0.0.1:{pod_port} -> 9090'\nexec sleep 60"
    kubectl, told = _kubectl(tmp_path, does)
    assert await read_through(kubectl, "airports-r1-s0-0", 9090, "/metrics") == "lookupdb_shard_lookups_total 5\n"
    process, *words = (await asyncio.to_thread(told.read_text)).split()
    options = "--kubeconfig /config --context prod --namespace shop"
    assert " ".join(words) == f"{options} port-forward pod/airports-r1-s0-0 :9090 --address 127.0.0.1"
    with pytest.raises(ProcessLookupError):
        os.kill(int(process), 0)


@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("echo 'pods is forbidden' >&2; exit 1", "pods is forbidden"),
        ("exit 1", "it has ended without a message"),
        ("echo 'Forwarding from 127.0.0.1:1 -> 9090'; exec sleep 60", "Cannot connect"),
    ],
)
async def test_why_it_cannot_be_asked(tmp_path: Path, does: str, why: str) -> None:
    kubectl, _ = _kubectl(tmp_path, does)
    with pytest.raises(Unreachable, match=why):
        await read_through(kubectl, "x", 9090, "/metrics")


async def test_there_may_be_no_kubectl(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="No such file"):
        await read_through([str(tmp_path / "kubectl")], "x", 9090, "/metrics")


async def test_another_path_is_no_metrics(tmp_path: Path, pod_port: int) -> None:
    kubectl, _ = _kubectl(tmp_path, f"echo 'Forwarding from 127.0.0.1:{pod_port} -> 9090'\nexec sleep 60")
    with pytest.raises(Unreachable, match="it answers 404"):
        await read_through(kubectl, "x", 9090, "/elsewhere")
