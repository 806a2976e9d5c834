"""Whose certificates are believed: those of this machine's authorities, and of further ones in a file."""

from __future__ import annotations

import os
import ssl

from lookupdb.errors import UsageError


def trust_also(ca_file: str | os.PathLike[str] | None, named_by: str) -> ssl.SSLContext:
    """For a client: this machine's authorities, and those in ``ca_file`` (PEM), if any. Raises UsageError, which says
    that the file was ``named_by``, if it cannot be used."""
    context = ssl.create_default_context()
    if ca_file:
        try:
            context.load_verify_locations(cafile=ca_file)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(
                f"{named_by} names {os.fspath(ca_file)}, which cannot be used: {error.strerror or error}",
                hint="give a file with a certificate in PEM: -----BEGIN CERTIFICATE-----",
            ) from error
    return context
