"""The fields of an object that are ours: as we apply them, and as the API server holds them later.

The API server notes in ``managedFields`` which fields a manager applied, and strikes out those that somebody else has
changed since. What it holds of the fields that are left is what we wrote, or was changed: its defaults, its
controllers' fields and other managers' are not looked at. Quantities are compared as numbers, because the API server
writes them its own way; lists of objects in any order, because it tells their members apart by keys.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import orjson

from lookupdb.schema import parse_quantity
from lookupdb_operator import names

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
