"""Which certificates of routers `lookupdb get` and `load` trust, and what to do about one that they do not."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from lookupdb.errors import UsageError
from lookupdb.tls_failures import find_certificate_refusal, find_trust_hint

_BY_FILE: Final = "give the certificate of the authority that signed it, by --ca-file or in LOOKUPDB_CA_FILE"
_SHOWN_BY_OTHERS: Final = (
    "this command has none to show: ask by lookupdb.client with cert_file and key_file, or by curl"
)


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
            return find_trust_hint(error) or self._missing_authority
        if not isinstance(error, ssl.SSLError):
            return None
        if find_certificate_refusal(error, has_shown_one=False):
            return _SHOWN_BY_OTHERS
        return "give its URL with http: if it is a router without TLS"

    @cached_property
    def _missing_authority(self) -> str:
        return _BY_FILE if self.file is None else f"{self.file} does not have the authority that signed it"
