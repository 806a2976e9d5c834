"""The fields of an object that a manager owns, as an API server notes them in managedFields."""

from __future__ import annotations

from typing import Any, Final

import orjson

_KEYS: Final = {
    "containers": ("name",),
    "env": ("name",),
    "imagePullSecrets": ("name",),
    "initContainers": ("name",),
    "ownerReferences": ("uid",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}
"""Lists whose members have keys; any other list is one field."""
_WHOLE: Final = frozenset({"labelSelector", "nodeSelector", "podSelector", "scaleTargetRef", "selector"})
"""Objects that are one field."""

Fields = dict[str, Any]


def applied(manifest: dict[str, Any]) -> Fields:
    """FieldsV1 of the manager that applies ``manifest``."""
    noted = ("labels", "annotations", "ownerReferences")
    metadata = {name: manifest["metadata"][name] for name in noted if name in manifest["metadata"]}
    rest = {name: value for name, value in manifest.items() if name not in ("apiVersion", "kind", "metadata", "status")}
    fields: Fields = _fields({"metadata": metadata, **rest}, "")
    return fields


def merged(old: Any, new: Any, name: str = "") -> Any:
    """Return ``old`` after an apply of ``new`` to its member ``name``; lists are replaced."""
    if not isinstance(old, dict) or not isinstance(new, dict) or name in _WHOLE:
        return new
    return {**old, **{member: merged(old.get(member), below, member) for member, below in new.items()}}


def left(fields: Fields, old: Any, new: Any) -> Fields:
    """Return the part of ``fields`` that its owner keeps after somebody else changed ``old`` to ``new``."""
    kept: Fields = {}
    for name, below in fields.items():
        if name == ".":
            kept[name] = below
            continue
        before, after = _member(old, name), _member(new, name)
        if not {member for member in below if member != "."}:
            if before == after:
                kept[name] = below
        elif after is not None and (rest := left(below, before, after)):
            kept[name] = rest
    return kept


def _fields(value: Any, name: str) -> Fields:
    if isinstance(value, dict) and value and name not in _WHOLE:
        return {f"f:{member}": _fields(below, member) for member, below in value.items()}
    keys = ("port", "protocol") if name == "ports" else _KEYS.get(name)
    if isinstance(value, list) and keys:
        return {_key(item, keys): {".": {}, **_fields(item, "")} for item in value}
    return {}


def _key(item: dict[str, Any], keys: tuple[str, ...]) -> str:
    if keys[0] == "port" and "port" not in item:
        keys = ("containerPort", "protocol")
    return "k:" + orjson.dumps({key: item[key] for key in keys}).decode()


def _member(value: Any, name: str) -> Any:
    kind, _, text = name.partition(":")
    if kind == "f":
        return value.get(text) if isinstance(value, dict) else None
    keys = orjson.loads(text)
    items = value if isinstance(value, list) else []
    return next((item for item in items if all(item.get(key) == wanted for key, wanted in keys.items())), None)
