"""`supply_chain/sign` with cosign signs and verifies without a network, and rejects changed files."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path

import pytest
from supply_chain.provenance import make_statement, read_subjects
from supply_chain.sbom import ROOT

COSIGN = ROOT / ".tools" / "bin" / "cosign"
IMAGE = "b" * 64


def run(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, check=False, env={**os.environ, **environment}, capture_output=True, text=True)


def make_key(folder: Path, *options: str) -> Path:
    run("openssl", "genpkey", *options, "-out", folder / "release.pem").check_returncode()
    password = ("-passin", "pass:secret")
    run("openssl", "pkey", "-in", folder / "release.pem", *password, "-pubout", "-out", folder / "release.pub")
    return folder / "release.pem"


P256 = ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")


@pytest.fixture
def statement(tmp_path: Path) -> Path:
    (tmp_path / "chart.tgz").write_bytes(b"chart")
    subjects = read_subjects([tmp_path / "chart.tgz"], [f"image@sha256:{IMAGE}"])
    made = make_statement(subjects, "0123456789" * 4, {}, builder="https://ci", command="make", version="0.1.0")
    path = tmp_path / "statement.json"
    path.write_text(json.dumps(made))
    return path


def verify(folder: Path, *subject: str | Path) -> int:
    key = ("--key", folder / "release.pub", "--bundle", folder / "bundle.json", "--type", "slsaprovenance1")
    return run(COSIGN, "verify-blob-attestation", *key, "--insecure-ignore-tlog", *subject).returncode


def digest(text: str) -> tuple[str, ...]:
    return ("--digest", text, "--digestAlg", "sha256")


@pytest.mark.parametrize("encryption", [(), ("-aes256", "-pass", "pass:secret")], ids=["plain", "encrypted"])
def test_what_is_signed_is_verified_and_what_was_changed_is_not(
    tmp_path: Path, statement: Path, encryption: tuple[str, ...]
) -> None:
    key, bundle = make_key(tmp_path, *P256, *encryption), tmp_path / "bundle.json"
    signed = run(ROOT / "supply_chain" / "sign", key, statement, bundle, LOOKUPDB_SIGNING_PASSWORD="secret")
    assert signed.returncode == 0, signed.stderr
    assert verify(tmp_path, tmp_path / "chart.tgz") == 0
    assert verify(tmp_path, *digest(IMAGE)) == 0
    assert verify(tmp_path, *digest("c" * 64)) != 0
    content = json.loads(bundle.read_text())
    envelope = content["dsseEnvelope"]
    payload = base64.b64decode(envelope["payload"])
    assert json.loads(payload) == json.loads(statement.read_text())
    changed = base64.b64encode(payload.replace(b"b" * 64, b"c" * 64)).decode()
    bundle.write_text(json.dumps({**content, "dsseEnvelope": {**envelope, "payload": changed}}))
    assert verify(tmp_path, *digest("c" * 64)) != 0
    assert verify(tmp_path, tmp_path / "chart.tgz") != 0


def test_another_key_and_another_file_are_refused(tmp_path: Path, statement: Path) -> None:
    bundle = tmp_path / "bundle.json"
    assert run(ROOT / "supply_chain" / "sign", make_key(tmp_path, *P256), statement, bundle).returncode == 0
    (tmp_path / "chart.tgz").write_bytes(b"another")
    assert verify(tmp_path, tmp_path / "chart.tgz") != 0
    assert verify(tmp_path, *digest(IMAGE)) == 0
    make_key(tmp_path, *P256)
    assert verify(tmp_path, *digest(IMAGE)) != 0


def test_a_key_of_cosign_signs_too(tmp_path: Path, statement: Path) -> None:
    password = {"LOOKUPDB_SIGNING_PASSWORD": "secret", "COSIGN_PASSWORD": "secret"}
    run(COSIGN, "generate-key-pair", "--output-key-prefix", tmp_path / "release", **password).check_returncode()
    signed = run(
        ROOT / "supply_chain" / "sign", tmp_path / "release.key", statement, tmp_path / "bundle.json", **password
    )
    assert signed.returncode == 0, signed.stderr
    assert verify(tmp_path, *digest(IMAGE)) == 0


def test_no_bundle_is_left_that_does_not_verify(tmp_path: Path, statement: Path) -> None:
    key, bundle = make_key(tmp_path, "-algorithm", "ed25519"), tmp_path / "bundle.json"
    assert run(ROOT / "supply_chain" / "sign", key, statement, bundle).returncode != 0
    assert not bundle.exists()
