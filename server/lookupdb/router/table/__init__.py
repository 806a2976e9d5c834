"""The routing table: read, judged, brought to life, put into effect."""

from __future__ import annotations
