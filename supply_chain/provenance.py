"""The provenance of a release: an in-toto statement with SLSA's provenance, which `make provenance` has cosign sign.

    python -m supply_chain.provenance --file dist/lookupdb-0.1.0.tgz --subject image@sha256:… \\
        --base-image python@sha256:… --builder URI
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from lookupdb import __version__

ROOT: Final = Path(__file__).parents[1]
STATEMENT: Final = "https://in-toto.io/Statement/v1"
PREDICATE: Final = "https://slsa.dev/provenance/v1"
BUILD_TYPE: Final = "https://lookupdb.dev/build/make/v1"
SOURCE: Final = "git+."
"""The repository that holds the source, among all that a release is made from."""
MATERIALS: Final = ("requirements/iceberg.txt", "server/native/Cargo.lock", "charts/tools/go.sum", "Dockerfile")
"""Files that name the contents of a release, besides its commit."""
_DIGEST: Final = re.compile(r"(.{1,400})[=@]sha256:([0-9a-f]{64})")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")

Digests = Mapping[str, str]
"""SHA-256, hexadecimal, by name."""


def make_statement(
    subjects: Digests, commit: str, materials: Digests, *, builder: str, command: str, version: str
) -> dict[str, Any]:
    """Return the statement that ``command`` made ``subjects`` from ``commit`` and ``materials``. Raises ValueError."""
    if not subjects:
        raise ValueError("expected a subject, found none: give --file or --subject")
    if not _COMMIT.fullmatch(commit):
        raise ValueError(f"expected a commit of 40 hexadecimal digits, found {commit!r}")
    return {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(subjects.items())],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"command": command, "version": version},
                "internalParameters": {},
                "resolvedDependencies": [
                    {"uri": SOURCE, "digest": {"gitCommit": commit}},
                    *({"uri": name, "digest": {"sha256": digest}} for name, digest in sorted(materials.items())),
                ],
            },
            "runDetails": {"builder": {"id": builder}},
        },
    }


def read_subjects(files: Sequence[Path], named: Sequence[str]) -> dict[str, str]:
    """Return the digests of ``files`` and of ``named``, each NAME=sha256:… or NAME@sha256:…. Raises ValueError."""
    subjects = {file.name: _hash_file(file) for file in files}
    for text in named:
        found = _DIGEST.fullmatch(text)
        if found is None:
            raise ValueError(f"expected NAME=sha256: and 64 hexadecimal digits, found {text!r}")
        subjects[found[1]] = found[2]
    if len(subjects) < len(files) + len(named):
        raise ValueError("expected subjects of different names, found one twice")
    return subjects


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_commit(root: Path = ROOT) -> str:
    """Return the commit of a work tree. Raises ValueError if something in it is not committed."""
    changed = _git(root, "status", "--porcelain")
    if changed:
        raise ValueError(f"expected everything to be committed, found changes: {changed.splitlines()[0]}")
    return _git(root, "rev-parse", "HEAD")


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True)  # noqa: S607
    return done.stdout.strip()


@click.command()
@click.option("--file", "files", type=click.Path(exists=True, dir_okay=False, path_type=Path), multiple=True)
@click.option(
    "--subject", "named", metavar="NAME@sha256:…", multiple=True, help="A subject, for example an image's digest."
)
@click.option("--base-image", metavar="NAME@sha256:…", multiple=True, help="The base of the image.")
@click.option("--builder", required=True, metavar="URI", help="The URI that identifies the builder.")
@click.option("--command", default="make image", show_default=True)
def cli(
    files: tuple[Path, ...], named: tuple[str, ...], base_image: tuple[str, ...], builder: str, command: str
) -> None:
    """Print the statement of all arguments, to be signed."""
    try:
        materials = {name: _hash_file(ROOT / name) for name in MATERIALS} | read_subjects((), base_image)
        subjects = read_subjects(files, named)
        statement = make_statement(
            subjects, read_commit(), materials, builder=builder, command=command, version=__version__
        )
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    click.echo(json.dumps(statement, sort_keys=True))


if __name__ == "__main__":
    cli()
