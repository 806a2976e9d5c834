"""The RESP half of the router: commands of Redis' clients become exchanges, which are answered in their order."""

from __future__ import annotations
