"""Which certificates of routers `lookupdb get` trusts, and what to do about one that it does not."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from lookupdb.errors import UsageError

_BY_FILE: Final = "give the certificate of the authority that signed it, by --ca-file or in LOOKUPDB_CA_FILE"
_HINTS: Final = {
    9: "see to a valid one, or to the clock of this machine",
    10: "see to a valid one, or to the clock of this machine",
    62: "ask by a name that the certificate has",
    64: "ask by a name that the certificate has",
}
"""By X509_V_ERR_… of OpenSSL: not valid yet, expired, another host's name, another address."""
_WANTS_A_CERTIFICATE: Final = ("CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE", "BAD_CERTIFICATE")
"""What OpenSSL's reason ends with when a server has asked for a client's certificate in vain."""


@dataclass(frozen=True)
class Trust:
    """The authorities of this machine, or those in ``file`` (PEM) in their place."""

    file: Path | None = None
    context: ssl.SSLContext = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Raises UsageError if ``file`` cannot be used."""
        try:
            context = ssl.create_default_context(cafile=None if self.file is None else str(self.file))
        except (OSError, ssl.SSLError) as error:
            raise UsageError(
                f"--ca-file names {self.file}, which cannot be used: {error.strerror or error}",
                hint="give a file with a certificate in PEM: -----BEGIN CERTIFICATE-----",
            ) from error
        object.__setattr__(self, "context", context)

    def hint_for(self, error: BaseException) -> str | None:
        """What to do when a request has ended in ``error``; None if it has nothing to do with trust."""
        if isinstance(error, ssl.SSLCertVerificationError):
            return _HINTS.get(error.verify_code, self._missing_authority)
        if not isinstance(error, ssl.SSLError):
            return None
        if (error.reason or "").endswith(_WANTS_A_CERTIFICATE):
            return "the router wants its clients to have a certificate, and `lookupdb get` has none: ask by curl"
        return "give its URL with http: if it is a router without TLS"

    @cached_property
    def _missing_authority(self) -> str:
        return _BY_FILE if self.file is None else f"{self.file} does not have the authority that signed it"
