"""Access to the store, the credentials of the chart's own store, and the release's shard key.

All shard passwords are derived from that key. It is created once, at random, in a Secret in the release's namespace,
and read at each resync. Deleting the Secret changes all passwords, by a new rollout of each dataset.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import json
import logging
import os
import re
import secrets
import ssl
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import aiohttp
import orjson

from lookupdb import credentials
from lookupdb.credentials import MAX_ACCOUNT_TOKEN_BYTES
from lookupdb.errors import CorruptFile, UsageError
from lookupdb.manifest import ANNOUNCEMENT_NOTE, MAX_ANNOUNCEMENT_BYTES, Announcement, parse_announcement
from lookupdb.store.dataset import StoreAddress
from lookupdb.store.objects import (
    CA_FILE_VARIABLE,
    CREATE,
    MODE_HEADER,
    OBJECT_PATH,
    VERSION_HEADER,
    parse_problem,
)
from lookupdb_operator import names
from lookupdb_operator.cluster.api import Refused, read_at_most
from lookupdb_operator.cluster.cache import ObjectCache
from lookupdb_operator.cluster.cluster import Cluster
from lookupdb_operator.cluster.parse import read_labels
from lookupdb_operator.model import Manifest, NotAnnounced, ObservedDataset, StoreAccess

# The store's environment for builders and fetchers: settings and a Secret, which is read at each resync.


_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SCRYPT_ROUNDS: Final = 1 << 14
_SCRYPT_MAX_BYTES: Final = 32 << 20
"""Twice what scrypt needs."""
_DIGEST_BYTES: Final = 8


class StoreAccessReader:
    """The store's environment as last read."""

    def __init__(
        self, cluster: Cluster, *, namespace: str, secret: str, environment: Mapping[str, str], salt: str
    ) -> None:
        """``salt`` identifies the store and stays the same across restarts of the operator."""
        self._cluster = cluster
        self._namespace = namespace
        self._secret = secret
        self._environment = environment
        self._salt = salt
        self.access = StoreAccess(problem="the store's credentials have not been read yet")

    async def refresh(self) -> bool:
        """Read the Secret and return whether anything changed. If it raises Unreachable, ``access`` stays."""
        before, self.access = self.access, await self._read()
        return self.access != before

    async def _read(self) -> StoreAccess:
        if not self._secret:
            return make_access(self._environment, self._salt)
        where = f"Secret {self._secret} in namespace {self._namespace}"
        try:
            found = await self._cluster.get_secret(self._namespace, self._secret)
        except Refused as error:
            return StoreAccess(problem=f"the operator may not read {where}: {error.message}")
        if found is None:
            problem = f"{where} does not exist; create it with the store's credentials, as environment variables"
            return StoreAccess(problem=problem)
        return merge_secret(self._environment, found.get("data") or {}, where, self._salt)


def make_access(environment: Mapping[str, str], salt: str) -> StoreAccess:
    """Return the access that ``environment`` gives, with its digest."""
    text = json.dumps(dict(environment), sort_keys=True)
    return StoreAccess(environment=dict(environment), digest=_digest(text, salt))


@functools.lru_cache(maxsize=1)
def _digest(text: str, salt: str) -> str:
    """Return a slow, salted digest of ``text``. It is visible in statuses, where a fast one would allow guessing the
    secret key. It blocks for about 40 ms at each change."""
    return hashlib.scrypt(
        text.encode(), salt=salt.encode(), n=_SCRYPT_ROUNDS, r=8, p=1, maxmem=_SCRYPT_MAX_BYTES, dklen=_DIGEST_BYTES
    ).hex()


def merge_secret(environment: Mapping[str, str], data: Mapping[str, Any], where: str, salt: str) -> StoreAccess:
    """Return the access that ``environment`` and a Secret's ``data`` give; ``data`` takes precedence. A key that is not
    a valid variable name is a problem."""
    merged = dict(environment)
    for key, value in data.items():
        if not _VARIABLE.fullmatch(key):
            return StoreAccess(
                problem=f"{where} has the key {key!r}, which is not the name of an environment variable; "
                "expected keys like AWS_ACCESS_KEY_ID"
            )
        try:
            merged[key] = base64.b64decode(value or "", validate=True).decode()
        except (binascii.Error, UnicodeDecodeError, TypeError):
            return StoreAccess(problem=f"{where} has a value for {key} that is not text")
    return make_access(merged, salt)


