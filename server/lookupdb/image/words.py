"""What a registry says, as it may be shown."""

from __future__ import annotations


def show_line(text: str, max_characters: int) -> str:
    """``text`` on one line, of ``max_characters`` at most, without what a terminal would obey."""
    line = " ".join("".join(character if character.isprintable() else " " for character in text).split())
    return line[:max_characters]
