"""The routing table: parse, check, connect, put into effect."""

from __future__ import annotations