# The credentials of the chart's own store: generated once, at random, and never changed.


log = logging.getLogger(__name__)

_ID_BYTES: Final = 10  # 20 characters in hex, as in AWS
_SECRET_BYTES: Final = 20  # 40 characters in hex


async def ensure_credentials(cluster: Cluster, namespace: str, name: str) -> None:
    """Create the Secret ``name`` if absent. Only the store and the operator read it."""
    if await cluster.get_secret(namespace, name) is not None:
        return
    pair = {
        "AWS_ACCESS_KEY_ID": secrets.token_hex(_ID_BYTES),
        "AWS_SECRET_ACCESS_KEY": secrets.token_hex(_SECRET_BYTES),
    }
    if await cluster.create_secret(_make_secret(namespace, name, stringData=pair)):
        log.info("created Secret %s/%s with credentials for the store", namespace, name)


def _make_secret(namespace: str, name: str, **data: Mapping[str, str]) -> Manifest:
    """Return a Secret of the release with ``data`` or ``stringData``."""
    metadata = {"namespace": namespace, "name": name, "labels": dict(names.OPERATOR_LABELS)}
    return names.SECRET.make(metadata, type="Opaque", **data)


_DATA_KEY: Final = "key"


class ShardKeyReader:
    """The release's shard key as last read; empty before that."""

    def __init__(self, cluster: Cluster, namespace: str, name: str) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self.on_change: Callable[[bytes], None] = lambda key: None
        """Called with each new key."""
        self.key = b""

    async def refresh(self) -> bool:
        """Read the Secret, or create it if absent. Return whether the key changed. Raises what ``Api`` raises, also if
        the Secret holds no key; the last key stays then."""
        found = await self._cluster.get_secret(self._namespace, self._name)
        if found is None:
            data = {_DATA_KEY: base64.b64encode(secrets.token_bytes(credentials.KEY_BYTES)).decode()}
            await self._cluster.create_secret(_make_secret(self._namespace, self._name, data=data))
            log.info("created Secret %s/%s with the key of shard servers' passwords", self._namespace, self._name)
            # Read it back, because somebody else may have created it first.
            found = await self._cluster.get_secret(self._namespace, self._name)
        try:
            key = base64.b64decode(((found or {}).get("data") or {}).get(_DATA_KEY) or "", validate=True)
        except (binascii.Error, TypeError, ValueError):
            key = b""
        if len(key) != credentials.KEY_BYTES:  # do not show the content
            raise Refused(
                f"Secret {self._namespace}/{self._name}",
                f"it holds no key of {credentials.KEY_BYTES} bytes under {_DATA_KEY!r}; delete it, and the operator"
                " makes another one",
            )
        if key == self.key:
            return False
        self.key = key
        self.on_change(key)
        return True


# The list of live datasets: the store's sweep keeps everything that it names.


FORMAT_VERSION: Final = 1
DATA_KEY: Final = "living.json"
WRITTEN_AT: Final = "writtenAt"
_ADDRESS: Final = ("namespace", "name", "uid")
RETAIN: Final = "Retain"
MOST_RETAINED: Final = 2000
"""The most deleted datasets in the list, about 200 KB. The nightly sweep notes in the store that they are retained."""
_SHORT_UID: Final = re.compile(r"[A-Za-z0-9]{1,8}")
"""The end of a folder's name in the store. The sweep rejects a list with any other form."""
_DEFAULT_KEEP: Final = 3
"""keepGenerations if a dataset's spec cannot be read."""
REFRESH_SECONDS: Final = 600.0
"""Age at which an unchanged list is rewritten: the sweep rejects one older than an hour."""


