"""How the last success file was answered, kept in the run folder: who starts `up` again is not served half of the next
source. What is not there, is no such file or is of something else is as if nothing had been answered."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeGuard

from lookupdb.local.rebuilds import SuccessFileAnswer
from lookupdb.local.retried_write import RetriedWrite
from lookupdb.local.run_state import RunFolder

FILE: Final = "success-file.json"
_VERSION: Final = 1
_IDENTITY: Final = re.compile("[0-9a-f]{32}")


class KeptAnswer:
    """The file in ``folder``, of ``manifest`` and ``volume``. ``say`` gets why it cannot be written."""

    def __init__(self, folder: RunFolder, manifest: Path, volume: Path | None, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._place = {
            "version": _VERSION,
            "dataset": folder.dataset,
            "manifest": _hash_path(manifest),
            "volume": volume and _hash_path(volume),
        }
        """What a relative url begins at is a part of what the source is."""
        self._members: dict[str, Any] | None = None
        """The last that were to be written."""
        self._write = RetriedWrite(FILE, self._write_members, say)

    def read(self, content: str, gates: str) -> SuccessFileAnswer | None:
        """Return what was kept for what has the hash ``content``, and is judged by ``gates``, None if nothing was."""
        return parse_answer(self._folder.read(FILE), {**self._place, "content": content}, gates)

    def keep(self, content: str, gates: str, answer: SuccessFileAnswer) -> None:
        """Write ``answer`` unless it is there. Raises nothing: it is tried again."""
        kept = {"gates": gates, "successFile": answer.success_file, "fingerprint": answer.fingerprint}
        members = {**self._place, "content": content, **kept}
        if members != self._members or not self._folder.has_file(self._folder.path / FILE):
            self._members = members
            self._write.run()

    def close(self) -> None:
        """Write nothing any more."""
        self._write.close()

    def _write_members(self) -> None:
        """Raises NotWritten."""
        if self._members is not None:
            self._folder.write(FILE, self._members)


def parse_answer(members: object, place: dict[str, Any], gates: str) -> SuccessFileAnswer | None:
    """Return the answer that ``members`` of a file tell; None unless they have those of ``place``, and make sense. What
    nothing identifies was bad, and is built again where other ``gates`` judge it."""
    if not isinstance(members, dict) or any(members.get(name, members) != value for name, value in place.items()):
        return None
    success_file, fingerprint = members.get("successFile"), members.get("fingerprint", "")
    if not _is_identity(success_file) or not (fingerprint is None or _is_identity(fingerprint)):
        return None
    if fingerprint is None and members.get("gates") != gates:
        return None
    return SuccessFileAnswer(success_file, fingerprint)


def _hash_path(path: Path) -> str:
    """32 hex digits: a path need not be UTF-8, as JSON is."""
    return hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:32]


def _is_identity(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and _IDENTITY.fullmatch(value) is not None
