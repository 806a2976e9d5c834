"""Metadata and digests of objects, hashes of their fields, PodDisruptionBudgets, and access to the store and to shard
servers, with its Secrets."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, cast

import orjson

from lookupdb import credentials
from lookupdb.router.routing_table import digest_table
from lookupdb.store.objects import SECRET_VARIABLE, TOKEN_FILE_VARIABLE
from lookupdb.wording import parse_quantity
from lookupdb_operator import names
from lookupdb_operator.model import Config, Manifest, ObservedDataset, StoreAccess

# Hashes of the operator's fields of an object, as applied and as the API server holds them.
#
# ``managedFields`` lists which fields a manager applied and nobody changed since. Only those are compared, not defaults
# or fields of controllers and other managers. The API server reformats quantities, so these are compared as numbers. It
# identifies the members of lists of objects by keys, so the order of such lists does not matter.


_IDENTITY: Final = frozenset({"apiVersion", "kind", "status"})
_COMPARED_METADATA: Final = ("labels", "annotations", "ownerReferences")
_QUANTITIES: Final = frozenset({"requests", "limits"})
_SIZE: Final = "sizeLimit"
_NESTED: Final = (dict, list)
"""JSON's containers. Checking for Mapping would take several times as long."""
_FINGERPRINT_BYTES: Final = 16


def hash_applied_fields(manifest: Mapping[str, Any]) -> str:
    """Hash what ``manifest`` asks for, except the number of pods, which others may set and which is compared
    separately."""
    return digest(_canonical(_compared_part(manifest), ""))


def hash_held_fields(body: Mapping[str, Any]) -> str | None:
    """Hash the operator's fields in the API server's ``body``; None if it does not say which these are."""
    if not body["metadata"].get("managedFields"):
        return None
    fields = _find_our_fields(body)
    return digest(_canonical(_compared_part(_select_owned(body, fields) if fields else {}), ""))


def take_fingerprint(body: Mapping[str, Any]) -> bytes:
    """Return bytes that differ if the results of ``hash_held_fields`` do, at a tenth of its cost: ``body`` without its
    status and most metadata. ``metadata.generation`` is not enough: label changes do not increase it, and half of the
    kinds have none."""
    metadata = body["metadata"]
    members = [(name, member) for name, member in body.items() if name not in ("metadata", "status")]
    compared = [metadata.get(name) for name in _COMPARED_METADATA]
    text = orjson.dumps((members, compared, bool(metadata.get("managedFields")), _find_our_fields(body)))
    return hashlib.blake2b(text, digest_size=_FINGERPRINT_BYTES).digest()


def find_changer(body: Mapping[str, Any], *, is_changed: bool) -> str:
    """Return the manager, other than the operator, that set the number of pods in ``body``. If none did and ``body``
    ``is_changed``, return the last one that changed it; else an empty text."""
    entries = [
        entry
        for entry in body["metadata"].get("managedFields") or ()
        if entry.get("subresource") != "status" and not (entry.get("manager") or "").startswith(names.FIELD_MANAGER)
    ]
    scalers = [entry for entry in entries if "f:replicas" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})]
    candidates = scalers or (entries if is_changed else ())
    newest: Mapping[str, Any] = max(candidates, key=lambda entry: entry.get("time") or "", default={})
    return newest.get("manager") or ""