@dataclass(slots=True)
class LiveDatasetsWriter:
    """Writes the list when it changes, and every ten minutes because the sweep rejects an old one.

    Do not call ``write`` before the cache has every dataset.
    """

    cache: ObjectCache
    cluster: Cluster
    namespace: str
    name: str
    cluster_id: str
    namespaces: tuple[str, ...]
    now: Callable[[], float] = time.time
    _written: Mapping[str, Any] | None = field(default=None, init=False)

    async def write(self) -> None:
        """Write the list if it has changed or is old. Raises what ``Api`` raises."""
        datasets = sorted(self.cache.datasets(), key=lambda dataset: dataset.key)
        if self._written is None:
            self._written = await self._read()
        retained = find_retained(self._written, datasets)
        desired = render_live_datasets(self.cluster_id, self.namespaces, datasets, self.now(), retained)
        if _needs_writing(desired, self._written):
            text = orjson.dumps(desired).decode()  # not indented: 1 MiB holds 6,000 datasets instead of 4,000
            metadata = {"namespace": self.namespace, "name": self.name, "labels": dict(names.OPERATOR_LABELS)}
            await self.cluster.apply(names.CONFIG_MAP.make(metadata, data={DATA_KEY: text}))
            self._written = desired

    async def _read(self) -> Mapping[str, Any] | None:
        """Return the cluster's list; None if there is none. Raises Refused if the ConfigMap is not the operator's."""
        found = await self.cluster.get(names.CONFIG_MAP, self.namespace, self.name)
        if found is None:
            return None
        if read_labels(found).get(names.MANAGED_BY) != names.FIELD_MANAGER:
            raise Refused(
                f"ConfigMap {self.name}",
                f"the operator needs this name for its list of datasets, but did not create this one: delete it in"
                f" namespace {self.namespace}; until then the sweep removes nothing",
            )
        try:
            members = orjson.loads((found.get("data") or {}).get(DATA_KEY) or "")
        except ValueError:
            return None
        return members if isinstance(members, dict) else None


def _needs_writing(desired: Mapping[str, Any], existing: Mapping[str, Any] | None) -> bool:
    if existing is None or {**existing, WRITTEN_AT: None} != {**desired, WRITTEN_AT: None}:
        return True
    try:
        age = datetime.fromisoformat(desired[WRITTEN_AT]) - datetime.fromisoformat(existing[WRITTEN_AT])
    except (ValueError, KeyError, TypeError):
        return True
    return abs(age.total_seconds()) >= REFRESH_SECONDS


def find_retained(previous: Mapping[str, Any] | None, datasets: Iterable[ObservedDataset]) -> list[dict[str, str]]:
    """Return deleted datasets whose generations stay in the store, oldest first: those that the previous list retained,
    and those that it listed as live and that are gone."""
    alive = {dataset.uid for dataset in datasets}
    known = _list_entries(previous or {}, "retained")
    known += [entry for entry in _list_entries(previous or {}, "datasets") if entry.get("retain")]
    gone = {entry["uid"]: {name: entry[name] for name in _ADDRESS} for entry in known if entry["uid"] not in alive}
    return list(gone.values())[-MOST_RETAINED:]


