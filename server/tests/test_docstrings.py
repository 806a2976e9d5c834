"""Docstrings name what is there: a reader who looks for a name that they give finds it."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pytest

REPOSITORY: Final = Path(__file__).resolve().parents[2]
DESCRIBED: Final = ("server/lookupdb", "operator/lookupdb_operator")
OTHER_CODE: Final = ("crds/*.yaml", "charts/lookupdb/values.yaml", "server/native/src/**/*.rs", "server/lookupdb/*.pyi")
NOT_OURS: Final = frozenset(
    {
        *("camelCase", "snake_case", "r34"),
        *("leaf_pages", "Private_Dirty"),
        *("LOOKUPDB_GENERATION", "LOOKUPDB_PORT", "lookupdb_router_"),
    }
)
"""Samples, names of LMDB and the kernel, and names that are composed at run time."""

_STRING_OR_PROSE = re.compile(r'("(?!"")(?:[^"\\\n]|\\.)*")|""".*?"""|#[^\n]*', re.DOTALL)
_NAME = re.compile(r"``([A-Za-z_][\w.]*)(?:\(\))?``")


MODULES: Final = sorted(
    str(path.relative_to(REPOSITORY)) for root in DESCRIBED for path in (REPOSITORY / root).rglob("*.py")
)


@dataclass(frozen=True)
class Module:
    """The docstrings and classes of a module. Its syntax tree is not kept: four hundred of them are half a million
    objects, which every collection of garbage in this process would go through."""

    docstrings: tuple[tuple[int, str], ...]
    """Docstrings of modules, classes, functions and members, with their lines."""
    classes: tuple[tuple[str, frozenset[str], frozenset[str]], ...]
    """Name, bases, and the names that it defines or assigns to."""


@cache
def module(path: str) -> Module:
    tree = ast.parse((REPOSITORY / path).read_text())
    docstrings: list[tuple[int, str]] = []
    classes: list[tuple[str, frozenset[str], frozenset[str]]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            bases = frozenset(base.id for base in node.bases if isinstance(base, ast.Name))
            classes.append((node.name, bases, frozenset(_names_within(node))))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.append((node.lineno, node.value.value))
    return Module(tuple(docstrings), tuple(classes))


@cache
def words_of_the_code() -> frozenset[str]:
    """All names, words in strings other than docstrings, and words in files that are not Python."""
    words: set[str] = set()
    for path in MODULES:
        words |= {Path(path).stem, Path(path).parent.name}
        code = _STRING_OR_PROSE.sub(lambda found: found[1] or "", (REPOSITORY / path).read_text())
        words |= set(re.findall(r"\w+", code))
    for pattern in OTHER_CODE:
        for path_of_other in REPOSITORY.glob(pattern):
            words |= set(re.findall(r"\w+", path_of_other.read_text()))
    return frozenset(words)


@cache
def members_of_classes() -> dict[str, frozenset[str]]:
    """Class → the names that it, or one of its bases among ours, defines or assigns to."""
    own: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for path in MODULES:
        for name, bases_here, names in module(path).classes:
            own.setdefault(name, set()).update(names)
            bases.setdefault(name, set()).update(bases_here)

    def inherited(name: str) -> set[str]:
        return own.get(name, set()).union(*(inherited(base) for base in bases.get(name, ())))

    return {name: frozenset(inherited(name)) for name in own}


def _names_within(node: ast.ClassDef) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            yield inner.name
        elif isinstance(inner, ast.Attribute):
            yield inner.attr
        elif isinstance(inner, ast.Name):
            yield inner.id


def is_found(name: str) -> bool:
    parts = [part for part in name.split(".") if part]
    if not {*parts} - NOT_OURS <= words_of_the_code():
        return False
    members = members_of_classes()
    return all(member in members[owner] for owner, member in itertools.pairwise(parts) if owner in members)


def test_what_docstrings_name_is_there() -> None:
    missing = [
        f"{path}:{line}: {name}"
        for path in MODULES
        for line, text in module(path).docstrings
        for name in _NAME.findall(text)
        if not is_found(name)
    ]
    assert missing == []


@pytest.mark.parametrize("name", ["no_such_function_at_all", "DatasetStatus.no_such_member", "ClientPhase.run"])
def test_what_is_not_there_is_seen(name: str) -> None:
    assert not is_found(name)


@pytest.mark.parametrize(
    "name", ["DatasetStatus.table", "lifecycle.advance", "spec.rollout.keepPrevious", "Link._live"]
)
def test_what_is_there_is_found(name: str) -> None:
    assert is_found(name)
