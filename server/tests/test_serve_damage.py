"""A shard file damaged while it is served: an error for one key, and nobody else's trouble. Real files and sockets."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
import zstandard
from support.shards import Running, serving, write_generation
from test_serve import await_growth, await_silence, connect, connected, metrics, request

from lookupdb import keys, shardfile
from lookupdb.errors import CorruptFile
from lookupdb.shard.commands import DAMAGED
from lookupdb.shardfile import MAX_VALUE_BYTES, frame
from lookupdb.store import generations

pytestmark = pytest.mark.long

BAD = "key 137"
TOO_LARGE = MAX_VALUE_BYTES + 100
VALUES = {f"key {number}": b"value %d of the sample " % number * 4 for number in range(500)}
KEYS = list(VALUES)


Served = tuple[Path, Running]
"""A generation, and the server of its only shard."""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """VALUES as they are, served to all tests that damage them one after the other, and mend them."""
    generation = write_generation(tmp_path_factory.mktemp("plain"), VALUES)
    with serving(generation) as server:
        yield generation, server


@pytest.fixture(scope="module")
def compressed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A generation with compressed VALUES."""
    generation, _ = compressed_sample(tmp_path_factory.mktemp("compressed"))
    with serving(generation) as server:
        yield generation, server


def overwrite(generation: Path, old: bytes, new: bytes) -> int:
    """Put ``new`` where the shard file holds ``old``, in place: whoever has mapped the file sees it. The offset."""
    path = generation / keys.file_name(0, 1)
    content = path.read_bytes()
    assert content.count(old) == 1
    write(path, content.index(old), new)
    return content.index(old)


@contextmanager
def damaged(served: Served, old: bytes, new: bytes) -> Iterator[Running]:
    """``old`` is ``new`` in the file that is served; afterwards it is as before, and so are the answers."""
    generation, server = served
    offset = overwrite(generation, old, new)
    try:
        yield server
    finally:
        write(generation / keys.file_name(0, 1), offset, old)
    with connected(server) as client:
        assert client.get(BAD) == VALUES[BAD]


def write(path: Path, offset: int, data: bytes) -> None:
    path.chmod(0o644)
    file = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(file, data, offset)
    finally:
        os.close(file)


def reply(key: str) -> bytes:
    return DAMAGED if key == BAD else frame(VALUES[key])


