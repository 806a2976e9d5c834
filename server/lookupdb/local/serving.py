"""What a running `up` serves: the router, the rollout in effect, and the files that say where they are."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from typing import Final

from lookupdb.errors import CorruptFile, LookupdbError
from lookupdb.local.retried_write import RetriedWrite
from lookupdb.local.rollout import LocalRollout
from lookupdb.local.rollout_logs import remove_old_logs
from lookupdb.local.router import HOST, CutoverFailed, LocalRouter
from lookupdb.local.run_state import NotWritten, RunFolder
from lookupdb.manifest import Manifest
from lookupdb.runtime.daemon_calls import call_in_thread
from lookupdb.spec import DatasetSpec
from lookupdb.store import StoredDataset
from lookupdb.store.announcement import ANNOUNCEMENT_NOTE, read_announcement, write_announcement
from lookupdb.wording import format_count

DRAIN_MARGIN_SECONDS: Final = 0.2
"""Beyond the longest a lookup may take, before the servers of the old rollout are stopped."""
RESTORE_SECONDS: Final = 1.0
"""How often it is seen to that the files of the run folder are there."""
DAMAGE_SECONDS: Final = 1.0
"""How often it is looked whether servers do not start again."""


class Serving:
    """The processes of one dataset. ``say`` gets the lines meant for the person."""

    def __init__(
        self,
        spec: DatasetSpec,
        dataset: StoredDataset,
        folder: RunFolder,
        port: int,
        resp_port: int | None,
        watch: bool,
        say: Callable[[str], None],
    ) -> None:
        self.spec = spec
        """What is served, or is about to be."""
        self._dataset = dataset
        self._folder = folder
        self.watch = watch
        """Whether manifest and source are looked at while it serves."""
        self._say = say
        self._router = LocalRouter(spec, port, resp_port, folder, self._note_restart)
        self._table = RetriedWrite("the routing table", self._write_table, self._tell)
        self._state = RetriedWrite(str(folder.state_file), self._write_state, self._tell)
        self._announcement = RetriedWrite(ANNOUNCEMENT_NOTE, self._write_announcement, self._tell)
        self._confirmed: tuple[str, int] | None = None
        """The generation that the router answers from, and the version of the first table that says so."""
        self._active: LocalRollout | None = None
        self._rollouts: list[LocalRollout] = []
        """All that may have processes."""
        self._begun = 0

    @property
    def manifest(self) -> Manifest:
        """That of the active generation, once there is one."""
        assert self._active is not None
        return self._active.manifest

    @property
    def damage(self) -> str | None:
        """Why the active generation cannot be served any more, as a server that does not start again has shown."""
        return self._active.damage_watch.damage if self._active else None

    def describe_active(self) -> str:
        """What becomes of the active generation while nothing takes its place, as the end of a sentence."""
        return f"{self.manifest.generation} {'is damaged' if self.damage else 'keeps serving'}"

    @property
    def url(self) -> str:
        """The router's URL, once started."""
        return self._router.url

    @property
    def resp_port(self) -> int:
        """Where the router speaks RESP, once started."""
        return self._router.resp_port

    async def load(self, generation: str) -> None:
        """Start the servers of the first generation. Raises ChildFailed; then another one may be loaded."""
        self._active = await self._roll_out(generation, self.spec)

    async def start(self) -> None:
        """Route to what is loaded. Raises ChildFailed, and NotWritten."""
        assert self._active is not None
        self._router.continue_versions(self._find_announced_version())
        version = self._router.write_table(self._active.table_entry())
        await self._router.start()
        self._state.run()
        self._announce(version)

    async def replace(self, generation: str, spec: DatasetSpec) -> None:
        """Serve ``generation`` in place of the active one, which goes on if that fails. Raises LookupdbError."""
        await self._cut_over(await self._roll_out(generation, spec), spec)

    async def keep_files(self) -> None:
        """Write again what somebody removes from the run folder. Raises FolderTaken when another `up` has it now."""
        while True:
            await asyncio.sleep(RESTORE_SECONDS)
            self._folder.restore()
            if not self._router.has_table():
                self._table.run()
            if not self._folder.has_file(self._folder.state_file):
                self._state.run()

    async def keep_servers(self) -> None:
        """Say when the files of the active generation are found to be damaged, and when they no longer are."""
        while True:
            await asyncio.sleep(DAMAGE_SECONDS)
            assert self._active is not None
            await self._look_for_damage(self._active)

    async def _look_for_damage(self, rollout: LocalRollout) -> None:
        watch = rollout.damage_watch
        before = watch.damage
        await call_in_thread(watch.look, rollout.failed_starts())
        if watch.damage == before or rollout is not self._active:
            return
        generation = rollout.manifest.generation
        if watch.damage is None:
            self._tell(f"the servers of {generation} start again")
            return
        remedy = "it is built anew" if self.watch else "stop `lookupdb up` and start it again: it is built anew then"
        self._tell(f"{generation} cannot be served any more: {watch.damage}\n  {remedy}")

    async def end(self) -> None:
        """Stop all processes, in order, whatever becomes of the files."""
        self._table.close()
        self._announcement.close()
        self._state.close()  # or a server that is started again would bring the file back
        try:
            self._folder.remove_state()
        except OSError as error:
            self._tell(f"{self._folder.state_file} is not removed: {error.strerror or error}")
        try:
            await self._router.stop()
        finally:
            await asyncio.gather(*(rollout.stop() for rollout in self._rollouts))

    async def _roll_out(self, generation: str, spec: DatasetSpec) -> LocalRollout:
        self._begun += 1
        manifest = self._dataset.manifest(generation)
        path = self._dataset.local_path(generation)
        assert path is not None, "up's store is a directory"
        rollout = LocalRollout(
            f"r{self._begun}", spec, manifest, path, self._folder.path, self._update_endpoints, self._say
        )
        self._rollouts.append(rollout)
        self._remove_old_logs()
        try:
            await rollout.start()
        except Exception:  # it has stopped them
            self._rollouts.remove(rollout)
            raise
        totals = manifest.totals
        self._say(
            f"{spec.name}: {generation} is loaded: {format_count(totals.records, 'record')} in "
            f"{format_count(len(manifest.shards), 'shard')}, {totals.file_bytes / (1 << 20):,.1f} MiB"
        )
        return rollout

    async def _cut_over(self, candidate: LocalRollout, spec: DatasetSpec) -> None:
        """Swap the routing table; stop the old rollout when no request can be in flight to it any more."""
        old, self._active = self._active, candidate  # first: every table written from now on names the candidate
        assert old is not None
        try:
            version = self._router.write_table(candidate.table_entry())
            await self._router.wait_until_confirmed(version)
        except NotWritten:  # the old table still stands
            self._active = old
            await self._retire(candidate)
            raise
        except CutoverFailed:
            self._active = old
            try:
                await self._table.run_to_success()  # before: the router may answer from the candidate
            finally:
                await self._retire(candidate)
            raise
        self.spec = spec
        self._state.run()
        self._announce(version)
        await asyncio.sleep(self._router.deadline_seconds + DRAIN_MARGIN_SECONDS)
        await self._retire(old)

    async def _retire(self, rollout: LocalRollout) -> None:
        """Stop ``rollout``. When that is interrupted, ``end`` stops it."""
        await rollout.stop()
        self._rollouts.remove(rollout)
        self._remove_old_logs()

    def _remove_old_logs(self) -> None:
        remove_old_logs(self._folder.path, [rollout.name for rollout in self._rollouts])

    def _update_endpoints(self) -> None:
        """Write where the servers are now. Raises nothing: who says that a server is back must not end for it."""
        self._table.run()
        self._note_restart()

    def _note_restart(self) -> None:
        """Write the state, unless the router is still to start: it is written then."""
        if self._router.has_started:
            self._state.run()

    def _write_table(self) -> None:
        """Write where the servers of the active generation are. Raises NotWritten."""
        if self._active:
            self._router.write_table(self._active.table_entry())

    def _write_state(self) -> None:
        """Write where everything is: at the start, and whenever a process was started again. Raises NotWritten."""
        if self._active:
            redis = f"redis://{HOST}:{self._router.resp_port}"
            urls = {"url": self._router.url, "redis": redis, "admin": self._router.admin_url}
            router = {**urls, "router": self._router.pid}
            serving = {"generation": self._active.manifest.generation, "watch": self.watch}
            self._folder.write_state({**router, **serving, "shards": self._active.servers()})

    def _announce(self, version: int) -> None:
        """Say in the store what the router has confirmed. A store that cannot be written to holds nothing up."""
        self._confirmed = (self.manifest.generation, version)
        self._announcement.run()

    def _write_announcement(self) -> None:
        """Raises NotWritten."""
        if self._confirmed is None:
            return
        generation, version = self._confirmed
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        try:
            write_announcement(self._dataset, self.spec.uid, generation, version, now)
        except LookupdbError as error:
            hint = error.hint or "let this user write there: `lookupdb sync` follows what stands in it"
            raise NotWritten(f"{ANNOUNCEMENT_NOTE} cannot be written: {error.message}", hint=hint) from error

    def _find_announced_version(self) -> int:
        """That of the announcement that an earlier `up` has left: versions only grow. Raises StoreError."""
        try:
            standing = read_announcement(self._dataset)
        except CorruptFile as error:
            self._tell(f"{error.message}; it is written anew")
            return 0
        return 0 if standing is None else standing.version

    def _tell(self, line: str) -> None:
        self._say(f"{self.spec.name}: {line}")
