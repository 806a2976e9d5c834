"""A lookup core whose only shard has replicas that follow scripts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack

from lookupdb.router.budget import RouterLimits
from support.routing import LIMITS, Core, entry, identity, table
from support.scripted_shard import Script, ScriptedShard
from support.waiting import soon


async def serve_replicas(
    stack: AsyncExitStack,
    records: Mapping[bytes, bytes],
    *scripts: Script,
    limits: RouterLimits = LIMITS,
    budget_bytes: int = 256 << 20,
) -> tuple[Core, list[ScriptedShard]]:
    """A core with one shard of ``records``, whose replicas follow ``scripts``, once all of them are ready."""
    core = Core(limits, budget_bytes=budget_bytes)
    stack.callback(core.close)
    shards = [await stack.enter_async_context(ScriptedShard(identity(), records, script)) for script in scripts]
    await core.serve(table(entry([[shard.address for shard in shards]])))
    await soon(lambda: all(shard.proofs for shard in shards), "all replicas are connected")
    live = core.lookups.live
    assert live
    await soon(lambda: len(live.active.shards[0]._ready) == len(shards), "all replicas are proven")
    return core, shards
