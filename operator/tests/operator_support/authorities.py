"""Clients of servers that speak plain HTTP."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from unittest.mock import patch


@contextlib.contextmanager
def without_authorities() -> Iterator[None]:
    """Each client loads the system's certificate authorities, which takes most of what a short test does, and nothing
    here speaks TLS.
    """
    with patch.object(ssl.SSLContext, "load_default_certs"):
        yield
