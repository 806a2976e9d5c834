"""HTTP on the public port."""

from __future__ import annotations
