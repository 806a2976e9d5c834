"""A mapping in several processes: forked, pickled, sharing memory; and what it costs to have one."""

from __future__ import annotations

import copy
import json
import os
import pickle
import resource
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.mapped import SyncedDataset, run_python
from support.shards import write_generation

from lookupdb import native
from lookupdb.errors import GenerationMissing
from lookupdb.mapped import MappedDataset, open_dataset

pytestmark = pytest.mark.long

RECORDS = {f"k{number}": b"value %d" % number * 20 for number in range(2000)}


def in_child(do: Callable[[], object]) -> str:
    """Return the result of ``do`` in a fork of this process, as text."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            said = repr(do())
        except BaseException as error:
            said = f"raised {error!r}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        said = file.read().decode()
    os.waitpid(pid, 0)
    return said


@pytest.fixture
def mapping(tmp_path: Path) -> MappedDataset:
    return open_dataset(write_generation(tmp_path, RECORDS, shards=3, compression="zstd"))


def test_children_of_a_fork_use_it(mapping: MappedDataset) -> None:
    iterator = iter(mapping.items())
    first = next(iterator)
    view = mapping.snapshot()
    assert mapping["k7"] == RECORDS["k7"]
    for _ in range(2):
        assert in_child(lambda: dict(mapping.items()) == RECORDS) == "True"
        assert in_child(lambda: view.get_many(["k1", "x"])) == repr({"k1": RECORDS["k1"]})
    assert in_child(lambda: dict([first, *iterator]) == RECORDS) == "True"
    assert in_child(mapping.close) == "None"
    assert in_child(lambda: in_child(lambda: mapping["k9"])) == repr(repr(RECORDS["k9"]))
    assert dict([first, *iterator]) == RECORDS
    assert mapping["k7"] == RECORDS["k7"], "nothing that children do is seen here"


def test_children_follow_by_themselves(tmp_path: Path) -> None:
    dataset = SyncedDataset(tmp_path)
    dataset.publish("g1", {"a": b"1"})
    mapping = open_dataset(dataset.path, refresh_seconds=0)
    dataset.publish("g2", {"a": b"2"})
    assert in_child(lambda: mapping["a"]) == "b'2'"
    assert mapping["a"] == b"2"


def test_a_child_of_a_process_whose_threads_look_keys_up(mapping: MappedDataset) -> None:
    with ThreadPoolExecutor(2) as threads:
        ended: list[bool] = []

        def read() -> None:
            while not ended:
                assert dict(mapping.iterate("items")) == RECORDS

        readers = [threads.submit(read) for _ in range(2)]
        try:
            for _ in range(10):
                assert in_child(lambda: mapping["k9"]) == repr(RECORDS["k9"])
        finally:
            ended.append(True)
        for reader in readers:
            reader.result(60)


def test_a_child_that_finds_its_files_gone(mapping: MappedDataset, tmp_path: Path) -> None:
    """The native maps are inherited; py-lmdb opens the files again, and raises for files that are gone."""
    shutil.rmtree(tmp_path / "g1")
    said = in_child(lambda: mapping["k9"])
    assert said == repr(RECORDS["k9"]) if native.kind() == "native" else said.startswith("raised CorruptFile")
    assert mapping["k9"] == RECORDS["k9"]


def test_threads_share_it(mapping: MappedDataset) -> None:
    keys = list(RECORDS)

    def read(start: int) -> bool:
        return all(mapping[key] == RECORDS[key] for key in keys[start::4]) and mapping.get_many(keys) == RECORDS

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(read, list(range(4)) * 4))


class TestPickle:
    """A pickle is a reference: unpickling opens the same place."""

    def test_of_a_fixed_generation(self, mapping: MappedDataset) -> None:
        pickled = pickle.dumps(mapping)
        assert len(pickled) < 400, "no content"
        again = pickle.loads(pickled)
        assert again is not mapping
        assert again == mapping
        assert copy.copy(mapping) == mapping
        code = "import pickle, sys; m = pickle.loads(bytes.fromhex(sys.argv[1])); print(m['k7'], len(m))"
        assert run_python(code, pickled.hex()) == f"{RECORDS['k7']!r} 2000\n"

    def test_of_one_that_follows(self, tmp_path: Path) -> None:
        dataset = SyncedDataset(tmp_path)
        dataset.publish("g1", {"0": b"1"})
        mapping = open_dataset(dataset.path, refresh_seconds=0, verify=True)
        view = mapping.snapshot()
        dataset.publish("g2", {"0": b"2"})
        again: MappedDataset = pickle.loads(pickle.dumps(mapping))
        assert again["0"] == b"2"
        assert again.follower
        assert again.follower.opener.verifies
        dataset.publish("g3", {"0": b"3"})
        assert again["0"] == b"3"
        assert pickle.loads(pickle.dumps(view))["0"] == b"1", "a snapshot stays with its generation"
        assert list(pickle.loads(pickle.dumps(mapping.as_sequence()))) == [b"3"]
        assert set(pickle.loads(pickle.dumps(mapping.as_set()))) == {"0"}

    def test_of_what_is_gone_or_closed(self, tmp_path: Path) -> None:
        mapping = open_dataset(write_generation(tmp_path, {"a": b"1"}))
        pickled = pickle.dumps(mapping)
        (tmp_path / "g1").rename(tmp_path / "g2")
        with pytest.raises(GenerationMissing):
            pickle.loads(pickled)
        mapping.close()
        with pytest.raises(ValueError, match="closed"):
            pickle.dumps(mapping)


_SHARING = """
import json, os, sys
from pathlib import Path
import lookupdb
folder, count = sys.argv[1], int(sys.argv[2])
mapping = lookupdb.open(folder)
gates = os.pipe(), os.pipe()
def memory(pid):
    found, is_ours = {"Pss": 0, "Private_Dirty": 0, "Rss": 0}, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            is_ours = ".lmdb" in line
        elif is_ours and first[:-1] in found:
            found[first[:-1]] += int(line.split()[1])
    return found
