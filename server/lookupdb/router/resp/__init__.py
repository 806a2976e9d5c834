"""RESP on the public port: commands of Redis clients become exchanges, which are answered in order."""

from __future__ import annotations