def read(client: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size and (data := client.recv(1 << 20)):
        received += data
    return received


def expect(client: socket.socket, sent: bytes, answer: bytes) -> None:
    client.sendall(sent)
    assert read(client, len(answer)) == answer


def check_all_ways_to_ask(server: Running) -> None:
    """On one connection, which stays open: GETs alone, pipelined, in an MGET of one read and of many, and EXISTS."""
    with connect(server) as client:
        for key in (BAD, KEYS[0], BAD, KEYS[-1]):
            expect(client, request(b"GET", key.encode()), reply(key))
            expect(client, request(b"get", key.encode()), reply(key))
        some = KEYS[100:200]
        expect(client, b"".join(request(b"GET", key.encode()) for key in some), b"".join(map(reply, some)))
        answer = b"*101\r\n" + b"".join(map(reply, some)) + b"$-1\r\n"
        expect(client, request(b"MGET", *(key.encode() for key in some), b"nothing"), answer)
        many = KEYS * 5
        answer = b"*2500\r\n" + b"".join(map(reply, many))
        expect(client, request(b"MGET", *(key.encode() for key in many)), answer)
        expect(client, request(b"PING"), b"+PONG\r\n")


@contextmanager
def nothing_ends(server: Running, damaged: int) -> Iterator[None]:
    """Check that in the block ``damaged`` lookups find damage, one finds a missing key, and nothing stops."""
    before = await_silence(server)
    yield
    unharmed = {"worker_restarts_total": 0.0, "connections_cut_total": 0.0}
    await_growth(server, before, {**unharmed, "damaged_lookups_total": damaged, "misses_total": 1})


STORED = frame(VALUES[BAD])
DAMAGES: dict[str, bytes] = {
    "a length too small": STORED.replace(b"$", b"$1", 1)[:4],
    "a length too large": b"$999\r\n",
    "a length that takes the next reply too": b"$%d\r\n" % (len(STORED) - 2),
    "no length": b"$\r\n\r\n",
    "a length that is not a number": b"$+1\r\n",
    "no reply at all": bytes(8),
    "another kind of reply": b":104\r\n",
    "what stands for missing": b"_\r\n",
    "what RESP says for missing": b"$-1\r\n",
    "what looks compressed": b"\x60\x10\x00",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_value_without_its_frame_is_an_error_for_its_key_alone(plain: Served, damage: bytes) -> None:
    with (
        damaged(plain, STORED[:20], (damage + STORED[len(damage) :])[:20]) as server,
        nothing_ends(server, damaged=4 + 1 + 1 + 5),
    ):
        check_all_ways_to_ask(server)


def test_a_value_without_its_end_is_an_error_for_who_asks_for_it_alone(plain: Served) -> None:
    with connect(plain[1]) as client:
        expect(client, request(b"GET", BAD.encode()), STORED)
    with damaged(plain, STORED, STORED[:-2] + b"  ") as server, connect(server) as client:
        for command in (b"GET", b"get"):
            expect(client, request(command, BAD.encode()), DAMAGED)
        expect(client, request(b"GET", b"key 1"), frame(VALUES["key 1"]))


def test_a_damaged_value_is_an_error_for_each_read_of_it_and_in_its_place_in_a_transaction(plain: Served) -> None:
    damage = DAMAGES["no reply at all"]
    reads = [
        *((name, BAD.encode()) for name in (b"TYPE", b"TTL", b"STRLEN", b"HGETALL", b"TOUCH")),
        *((b"GETRANGE", BAD.encode(), b"0", b"-1"), (b"HGET", BAD.encode(), b"a")),
    ]
    with damaged(plain, STORED[:20], damage + STORED[len(damage) : 20]) as server, connect(server) as client:
        for words in reads:
            expect(client, request(*words), DAMAGED)
        asked = b"".join(request(*words) for words in (*reads, (b"GET", b"key 1")))
        replies = b"+OK\r\n" + b"+QUEUED\r\n" * 8 + b"*8\r\n" + DAMAGED * 7 + frame(VALUES["key 1"])
        expect(client, request(b"MULTI") + asked + request(b"EXEC"), replies)


@pytest.mark.parametrize("byte", [b"_", b"\xff", b"$", b"\0"])
def test_a_value_cut_to_a_single_byte_is_damaged_and_never_missing(plain: Served, byte: bytes) -> None:
    node = struct.Struct("<HHHH")  # the value's size in two halves, flags, the key's size
    whole = node.pack(len(STORED), 0, 0, len(BAD)) + BAD.encode() + STORED[:1]
    cut = node.pack(1, 0, 0, len(BAD)) + BAD.encode() + byte
    with damaged(plain, whole, cut) as server, nothing_ends(server, damaged=4 + 1 + 1 + 5):
        check_all_ways_to_ask(server)


def compressed_sample(directory: Path) -> tuple[Path, bytes]:
    """VALUES compressed, and the stored value of BAD."""
    generation = write_generation(directory, VALUES, compression="zstd")
    return generation, stored_value(generation)


def stored_value(generation: Path) -> bytes:
    """The stored value of BAD, which is compressed."""
    with shardfile.ShardReader(generation / keys.file_name(0, 1)) as shard:
        stored = shard.txn.get(BAD.encode())
    assert stored is not None
    assert stored[0] != shardfile.FRAMED
    return bytes(stored)


COMPRESSED_DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "the frame is cut": lambda stored: stored[:6] + bytes(len(stored) - 6),
    "the header claims 1 GiB": lambda stored: b"\xa0" + struct.pack("<I", 1 << 30) + stored[5:],
    "the header claims more than there is memory": lambda stored: b"\xe0" + struct.pack("<Q", 1 << 62) + stored[9:],
    "the header claims nothing": lambda stored: b"\x00" + stored[1:],
    "the header claims too little": lambda stored: stored[:1] + b"\x05" + stored[2:],
    "zeros": lambda stored: bytes(len(stored)),
}


@pytest.mark.parametrize("damage", COMPRESSED_DAMAGES.values(), ids=COMPRESSED_DAMAGES.keys())
def test_a_value_that_does_not_decompress_is_an_error_for_its_key_alone(
    compressed: Served, damage: Callable[[bytes], bytes]
) -> None:
    stored = stored_value(compressed[0])
    with damaged(compressed, stored, damage(stored)) as server, nothing_ends(server, damaged=4 + 1 + 1 + 5):
        check_all_ways_to_ask(server)


def test_a_small_value_that_would_become_a_huge_one_is_not_expanded(tmp_path: Path) -> None:
    compressor = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters.from_level(
            3, format=zstandard.FORMAT_ZSTD1_MAGICLESS, write_checksum=0, write_dict_id=0
        )
    )
    bombs = {name: compressor.compress(bytes(size)) for name, size in (("huge", 1 << 30), ("large", TOO_LARGE))}
    noise = {name: os.urandom(len(bomb)) for name, bomb in bombs.items()}
    generation = write_generation(tmp_path, {"other": os.urandom(5000), **noise}, compression="zstd")
    with serving(generation) as server, connected(server) as client:
        for name, bomb in bombs.items():
            overwrite(generation, frame(noise[name])[: len(bomb)], bomb)
            for _ in range(20):
                with pytest.raises(redis.ResponseError, match="damaged"):
                    client.get(name)
        assert len(client.get("other") or b"") == 5000
        assert metrics(server)['lookupdb_shard_private_bytes{process="worker-0"}'] < 30e6