children = []
for number in range(count):
    if not (pid := os.fork()):
        os.write(gates[0][1], b"%d\\n" % sum(map(len, mapping.values())))
        os.read(gates[1][0], 1)
        os._exit(0)
    children.append(pid)
with os.fdopen(os.dup(gates[0][0])) as answers:
    sums = [int(answers.readline()) for _ in children]
found = [memory(pid) for pid in children]
os.write(gates[1][1], b"x" * count)
for pid in children:
    os.waitpid(pid, 0)
print(json.dumps({"sums": sums, **{name: sum(one[name] for one in found) for name in found[0]}}))
"""


def test_64_processes_have_one_copy(tmp_path: Path) -> None:
    records = {f"k{number}": b"v" * 400 for number in range(5000)}
    folder = write_generation(tmp_path, records, shards=2)
    size = sum(path.stat().st_size for path in folder.glob("*.lmdb")) // 1024
    found = json.loads(run_python(_SHARING, folder, 64))
    assert set(found["sums"]) == {400 * 5000}
    assert found["Private_Dirty"] == 0
    assert found["Rss"] > 50 * size, "each has read all of it"
    assert found["Pss"] <= 1.1 * size, "and all together have it once"


_LIGHT = """
import sys, time
started = time.process_time()
import lookupdb
first = set(sys.modules)
mapping = lookupdb.open(sys.argv[1])
seconds = time.process_time() - started
assert mapping["a"] == b"1"
print([name for name in sorted(first) if name.startswith("lookupdb.")])
print(sorted(sys.modules))
print(seconds)
"""


def test_it_is_light(tmp_path: Path) -> None:
    folder = write_generation(tmp_path, {"a": b"1"})
    fastest = 60.0
    for _ in range(5):
        first, modules, seconds = run_python(_LIGHT, folder).splitlines()
        fastest = min(fastest, float(seconds))
        if fastest <= 0.05:
            break
    assert first == "[]", "`import lookupdb` alone loads nothing else"
    loaded: list[str] = json.loads(modules.replace("'", '"'))
    rooms = {name.split(".")[1] for name in loaded if name.startswith("lookupdb.")}
    assert not rooms & {"build", "serve", "route", "cli", "local", "runtime", "store", "spec", "schema"}
    foreign = {"click", "duckdb", "aiohttp", "asyncio", "uvloop", "obstore", "yaml", "jsonschema", "kopf", "rich"}
    assert not foreign & {*loaded}
    if native.kind() == "native":
        assert not {"lmdb", "zstandard"} & {*loaded}
    assert fastest <= 0.25, "of processor time; it is less than 0.05 on a machine that does nothing else"


_MANY = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
import lookupdb
mapping = lookupdb.open(sys.argv[1])
assert len(mapping) == 3000
assert mapping.get_many(map(str, range(3000))) == {str(n): b"%d" % n for n in range(3000)}
with mapping.snapshot() as view:
    assert len(dict(view)) == 3000
print(len(__import__("os").listdir("/proc/self/fd")))
"""


def test_1024_shards_take_one_descriptor(tmp_path: Path) -> None:
    records = {str(number): b"%d" % number for number in range(3000)}
    folder = write_generation(tmp_path, records, shards=1024)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if native.kernels() is None:
        pytest.skip("py-lmdb keeps a descriptor for each file")
    assert int(run_python(_MANY, folder)) <= 6
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


def test_without_native_kernels_too_few_descriptors_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_generation(tmp_path, {str(number): b"" for number in range(300)}, shards=300)
    monkeypatch.setenv("LOOKUPDB_NATIVE", "0")
    code = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
import lookupdb
from lookupdb.errors import NotEnoughRoom
try:
    lookupdb.open(sys.argv[1])
except NotEnoughRoom as error:
    print(error)
print(len(__import__("os").listdir("/proc/self/fd")))
"""
    message, hint, count = run_python(code, folder).splitlines()
    assert "Too many open files" in message
    assert "raise the hard limit" in hint
    assert int(count) < 20, "those that were opened are closed"


def test_a_generation_that_is_replaced_leaves_nothing(tmp_path: Path) -> None:
    """Descriptors and maps, after many swaps."""
    dataset = SyncedDataset(tmp_path)
    dataset.publish("g1", {"a": b"1"}, shards=4)
    mapping = open_dataset(dataset.path, refresh_seconds=0)
    assert mapping["a"] == b"1"

    def count() -> tuple[int, int]:
        maps = Path("/proc/self/maps").read_text().count(str(dataset.path))
        return len(list(Path("/proc/self/fd").iterdir())), maps

    before = count()
    for number in range(2, 40):
        dataset.publish(f"g{number}", {"a": b"%d" % number}, shards=4)
        assert mapping["a"] == b"%d" % number
    assert count() == before
