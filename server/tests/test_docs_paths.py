"""Files, folders, modules and names that the documents mention are there. What a document says of others' files (a
user's people.csv, a store's manifest.json) is not looked for: only Python files, and paths within this repository."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SKIPPED_FOLDERS = {
    ".venv",
    ".tools",
    ".git",
    ".bench",
    ".lookupdb",
    "site",
    ".mypy_cache",
    ".pytest_cache",
    "node_modules",
}
SOURCES = ("server/lookupdb", "operator/lookupdb_operator", "server/tests", "operator/tests", "server", "operator", ".")
"""Folders that a path in a document may begin in, besides the document's own."""
TOP = "|".join(re.escape(path.name) for path in ROOT.iterdir() if path.is_dir() and path.name not in SKIPPED_FOLDERS)


def find_documents() -> Iterator[Path]:
    for folder, subfolders, files in os.walk(ROOT):
        subfolders[:] = {*subfolders} - SKIPPED_FOLDERS
        yield from (Path(folder, name) for name in files if name.endswith(".md"))


DOCUMENTS = sorted(find_documents())
BARE_NAMES = {
    found.name
    for folder in ("server", "operator", "benchmarks", "e2e", "docs", "examples")
    for found in (ROOT / folder).rglob("*")
    if found.suffix == ".py" or (found.is_dir() and not found.name.startswith((".", "_")))
}

_CODE = re.compile(r"`([^`\n]+)`")
_PYTHON_FILE = re.compile(r"(?<![\w./-])((?:[\w-]+/)*[\w-]+\.py)\b")
_OWN_PATH = re.compile(rf"(?<![\w./~-])((?:{TOP})/[\w./*-]*)")
_FOLDER = re.compile(r"^((?:[\w-]+/)+)$")
_MODULE = re.compile(r"(?<![\w./-])((?:lookupdb|lookupdb_operator|benchmarks|e2e)(?:\.[a-z_]+)+)(?![\w/])")


def mentioned(document: Path) -> Iterator[str]:
    """Python files, paths that begin with a folder of the repository, and folders, where they stand as code."""
    for code in _CODE.findall(document.read_text()):
        yield from _PYTHON_FILE.findall(code)
        yield from _FOLDER.findall(code) or (path.rstrip(".") for path in _OWN_PATH.findall(code))


def exists(path: str, document: Path) -> bool:
    """A bare name may be in any folder, because a table that names the folder does not repeat it for each file."""
    if path.rstrip("/") in BARE_NAMES:
        return True
    return any(any((ROOT / folder).glob(path)) for folder in (*SOURCES, document.parent.relative_to(ROOT)))


def is_module(name: str) -> bool:
    """Return whether ``name`` is a module or package of the project, defined in one, or named by a package."""
    *parents, last = name.split(".")
    places = [ROOT / source / Path(*parents) for source in ("server", "operator", ".")]
    return any(
        (place / last).is_dir()
        or any(place.joinpath(f"{last}{suffix}").is_file() for suffix in (".py", ".pyi"))
        or (place.with_suffix(".py").is_file() and last in place.with_suffix(".py").read_text())
        or ((place / "__init__.py").is_file() and f'"{last}"' in (place / "__init__.py").read_text())
        for place in places
    )


def missing(document: Path) -> list[str]:
    text = document.read_text()
    paths = {path for path in mentioned(document) if not exists(path, document)}
    modules = {
        name for name in _MODULE.findall(text) if not {"dev", "md"} & set(name.split(".")) and not is_module(name)
    }
    return sorted(paths | modules)


def test_what_a_document_mentions_is_there() -> None:
    assert {document: names for document in DOCUMENTS if (names := missing(document))} == {}


def test_what_is_not_there_is_found(tmp_path: Path) -> None:
    page = ROOT / "docs" / "page.md"
    assert exists("gates.py", page)
    assert not exists("gate.py", page)
    assert exists("builder/gates.py", page)
    assert exists("server/tests/test_docs_paths.py", page)
    assert exists("plan/", page)
    assert not exists("plane/", page)
    assert is_module("lookupdb.builder.gates")
    assert is_module("lookupdb.builder.gates.check_min_records")
    assert not is_module("lookupdb.builder.gate")
    assert is_module("lookupdb.open")
    assert not is_module("lookupdb.close")
    document = tmp_path / "page.md"
    document.write_text(
        "`build/gate.py`, `operator/none.md` and `crds/`; `people.csv`, s3://e2e/x and lookupdb.cli.gone.\n"
    )
    assert list(mentioned(document)) == ["build/gate.py", "operator/none.md", "crds/"]


def test_the_pages_for_developers_are_among_them() -> None:
    names = {str(path.relative_to(ROOT)) for path in DOCUMENTS}
    assert {
        "README.md",
        "CONTRIBUTING.md",
        "docs/concepts/architecture.md",
        "docs/concepts/operator.md",
        "benchmarks/README.md",
    } <= names
