"""Measures how much of a file the page cache holds."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from pathlib import Path
from typing import Final

_CACHESTAT: Final = 451
"""The system call's number, the same on every architecture; Linux 6.5 and newer."""
_WINDOW: Final = 1 << 28
"""Bytes mapped at a time where cachestat does not exist: bounds the result vector to 64 KiB."""

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_long),
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)


class _Range(ctypes.Structure):
    _fields_ = [("off", ctypes.c_uint64), ("len", ctypes.c_uint64)]


class _CacheStat(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("cache", "dirty", "writeback", "evicted", "recently_evicted")]


def resident_bytes(path: Path) -> int | None:
    """Return how many bytes of the file are in the page cache. None when the kernel would not tell the truth.

    Both system calls answer only those who own or may write the file; to others mincore calls everything resident.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(file)
        if os.geteuid() not in (0, status.st_uid) and not os.access(path, os.W_OK):
            return None
        pages = _cachestat(file)
        if pages is None:
            pages = sum(
                _mincore(file, start, min(_WINDOW, status.st_size - start))
                for start in range(0, status.st_size, _WINDOW)
            )
        return min(pages * mmap.PAGESIZE, status.st_size)
    except OSError:
        return None
    finally:
        os.close(file)


def _cachestat(file: int) -> int | None:
    """Return the resident pages of the open file, or None where this kernel or its seccomp filter has no cachestat."""
    result = _CacheStat()
    whole = _Range(0, 0)
    if _libc.syscall(_CACHESTAT, file, ctypes.byref(whole), ctypes.byref(result), 0) == 0:
        return int(result.cache)
    if ctypes.get_errno() in (errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP):
        return None
    raise OSError(ctypes.get_errno(), "cachestat")


def _mincore(file: int, start: int, length: int) -> int:
    """Return the resident pages of one stretch of the open file."""
    address = _libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, file, start)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "mmap")
    try:
        pages = ctypes.create_string_buffer(-(-length // mmap.PAGESIZE))
        if _libc.mincore(address, length, pages):
            raise OSError(ctypes.get_errno(), "mincore")
        # Only the lowest bit of each byte is defined.
        return sum(count * (value & 1) for value, count in _histogram(pages.raw).items())
    finally:
        _libc.munmap(address, length)


def _histogram(data: bytes) -> dict[int, int]:
    return {value: data.count(value) for value in set(data)}
