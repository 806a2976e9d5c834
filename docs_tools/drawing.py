"""Draws the pictures of docs/pictures: Graphviz makes an SVG from each text file. `make pictures` runs it."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parents[1] / "docs" / "pictures"
STYLE: Final = (
    *("-Gbgcolor=transparent", "-Gfontname=Helvetica", "-Gcolor=#7986cb", "-Gfontcolor=#7986cb", "-Gstyle=rounded"),
    *("-Nshape=box", "-Nstyle=filled,rounded", "-Nfillcolor=#e8eaf6", "-Ncolor=#5c6bc0", "-Nfontname=Helvetica"),
    *("-Ecolor=#7986cb", "-Efontcolor=#7986cb", "-Efontname=Helvetica", "-Efontsize=11", "-Nfontsize=12"),
)
"""Colours that are legible on light and on dark pages."""


def mark_of(source: Path) -> str:
    """The comment in a picture about its source text."""
    return f"<!-- of {source.name}, sha256 {hashlib.sha256(source.read_bytes()).hexdigest()} -->\n"


def draw(source: Path) -> None:
    """Write the picture beside its source."""
    command = ["dot", "-Tsvg", *STYLE, str(source)]
    drawn = subprocess.run(command, capture_output=True, check=True, text=True)
    picture = drawn.stdout[drawn.stdout.index("<svg") :]
    source.with_suffix(".svg").write_text(mark_of(source) + picture, encoding="utf-8")


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.dot")):
        draw(path)