def _list_entries(members: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the datasets that ``members`` list under ``name`` with an address."""
    entries = members.get(name)
    return [
        entry
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict) and all(isinstance(entry.get(part), str) for part in _ADDRESS)
    ]


def render_live_datasets(
    cluster_id: str,
    namespaces: tuple[str, ...],
    datasets: list[ObservedDataset],
    now: float,
    retained: Sequence[Mapping[str, str]] = (),
) -> Mapping[str, Any]:
    """Return the list as of ``now``. It is complete for ``namespaces``, or for all if empty."""
    return {
        "formatVersion": FORMAT_VERSION,
        "cluster": cluster_id,
        WRITTEN_AT: datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        **({"namespaces": sorted(namespaces)} if namespaces else {}),
        "datasets": [_describe_dataset(dataset) for dataset in datasets],
        **({"retained": list(retained)} if retained else {}),
    }


def _describe_dataset(dataset: ObservedDataset) -> dict[str, Any]:
    spec = dataset.spec
    keep, adopt = spec.get("keepGenerations"), spec.get("adopt")
    protected = dataset.status.protected_generations(str(spec.get("generation", "")))
    entry = {
        "namespace": dataset.namespace,
        "name": dataset.name,
        "uid": dataset.uid,
        "keep": keep if isinstance(keep, int) and keep > 0 else _DEFAULT_KEEP,
        "protect": sorted(protected, key=names.read_number),
    }
    if spec.get("deletionPolicy") == RETAIN:
        entry["retain"] = True
    # Until a dataset has a generation of its own, builders copy from the earlier one that it adopts.
    uid = adopt.get("uid") if isinstance(adopt, dict) else None
    if isinstance(uid, str) and dataset.status.has_nothing_of_its_own and _SHORT_UID.fullmatch(uid[:8]):
        entry["adopt"] = uid[:8]
    return entry


# Announcements through the gateway. The announcer has the operator's service account. It reads the stored announcement
# and replaces exactly that version, so a late write of a stopped or suspended operator changes nothing.


_SECONDS: Final = aiohttp.ClientTimeout(total=20, connect=3)
_MAX_ANSWER_BYTES: Final = 64 << 10


class GatewayAnnouncer:
    """Announces to the gateway at ``url`` with the token in ``token_file``, which is read for each request."""

    def __init__(self, url: str, cluster: str, token_file: Path) -> None:
        self._url = url.rstrip("/")
        self._cluster = cluster
        self._token_file = token_file
        self._session: aiohttp.ClientSession | None = None

    async def announce(self, announcement: Announcement) -> None:
        """Return once the store has ``announcement``, or a later one of the same generation. Raises NotAnnounced."""
        try:
            address = StoreAddress(self._cluster, announcement.namespace, announcement.name, announcement.uid)
        except UsageError as error:
            raise NotAnnounced(error.message) from error
        target = f"{OBJECT_PATH}{quote(address.path)}/{ANNOUNCEMENT_NOTE}"
        try:
            standing, mode = await self._read(target)
            if standing is not None and standing.version >= announcement.version:
                if standing.generation == announcement.generation:
                    return
                raise NotAnnounced(
                    f"{standing.generation} is announced there already, with table version {standing.version}; this"
                    f" announcement needs a higher version, and has {announcement.version}"
                )
            await self._ask("PUT", target, body=announcement.to_json(), headers={MODE_HEADER: mode})
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise NotAnnounced(
                f"the gateway {self._url} does not answer: {str(error) or type(error).__name__}"
            ) from error

    async def _read(self, target: str) -> tuple[Announcement | None, str]:
        """Return the stored announcement, and the put mode that replaces exactly it. Invalid announcements, and those
        of another dataset, are replaced."""
        status, headers, body = await self._ask("GET", target, expected=(200, 404))
        if status == 404:
            return None, CREATE
        try:
            return parse_announcement(body, target), headers.get(VERSION_HEADER, CREATE)
        except CorruptFile:
            return None, headers.get(VERSION_HEADER, CREATE)

    async def _ask(
        self,
        method: str,
        target: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        expected: tuple[int, ...] = (200,),
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Return status, headers and body of an answer. Raises NotAnnounced if the status is not expected."""
        shown = {"Authorization": f"Bearer {self._read_token()}", **(headers or {})}
        if self._session is None:
            settings: dict[str, Any] = {}
            if self._url.startswith("https://"):
                settings["ssl"] = ssl.create_default_context(cafile=os.environ.get(CA_FILE_VARIABLE) or None)
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=16, **settings))
        request = self._session.request(
            method, f"{self._url}{target}", data=body, headers=shown, timeout=_SECONDS, allow_redirects=False
        )
        async with request as response:
            content = await read_at_most(response.content, _MAX_ANSWER_BYTES)
            if response.status not in expected:
                problem = parse_problem(response.status, response.content_type, content, "")
                raise NotAnnounced(f"the gateway {self._url} answers {response.status}: {problem.detail}")
            return response.status, response.headers, content[: MAX_ANNOUNCEMENT_BYTES + 1]

    def _read_token(self) -> str:
        """Return the current token. Raises NotAnnounced."""
        try:
            with self._token_file.open("rb") as file:
                token = file.read(MAX_ACCOUNT_TOKEN_BYTES + 1).strip()
        except OSError as error:
            raise NotAnnounced(f"the token in {self._token_file} cannot be read: {error.strerror}") from error
        if not token or len(token) > MAX_ACCOUNT_TOKEN_BYTES or not token.isascii():
            raise NotAnnounced(f"{self._token_file} holds no token")
        return token.decode("ascii")

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
