"""`lookupdb init`: write a manifest for a source, from a look at its first rows."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from lookupdb.builder.draft import Draft, draft_manifest, guess_name
from lookupdb.cli.options import option
from lookupdb.cli.program import ended_in_time
from lookupdb.errors import UsageError
from lookupdb.wording import escape_controls, format_command

_STDOUT: Final = Path("-")


@click.command()
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True, type=click.Path())
@option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The manifest to write; - prints it.  [default: NAME.yaml]",
    show_default=False,
)
@option("--force", is_flag=True, show_default=False, help="Overwrite the manifest if it exists.")
@option("--key", metavar="COLUMN", multiple=True, help="A column of the key. May be repeated.", show_default=False)
@option("--name", help="The dataset's name.  [default: that of the file]", show_default=False)
@option(
    "--format",
    "source_format",
    type=click.Choice(["csv", "json", "jsonl", "parquet", "avro", "iceberg", "delta"]),
    help="The format, if neither the name nor the first bytes show it.",
    show_default=False,
)
def command(
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
    that you can check and change it. The key is a column whose values differ in all these rows; of several, one with
    a name such as id, key, email or code.

    A later row may not fit a guess. Then the build fails, and says which row and why. `lookupdb build --explain` shows
    what a build would do, and `lookupdb validate` checks a manifest that you have changed.
    """
    base = Path.cwd() if output in (None, _STDOUT) else output.absolute().parent
    if not base.is_dir():
        raise UsageError(f"there is no folder {base}", hint="create it first")
    path = output or Path(f"{guess_name(sources[0]) if name is None else name}.yaml")
    if output != _STDOUT and not force and path.exists():
        raise _exists_error(path)
    with ended_in_time(), tempfile.TemporaryDirectory(prefix="lookupdb-init-") as scratch:
        draft = draft_manifest(sources, base, Path(scratch), name=name, key=key, source_format=source_format)
    for line in _describe(draft):
        click.echo(escape_controls(line), err=output == _STDOUT)
    if output == _STDOUT:
        click.echo(draft.text, nl=False)
        return
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(draft.text)
    except FileExistsError as error:
        raise _exists_error(path) from error
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    click.echo(f"wrote {path}: check it, then build and serve it here with")
    click.echo(f"  {format_command('up', '-f', str(path))}")


def _exists_error(path: Path) -> UsageError:
    return UsageError(
        f"{path} exists", hint="--force overwrites it, --output names another file, and --output - prints"
    )


def _describe(draft: Draft) -> Iterator[str]:
    """Yield the columns, and each guess with its reason."""
    found = draft.found
    parts = {"first rows": [f"{found.describe_rows()} of {found.file}", *found.describe()]}
    parts |= {name: text.splitlines() for name, text in draft.notes.items()}
    for name, lines in parts.items():
        yield from (f"{name if number == 0 else '':<12} {line}" for number, line in enumerate(lines))
