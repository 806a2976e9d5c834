"""`lookupdb up --watch` reads nothing while the success file is one that it, or an earlier one, has answered."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.up_stack import MANIFEST, write_people
from support.up_watch import Watch, damage, during_the_next_build, kill_server, running_watch, watching
from support.waiting import soon
from support.web import File, web_file

from lookupdb.builder.listing import read_success_file
from lookupdb.up import builds, rebuilds
from lookupdb.up.observer import SourceObserver
from lookupdb.up.rebuilds import DesiredInputs, SuccessFileAnswer

pytestmark = pytest.mark.long

NAMES_FILE = f"{MANIFEST}  refresh: {{successFile: _SUCCESS}}\n"


class Nights:
    """Two people whose success file is written again every night, under a running `up --watch`."""

    def __init__(self, watch: Watch, looks: list[str | None]) -> None:
        self.watch = watch
        self._directory = watch.directory
        self._looks = looks

    def write(self, **titles: str) -> None:
        write_people(self._directory, **titles)

    def finish(self) -> None:
        """Write the success file: another file, so that it is another one within the same tick of the clock, too."""
        (self._directory / "success.new").touch()
        (self._directory / "success.new").replace(self._directory / "_SUCCESS")

    async def finish_half_a_file(self) -> None:
        """Which is refused while g1 serves."""
        (self._directory / "people.csv").write_text("email,")
        self.finish()
        await self.watch.says("a gate refused it; g1 keeps serving, retrying in")

    async def is_looked_at(self) -> None:
        """Three looks at the success file begin and end."""
        seen = len(self._looks)
        await soon(lambda: len(self._looks) > seen + 3, "three more looks")

    async def titles(self) -> set[str]:
        return {*(await asyncio.to_thread(self.watch.titles)).values()}


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The identities of the success file, look by look."""
    identities: list[str | None] = []

    def note(*arguments: object, **options: object) -> str | None:
        identities.append(read_success_file(*arguments, **options))  # type: ignore[arg-type]
        return identities[-1]

    monkeypatch.setattr("lookupdb.up.observer.read_success_file", note)
    return identities


@asynccontextmanager
async def nights(directory: Path, looks: list[str | None], manifest: str = NAMES_FILE) -> AsyncIterator[Nights]:
    (directory / "_SUCCESS").touch()
    async with watching(directory, manifest) as watch:
        yield Nights(watch, looks)


@asynccontextmanager
async def more_nights(directory: Path, looks: list[str | None]) -> AsyncIterator[Nights]:
    """`up` is started again."""
    async with running_watch(directory) as watch:
        yield Nights(watch, looks)


ROWS = b"email,title\nada@example.com,%s\nalan@example.com,Reader\n"


@contextmanager
def source_on_the_web(directory: Path) -> Iterator[tuple[str, File]]:
    """A manifest of people on a server that does not identify its file, where Ada is a Countess at first."""
    with web_file(ROWS % b"Countess") as file:
        manifest = NAMES_FILE.replace("people.csv", f"{file.url}/people.csv")
        yield manifest.replace("_SUCCESS", str(directory.absolute() / "_SUCCESS")), file


def the_next_batch_begins(directory: Path) -> Callable[[], Callable[[], object]]:
    """A change that is not undone."""

    def begin() -> Callable[[], object]:
        write_people(directory, ada="Princess", alan="Professor")
        return lambda: None

    return begin


ANSWERED = "the success file _SUCCESS was handled before, the source is read when it is written again"


async def test_the_next_batch_is_not_read_under_a_success_file_whose_source_had_not_changed(
    tmp_path: Path, looks: list[str | None]
) -> None:
    async with nights(tmp_path, looks) as people:
        people.finish()
        await people.is_looked_at()
        people.write(ada="Duchess", alan="Reader")
        await people.is_looked_at()
        assert "building" not in people.watch.output
        people.write(ada="Duchess", alan="Professor")
        people.finish()
        await people.watch.cuts_over_to("g2", ada="Duchess", alan="Professor")


async def test_the_next_batch_is_not_read_under_the_success_file_of_one_that_was_bad(
    tmp_path: Path, looks: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuilds, "FIRST_PERSISTENT_SECONDS", 0.2)
    async with nights(tmp_path, looks) as people:
        await people.finish_half_a_file()
        people.write(ada="Duchess", alan="Reader")
        await people.watch.says("the source has changed since the success file _SUCCESS was written; it is read when")
        await people.is_looked_at()
        assert people.watch.output.count("has changed, building") == 1
        people.write(ada="Duchess", alan="Professor")
        people.finish()
        await people.watch.cuts_over_to("g2", ada="Duchess", alan="Professor")


