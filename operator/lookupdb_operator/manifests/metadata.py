"""What every object has: name, labels, owner, digest. And what no object has: members that say nothing.

The digest tells whether we would write an object as it was written, never its content: the API server fills in
defaults, and a comparison with those would write for ever. ``fields`` tells whether it still is as it was written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from lookupdb.route.table.routing_table import digest_table
from lookupdb_operator import names
from lookupdb_operator.manifests.fields import hash_applied_fields
from lookupdb_operator.model import Manifest, ObservedDataset

DIGEST_DIGITS: Final = 16
_MAPS_OF_TEXT: Final = ("matchLabels", "nodeSelector")
_TABLE_VERSIONS: Final = 10**15
"""More than a routing table's version may be that somebody has edited."""
_MEANT_EMPTY: Final = ("labelSelector", "preference")


def render_metadata(
    dataset: ObservedDataset, name: str, component: str | None = None, labels: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The metadata of an object that belongs to ``dataset`` and is collected with it."""
    return {
        "namespace": dataset.namespace,
        "name": name,
        "labels": names.labels(dataset.name, dataset.uid, component) | dict(labels or {}),
        "ownerReferences": [
            {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "name": dataset.name,
                "uid": dataset.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }


def stamp(manifest: Manifest) -> Manifest:
    """``manifest`` with its digest, and that of its fields."""
    metadata = manifest["metadata"]
    stamps = {names.DIGEST: digest(manifest), names.FIELDS: hash_applied_fields(manifest)}
    annotations = metadata.get("annotations", {}) | stamps
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def drop_empty(**members: Any) -> dict[str, Any]:
    """``members`` without those that are null or empty. Server-side apply takes a null for an order, and an empty list
    for one that is ours."""
    return {name: value for name, value in members.items() if value is not None and value != [] and value != {}}


def drop_unsaid(value: Any, member: str = "") -> Any:
    """``value``, the ``member`` of something, without empty texts, lists and objects, however deep: the API server does
    not hold them, and what is written must be what it holds. Labels may be empty, and so may what selects anything."""
    if isinstance(value, list):
        return [drop_unsaid(item) for item in value]
    if not isinstance(value, dict) or member in _MAPS_OF_TEXT:
        return value
    members = {name: drop_unsaid(nested, name) for name, nested in value.items()}
    return {
        name: nested for name, nested in members.items() if name in _MEANT_EMPTY or nested not in ("", [], {}, None)
    }


def read_digest(manifest: Mapping[str, Any]) -> str:
    """The digest that ``manifest``, or what the API server holds, carries; empty when it carries none."""
    value = ((manifest.get("metadata") or {}).get("annotations") or {}).get(names.DIGEST, "")
    return value if isinstance(value, str) else ""


def write_mark(manifest: Mapping[str, Any]) -> str:
    """What tells two writes of one object apart: its digest, and its number of pods, which has no part in it. Of a
    routing table it is what that says, whatever its version is: put right, it has another one each time."""
    table = (manifest.get("data") or {}).get(names.TABLE_FILE)
    if table is not None:
        return digest({name: member for name, member in orjson.loads(table).items() if name != "version"})
    return f"{read_digest(manifest)} {(manifest.get('spec') or {}).get('replicas', '')}"


def content_mark(manifest: Mapping[str, Any]) -> str:
    """What tells the contents of two routing tables apart: the digest of the text that routers read, as they report it,
    and of nothing else that ``manifest``, or what the API server holds, has. Empty when it has no such text."""
    text = (manifest.get("data") or {}).get(names.TABLE_FILE)
    return "" if text is None else digest_table(text.encode())


def read_table_version(manifest: Mapping[str, Any]) -> int:
    """The version that the text of a routing table says, by which routers go, whatever its annotation says. 0 when it
    says none, or one of more than 15 digits."""
    try:
        version = orjson.loads((manifest.get("data") or {}).get(names.TABLE_FILE) or "{}")["version"]
    except (ValueError, KeyError, TypeError):  # somebody has edited it
        return 0
    return version if type(version) is int and 0 < version < _TABLE_VERSIONS else 0


def digest(value: Any) -> str:
    """The digest of anything that JSON can say: the order of members does not matter, that of lists does."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()[:DIGEST_DIGITS]


def digest_of_all(manifests: Iterable[Mapping[str, Any]]) -> str:
    """The digest of several stamped objects, in this order."""
    return digest([read_digest(manifest) for manifest in manifests])
