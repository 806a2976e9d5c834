"""The file that load.c plays: requests, and the expected answers as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from struct import pack


def write(path: Path, requests: Sequence[bytes], answers: Sequence[bytes] | None = None) -> Path:
    """Write a load script. Without ``answers`` the requests are HTTP, and any 200 with a length is right."""
    answers = answers if answers is not None else [b""] * len(requests)
    with path.open("wb") as file:
        file.write(b"LOADSCR1" + pack("<Q", len(requests)))
        for texts in (requests, answers):
            file.write(pack(f"<{len(texts) + 1}Q", 0, *accumulate(map(len, texts))))
        file.writelines(requests)
        file.writelines(answers)
    return path


def command(*words: bytes) -> bytes:
    """A RESP command."""
    return b"*%d\r\n" % len(words) + b"".join(bulk(word) for word in words)


def bulk(value: bytes) -> bytes:
    """A RESP bulk string."""
    return b"$%d\r\n%b\r\n" % (len(value), value)


def array(values: Sequence[bytes]) -> bytes:
    """A RESP array of bulk strings."""
    return b"*%d\r\n" % len(values) + b"".join(map(bulk, values))


def http_get(path: str, *fields: str) -> bytes:
    """A GET request for ``path``, with further header fields."""
    lines = "".join(f"{field}\r\n" for field in fields)
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{lines}\r\n".encode()


def http_post(path: str, body: bytes, *fields: str) -> bytes:
    """A POST request of JSON to ``path``, with further header fields."""
    lines = "".join(f"{field}\r\n" for field in fields)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n{lines}\r\n"
    )
    return head.encode() + body
