"""What stands between the clients of a worker and its lookups: TLS, and who may look up. What both go by is read from
files that others replace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lookupdb.route.access.gatekeeper import Gatekeeper
from lookupdb.route.access.settings import AccessSettings
from lookupdb.route.access.watch import AccessWatch
from lookupdb.runtime import start as process_start

if TYPE_CHECKING:
    from lookupdb.route.clients.certificates import Certificates


class Entrance:
    """Watched from now on until ``stop``. ``on_change`` is called whenever ``describe`` may say something else."""

    def __init__(
        self, config: Mapping[str, Any], counts: memoryview, on_change: Callable[[], None], *, logs: bool
    ) -> None:
        self._on_change = on_change
        self.certificates = self._watch_certificates(config["tls"], counts) if config["tls"] else None
        """None: clients speak plain HTTP."""
        self._access = self._watch_access(config["access"], logs=logs) if config["access"] else None

    def _watch_certificates(self, files: dict[str, Any], counts: memoryview) -> Certificates:
        process_start.take_in_tls()
        from lookupdb.route.clients.certificates import Certificates, TlsFiles  # here, because it brings OpenSSL

        certificates = Certificates(TlsFiles.from_config(files), counts, self._on_change)
        certificates.start()
        return certificates

    def _watch_access(self, members: dict[str, Any], *, logs: bool) -> AccessWatch:
        access = AccessWatch(AccessSettings.from_json(members), self._on_change, logs=logs)
        access.start()
        return access

    @property
    def gatekeeper(self) -> Gatekeeper | None:
        """Who lets clients in; None: anybody may ask."""
        return None if self._access is None else self._access.gatekeeper

    @property
    def is_open(self) -> bool:
        """Whether somebody could be let in."""
        has_certificate = self.certificates is None or self.certificates.context is not None
        return has_certificate and (self._access is None or self._access.gatekeeper.can_judge)

    def describe(self, status: dict[str, Any]) -> dict[str, Any]:
        """``status``, and what is to be said of this. What keeps everybody out is the ``error``, and so is a
        certificate that is not taken, unless the routing table is in error."""
        error = status["error"]
        if self.certificates is not None:
            error = error or self.certificates.problem
        if self._access is None:
            return {**status, "error": error}
        described = self._access.describe()
        if error is None and not self._access.gatekeeper.can_judge:
            error = "; ".join(described["problems"])
        return {**status, "error": error, "access": described}

    async def wait_certificate(self, stop: asyncio.Event) -> bool:
        """Return once there is a certificate, if one is needed, or ``stop`` is set. Whether there is."""
        if self.certificates is None:
            return True
        waits = [asyncio.create_task(event.wait()) for event in (self.certificates.is_loaded, stop)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for waiting in waits:
            waiting.cancel()
        return self.certificates.context is not None

    def stop(self) -> None:
        """Look no more."""
        for watched in (self.certificates, self._access):
            if watched is not None:
                watched.stop()
