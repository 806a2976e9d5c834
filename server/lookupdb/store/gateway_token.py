"""The token that a gateway is shown. Whoever rotates it replaces the file, so it is read for each request."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from lookupdb.errors import StoreDenied, UsageError
from lookupdb.store.gateway_wire import TOKEN_FILE_VARIABLE
from lookupdb.tokens import MAX_TOKEN_BYTES

_TOKEN: Final = re.compile(rb"[A-Za-z0-9._~+/=-]+")
_HINT: Final = f"{TOKEN_FILE_VARIABLE} names the file of a service account's token, which a pod's projected volume has"


class TokenFile:
    """The file that the environment names."""

    def __init__(self, url: str) -> None:
        """Raises UsageError if it names none."""
        path = os.environ.get(TOKEN_FILE_VARIABLE)
        if not path:
            raise UsageError(f"{url} is a gateway, and {TOKEN_FILE_VARIABLE} is not set", hint=_HINT)
        self.path: Final = Path(path)

    def read(self) -> str:
        """The token of this moment. Raises StoreDenied."""
        try:
            with self.path.open("rb") as file:
                content = file.read(MAX_TOKEN_BYTES + 2).strip()
        except OSError as error:
            raise StoreDenied(
                f"cannot read the token for the gateway from {self.path}: {error.strerror}", hint=_HINT
            ) from error
        if not content:
            raise StoreDenied(f"the token for the gateway is empty: {self.path}", hint=_HINT)
        if len(content) > MAX_TOKEN_BYTES or not _TOKEN.fullmatch(content):
            raise StoreDenied(
                f"{self.path} holds no token for the gateway: expected at most {MAX_TOKEN_BYTES} bytes of one word",
                hint=_HINT,
            )
        return content.decode("ascii")
