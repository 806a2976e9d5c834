"""Small real generations made from a dict, and shard servers started as a user starts them.

generation = write_generation(tmp_path, {"a": b"1", "b": b"2"}, shards=2)
with serving(generation, shard=0) as server:
    redis.Redis(port=server.ports[0]).get("a")
"""

from __future__ import annotations

import contextlib
import hashlib
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import lmdb
import zstandard

from lookupdb import keys, manifest, shardfile
from support import launching


def write_generation(
    directory: Path,
    records: Mapping[str, bytes],
    *,
    shards: int = 1,
    generation: str = "g1",
    namespace: str = "default",
    name: str = "sample",
    uid: str = "local",
    normalize: Sequence[str] = (),
    value_format: Literal["json", "raw"] = "raw",
    compression: Literal["zstd", "none"] = "none",
    key_columns: Sequence[str] = ("key",),
    separator: str = "|",
) -> Path:
    """Write shard files and manifest.json of ``records`` into ``directory/generation``, which is returned.

    With ``compression="zstd"`` every value is compressed (with a small dictionary) that becomes smaller by it.
    """
    home = directory / generation
    home.mkdir(parents=True)
    encode = keys.make_key_encoder(normalize)
    parts: list[dict[bytes, bytes]] = [{} for _ in range(shards)]
    for key, value in records.items():
        encoded = encode(key)
        parts[keys.shard_number(encoded, shards)][encoded] = shardfile.frame(value)
    dictionary = b""
    if compression == "zstd":
        dictionary = b" ".join(list(records.values())[:50])[:4096]
        squeeze = _compressor(dictionary)
        parts = [{key: min(squeeze.compress(value), value, key=len) for key, value in part.items()} for part in parts]
    files = []
    for number, part in enumerate(parts):
        meta = shardfile.ShardMeta(
            dataset=f"{namespace}/{name}",
            shard=number,
            shards=shards,
            records=len(part),
            normalize=tuple(normalize),
            value_format=value_format,
            compression=compression,
            content="sample",
        )
        files.append(_write_shard(home / keys.file_name(number, shards), part, meta, dictionary))
    described = manifest.Manifest(
        namespace=namespace,
        name=name,
        uid=uid,
        generation=generation,
        content="sample",
        fingerprint="sample",
        source=(),
        key_columns=tuple(key_columns),
        separator=separator,
        normalize=tuple(normalize),
        unicode=keys.UNICODE_VERSION,
        value_format=value_format,
        compression=compression,
        dictionary_bytes=len(dictionary),
        shards=tuple(files),
        totals=manifest.Totals(
            records=len(records),
            key_bytes=sum(len(key) for part in parts for key in part),
            value_bytes=sum(map(len, records.values())),
            stored_bytes=sum(len(value) for part in parts for value in part.values()),
            file_bytes=sum(file.bytes for file in files),
        ),
        rejected=manifest.ExcludedRows(),
        duplicates=manifest.ExcludedRows(),
        built_at="2026-01-01T00:00:00Z",
        seconds=0.1,
        lookupdb="0",
    )
    (home / manifest.FILE_NAME).write_bytes(described.to_json())
    return home


def _compressor(dictionary: bytes) -> zstandard.ZstdCompressor:
    parameters = zstandard.ZstdCompressionParameters.from_level(
        3, format=zstandard.FORMAT_ZSTD1_MAGICLESS, write_checksum=0, write_dict_id=0
    )
    return zstandard.ZstdCompressor(dict_data=zstandard.ZstdCompressionDict(dictionary), compression_params=parameters)


def _write_shard(
    path: Path, records: Mapping[bytes, bytes], meta: shardfile.ShardMeta, dictionary: bytes
) -> manifest.ShardFile:
    room = 1 << 20
    room += sum(2 * len(key) + 2 * len(value) + 8192 * (len(value) > 2000) for key, value in records.items())
    with lmdb.open(str(path), subdir=False, lock=False, map_size=room, max_dbs=2) as env:
        with env.begin(write=True, db=env.open_db(shardfile.META)) as txn:
            txn.put(shardfile.META_FORMAT, b"%d" % keys.FORMAT_VERSION)
            txn.put(shardfile.META_MANIFEST, meta.to_json())
            if dictionary:
                txn.put(shardfile.META_DICTIONARY, dictionary)
        with env.begin(write=True, db=env.open_db(shardfile.RECORDS)) as txn:
            for key in sorted(records):
                assert txn.put(key, records[key], append=True)
    path.chmod(0o444)
    content = path.read_bytes()
    return manifest.ShardFile(path.name, len(content), meta.records, hashlib.sha256(content).hexdigest())


@dataclass(slots=True)
class Running:
    """A ``lookupdb serve`` that is ready."""

    process: subprocess.Popen[bytes]
    ports: list[int]
    """One a worker."""
    admin: int
    was_killed: bool = False

    @property
    def pid(self) -> int:
        """The supervisor's."""
        return self.process.pid

    def kill(self) -> None:
        """Kill the supervisor, as the kernel does when memory is short. Its workers end with it."""
        self.was_killed = True
        self.process.kill()


@contextlib.contextmanager
def serving(
    path: Path,
    *options: str,
    shard: int | None = None,
    workers: int = 1,
    drain_seconds: float = 0.0,
    ports: int = 0,
    open_files: int | None = None,
    by_command_line: bool = False,
) -> Iterator[Running]:
    """``lookupdb serve path`` from ready until the block ends; it must then end with status 0, unless it was killed.

    ``options`` are passed on as they are. ``ports`` is the first worker's port, 0 for free ones. ``open_files`` is the
    hard limit of descriptors; the soft one is half of it. ``by_command_line`` starts an interpreter of its own.
    """
    words = [str(path), "--port", str(ports), "--admin-port", "0", "--workers", str(workers)]
    words += ["--drain-seconds", str(drain_seconds), *options]
    if shard is not None:
        words += ["--shard", str(shard)]
    with launching.ready("serve", words, open_files=open_files, by_command_line=by_command_line) as (process, told):
        server = Running(process, told["ports"], told["admin"])
        yield server
    expected = -signal.SIGKILL if server.was_killed else 0
    assert process.returncode == expected, f"the shard server ended with {process.returncode}, not {expected}"
