"""What comes of a handshake before it is encrypted: OpenSSL makes room for as much as the client says will come.

A record is a type, a version and a length (RFC 8446, 5.1); a handshake message is a type and a length of three bytes
(4). Forty bytes can announce 128 KiB.
"""

from __future__ import annotations

from typing import Final

MAX_HELLO_BYTES: Final = 16 << 10
"""Of a client's first message. With keys for several ways of exchange it has 2 KiB."""
HANDSHAKE: Final = 0x16
"""The type of a record of a handshake in plain text: the first byte of whoever begins with TLS."""
_RECORD: Final = 5
_MESSAGE: Final = 4


class PlainRecords:
    """Reads the heads of records and messages as they come, until the handshake is done."""

    __slots__ = ("_head", "_message_left", "_record_left")

    def __init__(self) -> None:
        self._head = b""
        """Of a record and the message that it begins with, not whole."""
        self._record_left = 0
        self._message_left = 0

    def are_small(self, data: bytes) -> bool:
        """Whether, with ``data``, no message announces more than ``MAX_HELLO_BYTES``, and each is alone in its
        records, as those in plain text are."""
        data, self._head = self._head + data, b""
        at = 0
        while at < len(data):
            passed = min(self._record_left, len(data) - at)
            self._record_left -= passed
            at += passed
            if at == len(data):
                break
            begins = data[at] == HANDSHAKE and not self._message_left
            head_bytes = _RECORD + (_MESSAGE if begins else 0)
            if len(data) - at < head_bytes:
                self._head = data[at:]
                break
            if not self._begin_record(data[at : at + head_bytes], begins):
                return False
            at += _RECORD
        return True

    def _begin_record(self, head: bytes, begins: bool) -> bool:
        self._record_left = int.from_bytes(head[3:5], "big")
        if head[0] != HANDSHAKE:
            return True
        if begins:
            self._message_left = _MESSAGE + int.from_bytes(head[6:9], "big")
        is_small = self._message_left <= _MESSAGE + MAX_HELLO_BYTES
        is_alone = (_MESSAGE if begins else 1) <= self._record_left <= self._message_left
        self._message_left -= self._record_left
        return is_small and is_alone
