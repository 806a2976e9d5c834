"""Figures of a load as people read them."""

from __future__ import annotations


def format_microseconds(microseconds: float) -> str:
    """With three digits: ``850 µs``, ``1.23 ms``, ``4.5 s``."""
    if microseconds < 1000:
        return f"{microseconds:.0f} µs"
    if microseconds < 1e6:
        return f"{microseconds / 1e3:.3g} ms"
    return f"{microseconds / 1e6:.3g} s"


def format_rate(rate: float) -> str:
    """A second."""
    return f"{rate:,.0f}/s" if rate >= 100 else f"{rate:.3g}/s"
