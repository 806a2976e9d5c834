"""Before the handshake, a client may announce only small records, in pieces of any size."""

from __future__ import annotations

from lookupdb.router.tls import MAX_HELLO_BYTES, PlainRecords

HELLO, FINISHED, CHANGE, DATA = 1, 20, 0x14, 0x17


def record(body: bytes, kind: int = 0x16) -> bytes:
    return bytes([kind, 3, 3]) + len(body).to_bytes(2, "big") + body


def message(size: int, kind: int = HELLO) -> bytes:
    return bytes([kind]) + size.to_bytes(3, "big") + bytes(size)


GOOD = {
    "one message": record(message(500)),
    "one message in three records": b"".join(record(message(900)[start : start + 301]) for start in (0, 301, 602)),
    "a second hello": record(message(500)) + record(b"\x01", CHANGE) + record(message(600)),
    "what is encrypted": record(message(500)) + record(b"\x01", CHANGE) + record(bytes(16_000), DATA) * 3,
    "the largest": b"".join(
        record(message(MAX_HELLO_BYTES)[start : start + 8000]) for start in range(0, MAX_HELLO_BYTES + 4, 8000)
    ),
}
BAD = {
    "a large one": record(message(MAX_HELLO_BYTES + 1)[:100]),
    "a large second hello": record(message(500)) + record(message(120_000)[:100]),
    "a large one behind a small one": record(message(10) + message(120_000)[:100]),
    "a length that is not whole": record(message(10)[:3]) + record(message(10)[3:]),
    "an empty record": record(b"") * 2,
    "a record behind its end": record(message(10)[:9]) + record(bytes(6)),
}


def test_pieces_are_judged_as_the_whole() -> None:
    for name in (*GOOD, *BAD):
        for size in (1, 3, 7, 1 << 20):
            data = (GOOD | BAD)[name]
            records = PlainRecords()
            judged = [records.are_small(data[start : start + size]) for start in range(0, len(data), size)]
            assert all(judged) is (name in GOOD)
