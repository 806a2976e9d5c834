"""Phrases that many messages share."""

from __future__ import annotations


def format_count(number: int, noun: str) -> str:
    """ "1 record", "1,234 records"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
