"""Passwords of shard servers: each made of the key before it, the same whoever makes it, and unlike all others."""

from __future__ import annotations

import hashlib
import hmac

from lookupdb import credentials

RELEASE = bytes(range(32))
UID = "8d3f6b1a-0000-4000-8000-000000000000"


def test_whoever_makes_a_password_again_makes_the_same() -> None:
    """Written out: servers and routers of two versions must agree."""
    key = credentials.derive_dataset_key(RELEASE, UID)
    assert key == hmac.new(RELEASE, b"dataset\0" + UID.encode(), hashlib.sha256).digest()
    assert len(key) == credentials.KEY_BYTES
    password = credentials.derive_password(key, "r34", 7)
    assert password == hmac.new(key, b"shard\0r34\x007", hashlib.sha256).hexdigest()
    assert credentials.fingerprint_key(key) == hashlib.sha256(key).hexdigest()[:8]
    assert credentials.hash_password(password.encode()) == hashlib.sha256(password.encode()).hexdigest()


def test_another_release_dataset_rollout_or_shard_has_another_password() -> None:
    passwords = {
        credentials.derive_password(credentials.derive_dataset_key(release, uid), rollout, shard)
        for release in (RELEASE, RELEASE[::-1])
        for uid in (UID, UID[::-1])
        for rollout in ("r3", "r34")
        for shard in (0, 4, 40)
    }
    assert len(passwords) == 24
