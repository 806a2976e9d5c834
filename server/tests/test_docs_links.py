"""Relative links in the documents lead to files that are there, and to headings that they have. None is too long."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = [".", "benchmarks", "charts/lookupdb", "e2e", "examples", "operator", "server"]
DOCUMENTS = sorted(
    [path for folder in FOLDERS for path in (ROOT / folder).glob("*.md")] + [*(ROOT / "docs").rglob("*.md")]
)
MOST_LINES = 500
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


@functools.cache
def generated() -> dict[Path, str]:
    """Return the pages that `make docs` generates: a link may lead there."""
    from docs_tools import reference  # slow, and every process that runs tests imports this module

    return {ROOT / "docs" / path: text for path, text in reference.pages().items()}


def prose(document: Path) -> str:
    return _FENCE.sub("", generated().get(document) or document.read_text())


def anchors(document: Path) -> set[str]:
    """Return the anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def relative_links(document: Path) -> Iterator[tuple[Path, str]]:
    """Target and anchor, "" for none."""
    for link in _LINK.findall(prose(document)):
        if "://" not in link and not link.startswith("mailto:"):
            path, _, anchor = link.partition("#")
            yield (Path(os.path.normpath(document.parent / path)) if path else document), anchor


def broken_links(document: Path) -> list[str]:
    return [
        f"{target}#{anchor}"
        for target, anchor in relative_links(document)
        if not (target.exists() or target in generated())
        or (anchor and target.suffix == ".md" and anchor not in anchors(target))
    ]


def test_no_relative_link_is_broken() -> None:
    """The pages that `make docs` generates are among them."""
    assert {page: links for page in (*DOCUMENTS, *generated()) if (links := broken_links(page))} == {}


def test_no_document_is_longer_than_is_read() -> None:
    lines = {document: document.read_text(encoding="utf-8").count("\n") for document in DOCUMENTS}
    assert [document for document in DOCUMENTS if lines[document] > MOST_LINES] == [], "make two of it, by noun"


def test_the_documents_that_readers_begin_with_are_among_them() -> None:
    names = {str(path.relative_to(ROOT)) for path in DOCUMENTS}
    assert {"README.md", "CONTRIBUTING.md", "docs/concepts/operator.md", "docs/benchmarks.md"} <= names
    assert sum(len(list(relative_links(document))) for document in DOCUMENTS) > 20


def test_a_missing_file_or_heading_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# A `b`, c!\n[x](a.md#a-b-c) [y](a.md#no) [z](b.md) [w](https://h/#no)\n")
    assert broken_links(tmp_path / "a.md") == [f"{tmp_path}/a.md#no", f"{tmp_path}/b.md#"]
