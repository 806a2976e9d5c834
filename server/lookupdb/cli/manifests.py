"""`lookupdb init` and `lookupdb validate`: write a manifest for a source, and check manifests without a cluster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import click

from lookupdb.cli.options import FILE, option
from lookupdb.cli.program import temporary_folder
from lookupdb.dataset.spec import MAX_MANIFEST_BYTES, parse_resource, read_documents, read_manifest
from lookupdb.errors import InvalidManifest, UsageError
from lookupdb.wording import escape_controls, format_command, format_count

_STDOUT: Final = Path("-")


@click.command()
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True, type=click.Path())
@option("--output", "-o", type=FILE, help="The manifest to write; - prints it.  [default: NAME.yaml]")
@option("--force", is_flag=True, help="Overwrite the manifest if it exists.")
@option("--key", metavar="COLUMN", multiple=True, help="A column of the key. May be repeated.")
@option("--name", help="The dataset's name.  [default: the file's name]")
@option(
    "--format",
    "source_format",
    type=click.Choice(["csv", "json", "jsonl", "parquet", "avro", "iceberg", "delta"]),
    help="The format, if neither the name nor the first bytes show it.",
)
def init(
    sources: tuple[str, ...],
    output: Path | None,
    force: bool,
    key: tuple[str, ...],
    name: str | None,
    source_format: str | None,
) -> None:
    """Write the manifest for SOURCE: a file, a folder, a pattern in quotes, a URL, or the folder of a table.

    \b
        lookupdb init people.csv && lookupdb up -f people.yaml
        lookupdb init people.csv --key email --output -
        lookupdb init 'exports/**/*.parquet' --name customers
        lookupdb init s3://bucket/people.csv.gz
        lookupdb init s3://lake/customers --format delta

    It looks at the first rows of one file, at most 10,000, and guesses the format, the delimiter, the key, the types
    and the number of shards. It prints each guess with its reason, and writes it into the manifest as a comment, so
    that you can check and change it. The key is a column whose values differ in all these rows, if possible one with a
    name such as id, order_id, code or email.

    A later row may not fit a guess. Then the build fails, and says which row and why. `lookupdb build --explain` shows
    what a build would do, and `lookupdb validate` checks a manifest that you have changed.
    """
    base = Path.cwd() if output in (None, _STDOUT) else output.absolute().parent
    if not base.is_dir():
        raise UsageError(f"there is no folder {base}", hint="create it first")
    from lookupdb.builder.draft import draft_manifest, guess_name  # here, because `validate` reads no source

    path = output or Path(f"{guess_name(sources[0]) if name is None else name}.yaml")
    if output != _STDOUT and not force and path.exists():
        raise UsageError(
            f"{path} exists", hint="--force overwrites it, --output names another file, and --output - prints"
        )
    with temporary_folder("lookupdb-init-") as scratch:
        draft = draft_manifest(sources, base, scratch, name=name, key=key, source_format=source_format)
    found = draft.found
    parts = {"first rows": [f"{found.describe_rows()} of {found.file}", *found.describe()]}
    parts |= {part: text.split("\n") for part, text in draft.notes.items()}
    for part, lines in parts.items():
        for number, line in enumerate(lines):
            click.echo(escape_controls(f"{'' if number else part:<12} {line}"), err=output == _STDOUT)
    if output == _STDOUT:
        click.echo(draft.text, nl=False)
        return
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(draft.text)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    click.echo(f"wrote {path}: check it, then build and serve it here with")
    click.echo(f"  {format_command('up', '-f', str(path))}")


_ENDINGS: Final = (".yaml", ".yml", ".json")
_KIND: Final = "LookupDataset"
_API_GROUP: Final = "lookupdb.dev/"
_OURS: Final = re.compile(
    rb'^kind:\s*["\']?LookupDataset\b|"kind"\s*:\s*"LookupDataset"'
    rb'|^apiVersion:\s*["\']?lookupdb\.dev/|"apiVersion"\s*:\s*"lookupdb\.dev/',
    re.MULTILINE,
)
"""What a file with a dataset holds. A misspelt kind still has our API group."""


@click.command()
@click.argument(
    "paths", metavar="FILE|FOLDER...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path)
)
@option("--recursive", "-R", is_flag=True, help="Also check the subfolders of each FOLDER.")
def validate(paths: tuple[Path, ...], recursive: bool) -> int:
    """Check manifests, and print everything that is wrong with them: the file, the field, and what to write.

    \b
        lookupdb validate people.yaml
        lookupdb validate -R manifests/

    Reads no source, and needs no network, cluster or store: use it before a commit and in CI. It checks what a
    cluster checks when you apply a manifest, except rules that compare it with the previous one. In a FOLDER
    it checks the files .yaml, .yml and .json that hold a LookupDataset, and ignores others; with -R also in its
    subfolders, except hidden ones such as .lookupdb. It reports any other kind of lookupdb.dev. `lookupdb build -f FILE
    --explain` also looks at the source.

    Exit codes: 0 all are valid, 1 there are problems, 2 a path does not exist, or a folder has no manifest.
    """
    files = [file for path in paths for file in (_list_manifests(path, recursive) if path.is_dir() else [path])]
    count = 0
    for file in files:
        for problem in _find_problems(file):
            count += 1
            click.echo(escape_controls(f"{file}: {problem}"))
    click.echo(f"{format_count(len(files), 'file')}, {format_count(count, 'problem')}", err=True)
    return 1 if count else 0


def _find_problems(file: Path) -> list[str]:
    """Return the problems of all datasets in ``file``. Other documents in it are ignored."""
    problems: list[str] = []
    try:
        documents = read_documents(file)
        datasets = [document for document in documents if _is_ours(document)]
        if not datasets:
            read_manifest(file)
    except InvalidManifest as error:
        return [re.sub(f"^{re.escape(str(file))}:? ", "", problem) for problem in error.problems]
    for number, dataset in enumerate(datasets, 1):
        place = f"dataset {number}: " if len(datasets) > 1 else ""
        try:
            parse_resource(dataset, file.resolve().parent)
        except InvalidManifest as error:
            problems += [place + problem for problem in error.problems]
    return problems


def _is_ours(document: Any) -> bool:
    """Return whether ``document`` is a dataset, or is meant as one: another kind of our API group."""
    return isinstance(document, dict) and (
        document.get("kind") == _KIND or str(document.get("apiVersion")).startswith(_API_GROUP)
    )


def _list_manifests(folder: Path, recursive: bool) -> list[Path]:
    """Return the files in ``folder`` that may hold a dataset. Raises UsageError if there are none."""
    found = []
    for file in sorted(folder.rglob("*") if recursive else folder.glob("*")):
        is_hidden = any(part[0] == "." for part in file.relative_to(folder).parts[:-1])
        if file.suffix not in _ENDINGS or is_hidden or not file.is_file():
            continue
        try:
            with file.open("rb") as content:
                is_ours = _OURS.search(content.read(MAX_MANIFEST_BYTES)) is not None
        except OSError:
            is_ours = True  # reading it reports why
        if is_ours:
            found.append(file)
    if not found:
        raise UsageError(
            f"no file in {folder} holds a {_KIND}", hint="name the files, or another folder; -R searches subfolders"
        )
    return found
