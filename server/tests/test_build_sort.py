"""Sorting: in key order within a memory limit, whatever the source's size, and the same every time."""

from __future__ import annotations

import gzip
import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import orjson
import pytest
from support.sources import dataset, read, read_file

from lookupdb.builder.options import SAMPLE_BYTES
from lookupdb.builder.write import SPOOL_BYTES, Sorter
from lookupdb.errors import BadSource, NotEnoughRoom

pytestmark = pytest.mark.long

LIMIT = 256 << 20


def lines(rows: Sequence[Mapping[str, object]]) -> bytes:
    return b"".join(orjson.dumps(row) + b"\n" for row in rows)


def test_records_come_in_the_order_of_their_keys_bytes(tmp_path: Path) -> None:
    keys = ["b", "a", "B", "é", "z", "🙂", "a\u0000", "\uffff", "aa", "10", "9", "a b", "\u0001", "\n"]
    found = read_file(tmp_path, "f.jsonl", lines([{"k": key} for key in keys]))
    assert [key for key, *_ in found.records] == sorted(key.encode() for key in keys)


def test_records_of_equal_keys_come_in_the_sources_order(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / f"{name}.jsonl").write_bytes(lines([{"k": "x", "v": n} for n in range(3000)]))
    found = read(dataset(tmp_path, ["b.jsonl", "a.jsonl"]), tmp_path / "scratch")
    assert [(file, row) for _, _, file, row in found.records] == [
        (file, row) for file in (0, 1) for row in range(1, 3001)
    ]


def test_keys_are_normalised_before_they_are_sorted(tmp_path: Path) -> None:
    rows = [{"k": " B@x "}, {"k": "a@X"}, {"k": "İ"}]
    found = read_file(tmp_path, "f.jsonl", lines(rows), normalize=("strip", "lowercase"))
    assert [key.decode() for key, *_ in found.records] == ["a@x", "b@x", "i̇"]


def test_large_values_wait_in_a_file_of_their_own(tmp_path: Path) -> None:
    sizes = [0, 1, SPOOL_BYTES - 20, SPOOL_BYTES, SPOOL_BYTES + 1, 3 << 20, 9 << 20]
    rows = [{"k": str(size), "v": "x" * size} for size in sizes]
    found = read_file(tmp_path, "f.jsonl", lines(rows), value={"column": "v", "format": "raw"})
    assert {int(key): len(value) for key, value, _, _ in found.records} == {size: size for size in sizes}
    found = read_file(tmp_path, "f.jsonl", lines(rows))
    assert {key: orjson.loads(value)["v"] for key, value in found.values.items()} == {
        row["k"]: row["v"] for row in rows
    }


def test_the_sample_is_bounded_and_the_same_every_time(tmp_path: Path) -> None:
    rows = [{"k": str(number), "v": "x" * 400 + str(number)} for number in range(30_000)]
    (tmp_path / "f.jsonl").write_bytes(lines(rows))
    (tmp_path / "g.jsonl").write_bytes(lines(random.Random(1).sample(rows, len(rows))))
    one, two = (
        read(dataset(tmp_path, name), tmp_path / f"scratch-{name}", LIMIT).sample for name in ("f.jsonl", "g.jsonl")
    )
    assert one == two
    assert 2 << 20 < sum(map(len, one)) <= SAMPLE_BYTES
    assert all(orjson.loads(value)["v"].startswith("xxx") for value in one)


def test_a_signal_ends_a_long_merge(tmp_path: Path) -> None:
    """Merging eight runs into one would take a second, or minutes."""
    with Sorter(tmp_path, 64 << 20, "first") as sorter:
        for number in range(50_000):
            sorter.put(b"%d" % number, number, bytes(500))
        (run,), _ = sorter.detach()
    names = [f"copy-{number}" for number in range(15)]
    for name in names:
        os.link(tmp_path / run, tmp_path / name)
    merged_bytes = 8 * (tmp_path / run).stat().st_size

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with Sorter(tmp_path, 8 << 20, "second") as sorter:
        sorter.adopt(0, tmp_path, names, None)
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            with pytest.raises(KeyboardInterrupt):
                next(iter(sorter))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert sum(path.stat().st_size for path in tmp_path.glob("second-*")) < merged_bytes // 2


