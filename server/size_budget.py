"""Print the size of each package, and fail if it exceeds its budget in ``[tool.lookupdb.size]`` of pyproject.toml.

The budget keeps the code from growing unnoticed: a commit that needs more raises it in the same diff, and says why.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

REPOSITORY: Final = Path(__file__).resolve().parents[1]
ROOTS: Final = ("server/lookupdb", "operator/lookupdb_operator")
KERNELS: Final = "server/native/src"


class Size(NamedTuple):
    """The size of one package."""

    files: int
    lines: int
    functions: int
    most_files: int
    """Number of files in its largest folder."""


def measure(folder: Path, *, is_nested: bool = True) -> Size:
    """Return the size of the Python files in ``folder``, with or without its subfolders."""
    paths = sorted(folder.rglob("*.py") if is_nested else folder.glob("*.py"))
    sources = [path.read_text(encoding="utf-8") for path in paths]
    nodes = (node for source in sources for node in ast.walk(ast.parse(source)))
    folders = [path.parent for path in paths]
    return Size(
        files=len(paths),
        lines=sum(len(source.splitlines()) for source in sources),
        functions=sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in nodes),
        most_files=max(map(folders.count, folders), default=0),
    )


def measure_packages(repository: Path = REPOSITORY) -> dict[str, Size]:
    """Return the size of each package; a root's own modules are a package too."""
    sizes = {}
    for root in ROOTS:
        folder = repository / root
        sizes[folder.name] = measure(folder, is_nested=False)
        packages = sorted(path.parent for path in folder.glob("*/__init__.py"))
        sizes |= {f"{folder.name}.{package.name}": measure(package) for package in packages}
    return sizes


def find_excess(sizes: Mapping[str, Size], kernel_lines: int, budget: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each limit that is exceeded or missing."""
    allowed: Mapping[str, int] = budget["lines"]
    files, lines = sum(size.files for size in sizes.values()), sum(size.lines for size in sizes.values())
    density = round(1000 * sum(size.functions for size in sizes.values()) / lines, 1)
    checks = [("files", files, budget["files"]), ("functions per 1,000 lines", density, budget["functions-per-1000"])]
    checks += [(f"lines of {name}", size.lines, allowed.get(name, 0)) for name, size in sizes.items()]
    checks += [
        (f"files in a folder of {name}", size.most_files, budget["files-per-folder"]) for name, size in sizes.items()
    ]
    checks.append(("lines of Rust", kernel_lines, allowed["rust"]))
    excess = [f"{what}: expected at most {limit:,}, found {found:,}" for what, found, limit in checks if found > limit]
    gone = sorted(set(allowed) - set(sizes) - {"rust"})
    return excess + [f"lines of {name}: there is no such package; remove it from the budget" for name in gone]


def main() -> int:
    """Print a table of all packages; return 1 if a limit is exceeded."""
    budget = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["lookupdb"]["size"]
    sizes = measure_packages()
    kernels = [path.read_text(encoding="utf-8") for path in (REPOSITORY / KERNELS).rglob("*.rs")]
    kernel_lines = sum(len(source.splitlines()) for source in kernels)
    print(f"{'package':32} {'files':>5} {'lines':>7} {'budget':>7} {'functions/1,000':>16}")
    for name, size in sizes.items():
        density = 1000 * size.functions / max(size.lines, 1)
        print(f"{name:32} {size.files:5} {size.lines:7,} {budget['lines'].get(name, 0):7,} {density:16.0f}")
    files, lines = sum(size.files for size in sizes.values()), sum(size.lines for size in sizes.values())
    density = 1000 * sum(size.functions for size in sizes.values()) / lines
    print(f"{'Rust':32} {len(kernels):5} {kernel_lines:7,} {budget['lines']['rust']:7,}")
    print(f"{'all':32} {files + len(kernels):5} {lines + kernel_lines:7,} {'':7} {density:16.0f}")
    excess = find_excess(sizes, kernel_lines, budget)
    for sentence in excess:
        print(f"size budget exceeded: {sentence}", file=sys.stderr)
    if excess:
        print("Remove code, or raise [tool.lookupdb.size] in pyproject.toml and say why.", file=sys.stderr)
    return 1 if excess else 0


if __name__ == "__main__":
    sys.exit(main())
