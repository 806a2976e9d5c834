"""The signed statement. supply_chain/tools/tests tests the signature."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from supply_chain import provenance
from supply_chain.provenance import make_statement, read_commit, read_subjects

COMMIT = "0123456789" * 4
DIGEST = hashlib.sha256(b"chart").hexdigest()
SUBJECTS = {"lookupdb-0.1.0.tgz": DIGEST, "lookupdb": "b" * 64}


def test_it_says_what_was_made_from_what_by_whom() -> None:
    made = make_statement(
        SUBJECTS, COMMIT, {"run.txt": "c" * 64}, builder="https://ci", command="make image", version="0.1.0"
    )
    assert made["_type"] == "https://in-toto.io/Statement/v1"
    assert made["predicateType"] == "https://slsa.dev/provenance/v1"
    assert {each["name"]: each["digest"]["sha256"] for each in made["subject"]} == SUBJECTS
    assert made["predicate"]["buildDefinition"]["resolvedDependencies"] == [
        {"uri": "git+.", "digest": {"gitCommit": COMMIT}},
        {"uri": "run.txt", "digest": {"sha256": "c" * 64}},
    ]
    assert made["predicate"]["runDetails"]["builder"] == {"id": "https://ci"}


def test_what_cannot_be_stated_is_refused() -> None:
    for subjects, commit in (({}, COMMIT), (SUBJECTS, "HEAD")):
        with pytest.raises(ValueError, match="expected a"):
            make_statement(subjects, commit, {}, builder="b", command="c", version="v")
    for named in (["image"], ["image=sha256:abc"], [f"x=sha256:{DIGEST}", f"x=sha256:{DIGEST}"]):
        with pytest.raises(ValueError, match="expected"):
            read_subjects([], named)


def git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def test_the_commit_is_that_of_all_that_is_there(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    assert len(read_commit(tmp_path)) == 40
    (tmp_path / "file").write_text("2")
    with pytest.raises(ValueError, match="expected everything to be committed"):
        read_commit(tmp_path)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "read_commit", lambda: COMMIT)
    (tmp_path / "chart.tgz").write_bytes(b"chart")
    words = ["--file", str(tmp_path / "chart.tgz"), "--builder", "https://ci"]
    image = ["--subject", f"image@sha256:{'b' * 64}", "--base-image", f"python@sha256:{'a' * 64}"]
    printed = CliRunner().invoke(provenance.cli, [*words, *image])
    assert printed.exit_code == 0, printed.output
    statement = json.loads(printed.stdout)
    assert [each["digest"]["sha256"] for each in statement["subject"]] == [DIGEST, "b" * 64]
    materials = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert {"python", "git+.", *provenance.MATERIALS} == {each["uri"] for each in materials}
    refused = CliRunner().invoke(provenance.cli, ["--builder", "https://ci"])
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "expected a subject" in refused.stderr
