"""Envelopes that are signed as DSSE describes: a payload, its type, and signatures over both."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

PrivateKey = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
PublicKey = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey
_MAX_BYTES: Final = 4 << 20
_MAX_SIGNATURES: Final = 16


class NotVerified(Exception):
    """An envelope that must not be believed, and why."""


def sign(payload: bytes, payload_type: str, key: PrivateKey) -> str:
    """The envelope of ``payload``, as JSON."""
    signed = encode(payload_type, payload)
    if isinstance(key, ed25519.Ed25519PrivateKey):
        signature = key.sign(signed)
    else:
        signature = key.sign(signed, ec.ECDSA(hashes.SHA256()))
    envelope = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": payload_type,
        "signatures": [{"keyid": key_id(key.public_key()), "sig": base64.b64encode(signature).decode()}],
    }
    return json.dumps(envelope, indent=1) + "\n"


def verify(envelope: str, payload_type: str, key: PublicKey) -> bytes:
    """The payload of ``envelope``, if ``key`` has signed it as of ``payload_type``. Raises NotVerified.

    A key id is only a hint: every signature is tried.
    """
    if len(envelope) > _MAX_BYTES:
        raise NotVerified(f"expected an envelope of at most {_MAX_BYTES:,} bytes, found {len(envelope):,}")
    try:
        members: dict[str, Any] = json.loads(envelope)
        payload = base64.b64decode(members["payload"], validate=True)
        signatures = [base64.b64decode(each["sig"], validate=True) for each in members["signatures"]]
        found = members["payloadType"]
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error) as error:
        raise NotVerified(f"expected an envelope of DSSE, found something else ({type(error).__name__})") from error
    if found != payload_type:
        raise NotVerified(f"expected a payload of {payload_type}, found {str(found)[:100]!r}")
    if not any(_is_signature(each, encode(payload_type, payload), key) for each in signatures[:_MAX_SIGNATURES]):
        raise NotVerified(f"expected a signature by the key {key_id(key)[:16]}…, found none that holds")
    return payload


def encode(payload_type: str, payload: bytes) -> bytes:
    """What is signed: DSSE's pre-authentication encoding."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def key_id(key: PublicKey) -> str:
    """The SHA-256 of a public key's DER form, hexadecimal."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(key.public_bytes(serialization.Encoding.DER, form)).hexdigest()


def read_private_key(pem: bytes, password: bytes | None = None) -> PrivateKey:
    """Raises ValueError for what is no ECDSA P-256 or Ed25519 key, or TypeError for a wrong password."""
    key = serialization.load_pem_private_key(pem, password)
    if isinstance(key, ed25519.Ed25519PrivateKey) or (
        isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1)
    ):
        return key
    raise ValueError(f"expected an ECDSA P-256 or Ed25519 key, found {type(key).__name__}")


def read_public_key(pem: bytes) -> PublicKey:
    """Raises ValueError for what is no ECDSA P-256 or Ed25519 key."""
    key = serialization.load_pem_public_key(pem)
    if isinstance(key, ed25519.Ed25519PublicKey) or (
        isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)
    ):
        return key
    raise ValueError(f"expected an ECDSA P-256 or Ed25519 key, found {type(key).__name__}")


def _is_signature(signature: bytes, signed: bytes, key: PublicKey) -> bool:
    try:
        if isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(signature, signed)
        else:
            key.verify(signature, signed, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True
