"""The shard processes of one generation: a rollout as in a cluster, with processes for pods."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from lookupdb.local.child import Child
from lookupdb.local.damage import DamageWatch
from lookupdb.manifest import Manifest
from lookupdb.spec import DatasetSpec

STOP_SECONDS: Final = 10.0
HOST: Final = "127.0.0.1"
MAX_CONCURRENT_STARTS: Final = max(4, min(os.cpu_count() or 1, 16))
"""No more servers start at the same time: they would slow each other down, and the answer to a Ctrl-C."""
PROGRESS_SECONDS: Final = 3.0


class LocalRollout:
    """``replicas`` shard servers for each shard of one generation.

    ``on_change`` is called when a server was started again, on another port. ``say`` gets a line now and then while
    many servers start.
    """

    def __init__(
        self,
        name: str,
        spec: DatasetSpec,
        manifest: Manifest,
        generation: Path,
        directory: Path,
        on_change: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self.name = name
        self.manifest = manifest
        self.damage_watch = DamageWatch(generation, manifest)
        self._on_change = on_change
        self._say = say
        self._reports: dict[tuple[int, int], dict[str, Any]] = {}
        serve = ["serve", str(generation), "--workers", str(spec.serving_workers)]
        private = ["--host", HOST, "--port", "0", "--admin-port", "0", "--drain-seconds", "0"]
        positions = [(shard, replica) for shard in range(len(manifest.shards)) for replica in range(spec.replicas)]
        self._children = {
            position: Child(
                f"{name}-shard-{position[0]}-{position[1]}",
                [*serve, "--shard", str(position[0]), *private],
                directory,
                partial(self._record_report, position),
            )
            for position in positions
        }

    def _record_report(self, position: tuple[int, int], report: dict[str, Any]) -> None:
        """Keep the report of the server at ``position``, a shard and a replica: it has become ready, perhaps again."""
        is_restart = position in self._reports
        endpoints = [f"{HOST}:{port}" for port in report["ports"]]
        self._reports[position] = {"endpoints": endpoints, "admin": f"http://{HOST}:{report['admin']}"}
        if is_restart:
            self._on_change()

    async def start(self) -> None:
        """Start all servers and wait until each is ready. Raises ChildFailed; then none is left running."""
        starts_at_once = asyncio.Semaphore(MAX_CONCURRENT_STARTS)
        try:
            async with asyncio.TaskGroup() as group:
                progress = group.create_task(self._report_progress())
                starts = [group.create_task(_start(child, starts_at_once)) for child in self._children.values()]
                await asyncio.gather(*starts)
                progress.cancel()
        except ExceptionGroup as failures:
            await self.stop()
            raise failures.exceptions[0] from None
        except BaseException:
            await self.stop()
            raise

    async def _report_progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            self._say(f"starting shard servers: {len(self._reports):,} of {len(self._children):,} are ready")

    async def stop(self) -> None:
        """Stop all servers."""
        await asyncio.gather(*(child.stop(STOP_SECONDS) for child in self._children.values()))

    def failed_starts(self) -> list[int]:
        """Return for each shard how often in a row a server of it, the one that did so most, was not ready."""
        starts = [0] * len(self.manifest.shards)
        for (shard, _), child in self._children.items():
            starts[shard] = max(starts[shard], child.failed_starts)
        return starts

    def servers(self) -> list[dict[str, Any]]:
        """Return each server as it is now: shard, replica, process id, endpoints that speak RESP, admin port."""
        return [
            {"shard": shard, "replica": replica, "pid": child.pid, **self._reports[shard, replica]}
            for (shard, replica), child in self._children.items()
        ]

    def table_entry(self) -> dict[str, Any]:
        """Return the entry of this rollout in the routing table."""
        manifest = self.manifest
        shards: list[dict[str, list[str]]] = [{"endpoints": []} for _ in manifest.shards]
        for (shard, _), report in sorted(self._reports.items()):
            shards[shard]["endpoints"] += report["endpoints"]
        return {
            "generation": manifest.generation,
            "rollout": self.name,
            "records": manifest.totals.records,
            "bytes": manifest.totals.file_bytes,
            "builtAt": manifest.built_at,
            "content": hashlib.sha256("".join(shard.sha256 for shard in manifest.shards).encode()).hexdigest(),
            "normalize": list(manifest.normalize),
            "valueFormat": manifest.value_format,
            "shards": shards,
        }


async def _start(child: Child, starts_at_once: asyncio.Semaphore) -> None:
    async with starts_at_once:
        await child.start()
