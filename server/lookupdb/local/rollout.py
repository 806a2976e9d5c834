"""The shard processes of one generation: a rollout, as in a cluster, with a process where that has a pod."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from lookupdb.local.child import Child
from lookupdb.manifest import Manifest
from lookupdb.spec import DatasetSpec

STOP_SECONDS: Final = 10.0
HOST: Final = "127.0.0.1"
STARTS: Final = max(4, min(os.cpu_count() or 1, 16))
"""So many servers start at the same time: more would only slow each other down, and the answer to a Ctrl-C."""
PROGRESS_SECONDS: Final = 3.0


class Rollout:
    """``replicas`` shard servers for each shard of one generation.

    ``changed`` is called when an endpoint has moved, because its server was started again on another port. ``say`` gets
    a line now and then while many servers start.
    """

    def __init__(
        self,
        name: str,
        spec: DatasetSpec,
        manifest: Manifest,
        generation: Path,
        directory: Path,
        changed: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        self.name = name
        self.manifest = manifest
        self._changed = changed
        self._say = say
        self._reports: dict[tuple[int, int], dict[str, Any]] = {}
        serve = ["serve", str(generation), "--workers", str(spec.serving_workers)]
        private = ["--host", HOST, "--port", "0", "--admin-port", "0", "--drain-seconds", "0"]
        places = [(shard, replica) for shard in range(len(manifest.shards)) for replica in range(spec.replicas)]
        self._children = {
            place: Child(
                f"{name}-shard-{place[0]}-{place[1]}",
                [*serve, "--shard", str(place[0]), *private],
                directory,
                partial(self._note, place),
            )
            for place in places
        }

    def _note(self, place: tuple[int, int], report: dict[str, Any]) -> None:
        """The server at ``place``, a shard and a replica, is ready; not for the first time if it was known."""
        known = place in self._reports
        endpoints = [f"{HOST}:{port}" for port in report["ports"]]
        self._reports[place] = {"endpoints": endpoints, "admin": f"http://{HOST}:{report['admin']}"}
        if known:
            self._changed()

    async def start(self) -> None:
        """Start all servers and wait until each is ready. Raises ChildFailed; then none is left running."""
        places = asyncio.Semaphore(STARTS)
        try:
            async with asyncio.TaskGroup() as group:
                progress = group.create_task(self._tell_progress())
                starts = [group.create_task(_start(child, places)) for child in self._children.values()]
                await asyncio.gather(*starts)
                progress.cancel()
        except ExceptionGroup as failures:
            await self.stop()
            raise failures.exceptions[0] from None
        except BaseException:
            await self.stop()
            raise

    async def _tell_progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            self._say(f"starting shard servers: {len(self._reports):,} of {len(self._children):,} are ready")

    async def stop(self) -> None:
        """Stop all servers."""
        await asyncio.gather(*(child.stop(STOP_SECONDS) for child in self._children.values()))

    def servers(self) -> list[dict[str, Any]]:
        """Each server as it is now: shard, replica, process id, endpoints that speak RESP, admin port."""
        return [
            {"shard": shard, "replica": replica, "pid": child.pid, **self._reports[shard, replica]}
            for (shard, replica), child in self._children.items()
        ]

    def table_entry(self) -> dict[str, Any]:
        """This rollout as the routing table names it."""
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
            "normalize": list(manifest.normalize),
            "valueFormat": manifest.value_format,
            "shards": shards,
        }


async def _start(child: Child, places: asyncio.Semaphore) -> None:
    async with places:
        await child.start()
