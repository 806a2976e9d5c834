"""Clients of servers that speak plain HTTP."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from unittest.mock import patch


@contextlib.contextmanager
def without_authorities() -> Iterator[None]:
    """Make clients without the system's certificate authorities, which take most of a short test to load. Nothing here
    uses TLS."""
    with patch.object(ssl.SSLContext, "load_default_certs"):
        yield
