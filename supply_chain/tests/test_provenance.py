"""Provenance: signed and verified without a network; whatever is changed in between is refused."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from supply_chain import dsse, provenance
from supply_chain.provenance import make_statement, read_commit, read_subjects, sign_statement, verify_statement

COMMIT = "0123456789" * 4
DIGEST = hashlib.sha256(b"chart").hexdigest()
SUBJECTS = {"lookupdb-0.1.0.tgz": DIGEST, "lookupdb": "b" * 64}
KEYS: dict[str, dsse.PrivateKey] = {
    "ed25519": ed25519.Ed25519PrivateKey.generate(),
    "p256": ec.generate_private_key(ec.SECP256R1()),
}


def statement(**changes: Any) -> dict[str, Any]:
    made = make_statement(
        SUBJECTS, COMMIT, {"run.txt": "c" * 64}, builder="https://ci", command="make image", version="0.1.0"
    )
    return {**made, **changes}


@pytest.fixture(params=KEYS)
def key(request: pytest.FixtureRequest) -> dsse.PrivateKey:
    return KEYS[request.param]


def test_it_tells_what_was_made_from_what_by_whom(key: dsse.PrivateKey) -> None:
    envelope = sign_statement(statement(), key)
    read = verify_statement(envelope, key.public_key(), {"anything": DIGEST}, COMMIT)
    assert read["_type"] == "https://in-toto.io/Statement/v1"
    assert read["predicateType"] == "https://slsa.dev/provenance/v1"
    assert {each["name"]: each["digest"]["sha256"] for each in read["subject"]} == SUBJECTS
    definition = read["predicate"]["buildDefinition"]
    assert definition["resolvedDependencies"] == [
        {"uri": "git+.", "digest": {"gitCommit": COMMIT}},
        {"uri": "run.txt", "digest": {"sha256": "c" * 64}},
    ]
    assert read["predicate"]["runDetails"]["builder"] == {"id": "https://ci"}


def test_what_is_signed_is_as_dsse_says() -> None:
    """The example of DSSE's protocol."""
    expected = b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    assert dsse.encode("http://example.com/HelloWorld", b"hello world") == expected


def refuse(envelope: dict[str, Any] | str, key: dsse.PrivateKey, message: str, **arguments: Any) -> None:
    text = envelope if isinstance(envelope, str) else json.dumps(envelope)
    asked = {"subjects": SUBJECTS, "commit": COMMIT, **arguments}
    with pytest.raises(dsse.NotVerified, match=message):
        verify_statement(text, key.public_key(), **asked)


def test_whatever_was_changed_is_refused(key: dsse.PrivateKey) -> None:
    envelope = json.loads(sign_statement(statement(), key))
    changed = base64.b64encode(base64.b64decode(envelope["payload"]).replace(b"b" * 64, b"d" * 64)).decode()
    refuse({**envelope, "payload": changed}, key, "found none that holds")
    refuse({**envelope, "payloadType": "text/plain"}, key, "expected a payload of application/vnd.in-toto")
    refuse({**envelope, "signatures": []}, key, "found none that holds")
    refuse({**envelope, "signatures": [{**envelope["signatures"][0], "sig": "AAAA"}]}, key, "found none that holds")
    refuse({**envelope, "signatures": [{"keyid": "x"}]}, key, "found something else")
    refuse({**envelope, "payload": "%%%"}, key, "found something else")
    for text in ("", "[]", "null", "{}", "[" * 200_000):
        refuse(text, key, "found something else")
    refuse(" " * (5 << 20), key, "at most")


def test_the_payload_type_is_signed_too(key: dsse.PrivateKey) -> None:
    envelope = json.loads(dsse.sign(json.dumps(statement()).encode(), "text/plain", key))
    refuse({**envelope, "payloadType": provenance.PAYLOAD_TYPE}, key, "found none that holds")


def test_another_key_is_refused_also_under_the_right_id(key: dsse.PrivateKey) -> None:
    for other in (ed25519.Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP256R1())):
        envelope = json.loads(sign_statement(statement(), other))
        envelope["signatures"][0]["keyid"] = dsse.key_id(key.public_key())
        refuse(envelope, key, "found none that holds")


def test_one_of_several_signatures_is_enough(key: dsse.PrivateKey) -> None:
    envelope = json.loads(sign_statement(statement(), key))
    other = json.loads(sign_statement(statement(), ed25519.Ed25519PrivateKey.generate()))
    envelope["signatures"] = [*other["signatures"], *envelope["signatures"]]
    assert verify_statement(json.dumps(envelope), key.public_key(), SUBJECTS)


