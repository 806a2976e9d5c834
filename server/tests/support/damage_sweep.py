"""Damages a small shard file in many hundreds of ways, and reads it with the native reader each time.

A program, so that a crash of the reader is seen from outside: ``python damage_sweep.py SWEEP FOLDER``.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1]))

from lookupdb._native import Damaged, PageWarmer, ShardFile
from support.lmdb_files import BRANCH, LEAF, OVERFLOW, PAGE, Changes, nodes_of, pages_of, write_lmdb

CONTENT: Final = {
    b"key-%03d" % number * (1 + number % 3 * 31): b"%d" % number * (1 + number % 70) for number in range(90)
}
LARGE: Final = {b"large-%d" % number: b"%d" % number * 5000 for number in range(2)}
SEED: Final = 5
EXTREMES: Final = (0, 1, 2, 15, 16, 17, 0x7F, 0x80, 0xFF, 0xFFF, 0x1000, 0x7FFF, 0xFFFF)

Damage = tuple[int, bytes]
"""An offset, and the bytes to put there."""


def sweep_headers(content: bytes) -> Iterator[list[Damage]]:
    """Set every field of the header and nodes of every third page, and the places of nodes, to extreme values."""
    for page in (0, 1, *range(2, len(content) // PAGE, 3)):
        for place in (0, 2, 6, 8, 10, 12, 14, *(range(16, 152, 2) if page < 2 else ())):
            yield from ([(page * PAGE + place, value.to_bytes(2, "little"))] for value in EXTREMES[:: 2 + (page > 1)])
    for page in [*list(pages_of(content, LEAF))[::3], *pages_of(content, BRANCH)]:
        for number, node in enumerate(list(nodes_of(content, page))[:3]):
            for place in (page * PAGE + 16 + 2 * number, node, node + 2, node + 4, node + 6):
                yield from ([(place, value.to_bytes(2, "little"))] for value in EXTREMES[::3])


def sweep_bits(content: bytes) -> Iterator[list[Damage]]:
    """Some bits flipped anywhere, most of them where pages begin."""
    chance = random.Random(SEED)
    for _ in range(500):
        offsets = [_somewhere(chance, content) for _ in range(chance.choice((1, 1, 2, 8, 100)))]
        yield [(offset, bytes([content[offset] ^ 1 << chance.randrange(8)])) for offset in offsets]


def sweep_pages(content: bytes) -> Iterator[list[Damage]]:
    """Pages copied over other pages, with their own number or the other's, and pages of zeros."""
    chance = random.Random(SEED)
    pages = range(len(content) // PAGE)
    kinds = [pages, list(pages_of(content, LEAF)), list(pages_of(content, BRANCH)), list(pages_of(content, OVERFLOW))]
    for _ in range(400):
        source, target = (chance.choice(chance.choice(kinds)) for _ in "st")
        page = content[source * PAGE : (source + 1) * PAGE]
        if chance.random() < 0.5:
            page = target.to_bytes(8, "little") + page[8:]
        if chance.random() < 0.1:
            page = bytes(PAGE)
        yield [(target * PAGE, page)]


def _somewhere(chance: random.Random, content: bytes) -> int:
    page = chance.randrange(len(content) // PAGE) * PAGE
    return page + chance.randrange(chance.choice((18, 160, PAGE)))


SWEEPS: Final[Mapping[str, Callable[[bytes], Iterator[list[Damage]]]]] = {
    "headers": sweep_headers,
    "bits": sweep_bits,
    "pages": sweep_pages,
}


def main(sweep: str, folder: Path) -> None:
    """Check every damage of a sweep, on a file in memory that is repaired after each."""
    history: list[Changes] = [LARGE, CONTENT, dict.fromkeys(list(CONTENT)[::7]), CONTENT]
    sound = write_lmdb(folder / "f", history, dictionary=b"d" * 5000).read_bytes()
    keys = [*CONTENT, *LARGE, b"absent", b"key-100", b"z"]
    file = os.memfd_create("damaged")
    os.write(file, sound)
    outcomes: list[int | None] = []
    for damages in SWEEPS[sweep](sound):
        content = bytearray(sound)
        for place, data in damages:
            content[place : place + len(data)] = data
            os.pwrite(file, data, place)
        outcomes.append(check(Path(f"/proc/self/fd/{file}"), content, keys))
        for place, data in damages:
            os.pwrite(file, sound[place : place + len(data)], place)
    refused, damaged = outcomes.count(None), sum(bool(outcome) for outcome in outcomes)
    print(f"{len(outcomes)} cases, {refused} refused, {damaged} with damage")
    assert len(outcomes) >= 400
    assert refused < len(outcomes) * 0.9
    assert damaged > len(outcomes) / 20


def check(path: Path, content: bytearray, keys: list[bytes]) -> int | None:
    """Return the number of damaged ``keys``, or None if the file is refused. Every other value is bytes of the file,
    and a key alone gets the same value as among others.
    """
    try:
        file = ShardFile(path)
    except ValueError:
        return None
    PageWarmer(path).warm([b"$%d\r\n%b\r\n" % (len(key), key) for key in keys])
    found = file.find_many(keys)
    for key, together in zip(keys, found, strict=True):
        alone = find_alone(file, key)
        assert alone == together or (isinstance(alone, Damaged) and str(alone) == str(together))
        assert isinstance(together, Damaged) or together in (None, CONTENT.get(key)) or together in content
    try:
        items = list(file.items())
    except Damaged:
        pass
    else:
        assert len(items) == file.records
        assert items == sorted(items)
    return sum(isinstance(answer, Damaged) for answer in found)


def find_alone(file: ShardFile, key: bytes) -> bytes | Damaged | None:
    """Return the result of ``find``, or the damage that it raises."""
    try:
        return file.find(key)
    except Damaged as error:
        return error


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
