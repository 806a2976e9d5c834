"""Speaks to a shard server: ``python knock.py < {"host": …, "port": …, "commands": [["GET", "key"], …]}``.

All commands use one connection. Prints one JSON document with the replies: an error with its ``-``, a value alone. If
there are fewer replies than commands, ``why`` gives the reason.
"""

from __future__ import annotations

import json
import socket
import sys
from typing import BinaryIO

SECONDS = 5.0


def main() -> None:
    """Read commands from standard input, and print the replies."""
    asked = json.load(sys.stdin)
    replies: list[str] = []
    why = ""
    try:
        with (
            socket.create_connection((asked["host"], asked["port"]), timeout=SECONDS) as raw,
            raw.makefile("rb") as file,
        ):
            for command in asked["commands"]:
                raw.sendall(_encode(command))
                replies.append(_read_reply(file))
    except (OSError, EOFError) as error:
        why = f"{type(error).__name__}: {error}"
    print(json.dumps({"replies": replies, "why": why}))


def _encode(words: list[str]) -> bytes:
    pieces = [f"${len(word.encode())}\r\n{word}\r\n" for word in words]
    return "".join([f"*{len(words)}\r\n", *pieces]).encode()


def _read_reply(file: BinaryIO) -> str:
    line = file.readline()
    if not line.endswith(b"\r\n"):
        raise EOFError("the connection ended")
    text = line.decode(errors="replace").rstrip("\r\n")
    if not text.startswith("$") or text == "$-1":
        return text
    return file.read(int(text[1:]) + 2)[:-2].decode(errors="replace")


if __name__ == "__main__":
    main()