def test_a_statement_of_something_else_is_refused(key: dsse.PrivateKey) -> None:
    envelope = sign_statement(statement(), key)
    refuse(envelope, key, "found others", subjects={**SUBJECTS, "another": "e" * 64})
    refuse(envelope, key, "found nothing", subjects={})
    refuse(envelope, key, "expected the commit", commit="f" * 40)
    refuse(sign_statement(statement(_type="x"), key), key, "expected https://in-toto")
    refuse(sign_statement(statement(predicateType="x"), key), key, "expected https://in-toto")
    refuse(sign_statement(statement(subject=[{}]), key), key, "found another")
    refuse(sign_statement({"a": 1}, key), key, "found another")


def of_dependencies(*dependencies: dict[str, Any]) -> dict[str, Any]:
    made = statement()
    made["predicate"]["buildDefinition"]["resolvedDependencies"] = list(dependencies)
    return made


def test_the_commit_is_that_of_the_source_and_of_no_dependency(key: dsse.PrivateKey) -> None:
    def of(uri: str, commit: str) -> dict[str, Any]:
        return {"uri": uri, "digest": {"gitCommit": commit}}

    for other in (of("pkg:lib", COMMIT), of("git+https://example.org/lib", COMMIT), {"digest": {"gitCommit": COMMIT}}):
        refuse(sign_statement(of_dependencies(other), key), key, "expected the commit .* found \\[\\]")
        refuse(sign_statement(of_dependencies(of("git+.", "f" * 40), other), key), key, "expected the commit")
    refuse(sign_statement(of_dependencies(of("git+.", COMMIT), of("git+.", "f" * 40)), key), key, "expected the commit")
    library = of("git+https://example.org/lib", "f" * 40)
    made = sign_statement(of_dependencies(of("git+.", COMMIT), library), key)
    assert verify_statement(made, key.public_key(), SUBJECTS, COMMIT)


def test_what_cannot_be_stated_is_refused() -> None:
    for subjects, commit in (({}, COMMIT), (SUBJECTS, "HEAD")):
        with pytest.raises(ValueError, match="expected a"):
            make_statement(subjects, commit, {}, builder="b", command="c", version="v")
    for named in (["image"], ["image=sha256:abc"], [f"x=sha256:{DIGEST}", f"x=sha256:{DIGEST}"]):
        with pytest.raises(ValueError, match="expected"):
            read_subjects([], named)


def test_keys_that_are_weak_or_of_another_kind_are_refused() -> None:
    for weak in (rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP192R1())):
        private, public = pems(weak)
        with pytest.raises(ValueError, match="expected an ECDSA P-256 or Ed25519 key"):
            dsse.read_private_key(private)
        with pytest.raises(ValueError, match="expected an ECDSA P-256 or Ed25519 key"):
            dsse.read_public_key(public)


def pems(key: Any) -> tuple[bytes, bytes]:
    pem, none = serialization.Encoding.PEM, serialization.NoEncryption()
    return (
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, none),
        key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo),
    )


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


def test_the_commands(tmp_path: Path, key: dsse.PrivateKey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "read_commit", lambda: COMMIT)
    private, public = pems(key)
    for name, content in (("key", private), ("public", public), ("chart.tgz", b"chart")):
        (tmp_path / name).write_bytes(content)
    words = ["--key", str(tmp_path / "key"), "--file", str(tmp_path / "chart.tgz"), "--builder", "https://ci"]
    image = ["--subject", f"image=sha256:{'b' * 64}", "--base-image", f"python@sha256:{'a' * 64}"]
    signed = CliRunner().invoke(provenance.cli, ["sign", *words, *image])
    assert signed.exit_code == 0, signed.output
    (tmp_path / "envelope").write_text(signed.stdout)
    asked = ["verify", "--public-key", str(tmp_path / "public"), "--file", str(tmp_path / "chart.tgz")]
    verified = CliRunner().invoke(provenance.cli, [*asked, "--commit", COMMIT, str(tmp_path / "envelope")])
    assert verified.exit_code == 0, verified.output
    materials = json.loads(verified.stdout)["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert {"python", *provenance.MATERIALS} <= {each["uri"] for each in materials}
    (tmp_path / "chart.tgz").write_bytes(b"another chart")
    refused = CliRunner().invoke(provenance.cli, [*asked, str(tmp_path / "envelope")])
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "not verified: expected the statement to be of chart.tgz" in refused.stderr
