"""Builds of many shards stay within their limits of memory and open files, or say in a sentence what they need."""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any, Final

import pytest

from lookupdb.builder.options import BuildBudget, count_packers, min_memory_limit, transaction_bytes

pytestmark = pytest.mark.long

MIB: Final = 1 << 20
MANIFEST: Final = """
apiVersion: lookupdb.dev/v1alpha1
kind: LookupDataset
metadata: {name: many}
spec:
  source: {url: source.jsonl}
  key: {columns: [k]}
  shards: %d
"""


MEASURED: Final = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024, file=sys.stderr)
sys.exit(code)
"""
"""Runs a command and writes its peak of resident memory, in bytes, to the last line of standard error."""


def build(folder: Path, shards: int, *options: str, open_files: int | None = None) -> subprocess.CompletedProcess[str]:
    """``lookupdb build`` in a process of its own, which may have ``open_files`` files open."""
    (folder / "manifest.yaml").write_text(MANIFEST % shards)
    command = [
        sys.executable,
        "-c",
        MEASURED,
        sys.executable,
        "-m",
        "lookupdb",
        "build",
        "-f",
        str(folder / "manifest.yaml"),
        "--json",
    ]
    limit = (open_files, open_files) if open_files else resource.getrlimit(resource.RLIMIT_NOFILE)
    return subprocess.run(
        [*command, "--store", str(folder / "store"), "--scratch", str(folder / "scratch"), *options],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limit),
    )


def write_source(folder: Path, records: int, value_bytes: int = 10) -> None:
    """Values that compression makes no smaller than three quarters."""
    chance = random.Random(1)
    with (folder / "source.jsonl").open("wb") as out:
        for number in range(records):
            value = b64encode(chance.randbytes(value_bytes * 3 // 4))
            out.write(b'{"k":"%d","v":"%b"}\n' % (number, value))


def result_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.stdout, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


class TestOpenFiles:
    def test_too_few_are_reported_in_a_sentence_before_anything_is_read(self, tmp_path: Path) -> None:
        done = build(tmp_path, 512, open_files=1024)  # there is not even a source
        result = result_of(done)
        assert (done.returncode, result["reason"]) == (6, "NotEnoughRoom")
        assert "this build needs 1,152 open files, the limit is 1,024" in result["message"]
        assert "raise the hard limit (ulimit -Hn" in result["message"]
        assert "fewer shards" in result["message"]

    def test_as_many_as_are_needed_suffice(self, tmp_path: Path) -> None:
        write_source(tmp_path, 2000)
        done = build(tmp_path, 448, open_files=1024)
        assert result_of(done)["records"] == 2000, done.stderr

    def test_a_large_memory_limit_needs_no_more_of_them(self, tmp_path: Path) -> None:
        write_source(tmp_path, 2000)
        done = build(tmp_path, 4, "--memory-limit", "8GiB", open_files=136)
        assert result_of(done)["records"] == 2000, done.stderr

    def test_explain_says_how_many(self, tmp_path: Path) -> None:
        write_source(tmp_path, 1)
        assert "open files   1,024 at most, 1,500 allowed" in build(tmp_path, 448, "--explain", open_files=1500).stdout


class TestMemory:
    """512 shards have transactions as small as those of 1,024 shards, the most that a dataset may have."""

    MANY: Final = 512
    LEAST: Final = 396 * MIB

    def test_less_than_is_needed_is_reported_in_a_sentence(self, tmp_path: Path) -> None:
        done = build(tmp_path, 1024, "--memory-limit", "256MiB")  # there is not even a source
        result = result_of(done)
        assert (done.returncode, result["reason"]) == (6, "NotEnoughRoom")
        assert "a build of 1,024 shards needs 608 MiB or more" in result["message"]
        assert "raise --memory-limit" in result["message"]

    @pytest.mark.parametrize(
        ("records", "value_bytes"),
        [
            pytest.param(125_000, 400, id="small values"),
            pytest.param(1000, 60_000, id="values larger than transactions"),
        ],
    )
    def test_the_limit_holds(self, tmp_path: Path, records: int, value_bytes: int) -> None:
        write_source(tmp_path, records, value_bytes)
        assert min_memory_limit(self.MANY) == self.LEAST
        assert transaction_bytes(self.MANY) == transaction_bytes(1024)
        done = build(tmp_path, self.MANY, "--memory-limit", str(self.LEAST))
        result = result_of(done)
        assert result["records"] == records, done.stderr
        peak = int(done.stderr.splitlines()[-1])
        assert result["peakMemoryBytes"] <= peak <= self.LEAST, f"{peak // MIB} MiB"

    def test_the_limit_holds_for_values_of_megabytes(self, tmp_path: Path) -> None:
        chance = random.Random(1)
        with (tmp_path / "source.jsonl").open("w") as out:
            out.writelines(f'{{"k":"{number}","v":"{chance.randbytes(5_700_000).hex()}"}}\n' for number in range(8))
        done = build(tmp_path, 4, "--memory-limit", "256MiB", "--threads", "8")
        assert result_of(done)["records"] == 8, done.stderr
        peak = int(done.stderr.splitlines()[-1])
        assert peak <= 256 * MIB, f"{peak // MIB} MiB"

    def test_the_limit_holds_for_rows_of_many_objects(self, tmp_path: Path) -> None:
        """A row that Python parses takes many times its text: there is room for one, and not for two."""
        members = ",".join(f'{{"a":{number % 250},"b":[{number % 250}]}}' for number in range(300_000))
        with (tmp_path / "source.jsonl").open("w") as out:
            out.writelines(f'{{"k":"{number}","v":[{members}]}}\n' for number in range(6))
        done = build(tmp_path, 4, "--memory-limit", "256MiB", "--threads", "1")
        assert result_of(done)["records"] == 6, done.stderr
        peak = int(done.stderr.splitlines()[-1])
        assert peak < 256 * MIB, f"{peak // MIB} MiB"

    def test_threads_that_compress_are_counted(self) -> None:
        least = min_memory_limit(1024)
        limits = (least, least + 64 * MIB, 64 << 30)
        assert [count_packers(limit, shards=1024, threads=64) for limit in limits] == [2, 3, 64]
        few, many = (BuildBudget.for_build(limits[1], shards=1024, threads=threads) for threads in (2, 64))
        assert many.sorting == few.sorting - 4 * MIB

    def test_the_limit_holds_for_many_threads(self, tmp_path: Path) -> None:
        write_source(tmp_path, 80_000, 800)
        done = build(tmp_path, 1, "--memory-limit", "256MiB", "--threads", "64")
        assert result_of(done)["records"] == 80_000, done.stderr
        peak = int(done.stderr.splitlines()[-1])
        assert peak <= 256 * MIB, f"{peak // MIB} MiB"

    def test_explain_says_what_is_needed(self, tmp_path: Path) -> None:
        write_source(tmp_path, 1)
        assert "needs at least 608.0 MiB" in build(tmp_path, 1024, "--explain").stdout
