"""The size budget of `make check`: what exceeds it is found, and what is measured is what is there."""

from __future__ import annotations

from pathlib import Path

import pytest

import size_budget
from size_budget import Size, find_excess, measure

BUDGET = {"files": 3, "functions-per-1000": 50, "files-per-folder": 2, "lines": {"a": 100, "rust": 10}}
SIZE = Size(files=3, lines=100, functions=5, most_files=2)


def test_what_is_within_the_budget_passes() -> None:
    assert find_excess({"a": SIZE}, 10, BUDGET) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"files": 4}, "files: expected at most 3, found 4"),
        ({"lines": 101}, "lines of a: expected at most 100, found 101"),
        ({"functions": 6}, "functions per 1,000 lines: expected at most 50, found 60.0"),
        ({"most_files": 3}, "files in a folder of a: expected at most 2, found 3"),
    ],
)
def test_each_limit_is_checked(change: dict[str, int], expected: str) -> None:
    assert find_excess({"a": SIZE._replace(**change)}, 10, BUDGET) == [expected]


def test_kernels_and_packages_are_checked() -> None:
    assert find_excess({"a": SIZE}, 11, BUDGET) == ["lines of Rust: expected at most 10, found 11"]
    assert find_excess({"b": SIZE}, 0, BUDGET) == [
        "lines of b: expected at most 0, found 100",
        "lines of a: there is no such package; remove it from the budget",
    ]


def test_a_package_is_measured_with_its_folders(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "one.py").write_text("def f() -> None:\n    async def g() -> None: ...\n")
    (tmp_path / "inner" / "two.py").write_text("class A:\n    def h(self) -> None: ...\n\n")
    assert measure(tmp_path) == Size(files=3, lines=5, functions=3, most_files=2)
    assert measure(tmp_path, is_nested=False) == Size(files=2, lines=2, functions=2, most_files=2)


def test_every_package_has_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files alone are counted here: `make check` measures the rest."""
    monkeypatch.setattr(size_budget, "measure", lambda folder, **_: SIZE._replace(files=len([*folder.rglob("*.py")])))
    sizes = size_budget.measure_packages()
    assert {"lookupdb", "lookupdb.builder", "lookupdb_operator.plan"} <= set(sizes)
    assert sum(size.files for size in sizes.values()) > 100
