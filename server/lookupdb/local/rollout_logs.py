"""The logs of the shard servers of rollouts: they go with their rollout, but for those of the last ones."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

KEPT_ROLLOUTS: Final = 3
"""Of the rollouts that have ended, or were given up, those whose logs stay: who looks for the cause looks there."""
_FILE: Final = re.compile(r"(r[0-9]+)-shard-[0-9]+-[0-9]+\.(?:log|ready)")


def remove_old_logs(folder: Path, running: Collection[str]) -> None:
    """Remove from ``folder`` the logs of all rollouts but the ``running`` ones and the last KEPT_ROLLOUTS others. What
    cannot be removed stays."""
    with suppress(OSError):
        for name in find_old_logs(dict(_look_around(folder)), running):
            with suppress(OSError):
                (folder / name).unlink()


def find_old_logs(files: Mapping[str, float], running: Collection[str], keep: int = KEPT_ROLLOUTS) -> list[str]:
    """Those of ``files`` (name → when it was written to last) that belong to rollouts which are neither ``running`` nor
    among the ``keep`` others that have written last. Numbers do not tell: each `up` counts from r1."""
    written: dict[str, float] = {}
    rollout_of = {name: match[1] for name in files if (match := _FILE.fullmatch(name))}
    for name, rollout in rollout_of.items():
        if rollout not in running:
            written[rollout] = max(files[name], written.get(rollout, files[name]))
    old = sorted(written, key=lambda rollout: written[rollout], reverse=True)[keep:]
    return sorted(name for name, rollout in rollout_of.items() if rollout in old)


def _look_around(folder: Path) -> Iterator[tuple[str, float]]:
    for path in folder.iterdir():
        with suppress(OSError):
            yield path.name, path.stat().st_mtime
