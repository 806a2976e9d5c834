"""PodDisruptionBudgets: how many pods a drain of nodes may take at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

import orjson

from lookupdb.dataset.schema import parse_quantity
from lookupdb.router.table.routing_table import digest_table
from lookupdb_operator import names
from lookupdb_operator.model import Manifest, ObservedDataset

# The fields of an object that are ours: as we apply them, and as the API server holds them later.
#
# The API server notes in ``managedFields`` which fields a manager applied, and strikes out those that somebody else has
# changed since. What it holds of the fields that are left is what we wrote, or was changed: its defaults, its
# controllers' fields and other managers' are not looked at. Quantities are compared as numbers, because the API server
# writes them its own way; lists of objects in any order, because it tells their members apart by keys.


_DIGITS: Final = 16
_IDENTITY: Final = frozenset({"apiVersion", "kind", "status"})
_COMPARED_METADATA: Final = ("labels", "annotations", "ownerReferences")
_QUANTITIES: Final = frozenset({"requests", "limits"})
_SIZE: Final = "sizeLimit"
_NESTED: Final = (dict, list)
"""What is looked into: JSON has no other. Asking whether something is a Mapping takes several times as long."""
_FINGERPRINT_BYTES: Final = 16


def hash_applied_fields(manifest: Mapping[str, Any]) -> str:
    """A hash of what ``manifest`` asks the API server to hold. But for the number of pods, which is compared by
    itself: others may set it."""
    return _hash(_compared_part(manifest))


def hash_held_fields(body: Mapping[str, Any]) -> str | None:
    """The same hash, of what the API server holds in ``body`` of the fields that are ours; None where it does not say
    which they are."""
    if not body["metadata"].get("managedFields"):
        return None
    fields = _find_our_fields(body)
    return _hash(_compared_part(_select_owned(body, fields) if fields else {}))


def take_fingerprint(body: Mapping[str, Any]) -> bytes:
    """Bytes that stay the same while ``hash_held_fields`` does, for a tenth of its cost: ``body`` as it is written,
    without its status and most of its metadata. ``metadata.generation`` does not do: labels change without it, and
    half of the kinds have none."""
    metadata = body["metadata"]
    members = [(name, member) for name, member in body.items() if name not in ("metadata", "status")]
    compared = [metadata.get(name) for name in _COMPARED_METADATA]
    text = orjson.dumps((members, compared, bool(metadata.get("managedFields")), _find_our_fields(body)))
    return hashlib.blake2b(text, digest_size=_FINGERPRINT_BYTES).digest()


def find_changer(body: Mapping[str, Any], *, is_changed: bool) -> str:
    """The manager, other than the operator's, that has set the number of pods of ``body``, else the last one that
    changed it if it ``is_changed``; empty for none."""
    entries = [entry for entry in body["metadata"].get("managedFields") or () if _is_of_others(entry)]
    scalers = [entry for entry in entries if "f:replicas" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})]
    candidates = scalers or (entries if is_changed else ())
    newest: Mapping[str, Any] = max(candidates, key=lambda entry: entry.get("time") or "", default={})
    return newest.get("manager") or ""


def _is_of_others(entry: Mapping[str, Any]) -> bool:
    is_of_operator = (entry.get("manager") or "").startswith(names.FIELD_MANAGER)
    return not is_of_operator and entry.get("subresource") != "status"


def _find_our_fields(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """FieldsV1 of what we have applied; None for nothing."""
    managed = body["metadata"].get("managedFields") or ()
    return next((entry.get("fieldsV1") for entry in managed if _is_ours(entry)), None)


def _is_ours(entry: Mapping[str, Any]) -> bool:
    """Whether an entry of managedFields is of what we have applied."""
    is_apply = entry.get("operation") == "Apply" and not entry.get("subresource")
    return is_apply and entry.get("manager") == names.FIELD_MANAGER


def _compared_part(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a manifest, or of what is ours of an object, that is compared."""
    metadata = value.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    annotations = {name: text for name, text in annotations.items() if name not in (names.DIGEST, names.FIELDS)}
    compared = {name: metadata.get(name) or {} for name in _COMPARED_METADATA} | {"annotations": annotations}
    members = {name: member for name, member in value.items() if name not in _IDENTITY}
    if "replicas" in (members.get("spec") or {}):
        members["spec"] = {name: member for name, member in members["spec"].items() if name != "replicas"}
    return {**members, "metadata": compared}


def _select_owned(value: Any, fields: Mapping[str, Any]) -> Any:
    """The part of ``value`` that ``fields`` (FieldsV1) has: all of it where no member is listed."""
    if not fields or fields.keys() == {"."}:
        return value
    if isinstance(value, dict):
        members = ((name[2:], nested) for name, nested in fields.items() if name.startswith("f:"))
        return {
            name: _select_owned(value[name], nested) if nested else value[name]
            for name, nested in members
            if name in value
        }
    if isinstance(value, list):
        items = ((_find_item(value, name), nested) for name, nested in fields.items() if name != ".")
        return [_select_owned(item, nested) for item, nested in items if item is not None]
    return value


def _find_item(items: list[Any], name: str) -> Any:
    """The one of ``items`` that a member's name in FieldsV1 means, by key, value or index; None when it is gone."""
    kind, key = _member_key(name)
    if kind == "k":
        keyed = (item for item in items if isinstance(item, dict))
        return next((item for item in keyed if all(item.get(part) == value for part, value in key.items())), None)
    if kind == "v":
        return key if key in items else None
    return items[key] if kind == "i" and 0 <= key < len(items) else None


@lru_cache(maxsize=1024)
def _member_key(name: str) -> tuple[str, Any]:
    """How a member's name in FieldsV1 means an item, and the key, value or index: the shards of a fleet have the
    same."""
    kind, _, text = name.partition(":")
    return kind, orjson.loads(text)


def _hash(document: Mapping[str, Any]) -> str:
    text = orjson.dumps(_canonical(document, ""), option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text).hexdigest()[:_DIGITS]


def _canonical(value: Any, name: str) -> Any:
    """``value``, the member ``name`` of something, in the one form that all that mean the same have."""
    if isinstance(value, dict):
        if name in _QUANTITIES:
            return {resource: _number(amount) for resource, amount in value.items()}
        return {
            member: _canonical(nested, member) if isinstance(nested, _NESTED) or member == _SIZE else nested
            for member, nested in value.items()
        }
    if isinstance(value, list):
        items = [_canonical(item, "") if isinstance(item, _NESTED) else item for item in value]
        if all(isinstance(item, dict) for item in items):
            return sorted(orjson.dumps(item, option=orjson.OPT_SORT_KEYS).decode() for item in items)
        return items
    return _number(value) if name == _SIZE else value


@lru_cache(maxsize=1024)
def _number(amount: str | float) -> str:
    try:
        return f"{parse_quantity(str(amount)):.15g}"
    except ValueError:
        return str(amount)


# What every object has: name, labels, owner, digest. And what no object has: members that say nothing.
#
# The digest tells whether we would write an object as it was written, never its content: the API server fills in
# defaults, and a comparison with those would write for ever. ``fields`` tells whether it still is as it was written.


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


def render_disruption_budget(metadata: Mapping[str, Any], selector: Mapping[str, str]) -> Manifest:
    """One pod at a time. A budget that allows none would block the draining of nodes for ever; pods that do not serve
    may always go, because they would be the last to come back by waiting."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": dict(metadata),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": dict(selector)},
        },
    }