async def test_what_serves_is_rolled_out_again_without_a_look_at_a_batch_that_is_not_whole(
    tmp_path: Path, looks: list[str | None]
) -> None:
    async with nights(tmp_path, looks) as people:
        people.finish()
        await people.is_looked_at()
        people.write(ada="Duchess", alan="Reader")
        (tmp_path / "people.yaml").write_text(NAMES_FILE.replace("shards: 1", "shards: 1\n  replicas: 2"))
        await people.watch.cuts_over_to("g1", ada="Countess", alan="Reader")


async def test_a_batch_that_is_begun_as_the_builder_starts_is_not_cut_over_to(
    tmp_path: Path, looks: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nights(tmp_path, looks) as people:
        during_the_next_build(monkeypatch, the_next_batch_begins(tmp_path))
        people.write(ada="Duchess", alan="Professor")
        people.finish()
        await people.watch.says("the source has changed since the success file _SUCCESS was written")
        assert people.watch.generations() == ["g1"]
        people.write(ada="Princess", alan="Fellow")
        people.finish()
        await people.watch.cuts_over_to("g2", ada="Princess", alan="Fellow")


async def test_a_batch_that_is_begun_between_two_looks_is_not_served(
    tmp_path: Path, looks: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nights(tmp_path, looks) as people:
        observe, begun = people.watch.up._observer.observe, asyncio.Event()
        answered = people.watch.up._serving.manifest.success_file

        async def begin_after_the_first(*arguments: Any) -> DesiredInputs | None:
            desired = await observe(*arguments)
            if desired and desired.success_file != answered and not begun.is_set():
                people.write(ada="Princess", alan="Professor")
                begun.set()
            return desired

        monkeypatch.setattr(people.watch.up._observer, "observe", begin_after_the_first)
        people.write(ada="Duchess", alan="Professor")
        people.finish()
        await people.watch.says("the source has changed since the success file _SUCCESS was written")
        await people.is_looked_at()
        assert begun.is_set()
        assert people.watch.generations() == ["g1"]


async def test_a_source_that_cannot_be_read_under_a_new_success_file_is_told_once(
    tmp_path: Path, looks: list[str | None]
) -> None:
    async with nights(tmp_path, looks) as people:
        (tmp_path / "people.csv").rename(tmp_path / "away")
        people.finish()
        await people.watch.says("people: not rebuilt: ")
        await people.is_looked_at()
        assert people.watch.output.count("not rebuilt") == 1
        assert "can be read again" not in people.watch.output
        people.write(ada="Duchess", alan="Reader")
        await people.watch.cuts_over_to("g2", ada="Duchess", alan="Reader")
        assert people.watch.output.count("manifest and source can be read again") == 1


@pytest.mark.parametrize("title", ["Countess", "Duchess"], ids=["the same", "the next"])
async def test_what_is_damaged_is_built_again_though_nothing_identifies_its_source_unless_that_has_changed(
    tmp_path: Path, looks: list[str | None], title: str
) -> None:
    with source_on_the_web(tmp_path) as (manifest, file):
        async with nights(tmp_path, looks, manifest) as people:
            file.content = ROWS % title.encode()
            damage(tmp_path, "g1")
            kill_server(people.watch)
            await people.watch.says("people: building again; g1 is damaged")
            if title == "Countess":
                await people.watch.cuts_over_to("g2", ada="Countess", alan="Reader")
            else:
                await people.watch.says("the source has changed since the success file")
                assert people.watch.generations() == ["g1"]


async def test_a_success_file_tells_of_a_source_that_its_server_does_not_identify(
    tmp_path: Path, looks: list[str | None]
) -> None:
    with source_on_the_web(tmp_path) as (manifest, file):
        async with nights(tmp_path, looks, manifest) as people:
            people.finish()
            await people.watch.says("the source has not changed since g1 was built")
            file.content = ROWS % b"Duchess"
            await people.is_looked_at()
            people.finish()
            await people.watch.cuts_over_to("g2", ada="Duchess", alan="Reader")
            assert "are not watched" not in people.watch.output


async def test_a_start_builds_what_other_gates_let_through_though_nothing_identifies_it(
    tmp_path: Path, looks: list[str | None]
) -> None:
    with source_on_the_web(tmp_path) as (manifest, file):
        async with nights(tmp_path, looks, manifest) as people:
            file.content = b"email,title\nada@example.com,Duchess\n"
            (tmp_path / "people.yaml").write_text(manifest.replace("gates: {", "gates: {minRecords: 2, "))
            people.finish()
            await people.watch.says("a gate refused it; g1 keeps serving")
        async with more_nights(tmp_path, looks) as people:
            assert "was handled before" in people.watch.output
        (tmp_path / "people.yaml").write_text(manifest)
        async with more_nights(tmp_path, looks) as people:
            assert await asyncio.to_thread(people.watch.title) == "Duchess"


async def test_a_start_over_a_bad_source_that_nothing_identifies_promises_no_attempt_before_the_next_file(
    tmp_path: Path, looks: list[str | None]
) -> None:
    with source_on_the_web(tmp_path) as (manifest, file):
        async with nights(tmp_path, looks, manifest) as people:
            pass
        file.content = b"email,"
        people.finish()
        async with more_nights(tmp_path, looks) as people:
            told = "serving g1, the last good generation, retrying when the manifest or the success file changes\n"
            assert told in people.watch.output
            await people.is_looked_at()
            assert "building" not in people.watch.output


async def test_a_start_reads_nothing_under_a_success_file_that_an_earlier_up_has_answered(
    tmp_path: Path, looks: list[str | None]
) -> None:
    async with nights(tmp_path, looks) as people:
        people.finish()
        await people.is_looked_at()
    write_people(tmp_path, ada="Duchess", alan="Reader")
    for _ in range(2):
        async with more_nights(tmp_path, looks) as people:
            assert f"{ANSWERED}; serving g1" in people.watch.output
            await people.is_looked_at()
            assert await people.titles() == {"Countess", "Reader"}
            assert people.watch.generations() == ["g1"]
    async with more_nights(tmp_path, looks) as people:
        people.write(ada="Duchess", alan="Professor")
        people.finish()
        await people.watch.cuts_over_to("g2", ada="Duchess", alan="Professor")


async def test_what_a_start_finds_unchanged_answers_the_success_file(tmp_path: Path, looks: list[str | None]) -> None:
    async with nights(tmp_path, looks) as people:
        pass
    people.finish()
    async with more_nights(tmp_path, looks) as people:
        assert "g1 is whole and its source has not changed" in people.watch.output
        people.write(ada="Duchess", alan="Reader")
        await people.is_looked_at()
        assert await people.titles() == {"Countess", "Reader"}
    async with more_nights(tmp_path, looks) as people:
        assert f"{ANSWERED}; serving g1" in people.watch.output


async def test_a_start_builds_what_was_bad_only_as_long_as_the_source_is_the_same(
    tmp_path: Path, looks: list[str | None]
) -> None:
    async with nights(tmp_path, looks) as people:
        await people.finish_half_a_file()
    async with more_nights(tmp_path, looks) as people:
        assert "serving g1, the last good generation" in people.watch.output
    people.write(ada="Duchess", alan="Reader")
    async with more_nights(tmp_path, looks) as people:
        assert f"{ANSWERED}; serving g1" in people.watch.output
        await people.watch.says("the source has changed since the success file _SUCCESS was written")
        assert await people.titles() == {"Countess", "Reader"}


async def test_a_start_builds_what_was_bad_only_if_the_source_is_the_one_that_it_has_looked_at(
    tmp_path: Path, looks: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nights(tmp_path, looks) as people:
        await people.finish_half_a_file()
    observe = SourceObserver.observe_source

    async def begin_after_the_look(*arguments: Any) -> SuccessFileAnswer | None:
        monkeypatch.setattr(SourceObserver, "observe_source", observe)
        answer = await observe(*arguments)
        people.write(ada="Princess", alan="Reader")
        return answer

    monkeypatch.setattr(SourceObserver, "observe_source", begin_after_the_look)
    async with more_nights(tmp_path, looks) as people:
        assert "the source has changed since the success file _SUCCESS was written" in people.watch.output
        assert await people.titles() == {"Countess", "Reader"}


async def test_a_start_under_an_answered_success_file_serves_what_was_before_what_is_damaged(
    tmp_path: Path, looks: list[str | None]
) -> None:
    async with nights(tmp_path, looks) as people:
        people.write(ada="Duchess", alan="Professor")
        people.finish()
        await people.watch.says("cut over to g2")
    damage(tmp_path, "g2")
    shutil.rmtree(tmp_path / "data" / "run")  # the manifest of g2 tells
    people.write(ada="Princess", alan="Professor")
    async with more_nights(tmp_path, looks) as people:
        assert f"{ANSWERED}; serving g1" in people.watch.output
        await people.is_looked_at()
        assert await people.titles() == {"Countess", "Reader"}


async def test_a_start_builds_where_nothing_can_serve_though_the_success_file_is_answered(
    tmp_path: Path, looks: list[str | None]
) -> None:
    async with nights(tmp_path, looks) as people:
        people.finish()
        await people.is_looked_at()
    people.write(ada="Duchess", alan="Reader")
    damage(tmp_path, "g1")
    async with more_nights(tmp_path, looks) as people:
        assert await people.titles() == {"Duchess", "Reader"}
    shutil.rmtree(tmp_path / "data" / "store")
    people.write(ada="Princess", alan="Reader")
    async with more_nights(tmp_path, looks) as people:
        assert await people.titles() == {"Princess", "Reader"}


async def test_a_start_before_the_success_file_is_there_again_forgets_nothing(
    tmp_path: Path, looks: list[str | None]
) -> None:
    """For example on a disk that is mounted late."""
    async with nights(tmp_path, looks) as people:
        await people.finish_half_a_file()
    people.write(ada="Duchess", alan="Reader")
    (tmp_path / "_SUCCESS").rename(tmp_path / "away")
    for _ in range(2):
        async with more_nights(tmp_path, looks) as people:
            assert "waiting for the success file _SUCCESS" in people.watch.output
            await people.is_looked_at()
    async with more_nights(tmp_path, looks) as people:
        (tmp_path / "away").rename(tmp_path / "_SUCCESS")
        await people.watch.says("the source has changed since the success file _SUCCESS was written")
        assert await people.titles() == {"Countess", "Reader"}


async def test_a_start_forgets_nothing_of_a_success_file_that_is_there_again_when_its_builder_looks(
    tmp_path: Path, looks: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def put_back() -> Callable[[], object]:
        (tmp_path / "away").rename(tmp_path / "_SUCCESS")
        return lambda: None

    async with nights(tmp_path, looks) as people:
        await people.finish_half_a_file()
    people.write(ada="Duchess", alan="Reader")
    (tmp_path / "_SUCCESS").rename(tmp_path / "away")
    during_the_next_build(monkeypatch, put_back)
    async with more_nights(tmp_path, looks) as people:
        assert "the source has changed since the success file _SUCCESS was written" in people.watch.output
        assert await people.titles() == {"Countess", "Reader"}


async def test_a_start_whose_builder_alone_sees_an_answered_success_file_keeps_that_answer(
    tmp_path: Path, looks: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def put_back() -> Callable[[], object]:
        (tmp_path / "away").rename(tmp_path / "_SUCCESS")
        return lambda: people.write(ada="Duchess", alan="Reader")

    async with nights(tmp_path, looks) as people:
        people.finish()
        await people.is_looked_at()
    (tmp_path / "_SUCCESS").rename(tmp_path / "away")
    during_the_next_build(monkeypatch, put_back)
    async with more_nights(tmp_path, looks) as people:
        assert "g1 is whole and its source has not changed" in people.watch.output
        await people.is_looked_at()
        assert people.watch.generations() == ["g1"]
        assert await people.titles() == {"Countess", "Reader"}


async def test_a_batch_that_is_begun_as_the_builder_of_a_start_starts_is_not_served(
    tmp_path: Path, looks: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nights(tmp_path, looks) as people:
        pass
    people.write(ada="Duchess", alan="Professor")
    people.finish()
    during_the_next_build(monkeypatch, the_next_batch_begins(tmp_path))
    async with more_nights(tmp_path, looks) as people:
        await people.watch.says("the source has changed since the success file _SUCCESS was written")
        assert await people.titles() == {"Countess", "Reader"}
        assert people.watch.generations() == ["g1"]
        people.write(ada="Princess", alan="Fellow")
        people.finish()
        await people.watch.cuts_over_to("g2", ada="Princess", alan="Fellow")


async def test_a_start_that_ends_while_it_builds_has_answered_the_success_file(
    tmp_path: Path, looks: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nights(tmp_path, looks) as people:
        pass
    people.write(ada="Duchess", alan="Professor")
    people.finish()
    building = asyncio.Event()

    async def wait(*_: object, **__: object) -> None:
        building.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(builds.Builder, "run", wait)
        running = asyncio.create_task(Watch(tmp_path).up.run())
        await building.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    people.write(ada="Princess", alan="Professor")
    async with more_nights(tmp_path, looks) as people:
        assert f"{ANSWERED}; serving g1" in people.watch.output
        assert await people.titles() == {"Countess", "Reader"}


async def test_a_start_builds_what_another_manifest_asks_for(tmp_path: Path, looks: list[str | None]) -> None:
    async with nights(tmp_path, looks) as people:
        people.finish()
        await people.is_looked_at()
    people.write(ada="Duchess", alan="Reader")
    (tmp_path / "people.yaml").write_text(NAMES_FILE.replace("shards: 1", "shards: 2"))
    async with more_nights(tmp_path, looks) as people:
        assert await people.titles() == {"Duchess", "Reader"}
