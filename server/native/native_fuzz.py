"""Fuzzes the native reader, expander, requests, batches and rows: ``make fuzz SECONDS=3600``, or ``native_fuzz.py N``.

LMDB writes the corpus: small sound files of every shape. Inputs damage them, see ``fuzz/src/damage.rs``. With
cargo-fuzz and a nightly toolchain, coverage guides the inputs; otherwise, or with ``--random``, they are random.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import zstandard
from native_build import CRATE, NoKernels, explain, find_cargo

sys.path.insert(0, str(CRATE.parent / "tests"))
from support.lmdb_files import Changes, write_lmdb  # the builder's files have one history, these have many

FUZZ: Final = CRATE / "fuzz"
SEEDS: Final = FUZZ / "target" / "seeds"
VARIABLE: Final = "LOOKUPDB_FUZZ_SEEDS"
INPUT_BYTES: Final = {"reader": 121, "values": 4096, "requests": 2048, "bodies": 1024, "replies": 1024, "rows": 1024}
"""Target → the maximum size of its inputs: a dozen changes, a value of a page, some requests, keys, values and rows."""
SAMPLES: Final = {
    "requests": (
        b"\x80*2\r\n$3\r\nGET\r\n$2\r\nab\r\n*3\r\n$4\r\nmget\r\n$1\r\nc\r\n$2\r\n$1\r\n",
        b"\x40*2\r\n$3\r\nget\r\n$1\r\na\r\n*2\r\n$3\r\nGET\r\n$1\r\nb\r\n",
    ),
    "bodies": (
        b'\x05{"keys":["Ab ","c d"]}',
        b'\x05{"partial" : true, "keys" : ["\\u00e4", "\\ud83d\\ude00", "\xc3\xa4", "\\n"]}\n',
        b'\x05{"keys":["x"],"partial":false}',
    ),
    "replies": (b"\x03\x20\x80*3\r\n$1\r\na\r\n$-1\r\n$12\r\nabcdefghijkl\r\n", b"\x01\x20\x80*1\r\n$0\r\n\r\n"),
    "rows": (
        b'\x00\x80a,"b ""c""\r\nd",\r\n\r\n,e\rf,g\n"h"',
        b'\x05\x20a\t"b\tc\r\n',
        b'\x02\x00{"a" : [1, -2.5e3, "\\u00e4\\ud83d\\ude00\\n\\/"], "\xc3\xa4":{"b":null}, "c":true}',
    ),
}
"""Target → first inputs: without them a complete body is hardly ever found."""
TEXT: Final = b'{"team":"research","manager":"somebody"}'


def main() -> int:
    """Fuzz for the given time. Return the exit code: 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description="Fuzz the native reader, expander, requests, batches and rows.")
    parser.add_argument("seconds", type=int)
    parser.add_argument("--random", action="store_true", help="do without cargo-fuzz")
    options = parser.parse_args()
    try:
        cargo = find_cargo()
    except NoKernels as error:
        return explain(error)
    write_seeds()
    os.environ[VARIABLE] = str(SEEDS)
    if not options.random and has_cargo_fuzz(cargo):
        return run_guided(cargo, options.seconds)
    return subprocess.run(
        [cargo, "run", "--quiet", "--release", "--locked", "--bin", "mutate", "--", str(options.seconds)],
        cwd=FUZZ,
        check=False,
    ).returncode


def has_cargo_fuzz(cargo: str) -> bool:
    """Return whether coverage can guide the inputs."""
    command = [cargo, "+nightly", "fuzz", "--version"]
    found = subprocess.run(command, capture_output=True, check=False).returncode == 0
    if not found:
        print("no cargo-fuzz with a nightly toolchain here: inputs are random", flush=True)
    return found


def run_guided(cargo: str, seconds: int) -> int:
    """Run each target for its share of the time, until one finds a bug."""
    for target, most_bytes in INPUT_BYTES.items():
        corpora = write_samples(target)
        command = [cargo, "+nightly", "fuzz", "run", "--features", "coverage", target, *map(str, corpora), "--"]
        limits = [f"-max_total_time={max(1, seconds // len(INPUT_BYTES))}", f"-max_len={most_bytes}"]
        code = subprocess.run(
            [*command, *limits, "-timeout=60", "-rss_limit_mb=2048"], cwd=CRATE, check=False
        ).returncode
        if code:
            return code
    return 0


def write_samples(target: str) -> tuple[Path, Path]:
    """Write the target's samples. Return the folder for new inputs, and that of the samples."""
    found, samples = FUZZ / "corpus" / target, FUZZ / "target" / "samples" / target
    for folder in (found, samples):
        folder.mkdir(parents=True, exist_ok=True)
    for number, sample in enumerate(SAMPLES.get(target, ())):
        (samples / str(number)).write_bytes(sample)
    return found, samples


def write_seeds() -> None:
    """Write the files to damage. They are small, so that most changes matter."""
    SEEDS.mkdir(parents=True, exist_ok=True)
    for name, (history, dictionary) in seed_histories().items():
        path = SEEDS / name
        path.unlink(missing_ok=True)
        write_lmdb(path, history, dictionary=dictionary)


def seed_histories() -> dict[str, tuple[Sequence[Changes], bytes]]:
    """Return the transactions and the dictionary of each seed."""
    plain = {b"key-%03d" % number: b"$7\r\nval-%03d\r\n" % number for number in range(300)}
    long_keys = {b"%03d" % number * 150: b"$1\r\nx\r\n" for number in range(120)}
    large = {b"large-%d" % size: b"$%d\r\n%b\r\n" % (size, b"v" * size) for size in (2000, 2040, 4000, 4080, 9000)}
    mixed: Changes = {**plain, **large, **long_keys}
    return {
        "branches": ([long_keys], b""),
        "compressed": ([compress_all({**plain, **large})], TEXT * 40),
        "empty": ([], b""),
        "history": ([mixed, dict.fromkeys(list(mixed)[::3]), large, plain], b""),
        "leaves": ([plain], b""),
        "one": ([{b"key": b"$1\r\nx\r\n"}], b""),
        "overflow": ([large], TEXT * 200),
    }


def compress_all(values: dict[bytes, bytes]) -> Changes:
    """Return ``values`` as the builder stores them."""
    parameters = zstandard.ZstdCompressionParameters.from_level(
        3, format=zstandard.FORMAT_ZSTD1_MAGICLESS, write_checksum=False, write_dict_id=False
    )
    dictionary = zstandard.ZstdCompressionDict(TEXT * 40)
    compressor = zstandard.ZstdCompressor(compression_params=parameters, dict_data=dictionary)
    return {key: compressor.compress(b"$%d\r\n%b\r\n" % (len(TEXT * 3), TEXT * 3)) for key in values}


if __name__ == "__main__":
    sys.exit(main())
