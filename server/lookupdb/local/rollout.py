"""The shard processes of one generation: a rollout, as in a cluster, with a process where that has a pod."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from lookupdb.local.child import Child
from lookupdb.manifest import Manifest
from lookupdb.spec import DatasetSpec

STOP_SECONDS: Final = 10.0
HOST: Final = "127.0.0.1"


class Rollout:
    """``replicas`` shard servers for each shard of one generation.

    ``changed`` is called when an endpoint has moved, because its server was started again on another port.
    """

    def __init__(
        self,
        name: str,
        spec: DatasetSpec,
        manifest: Manifest,
        generation: Path,
        directory: Path,
        changed: Callable[[], None],
    ) -> None:
        self.name = name
        self.manifest = manifest
        self._changed = changed
        self._endpoints: dict[tuple[int, int], tuple[str, ...]] = {}
        serve = ["serve", str(generation), "--workers", str(spec.serving_workers)]
        private = ["--host", HOST, "--port", "0", "--admin-port", "0", "--drain-seconds", "0"]
        self._children = [
            Child(
                f"{name}-shard-{shard}-{replica}",
                [*serve, "--shard", str(shard), *private],
                directory,
                self._note(shard, replica),
            )
            for shard in range(len(manifest.shards))
            for replica in range(spec.replicas)
        ]

    def _note(self, shard: int, replica: int) -> Callable[[dict[str, Any]], None]:
        def note(report: dict[str, Any]) -> None:
            endpoints = tuple(f"{HOST}:{port}" for port in report["ports"])
            known = self._endpoints.get((shard, replica))
            self._endpoints[shard, replica] = endpoints
            if known not in (None, endpoints):
                self._changed()

        return note

    async def start(self) -> None:
        """Start all servers and wait until each is ready. Raises ChildFailed; then none is left running."""
        try:
            async with asyncio.TaskGroup() as group:
                for child in self._children:
                    group.create_task(child.start())
        except ExceptionGroup as failures:
            await self.stop()
            raise failures.exceptions[0] from None
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop all servers."""
        await asyncio.gather(*(child.stop(STOP_SECONDS) for child in self._children))

    @property
    def pids(self) -> list[int | None]:
        """Of the servers, shard by shard and replica by replica."""
        return [child.pid for child in self._children]

    def table_entry(self) -> dict[str, Any]:
        """This rollout as the routing table names it."""
        manifest = self.manifest
        shards = [
            {
                "endpoints": [
                    e for (number, _), group in sorted(self._endpoints.items()) if number == shard for e in group
                ]
            }
            for shard in range(len(manifest.shards))
        ]
        return {
            "generation": manifest.generation,
            "rollout": self.name,
            "records": manifest.totals.records,
            "bytes": manifest.totals.file_bytes,
            "builtAt": manifest.built_at,
            "normalize": list(manifest.normalize),
            "valueFormat": manifest.value_format,
            "shards": shards,
        }
