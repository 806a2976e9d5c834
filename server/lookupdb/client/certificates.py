"""Whom a client trusts, and the certificate that it shows."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from lookupdb.client.settings import ClientSettings
from lookupdb.errors import UsageError

if TYPE_CHECKING:
    import ssl


class TlsContexts:
    """Makes the context of connections, anew when one of its files has changed: certificates are replaced, too."""

    def __init__(self, settings: ClientSettings) -> None:
        self._files = settings.ca_file, settings.cert_file, settings.key_file
        self._lock = threading.Lock()
        self._identity: tuple[object, ...] | None = None
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """For a new connection. Raises UsageError if a file cannot be used."""
        import ssl  # takes as long, and as much memory, as all else of a client: only who speaks TLS pays

        with self._lock:
            try:
                identity = tuple(_identify(file) for file in self._files if file is not None)
                if self._context is None or identity != self._identity:
                    authorities, certificate, key = self._files
                    context = ssl.create_default_context(cafile=authorities)
                    if certificate is not None:
                        context.load_cert_chain(certificate, key)
                    self._context, self._identity = context, identity
            except (OSError, ssl.SSLError) as error:
                if self._context is None:
                    files = ", ".join(os.fspath(file) for file in self._files if file is not None)
                    raise UsageError(
                        f"no TLS with the files {files}: {error.strerror or error}",
                        hint="ca_file and cert_file hold certificates in PEM, key_file the key of cert_file's",
                    ) from error
            return self._context  # a pair that is half replaced: the one before is good until it is whole


def _identify(file: str | os.PathLike[str]) -> tuple[int, int, int]:
    found = os.stat(file)  # noqa: PTH116
    return found.st_mtime_ns, found.st_ino, found.st_size
