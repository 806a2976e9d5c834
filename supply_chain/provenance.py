"""Where a release comes from: an in-toto statement with SLSA's provenance, signed with a key that a file holds.

    python -m supply_chain.provenance sign --key release.pem --file dist/lookupdb-0.1.0.tgz \\
        --subject image=sha256:… --base-image python@sha256:… --builder URI > lookupdb.intoto.json
    python -m supply_chain.provenance verify --public-key release.pub --file dist/lookupdb-0.1.0.tgz \\
        lookupdb.intoto.json
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from supply_chain import dsse
from supply_chain.locks import ROOT

PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
STATEMENT: Final = "https://in-toto.io/Statement/v1"
PREDICATE: Final = "https://slsa.dev/provenance/v1"
BUILD_TYPE: Final = "https://lookupdb.dev/build/make/v1"
SOURCE: Final = "git+."
"""The repository that holds the source, among all that a release is made from."""
MATERIALS: Final = (
    "requirements/run.txt",
    "server/native/Cargo.lock",
    "charts/tools/go.sum",
    "Dockerfile",
)
"""Files that say what a release is made from, besides the commit that holds them."""
PASSWORD_VARIABLE: Final = "LOOKUPDB_SIGNING_PASSWORD"  # noqa: S105 - its name
_DIGEST: Final = re.compile(r"(.{1,400})[=@]sha256:([0-9a-f]{64})")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")

Json = dict[str, Any]
Digests = Mapping[str, str]
"""SHA-256, hexadecimal, by name."""


def make_statement(
    subjects: Digests, commit: str, materials: Digests, *, builder: str, command: str, version: str
) -> Json:
    """The statement that ``command`` made ``subjects`` from ``commit`` and ``materials``. Raises ValueError."""
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


def sign_statement(statement: Json, key: dsse.PrivateKey) -> str:
    """The signed envelope of ``statement``."""
    return dsse.sign(json.dumps(statement, sort_keys=True).encode(), PAYLOAD_TYPE, key)


def verify_statement(envelope: str, key: dsse.PublicKey, subjects: Digests, commit: str | None = None) -> Json:
    """The statement in ``envelope``, if ``key`` signed it and it is of all ``subjects``, whatever they are called here,
    and its source is of ``commit`` if that is given. Raises dsse.NotVerified."""
    payload = dsse.verify(envelope, PAYLOAD_TYPE, key)
    try:
        statement: Json = json.loads(payload)
        kinds = (statement["_type"], statement["predicateType"])
        stated = {subject["digest"]["sha256"] for subject in statement["subject"]}
        definition = statement["predicate"]["buildDefinition"]
        commits = {_read_commit(each) for each in definition["resolvedDependencies"]} - {None}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise dsse.NotVerified(f"expected a statement of provenance, found another ({type(error).__name__})") from error
    if kinds != (STATEMENT, PREDICATE):
        raise dsse.NotVerified(f"expected {STATEMENT} with {PREDICATE}, found {kinds}")
    if not subjects:
        raise dsse.NotVerified("expected something to verify, found nothing: give --file or --subject")
    for name, digest in subjects.items():
        if digest not in stated:
            raise dsse.NotVerified(f"expected the statement to be of {name} (sha256:{digest[:16]}…), found others")
    if commit is not None and commits != {commit}:
        raise dsse.NotVerified(f"expected the commit {commit}, found {sorted(map(str, commits))}")
    return statement


def _read_commit(dependency: Json) -> object:
    """The commit of the source. What it depends on may come from other repositories, with commits of their own."""
    return dependency["digest"].get("gitCommit") if dependency.get("uri") == SOURCE else None


def read_subjects(files: Sequence[Path], named: Sequence[str]) -> dict[str, str]:
    """The digests of ``files``, and those of ``named``, each NAME=sha256:… or NAME@sha256:…. Raises ValueError."""
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
    """The commit of a work tree. Raises ValueError if something in it is not committed."""
    changed = _git(root, "status", "--porcelain")
    if changed:
        raise ValueError(f"expected everything to be committed, found changes: {changed.splitlines()[0]}")
    return _git(root, "rev-parse", "HEAD")


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True)  # noqa: S607
    return done.stdout.strip()


@click.group()
def cli() -> None:
    """Sign and verify where a release comes from."""


_files = click.option("--file", "files", type=click.Path(exists=True, dir_okay=False, path_type=Path), multiple=True)
_named = click.option("--subject", "named", metavar="NAME=sha256:…", multiple=True, help="As an image's digest.")


@cli.command("sign")
@click.option("--key", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True)
@_files
@_named
@click.option("--base-image", metavar="NAME@sha256:…", multiple=True, help="What the image was built from.")
@click.option("--builder", required=True, metavar="URI", help="Who ran the build, as those who verify know it.")
@click.option("--command", default="make image", show_default=True)
def sign_command(
    key: Path, files: tuple[Path, ...], named: tuple[str, ...], base_image: tuple[str, ...], builder: str, command: str
) -> None:
    """Write the signed statement to standard output. LOOKUPDB_SIGNING_PASSWORD has the key's password, if any."""
    from lookupdb import __version__

    password = os.environ.get(PASSWORD_VARIABLE)
    try:
        materials = {name: _hash_file(ROOT / name) for name in MATERIALS} | read_subjects((), base_image)
        statement = make_statement(
            read_subjects(files, named), read_commit(), materials, builder=builder, command=command, version=__version__
        )
        signer = dsse.read_private_key(key.read_bytes(), password.encode() if password else None)
    except (ValueError, TypeError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(sign_statement(statement, signer), nl=False)


@cli.command("verify")
@click.option("--public-key", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True)
@_files
@_named
@click.option("--commit", help="The commit that it must come from.")
@click.argument("envelope", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def verify_command(
    public_key: Path, files: tuple[Path, ...], named: tuple[str, ...], commit: str | None, envelope: Path
) -> None:
    """Print the statement in ENVELOPE if it is of all that is named, and signed with the key; else end with 1."""
    try:
        statement = verify_statement(
            envelope.read_text(encoding="utf-8", errors="replace"),
            dsse.read_public_key(public_key.read_bytes()),
            read_subjects(files, named),
            commit,
        )
    except (ValueError, dsse.NotVerified) as error:
        raise click.ClickException(f"not verified: {error}") from error
    click.echo(json.dumps(statement, indent=1))


if __name__ == "__main__":
    cli()
