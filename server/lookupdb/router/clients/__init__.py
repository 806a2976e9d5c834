"""What stands between clients and lookups in whichever protocol: the ports, a connection and its life, TLS."""

from __future__ import annotations
