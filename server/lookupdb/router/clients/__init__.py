"""The common part of both client protocols: the ports, the life of a connection, TLS."""

from __future__ import annotations
