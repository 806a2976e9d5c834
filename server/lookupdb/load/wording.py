"""Figures of a load as people read them."""

from __future__ import annotations


def clean(text: str) -> str:
    """``text`` in one line, without what would control a terminal, or cannot stand in XML."""
    return "".join(character if character.isprintable() else "?" for character in text)


NO_LATENCY = "–"
"""What is shown where there is no answer to measure."""


def format_microseconds(microseconds: float | None) -> str:
    """With three digits: ``850 µs``, ``1.23 ms``, ``4.5 s``; ``–`` for None."""
    if microseconds is None:
        return NO_LATENCY
    if microseconds < 1000:
        return f"{microseconds:.0f} µs"
    if microseconds < 1e6:
        return f"{microseconds / 1e3:.3g} ms"
    return f"{microseconds / 1e6:.3g} s"


def format_rate(rate: float) -> str:
    """A second."""
    return f"{rate:,.0f}/s" if rate >= 100 else f"{rate:.3g}/s"
