"""What both client protocols share: the ports, the life of a connection, TLS."""

from __future__ import annotations