def test_a_large_value_with_a_wrong_length_disturbs_nothing_behind_it(tmp_path: Path) -> None:
    large = {f"large {number}": b"%d" % number * 200_000 for number in range(4)}
    generation = write_generation(tmp_path, large)
    with serving(generation) as server, connect(server) as client:
        overwrite(generation, frame(large["large 1"])[:16], b"$200007\r\n"[:9] + b"1" * 7)
        answer = b"*5\r\n" + b"".join(DAMAGED if key == "large 1" else frame(large[key]) for key in large) + b"$-1\r\n"
        expect(client, request(b"MGET", *(key.encode() for key in large), b"none"), answer)
        expect(client, request(b"GET", b"large 1"), DAMAGED)
        expect(client, request(b"EXISTS", b"large 1"), DAMAGED)
        expect(client, request(b"GET", b"large 2"), frame(large["large 2"]))


def branch_pages(path: Path) -> list[int]:
    """Offsets of LMDB's branch pages: number, padding, flags (1: a branch), and where its nodes are."""
    content = path.read_bytes()
    found = []
    for offset in range(2 * 4096, len(content), 4096):
        number, _, flags = struct.unpack_from("<QHH", content, offset)
        if number == offset // 4096 and flags == 1:
            found.append(offset)
    return found


def test_keys_behind_a_damaged_page_are_errors_and_all_others_are_answered(tmp_path: Path) -> None:
    generation = write_generation(tmp_path, VALUES)
    path = generation / keys.file_name(0, 1)
    with serving(generation) as server, connect(server) as client:
        (root,) = branch_pages(path)
        (node,) = struct.unpack_from("<H", path.read_bytes(), root + 16 + 2 * 2)
        write(path, root + node, b"\xff\xff\xff\x7f")  # the third leaf is said to be on a page far behind the end
        client.sendall(request(b"MGET", *(key.encode() for key in sorted(KEYS))))
        whole = client.makefile("rb")
        assert whole.readline() == b"*500\r\n"
        damaged = []
        for key in sorted(KEYS):
            line = whole.readline()
            if line == DAMAGED:
                damaged.append(key)
            else:
                assert line + whole.read(len(frame(VALUES[key])) - len(line)) == frame(VALUES[key])
        assert 10 < len(damaged) < 100
        for key in (damaged[0], "key 0", damaged[-1], "key 499"):
            expect(client, request(b"GET", key.encode()), DAMAGED if key in damaged else frame(VALUES[key]))
        await_growth(server, {}, {"worker_restarts_total": 0, "damaged_lookups_total": len(damaged) + 2})


def test_damage_is_logged_once_and_not_for_each_lookup(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    generation = write_generation(tmp_path, VALUES)
    with serving(generation) as server, connected(server) as client:
        overwrite(generation, STORED[:20], bytes(20))
        for _ in range(100):
            with pytest.raises(redis.ResponseError):
                client.get(BAD)
        await_growth(server, {}, {"damaged_lookups_total": 100})
    lines = [line for line in capfd.readouterr().err.splitlines() if "damaged" in line]
    assert len(lines) == 1
    assert "shard-00000-of-00001.lmdb" in lines[0]


def test_a_reader_of_the_file_is_told_of_a_damaged_value(tmp_path: Path) -> None:
    generation, stored = compressed_sample(tmp_path)
    overwrite(generation, stored, bytes(len(stored)))
    with shardfile.ShardReader(generation / keys.file_name(0, 1)) as shard:
        assert shard.find(b"key 1") == frame(VALUES["key 1"])
        with pytest.raises(CorruptFile, match="does not decompress"):
            shard.find(BAD.encode())
        with pytest.raises(CorruptFile, match=r"shard-00000-of-00001.lmdb: a stored value is damaged"):
            generations.sample_records([shard], count=500)
