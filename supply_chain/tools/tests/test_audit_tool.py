"""`make audit` with osv-scanner: an advisory fails it, but not if it is ignored; an unreachable network fails it
too."""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from supply_chain.sbom import ROOT, read_cargo_lock, read_requirements

AWAY = {f"{scheme}_PROXY": "http://127.0.0.1:9" for scheme in ("HTTP", "HTTPS")}


def audit(*options: str, **environment: str) -> tuple[int, str]:
    env = {**os.environ, **AWAY, **environment}
    done = subprocess.run(
        [ROOT / "supply_chain" / "audit", *options], check=False, env=env, capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


def advisory(name: str, ecosystem: str, package: str, *versions: str) -> dict[str, Any]:
    purl = f"pkg:{'pypi' if ecosystem == 'PyPI' else 'cargo'}/{package}"
    affected = {
        "package": {"ecosystem": ecosystem, "name": package, "purl": purl},
        "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}]}],
        "versions": list(versions),
    }
    return {"id": name, "modified": "2026-01-01T00:00:00Z", "published": "2026-01-01T00:00:00Z", "affected": [affected]}


@pytest.fixture
def database(tmp_path: Path) -> Path:
    (aiohttp,) = (each.version for each in read_requirements() if each.name == "aiohttp")
    (pyo3,) = (each.version for each in read_cargo_lock() if each.name == "pyo3")
    (gunicorn,) = (
        each.version for each in read_requirements(ROOT / "requirements" / "bench.txt") if each.name == "gunicorn"
    )
    known = {
        "PyPI": [
            advisory("GHSA-aaaa-aaaa-aaaa", "PyPI", "aiohttp", aiohttp),
            advisory("GHSA-bbbb-bbbb-bbbb", "PyPI", "gunicorn", gunicorn),
        ],
        "crates.io": [advisory("RUSTSEC-2026-0001", "crates.io", "pyo3", pyo3)],
    }
    for ecosystem, advisories in known.items():
        folder = tmp_path / "osv-scalibr" / ecosystem
        folder.mkdir(parents=True)
        with zipfile.ZipFile(folder / "all.zip", "w") as archive:
            for each in advisories:
                archive.writestr(f"{each['id']}.json", json.dumps(each))
    return tmp_path


def test_an_advisory_of_any_lock_fails_it_unless_it_is_named(database: Path, tmp_path: Path) -> None:
    where = {"OSV_SCALIBR_LOCAL_DB_CACHE_DIRECTORY": str(database)}
    names = ("GHSA-aaaa-aaaa-aaaa", "GHSA-bbbb-bbbb-bbbb", "RUSTSEC-2026-0001")
    code, text = audit("--offline", **where)
    assert code == 1, text
    for name in names:
        assert name in text
    entry = '[[IgnoredVulns]]\nid = "{}"\nreason = "of a test"\nignoreUntil = {}\n'
    config = tmp_path / "osv-scanner.toml"
    config.write_text("".join(entry.format(name, "2126-01-01") for name in names))
    code, text = audit("--offline", "--config", str(config), **where)
    assert code == 0, text
    config.write_text("".join(entry.format(name, "2026-01-01") for name in names))
    assert audit("--offline", "--config", str(config), **where)[0] == 1, "their time is over"


def test_no_network_is_no_finding_and_is_said() -> None:
    code, text = audit()
    assert code == 0, text
    assert "SKIPPED, nothing is known" in text


def test_no_database_is_no_clean_one(tmp_path: Path) -> None:
    code, text = audit("--offline", OSV_SCALIBR_LOCAL_DB_CACHE_DIRECTORY=str(tmp_path))
    assert code not in (0, 1), text


def test_a_config_that_cannot_be_read_fails_it(database: Path, tmp_path: Path) -> None:
    config = tmp_path / "osv-scanner.toml"
    config.write_text("[[IgnoredVulns")
    code, text = audit("--offline", "--config", str(config), OSV_SCALIBR_LOCAL_DB_CACHE_DIRECTORY=str(database))
    assert code not in (0, 1), text
