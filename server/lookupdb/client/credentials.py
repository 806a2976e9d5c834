"""The token that a client shows: as it was given, or as it stands in a file that somebody replaces now and then."""

from __future__ import annotations

import os
import re
import time
from typing import Final

from lookupdb.client.settings import FilePath
from lookupdb.errors import UsageError

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]{1,16384}=*", re.ASCII)
_LOOK_SECONDS: Final = 1.0
"""A file is looked at once in so long: a token that is replaced goes on for minutes."""

_Identity = tuple[int, int, int]


class TokenSource:
    """Makes the Authorization line. Raises UsageError, which never shows a token, if there is no token to be had."""

    def __init__(self, token: str | None, file: FilePath | None) -> None:
        self._file = file
        self._identity: _Identity | None = None
        self._look_at = 0.0
        self._line = b"" if token is None else _render(token, "token")

    def line(self) -> bytes:
        """The line of the head; empty without a token."""
        if self._file is not None and time.monotonic() >= self._look_at:
            self._look()
        return self._line

    def refresh(self, refused: bytes) -> bool:
        """Read the file now, because the line ``refused`` was not accepted. Whether there is another one now."""
        if self._file is None:
            return False
        if self._line == refused:  # else another caller, or the time, has been quicker
            self._identity = None
            self._look()
        return self._line != refused

    def _look(self) -> None:
        """Read the file if it has changed. While it cannot be read, or is half written, the token before goes on."""
        assert self._file is not None
        try:
            found = os.stat(self._file)  # noqa: PTH116 - no pathlib for so little
            identity = found.st_mtime_ns, found.st_ino, found.st_size
            if identity != self._identity:
                with open(self._file, encoding="ascii") as file:  # noqa: PTH123
                    line = _render(file.read(1 << 15).strip(), os.fspath(self._file))
                self._line, self._identity = line, identity
        except (OSError, UnicodeDecodeError) as error:
            if not self._line:
                raise UsageError(f"the token file {os.fspath(self._file)} cannot be read: {error}") from error
        except UsageError:
            if not self._line:
                raise
        self._look_at = time.monotonic() + _LOOK_SECONDS


def _render(token: str, where: str) -> bytes:
    if not _TOKEN.fullmatch(token):
        raise UsageError(f"{where} holds no token: one has 1 to 16384 of A-Z a-z 0-9 - . _ ~ + /")
    return f"Authorization: Bearer {token}\r\n".encode()
