"""Which logs of shard servers stay in the folder of a running `up`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.up_stack import write_people
from support.up_watch import watching
from support.waiting import soon

from lookupdb.up.serving import KEPT_ROLLOUTS, find_old_logs, remove_old_logs


def files(**moments: float) -> dict[str, float]:
    """The logs and ready files of rollouts of two shards, which were last written to at these moments."""
    return {
        f"{rollout}-shard-{shard}-0.{kind}": moment - shard
        for rollout, moment in moments.items()
        for shard in (0, 1)
        for kind in ("log", "ready")
    }


class TestDecision:
    def test_those_that_have_written_last_stay(self) -> None:
        assert find_old_logs(files(r1=10, r2=20, r3=30, r4=40), (), keep=2) == sorted(files(r1=0, r2=0))

    def test_numbers_do_not_count(self) -> None:
        """A new `up` begins at r1."""
        assert find_old_logs(files(r9=10, r10=20, r1=30), (), keep=2) == sorted(files(r9=0))

    def test_what_runs_stays_and_takes_no_place(self) -> None:
        assert find_old_logs(files(r1=10, r2=20, r3=30), ("r1",), keep=1) == sorted(files(r2=0))

    def test_nothing_else_goes(self) -> None:
        others = dict.fromkeys(
            ["router.log", "up.json", "lock", "r1.log", "r1-shard-0-0.log.gz", "routing-table.json"], 0.0
        )
        assert find_old_logs(others, (), keep=0) == []


def test_they_are_removed(tmp_path: Path) -> None:
    for name, moment in files(**{f"r{number}": 100.0 * number for number in range(1, 7)}).items():
        (tmp_path / name).write_text("ended")
        os.utime(tmp_path / name, (moment, moment))
    (tmp_path / "router.log").write_text("runs")
    remove_old_logs(tmp_path, ("r6",))
    assert {path.name.split("-")[0] for path in tmp_path.iterdir()} == {"router.log", "r3", "r4", "r5", "r6"}


def test_a_folder_that_is_gone_is_no_trouble(tmp_path: Path) -> None:
    remove_old_logs(tmp_path / "gone", ())


@pytest.mark.long
async def test_a_watch_keeps_those_of_the_last_rollouts(tmp_path: Path) -> None:
    async with watching(tmp_path) as watch:
        changes = KEPT_ROLLOUTS + 2
        for number in range(1, changes + 1):
            write_people(tmp_path, ada=f"Duchess {number}")
            await watch.says(f"cut over to g{number + 1}")
        folder = tmp_path / "data/run/default.people"
        kept = {f"r{number}" for number in range(changes + 1 - KEPT_ROLLOUTS, changes + 2)}

        def are_kept() -> bool:
            return {path.name.split("-")[0] for path in folder.glob("r*-shard-*.log")} == kept

        await soon(are_kept, f"the logs of {kept} alone")
