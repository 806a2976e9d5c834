"""Documents of an image registry: an index or a manifest, whoever pushed it."""

from __future__ import annotations

from typing import Final

from fuzzing.target import Target
from lookupdb.image.artifact import list_parts, read_annotations

_DIGEST: Final = f"sha256:{'0' * 64}"


def check_documents(data: bytes) -> None:
    """It has annotations and parts, or none."""
    assert isinstance(read_annotations(data), dict)
    for part in list_parts(data):
        assert len(part.digest) == len(_DIGEST)


_PART: Final = b'{"mediaType":"a/b","digest":"%b","size":1}' % _DIGEST.encode()
TARGETS: Final = (
    Target(
        "registry-documents",
        check_documents,
        (
            b'{"annotations":{"a":"b"},"manifests":[]}',
            b'{"schemaVersion":2,"manifests":[%b,%b]}' % (_PART, _PART),
            b'{"config":%b,"layers":[%b,%b]}' % (_PART, _PART, _PART),
        ),
        (
            b'"annotations"',
            b'"manifests":[',
            b'"digest":"../x"',
            b'"size":1e999',
            b'"size":"\xc2\xb2"',
            b"null",
            b"9" * 5000,
            b'"\\ud800"',
            b"[" * 40,
        ),
    ),
)
