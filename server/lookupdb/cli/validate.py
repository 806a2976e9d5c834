"""`lookupdb validate`: check manifests without a cluster, a source or a store."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import click

from lookupdb.dataset.spec import MAX_MANIFEST_BYTES, parse_resource, read_documents, read_manifest
from lookupdb.errors import InvalidManifest, UsageError
from lookupdb.wording import escape_controls, format_count

_ENDINGS: Final = (".yaml", ".yml", ".json")
_KIND: Final = "LookupDataset"
_OUR_KIND: Final = re.compile(rb'^kind:\s*["\']?LookupDataset\b|"kind"\s*:\s*"LookupDataset"', re.MULTILINE)


@click.command()
@click.argument(
    "paths", metavar="FILE|FOLDER...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path)
)
def command(paths: tuple[Path, ...]) -> int:
    """Check manifests, and print everything that is wrong with them: the file, the field, and what to write.

    \b
        lookupdb validate people.yaml
        lookupdb validate manifests/

    Reads no source, and needs no network, cluster or store: use it before a commit and in CI. It checks what a
    cluster checks when you apply a manifest, except rules that compare it with the one before. In a FOLDER and its
    subfolders it checks the files .yaml, .yml and .json that hold a LookupDataset, and ignores others. It skips
    hidden subfolders, such as .lookupdb. `lookupdb build -f FILE --explain` also looks at the source.

    Exit codes: 0 all are valid, 1 there are problems, 2 a path does not exist, or a folder has no manifest.
    """
    files = [file for path in paths for file in (_list_manifests(path) if path.is_dir() else [path])]
    count = 0
    for file in files:
        for problem in _find_problems(file):
            count += 1
            click.echo(escape_controls(f"{file}: {problem}"))
    click.echo(f"{format_count(len(files), 'file')}, {format_count(count, 'problem')}", err=True)
    return 1 if count else 0


def _find_problems(file: Path) -> list[str]:
    """Return the problems of all datasets in ``file``. Other documents beside them are not ours."""
    problems: list[str] = []
    try:
        documents = read_documents(file)
        datasets = [document for document in documents if isinstance(document, dict) and document.get("kind") == _KIND]
        if not datasets:
            read_manifest(file)
    except InvalidManifest as error:
        return [re.sub(f"^{re.escape(str(file))}:? ", "", problem) for problem in error.problems]
    for number, dataset in enumerate(datasets, 1):
        place = f"dataset {number}: " if len(datasets) > 1 else ""
        problems += [place + problem for problem in _check_dataset(dataset, file)]
    return problems


def _check_dataset(resource: dict[str, Any], file: Path) -> tuple[str, ...]:
    try:
        parse_resource(resource, file.resolve().parent)
    except InvalidManifest as error:
        return error.problems
    return ()


def _list_manifests(folder: Path) -> list[Path]:
    """Raises UsageError if there are none."""
    files = [path for path in sorted(folder.rglob("*")) if path.suffix in _ENDINGS and path.is_file()]
    shown = [file for file in files if not any(part[0] == "." for part in file.relative_to(folder).parts[:-1])]
    found = [file for file in shown if _may_hold_dataset(file)]
    if not found:
        raise UsageError(f"no file in {folder} holds a {_KIND}", hint="name the files, or another folder")
    return found


def _may_hold_dataset(file: Path) -> bool:
    try:
        with file.open("rb") as content:
            return bool(_OUR_KIND.search(content.read(MAX_MANIFEST_BYTES)))
    except OSError:
        return True  # reading it reports why
