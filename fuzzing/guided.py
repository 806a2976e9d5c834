"""Fuzz one target with atheris, which chooses inputs by coverage: ``… -m fuzzing.guided SECONDS TARGET FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path

import atheris  # type: ignore[import-not-found,unused-ignore]

with atheris.instrument_imports(include=["lookupdb", "lookupdb_operator"]):
    from fuzzing.targets import TARGETS

from fuzzing.target import MAX_INPUT_BYTES, Target


def main() -> None:
    """Fuzz until the time is over. libFuzzer then ends the process, with a code other than 0 if a promise was
    broken."""
    seconds, name, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    target = next(target for target in TARGETS if target.name == name)
    corpus, samples = folder / name, folder / f"{name}-samples"
    for made in (corpus, samples):
        made.mkdir(parents=True, exist_ok=True)
    for number, sample in enumerate(target.samples):
        (samples / str(number)).write_bytes(sample)
    limits = [f"-max_total_time={seconds}", f"-max_len={MAX_INPUT_BYTES}", "-timeout=60", "-rss_limit_mb=2048"]
    files = [f"-dict={_write_words(target, folder)}", f"-artifact_prefix={folder}/{name}-"]
    print(f"{name}:", flush=True)
    atheris.Setup([sys.argv[0], *limits, *files, "-print_final_stats=1", str(corpus), str(samples)], target.check)
    atheris.Fuzz()


def _write_words(target: Target, folder: Path) -> Path:
    path = folder / f"{target.name}-words"
    lines = ("".join(f"\\x{byte:02x}" for byte in word) for word in target.words)
    path.write_text("".join(f'"{line}"\n' for line in lines))
    return path


if __name__ == "__main__":
    main()
