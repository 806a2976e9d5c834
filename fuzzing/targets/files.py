"""Files and objects that others write: routing table, index, claim, list of live datasets, resources."""

from __future__ import annotations

import math
import tempfile
import time
from pathlib import Path
from typing import Final

import orjson

from fuzzing.target import JSON_WORDS, Target
from lookupdb.dataset.spec import read_manifest
from lookupdb.errors import LookupdbError
from lookupdb.manifest import Announcement, Manifest, parse_announcement
from lookupdb.router.routing_table import InvalidTable, parse_table
from lookupdb.store import bucket_dataset
from lookupdb.store import dataset as stored_datasets
from lookupdb.store.bucket import ObjectState
from lookupdb.store.sweep import read_live_list

_TEMPORARY: Final = tempfile.TemporaryDirectory(prefix="fuzzing-")  # removed on exit, unless libFuzzer ends the process
_FOLDER: Final = Path(_TEMPORARY.name)


def check_table(data: bytes) -> None:
    """A routing table is read alike each time, and names each shard once, or is rejected."""
    try:
        table = parse_table(data)
    except InvalidTable as error:
        assert error.message
        return
    assert table == parse_table(data)
    entry = table.active_entry
    assert all(shard.endpoints for shard in entry.shards)


def check_manifest(data: bytes) -> None:
    """An index survives writing and reading; its files stay in its folder."""
    try:
        manifest = stored_datasets.parse_manifest(data, "manifest.json")
    except LookupdbError as error:
        assert error.message
        return
    assert Manifest.from_json(manifest.to_json(), "manifest.json") == manifest
    assert not any("/" in shard.file or shard.file.startswith(".") for shard in manifest.shards)


def check_announcement(data: bytes) -> None:
    """An announcement survives writing and reading; it names a generation."""
    try:
        announcement = parse_announcement(data, "active.json")
    except LookupdbError as error:
        assert error.message
        return
    assert parse_announcement(announcement.to_json(), "active.json") == announcement
    assert stored_datasets.is_generation(announcement.generation)


def check_claim(data: bytes) -> None:
    """A claim has members, or none."""
    standing = ObjectState(body=data, version={})  # type: ignore[call-arg,unused-ignore]
    for name in ("attempt", "beat", "manifest"):
        assert isinstance(bucket_dataset._read_member(standing, name), str | None)
    assert isinstance(bucket_dataset._read_decision(standing), bytes | None)


def check_live_datasets(data: bytes) -> None:
    """The list that the sweep spares is complete and of this cluster, or is rejected."""
    path = _FOLDER / "live.json"
    path.write_bytes(data)
    try:
        live = read_live_list(path, "cluster", time.time(), math.inf)
    except LookupdbError as error:
        assert error.message
        return
    assert all(address.cluster == "cluster" for address in (*live.datasets, *live.retained))


def check_resource(data: bytes) -> None:
    """A file that is no LookupDataset is rejected with a sentence."""
    path = _FOLDER / "dataset.yaml"
    path.write_bytes(data)
    try:
        read_manifest(path)
    except LookupdbError as error:
        assert error.message


_ENTRY: Final = {
    "generation": "g12",
    "records": 3,
    "bytes": 4096,
    "builtAt": "2026-01-01T00:00:00Z",
    "normalize": ["strip", "lowercase"],
    "valueFormat": "json",
    "shards": [{"endpoints": ["a.default.svc:7000", "[::1]:7001"]}, {"endpoints": ["10.0.0.1:7000"]}],
}
_DATASET: Final = {"namespace": "default", "name": "airports", "uid": "8d3f6b1a"}
_TABLE: Final = {"formatVersion": 1, "version": 3, "dataset": _DATASET, "active": "g12", "generations": [_ENTRY]}
_ROWS: Final = {"count": 1, "samples": [{"file": "a.csv", "row": 1, "reason": "no key"}]}
_MANIFEST: Final = {
    "formatVersion": 1,
    **_DATASET,
    "generation": "g12",
    "content": "c",
    "fingerprint": "f",
    "source": [{"url": "s3://b/a.csv", "bytes": 10, "etag": None, "modified": "2026-01-01T00:00:00Z"}],
    "key_columns": ["id"],
    "separator": ":",
    "normalize": ["strip"],
    "unicode": "14.0.0",
    "value_format": "json",
    "compression": "zstd",
    "dictionary_bytes": 0,
    "shards": [
        {"file": "shard-00000-of-00001.lmdb", "bytes": 4096, "records": 3, "sha256": "0" * 64, "dictionary_offset": 0}
    ],
    "dictionary": {"outcome": "kept", "reason": "it is nearly as good", "sha256": "0" * 64},
    "totals": {"records": 3, "key_bytes": 9, "value_bytes": 9, "stored_bytes": 9, "file_bytes": 4096},
    "rejected": _ROWS,
    "duplicates": {"count": 0, "samples": []},
    "built_at": "2026-01-01T00:00:00Z",
    "seconds": 0.5,
    "lookupdb": "0.1.0",
}
_REFUSED: Final = {"reasons": ["too few"], "gates": "x", "active": "g11", "unjudged": []}
_LIVE: Final = {
    "formatVersion": 1,
    "cluster": "cluster",
    "writtenAt": "2026-11-20T02:04:00Z",
    "datasets": [{**_DATASET, "keep": 2, "protect": ["g12"], "retain": True}],
    "retained": [_DATASET],
}
_RESOURCE: Final = b"""apiVersion: lookupdb.dev/v1alpha1
kind: LookupDataset
metadata: {name: airports}
spec:
  source: {url: "s3://b/f.csv", format: csv}
  key: {columns: [id], normalize: [strip]}
  shards: 4
"""
_ANNOUNCEMENT: Final = Announcement("team", "people", "3f2b9c1e", "g12", 17, "2026-11-20T02:04:00Z").to_json()

TARGETS: Final = (
    Target(
        "routing-tables", check_table, (orjson.dumps(_TABLE),), (*JSON_WORDS, b'"a:0"', b'"[::1]:1"', b'"rollout":"r1"')
    ),
    Target(
        "manifests",
        check_manifest,
        (orjson.dumps(_MANIFEST), orjson.dumps({**_MANIFEST, "formatVersion": 2, "refused": _REFUSED})),
        (*JSON_WORDS, b'"overridden":["x"]', b'"refused"', b'"shard-00000-of-00001-3f2b9c1e77aa.lmdb"'),
    ),
    Target(
        "announcements", check_announcement, (_ANNOUNCEMENT,), (*JSON_WORDS, b'"formatVersion":2', b'"g12"', b'"uid"')
    ),
    Target(
        "claims",
        check_claim,
        (orjson.dumps({"attempt": "a", "beat": 1, "manifest": "{}"}),),
        (*JSON_WORDS, b'"manifest"', b'"attempt"'),
    ),
    Target("live-datasets", check_live_datasets, (orjson.dumps(_LIVE),), JSON_WORDS),
    Target(
        "resources",
        check_resource,
        (_RESOURCE, orjson.dumps({"apiVersion": "lookupdb.dev/v1alpha1", "kind": "LookupDataset"})),
        (
            *JSON_WORDS,
            b"---\n",
            b"&a ",
            b"*a",
            b"<<: *a",
            b"!!python/object:os.system ",
            b"? ",
            b"|\n",
            b"  refresh: {schedule: '@daily'}\n",
        ),
    ),
)
