"""What the lock files name."""

from __future__ import annotations

from pathlib import Path

import pytest
from supply_chain.locks import CRATES, PYPI, LockedPackage, read_cargo_lock, read_requirements

HASH = "a" * 64


def test_requirements_are_pinned_with_their_hashes(tmp_path: Path) -> None:
    path = tmp_path / "run.txt"
    path.write_text(
        f'# by uv\nZope.Interface==1.0 ; python_full_version < "4" \\\n    --hash=sha256:{HASH} \\\n'
        f"    --hash=sha256:{'b' * 64}\n    # via x\npyjwt[crypto]==2.0 --hash=sha256:{HASH}\n"
    )
    assert read_requirements(path) == [
        LockedPackage(PYPI, "pyjwt", "2.0", (HASH,)),
        LockedPackage(PYPI, "zope-interface", "1.0", (HASH, "b" * 64)),
    ]


@pytest.mark.parametrize("line", ["x>=1", "x==1", "git+https://host/x", f"-e . --hash=sha256:{HASH}"])
def test_what_is_not_locked_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "run.txt").write_text(line)
    with pytest.raises(ValueError, match="expected name==version with hashes"):
        read_requirements(tmp_path / "run.txt")


def test_crates_but_for_our_own(tmp_path: Path) -> None:
    path = tmp_path / "Cargo.lock"
    crate = f'[[package]]\nname = "cc"\nversion = "1.0"\nsource = "registry+x"\nchecksum = "{HASH}"\n'
    path.write_text(f'version = 4\n[[package]]\nname = "lookupdb-native"\nversion = "0.1.0"\n{crate}')
    assert read_cargo_lock(path) == [LockedPackage(CRATES, "cc", "1.0", (HASH,))]
    path.write_text('[[package]]\nname = "cc"\nversion = "1.0"\nsource = "git+x"\n')
    with pytest.raises(ValueError, match="expected a checksum of cc"):
        read_cargo_lock(path)


def test_our_own_locks_can_be_read() -> None:
    assert {"aiohttp", "cryptography"} <= {package.name for package in read_requirements()}
    assert "pyo3" in {package.name for package in read_cargo_lock()}