MEASURED = """
import re, sys
from pathlib import Path
from support.sources import dataset
from lookupdb.builder.listing import fetch_files
from lookupdb.builder.options import SilentProgress
from lookupdb.builder.build import SortedRecords
from lookupdb.builder.listing import resolve_source

folder = Path(sys.argv[1])
spec = dataset(folder, "f.jsonl")
files = fetch_files(resolve_source(spec, volume=None), folder, SilentProgress())
with SortedRecords(spec, files, folder, int(sys.argv[2]), 2, SilentProgress()) as records:
    count, last = 0, b""
    for batch in records:
        for key, *_ in batch:
            assert last < key
            last = key
        count += len(batch)
# VmHWM is of this program; ru_maxrss would count the parent's memory before exec, too.
peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
print(count, int(peak[1]) * 1024)
"""


def measure(folder: Path, limit: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", MEASURED, str(folder), str(limit)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )


@pytest.fixture(scope="module")
def large_source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a source of 190,000 records that is larger than LIMIT."""
    folder = tmp_path_factory.mktemp("large")
    number = random.Random(1)
    with (folder / "f.jsonl").open("wb") as out:
        for _ in range(190):
            rows = [
                b'{"k":"%032x","v":"%01400x"}\n' % (number.getrandbits(128), number.getrandbits(600))
                for _ in range(1000)
            ]
            out.write(b"".join(rows))
    assert (folder / "f.jsonl").stat().st_size > LIMIT
    yield folder
    (folder / "f.jsonl").unlink()


def test_memory_stays_under_the_limit_when_the_source_is_larger(large_source: Path) -> None:
    done = measure(large_source, LIMIT)
    assert done.returncode == 0, done.stderr
    count, peak = map(int, done.stdout.split())
    assert count == 190_000
    assert peak < LIMIT, f"{peak >> 20} MiB resident"


def test_too_small_a_limit_says_what_to_raise(tmp_path: Path) -> None:
    with pytest.raises(NotEnoughRoom, match=r"a memory limit of 64 MiB is too small, .*\n.*raise --memory-limit"):
        read_with_limit(tmp_path, 64 << 20)


def read_with_limit(folder: Path, limit: int) -> None:
    (folder / "f.csv").write_text("k\na\n")
    read(dataset(folder, "f.csv"), folder / "scratch", limit)


@pytest.mark.parametrize("memory", [1, 60_000, 1 << 20, 1 << 30], ids=["merged", "many", "few", "none"])
def test_runs_are_merged_in_order(tmp_path: Path, memory: int) -> None:
    number = random.Random(2)
    count = 200 if memory == 1 else 20_000
    records = [(b"%d" % number.randrange(count // 5), place, b"v" * number.randrange(50)) for place in range(count)]
    with Sorter(tmp_path, memory) as sorter:
        for record in records:
            sorter.put(*record)
        assert [record for batch in sorter for record in batch] == sorted(records, key=lambda record: record[:2])
    assert list(tmp_path.iterdir()) == []


def test_many_records_of_one_key_stay_in_order(tmp_path: Path) -> None:
    with Sorter(tmp_path, 300_000) as sorter:
        for place in range(30_000):
            sorter.put(b"b" if place % 3 else b"%d" % (place % 7), place, b"x" * 40)
        found = [(key, place) for batch in sorter for key, place, _ in batch]
    assert found == sorted(found)
    assert len(found) == 30_000


def test_a_full_scratch_folder_is_named(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        for large in (b"x" * 1000, b"x" * (SPOOL_BYTES + 1)):
            with pytest.raises(NotEnoughRoom, match=f"no room left in the scratch folder {tmp_path}"):
                fill(tmp_path, large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def fill(folder: Path, value: bytes) -> None:
    with Sorter(folder, 2 << 20) as sorter:
        for place in range(4000):
            sorter.put(b"k", place, value)


def test_an_error_in_a_later_row_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "f.jsonl").write_bytes(lines([{"k": str(n)} for n in range(5000)]) + b"{\n")
    with pytest.raises(BadSource, match=r"f\.jsonl row 5001 \(line 5001\)"):
        read(dataset(tmp_path, "f.jsonl"), tmp_path / "scratch")
    assert list((tmp_path / "scratch").iterdir()) == []


def test_progress_tells_bytes_and_rows(tmp_path: Path) -> None:
    class Told:
        def __init__(self) -> None:
            self.events: list[tuple[object, ...]] = []

        def begin_phase(self, name: str, total: int | None, unit: str) -> None:
            self.events.append((name, total, unit))

        def advance(self, amount: int, rows: int = 0) -> None:
            name, total, unit = self.events[-1][:3]
            _, _, _, sum_amount, sum_rows = (*self.events[-1], 0, 0)[:5]
            self.events[-1] = (name, total, unit, sum_amount + amount, sum_rows + rows)  # type: ignore[operator]

        def end_phase(self) -> None:
            self.events[-1] = (*self.events[-1], "done")

    told = Told()
    content = lines([{"k": str(n)} for n in range(5000)])
    (tmp_path / "f.jsonl.gz").write_bytes(packed := gzip.compress(content))
    read(dataset(tmp_path, "f.jsonl.gz"), tmp_path / "scratch", progress=told)
    assert told.events == [
        ("fetch", len(packed), "bytes", len(packed), 0, "done"),
        ("read", len(content), "bytes", len(content), 5000, "done"),
    ]


def sorted_apart(folder: Path, count: int) -> list[str]:
    """The names of ``count`` runs of a record each, left in ``folder``."""
    names = []
    for number in range(count):
        with Sorter(folder, 1 << 20, f"run-{number}") as sorter:
            sorter.put(b"%05d" % (number * 7919 % 500), number, b"v" * 400)
            names += sorter.detach()[0]
    return names


def bytes_written() -> int:
    return int(Path("/proc/self/io").read_text().splitlines()[1].split()[1])


@pytest.mark.parametrize(("count", "passes"), [(8, 0), (9, 0.3), (15, 1), (60, 1), (500, 2), (700, 3)])
def test_merging_writes_a_record_once_for_each_pass(tmp_path: Path, count: int, passes: float) -> None:
    """Eight runs merge at once. 64 need one pass before the last, which writes nothing; 512 need two."""
    names = sorted_apart(tmp_path, count)
    size = sum((tmp_path / name).stat().st_size for name in names)
    (tmp_path / "sorted").mkdir()
    with Sorter(tmp_path / "sorted", 8 << 20) as sorter:
        sorter.adopt(0, tmp_path, names, None)
        before = bytes_written()
        found = [(key, place) for batch in sorter for key, place, _ in batch]
        assert bytes_written() - before <= passes * size
    assert found == sorted(found)
    assert len(found) == count
    assert list((tmp_path / "sorted").iterdir()) == []


def test_equal_keys_stay_in_order_through_several_passes(tmp_path: Path) -> None:
    names = []
    for number in range(70):
        with Sorter(tmp_path, 1 << 20, f"run-{number}") as sorter:
            sorter.put(b"same", number, b"")
            names += sorter.detach()[0]
    (tmp_path / "sorted").mkdir()
    with Sorter(tmp_path / "sorted", 4 << 20) as sorter:
        sorter.adopt(0, tmp_path, names, None)
        assert [place for batch in sorter for _, place, _ in batch] == list(range(70))


FEW_DESCRIPTORS = """
import resource, sys
from pathlib import Path
from lookupdb.builder.write import Sorter

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
folder = Path(sys.argv[1])
with Sorter(folder / "sorted", 4 << 30) as sorter:
    sorter.adopt(0, folder, sorted(path.name for path in folder.glob("run-*")), None)
    print(sum(len(batch) for batch in sorter))
"""


def test_runs_beyond_the_limit_of_open_files_are_merged_in_passes(tmp_path: Path) -> None:
    sorted_apart(tmp_path, 300)
    (tmp_path / "sorted").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", FEW_DESCRIPTORS, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("300\n", "")


NO_DESCRIPTORS = """
import os, resource, sys
from pathlib import Path
from lookupdb.builder.write import Sorter
from lookupdb.errors import NotEnoughRoom

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
folder, taken = Path(sys.argv[1]), []
with Sorter(folder / "sorted", 4 << 30) as sorter:
    sorter.adopt(0, folder, sorted(path.name for path in folder.glob("run-*")), None)
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        os.close(taken.pop())
    try:
        list(sorter)
    except NotEnoughRoom as error:
        print(error.message)
    for descriptor in taken:
        os.close(descriptor)
"""


def test_a_merge_that_finds_no_descriptor_left_says_so(tmp_path: Path) -> None:
    """Happens when something else in the process has taken descriptors since they were counted."""
    sorted_apart(tmp_path, 3)
    (tmp_path / "sorted").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", NO_DESCRIPTORS, str(tmp_path)], capture_output=True, text=True, check=False
    )
    expected = "a build could not merge what it has sorted: Too many open files, the limit is 64\n"
    assert (done.stdout, done.stderr) == (expected, "")
