"""MkDocs' hook: adds generated pages and the documents in the repository's root to the site, and rewrites links.

Pages link to files of the repository, so their links work in the repository too. Here a link to another document
becomes a link to its page, and a link to any other file a link to its copy in the site.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[1]
PAGES: Final = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing/index.md",
    "CHANGELOG.md": "contributing/changelog.md",
    "SECURITY.md": "operations/security.md",
    "benchmarks/README.md": "contributing/benchmarking.md",
    "charts/lookupdb/README.md": "reference/chart-objects.md",
}
"""Documents outside docs/ → their pages."""
COPIES: Final = "files"
"""The folder of the site with the files that pages link to."""
LINK: Final = re.compile(r"(\]\()([^)\s]+)(\))")
FENCE: Final = re.compile(r"^( *)```(\w+) ([^\n]+)$", re.MULTILINE)
_BLOCK: Final = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add generated pages, documents outside docs/, and the files that pages link to."""
    from mkdocs.structure.files import File

    from docs_tools import reference

    undescribed = reference.find_undescribed()
    if undescribed:
        raise SystemExit("Nothing describes these: " + ", ".join(undescribed))
    for path, text in reference.pages().items():
        files.append(File.generated(config, path, content=text))
    for source, path in PAGES.items():
        files.append(File.generated(config, path, content=(ROOT / source).read_text(encoding="utf-8")))
    for path in sorted({*_targets(files)}):
        if not path.startswith("docs/") and (ROOT / path).is_file():
            files.append(File.generated(config, f"{COPIES}/{path}", abs_src_path=str(ROOT / path)))
    return files


def _targets(files: Files) -> Iterator[str]:
    for file in files.documentation_pages():
        for _, link, _ in LINK.findall(_BLOCK.sub("", file.content_string)):
            target, _ = _resolve(file.src_uri, link)
            if target and target not in PAGES:
                yield target


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links, and words after the language of a code block, such as a file name. A search lists pages for users
    before pages for developers."""
    if page.file.src_uri.startswith(("decisions/", "contributing/")):
        page.meta["search"] = {"boost": 0.3}
    blocks: list[str] = []

    def keep(found: re.Match[str]) -> str:
        blocks.append(FENCE.sub(_title, found[0], count=1))
        return f"\0{len(blocks) - 1}\0"

    text = _BLOCK.sub(keep, markdown)
    text = LINK.sub(lambda found: f"{found[1]}{_rewrite(page.file.src_uri, found[2])}{found[3]}", text)
    return re.sub(r"\0(\d+)\0", lambda found: blocks[int(found[1])], text)


def _title(found: re.Match[str]) -> str:
    indent, language, words = found.groups()
    return f'{indent}```{language} title="{words}"' if "." in words else f"{indent}```{language}"


def _resolve(page: str, link: str) -> tuple[str, str]:
    """Return the repository path that a link of ``page`` leads to, and its anchor; "" for another kind of link."""
    if "://" in link or link.startswith(("#", "mailto:")):
        return "", ""
    path, _, anchor = link.partition("#")
    source = next((name for name, target in PAGES.items() if target == page), f"docs/{page}")
    return os.path.normpath(os.path.join(os.path.dirname(source), path)), anchor  # noqa: PTH118, PTH120 - of a link


def _rewrite(page: str, link: str) -> str:
    target, anchor = _resolve(page, link)
    if not target:
        return link
    place = PAGES.get(target) or (target.removeprefix("docs/") if target.startswith("docs/") else f"{COPIES}/{target}")
    relative = os.path.relpath(place, os.path.dirname(page) or ".")  # noqa: PTH120 - of a link
    return f"{relative}#{anchor}" if anchor else relative
