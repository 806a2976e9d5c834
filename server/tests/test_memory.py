"""Memory figures, from the kernel's own files."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest
from support.waiting import until

from lookupdb.process import memory


def test_private_bytes_count_what_a_process_owns_and_not_what_it_maps(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 30_000_000)
    before = memory.private_bytes(os.getpid())
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[::4096]
        with_map = memory.private_bytes(os.getpid())
    # Not from the heap, which may have that much to spare from earlier tests.
    with mmap.mmap(-1, 30_000_000, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as own:
        own.write(os.urandom(1000) * 30_000)
        with_own = memory.private_bytes(os.getpid())
    assert before
    assert with_map
    assert with_own
    assert with_map - before < 10_000_000
    assert with_own - before > 25_000_000


def test_a_process_that_is_gone_has_no_figures() -> None:
    assert memory.private_bytes(2**22 + 1) is None
    assert memory.major_faults(2**22 + 1) is None
    assert memory.major_faults(os.getpid()) is not None


def test_resident_bytes_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_WINDOW", 1 << 20)
    file = tmp_path / "file"
    file.write_bytes(b"x" * 5_000_001)
    until(lambda: file.read_bytes() and memory.resident_bytes(file) == 5_000_001, "the kernel takes no page of it")
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    assert memory.resident_bytes(file) == 0
    assert memory.resident_bytes(tmp_path / "none") is None


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_control_group_of_version_2(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/container\n",
            "sys/fs/cgroup/pod/container/memory.stat": "anon 100\nfile 2000\nslab 1\n",
            "sys/fs/cgroup/pod/container/memory.max": "max\n",
            "sys/fs/cgroup/pod/memory.max": "5000\n",
            "sys/fs/cgroup/memory.max": "9000\n",
        },
    )
    assert memory.container_memory(root) == memory.ContainerMemory(limit=5000, anon=100, file=2000)


def test_a_control_group_of_version_1_as_a_container_sees_it(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "7:cpu:/docker/1\n4:memory:/docker/1\n0::/\n",
            "sys/fs/cgroup/memory/memory.stat": "cache 9\ntotal_rss 100\ntotal_cache 2000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "5000\n",
        },
    )
    assert memory.container_memory(root) == memory.ContainerMemory(limit=5000, anon=100, file=2000)


def test_no_limit_is_none(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/\n",
            "sys/fs/cgroup/memory/memory.stat": "total_rss 100\ntotal_cache 2000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert memory.container_memory(root).limit is None
    assert memory.container_memory(tmp_path / "nowhere") == memory.ContainerMemory(None, None, None)


def test_room_is_positive_and_no_more_than_the_machine_has() -> None:
    assert 0 < memory.page_cache_room() < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
