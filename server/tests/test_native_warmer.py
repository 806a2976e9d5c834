"""The pages of requests are read from disk together, before the lookups that need them."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.lmdb_files import PAGE, read_lmdb, write_lmdb

from lookupdb._native import PageWarmer, ShardFile

_RECORDS = {b"key-%06d" % number: b"%d" % number * 40 for number in range(20_000)}
_KEYS = list(_RECORDS)[::97]


def _mget(keys: Sequence[bytes]) -> bytes:
    return b"*%d\r\n$4\r\nMGET\r\n" % (len(keys) + 1) + b"".join(b"$%d\r\n%b\r\n" % (len(key), key) for key in keys)


def _evict(path: Path) -> None:
    """Drop the file from the page cache. On a file system in memory everything stays resident."""
    file = os.open(path, os.O_RDONLY)
    os.fdatasync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


def _major_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def test_lookups_that_follow_wait_for_no_disk(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "f", [{**_RECORDS, b"large": b"v" * (1 << 20)}])
    keys = [*_KEYS, b"large", b"missing"]
    file, warmer = ShardFile(path), PageWarmer(path)
    _evict(path)
    warmer.warm([_mget(keys)])
    before = _major_faults()
    found = file.find_many(keys)
    assert _major_faults() == before
    assert found == read_lmdb(path, keys)[1]


def test_each_page_of_a_level_is_asked_for_once(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "f", [_RECORDS])
    neighbours = list(_RECORDS)[:5]
    assert PageWarmer(path).warm([_mget(neighbours)]) == 3  # of the tree's three levels


def test_a_large_value_is_read_to_its_end(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "f", [{b"large": b"v" * (10 * PAGE)}])
    assert PageWarmer(path).warm([_mget([b"large"])]) == 1 + 11  # the leaf, and a header before the value


def test_keys_are_found_wherever_a_piece_of_a_request_begins(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "f", [_RECORDS])
    request, warmer = _mget(_KEYS[:3]), PageWarmer(path)
    whole = warmer.warm([request])
    pages = [warmer.warm([request[:cut], request[cut:]]) for cut in range(len(request))]
    assert max(pages) == whole
    assert min(pages) >= whole - 2  # of the key that was cut


@pytest.mark.parametrize("requests", [[], [b""], [b"$"], [b"\r\n"], [b"PING\r\n"], [b"$5\r\nab"], [bytes(1 << 16)]])
def test_what_asks_for_nothing(tmp_path: Path, requests: list[bytes]) -> None:
    path = write_lmdb(tmp_path / "f", [_RECORDS])
    assert PageWarmer(path).warm(requests) == 0


def test_an_empty_file(tmp_path: Path) -> None:
    assert PageWarmer(write_lmdb(tmp_path / "f", [{}])).warm([_mget(_KEYS)]) == 0


def test_threads_warm_side_by_side(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "f", [_RECORDS])
    warmer, expected = PageWarmer(path), PageWarmer(path).warm([_mget(_KEYS)])
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(warmer.warm([_mget(_KEYS)]))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4