def _find_our_fields(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return FieldsV1 of what the operator applied; None if nothing."""
    for entry in body["metadata"].get("managedFields") or ():
        is_apply = entry.get("operation") == "Apply" and not entry.get("subresource")
        if is_apply and entry.get("manager") == names.FIELD_MANAGER:
            return cast(Mapping[str, Any] | None, entry.get("fieldsV1"))
    return None


def _compared_part(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a manifest, or of the operator's fields, that is compared."""
    metadata = value.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    annotations = {name: text for name, text in annotations.items() if name not in (names.DIGEST, names.FIELDS)}
    compared = {name: metadata.get(name) or {} for name in _COMPARED_METADATA} | {"annotations": annotations}
    members = {name: member for name, member in value.items() if name not in _IDENTITY}
    if "replicas" in (members.get("spec") or {}):
        members["spec"] = {name: member for name, member in members["spec"].items() if name != "replicas"}
    return {**members, "metadata": compared}


def _select_owned(value: Any, fields: Mapping[str, Any]) -> Any:
    """Return the part of ``value`` that ``fields`` (FieldsV1) lists: everything if it lists no member."""
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
    """Return the item that a member's name in FieldsV1 means, by key, value or index; None if it is gone."""
    kind, key = _member_key(name)
    if kind == "k":
        keyed = (item for item in items if isinstance(item, dict))
        return next((item for item in keyed if all(item.get(part) == value for part, value in key.items())), None)
    if kind == "v":
        return key if key in items else None
    return items[key] if kind == "i" and 0 <= key < len(items) else None


@lru_cache(maxsize=1024)
def _member_key(name: str) -> tuple[str, Any]:
    """Return how a member's name in FieldsV1 identifies an item, with the key, value or index. Cached, because all
    shards have the same."""
    kind, _, text = name.partition(":")
    return kind, orjson.loads(text)


def _canonical(value: Any, name: str) -> Any:
    """Return ``value``, the member ``name`` of something, in canonical form."""
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


# Common parts of all objects: name, labels, owner, digest; and removal of empty members.
#
# The digest says whether the operator would write the same object; comparing with the API server's content would fail
# because of defaults. ``fields`` says whether the object is still as it was written.


_DIGEST_DIGITS: Final = 16
_MAPS_OF_TEXT: Final = ("matchLabels", "nodeSelector")
_TABLE_VERSIONS: Final = 10**15
"""Upper limit of a routing table's version, in case somebody edited it."""
_MEANT_EMPTY: Final = ("labelSelector", "preference")


def render_metadata(
    dataset: ObservedDataset, name: str, component: str | None = None, labels: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return metadata of an object that belongs to ``dataset`` and is garbage-collected with it."""
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
    """Return ``manifest`` with its digest and the hash of its fields."""
    metadata = manifest["metadata"]
    stamps = {names.DIGEST: digest(manifest), names.FIELDS: hash_applied_fields(manifest)}
    annotations = metadata.get("annotations", {}) | stamps
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def drop_empty(**members: Any) -> dict[str, Any]:
    """Return ``members`` without null or empty ones. In server-side apply, null would ask for the member's removal, and
    an empty list would make it a field that the operator owns.
    """
    return {name: value for name, value in members.items() if value is not None and value != [] and value != {}}


def drop_unsaid(value: Any, member: str = "") -> Any:
    """Return ``value``, the ``member`` of something, without empty texts, lists and objects at any depth, because the
    API server drops them. Labels and selectors may be empty."""
    if isinstance(value, list):
        return [drop_unsaid(item) for item in value]
    if not isinstance(value, dict) or member in _MAPS_OF_TEXT:
        return value
    members = {name: drop_unsaid(nested, name) for name, nested in value.items()}
    return {
        name: nested for name, nested in members.items() if name in _MEANT_EMPTY or nested not in ("", [], {}, None)
    }


def read_digest(manifest: Mapping[str, Any]) -> str:
    """Return the digest in ``manifest``, or in what the API server holds; empty if none."""
    value = ((manifest.get("metadata") or {}).get("annotations") or {}).get(names.DIGEST, "")
    return value if isinstance(value, str) else ""


def write_mark(manifest: Mapping[str, Any]) -> str:
    """Return a mark that tells writes of one object apart: its digest and number of pods. For a routing table, the
    mark is the content without the version, which each repair changes."""
    table = (manifest.get("data") or {}).get(names.TABLE_FILE)
    if table is not None:
        return digest({name: member for name, member in orjson.loads(table).items() if name != "version"})
    return f"{read_digest(manifest)} {(manifest.get('spec') or {}).get('replicas', '')}"


def content_mark(manifest: Mapping[str, Any]) -> str:
    """Return the digest of the text that routers read from a routing table, as they report it; empty if there is no
    text."""
    text = (manifest.get("data") or {}).get(names.TABLE_FILE)
    return "" if text is None else digest_table(text.encode())


def read_table_version(manifest: Mapping[str, Any]) -> int:
    """Return the version in the text of a routing table, because routers ignore the annotation. 0 if there is none, or
    it has more than 15 digits."""
    try:
        version = orjson.loads((manifest.get("data") or {}).get(names.TABLE_FILE) or "{}")["version"]
    except (ValueError, KeyError, TypeError):  # somebody has edited it
        return 0
    return version if type(version) is int and 0 < version < _TABLE_VERSIONS else 0


def digest(value: Any) -> str:
    """Return the digest of a JSON value; the order of members does not matter, the order of lists does."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()[:_DIGEST_DIGITS]


def render_disruption_budget(metadata: Mapping[str, Any], selector: Mapping[str, str]) -> Manifest:
    """Return a budget of one pod at a time. A budget of none would block node drains. Pods that do not serve may always
    be evicted, because waiting for them does not help."""
    return names.DISRUPTION_BUDGET.make(
        dict(metadata),
        spec={
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": dict(selector)},
        },
    )


# Passwords of shard servers: routers get the dataset's keys, servers the hash of a password.
#
# A dataset's key is derived from the release's key and the dataset's uid; a shard's password from that key, the
# rollout's name and the shard's number (``lookupdb.credentials``). So nothing is stored or read back: the
# Secret is created, never read, changed or deleted, and its name contains the key's fingerprint.


_DATA_KEY: Final = "key"
KEYS_VOLUME: Final = "password-keys"


def password_key(dataset: ObservedDataset, config: Config) -> str:
    """Return the fingerprint of the dataset's current key; empty if servers require no password."""
    key = _derive_key(dataset, config)
    return credentials.fingerprint_key(key) if key else ""


def render_key_secret(dataset: ObservedDataset, config: Config) -> Manifest:
    """Return the Secret of the dataset's key, which must exist."""
    key = _derive_key(dataset, config)
    name = names.password_key_secret(dataset.name, credentials.fingerprint_key(key))
    return names.SECRET.make(
        render_metadata(dataset, name, names.ROUTER),
        type="Opaque",
        immutable=True,
        data={_DATA_KEY: base64.b64encode(key).decode()},
    )


def is_made_once(manifest: Manifest) -> bool:
    """Return whether ``manifest`` is only created if absent, and never updated."""
    return manifest.get("immutable") is True


def server_flags(dataset: ObservedDataset, config: Config, rollout: str, shard: int) -> dict[str, str]:
    """Return the password flags of the servers of ``shard`` of ``rollout``. They are not secret."""
    key = _derive_key(dataset, config)
    if not key:
        return {}
    password = credentials.derive_password(key, rollout, shard)
    return {"--password-sha256": credentials.hash_password(password.encode())}


def router_volume(dataset: ObservedDataset, password_keys: Iterable[str]) -> dict[str, Any]:
    """Return the volume of the routers' keys, each in a file named by its fingerprint. It is optional: a router without
    a key reports that and serves what it can reach. It is mounted whole, because the kubelet does not update single
    files."""
    sources = [
        {
            "secret": {
                "name": names.password_key_secret(dataset.name, mark),
                "items": [{"key": _DATA_KEY, "path": mark}],
                "optional": True,
            }
        }
        for mark in password_keys
    ]
    return {"name": KEYS_VOLUME, "projected": {"sources": sources}}


def _derive_key(dataset: ObservedDataset, config: Config) -> bytes:
    """Return the dataset's key; empty if there is none."""
    return credentials.derive_dataset_key(config.shard_key, dataset.uid) if config.shard_key else b""


# Access of pods to the store: by a token for the gateway or, without a gateway, by the store's credentials. A dataset's
# own store uses the Secret that the dataset names. Only builders and fetchers have access.
#
# The token is for the pod's ServiceAccount and this installation's gateway only, and lasts ten minutes; the kubelet
# renews it. It proves the pod's namespace. The Secret of a dataset's own store is only referenced by pods: the operator
# neither reads nor copies it.


PREFIX: Final = "LOOKUPDB_STORE_"
"""Prefix of every variable, to keep the store's credentials apart from the source's."""


def render_store_secret(dataset: ObservedDataset, access: StoreAccess) -> Manifest:
    """Return the Secret with the environment variables of ``access``.

    It uses ``data``, not ``stringData``, because server-side apply removes left-out keys only from ``data``.
    """
    data = {
        PREFIX + name: base64.b64encode(value.encode()).decode() for name, value in sorted(access.environment.items())
    }
    return stamp(
        names.SECRET.make(
            render_metadata(dataset, names.store_secret(dataset.name, dataset.uid)), type="Opaque", data=data
        )
    )


_TOKEN_SECONDS: Final = 600
"""The shortest time that Kubernetes allows."""
_TOKEN_MOUNT: Final = {"name": names.STORE_TOKEN_VOLUME, "mountPath": names.STORE_TOKEN_PATH, "readOnly": True}


def find_url(dataset: ObservedDataset, config: Config) -> str:
    """Return the URL of the store for the dataset's builders and fetchers."""
    own = dataset.own_store
    return config.gateway or config.store if own is None else str(own["url"])


def render_volumes(dataset: ObservedDataset, config: Config) -> list[dict[str, Any]]:
    """Return the volumes that a pod needs to reach the store."""
    if dataset.own_store is not None or not config.gateway:
        return []
    token = {
        "audience": names.store_audience(config.identity),
        "expirationSeconds": _TOKEN_SECONDS,
        "path": names.STORE_TOKEN_FILE,
    }
    return [{"name": names.STORE_TOKEN_VOLUME, "projected": {"sources": [{"serviceAccountToken": token}]}}]


def grant(container: dict[str, Any], dataset: ObservedDataset, config: Config) -> dict[str, Any]:
    """Return ``container`` with access to the store."""
    own = dataset.own_store
    if own is not None:
        # Users choose its keys; the prefix keeps them apart from the source's.
        name = own.get("secretName")
        if not name:
            return container
        variable = {"name": SECRET_VARIABLE, "value": name}
        return _with_secret(
            {**container, "env": [*container["env"], variable]}, {"prefix": PREFIX, "secretRef": {"name": name}}
        )
    if not config.gateway:
        return _with_secret(container, {"secretRef": {"name": names.store_secret(dataset.name, dataset.uid)}})
    # A plain variable takes precedence over a source's Secret.
    variable = {"name": TOKEN_FILE_VARIABLE, "value": f"{names.STORE_TOKEN_PATH}/{names.STORE_TOKEN_FILE}"}
    return {
        **container,
        "env": [*container["env"], variable],
        "volumeMounts": [*container["volumeMounts"], _TOKEN_MOUNT],
    }


def _with_secret(container: dict[str, Any], secret: dict[str, Any]) -> dict[str, Any]:
    """Return ``container`` with the variables of the store's Secret. They come last, so that no source can override
    them."""
    return {**container, "envFrom": [*container.get("envFrom", ()), secret]}
