"""The bill of materials: its content, its format CycloneDX, and the same bytes for the same image."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from supply_chain.sbom import (
    LockedPackage,
    component_of,
    debian_components,
    installed_components,
    license_of,
    locked_packages,
    read_cargo_lock,
    read_go_mod,
    read_requirements,
    render_sbom,
)

LISTING = "ii \tlibc6\t2.36-9+deb12u1\tamd64\nrc \tgone\t1\tall\nii \tlibstdc++6\t1:12.2-1\tamd64\n"
HASH = "a" * 64
PURL = "pkg:deb/debian/libc6@2.36-9%2Bdeb12u1?arch=amd64&distro=debian-12"


def write_distribution(folder: Path, name: str, version: str, *lines: str) -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("\n".join(["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", *lines]))


def use(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = list(importlib.metadata.distributions(path=[str(folder)]))
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: found)


def test_it_is_cyclonedx_with_all_that_is_locked() -> None:
    components = [component_of(package) for package in locked_packages()] + debian_components(LISTING, "debian-12")
    text = render_sbom(components, "0.1.0")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    broken = text.replace('"library"', '"shelf"', 1)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(broken), "the validator sees what is wrong"
    document = json.loads(text)
    purls = {component["purl"] for component in document["components"]}
    assert purls >= {package.purl for package in (*read_requirements(), *read_cargo_lock(), *read_go_mod())}
    assert set(document["dependencies"][0]["dependsOn"]) == purls
    (aiohttp,) = [component for component in document["components"] if component["name"] == "aiohttp"]
    locked = next(package for package in read_requirements() if package.name == "aiohttp")
    assert {each["content"] for each in aiohttp["hashes"]} == set(locked.checksums)


def test_the_same_components_are_the_same_bytes() -> None:
    components = [component_of(package) for package in read_cargo_lock()]
    text = render_sbom(components, "0.1.0")
    assert text == render_sbom(reversed(components), "0.1.0")
    assert "timestamp" not in text
    other = json.loads(render_sbom(components[1:], "0.1.0"))
    assert other["serialNumber"] != json.loads(text)["serialNumber"]


def test_a_component_is_there_once() -> None:
    component = component_of(LockedPackage("pypi", "x", "1"))
    with pytest.raises(ValueError, match="pkg:pypi/x@1"):
        render_sbom([component, component], "0.1.0")


def test_debians_packages_are_those_that_are_installed() -> None:
    first, second = debian_components(LISTING, "debian-12")
    assert (first["purl"], first["version"]) == (PURL, "2.36-9+deb12u1")
    assert second["purl"] == "pkg:deb/debian/libstdc%2B%2B6@1%3A12.2-1?arch=amd64&distro=debian-12"


def test_what_is_installed_is_what_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_distribution(tmp_path, "lookupdb", "0.1.0")
    write_distribution(tmp_path, "A_b", "1.0", "License-Expression: MIT")
    use(tmp_path, monkeypatch)
    locked = [
        LockedPackage("pypi", "a-b", "1.0", ("0" * 64,)),
        LockedPackage("pypi", "a-b", "1.1"),
        LockedPackage("pypi", "of-another-system", "1"),
    ]
    (component,) = installed_components(locked)
    assert (component["name"], component["licenses"]) == ("a-b", [{"expression": "MIT"}])
    with pytest.raises(ValueError, match=r"expected nothing of this name by the lock, found a-b 1.0 installed"):
        installed_components(locked[2:])
    with pytest.raises(ValueError, match=r"expected 2.0 or 2.1 by the lock, found a-b 1.0 installed"):
        installed_components([LockedPackage("pypi", "a-b", "2.0"), LockedPackage("pypi", "a-b", "2.1")])


@pytest.mark.parametrize(
    ("metadata", "classifiers", "expected"),
    [
        ({"License-Expression": "MIT OR Apache-2.0", "License": "x"}, [], {"expression": "MIT OR Apache-2.0"}),
        ({"License": "BSD"}, ["License :: OSI Approved :: MIT License"], {"license": {"name": "BSD"}}),
        ({"License": "UNKNOWN"}, ["License :: OSI Approved :: MIT License"], {"license": {"name": "MIT License"}}),
        ({"License": "Copyright\nall of it"}, ["License :: OSI Approved :: X", "Y"], {"license": {"name": "X"}}),
        ({"License": "x" * 101}, [], None),
        ({}, [], None),
    ],
)
def test_licences(metadata: dict[str, str], classifiers: list[str], expected: object) -> None:
    assert license_of(metadata, classifiers) == expected


def test_requirements_are_pinned_with_their_hashes(tmp_path: Path) -> None:
    path = tmp_path / "run.txt"
    path.write_text(
        f'# by uv\nZope.Interface==1.0 ; python_full_version < "4" \\\n    --hash=sha256:{HASH} \\\n'
        f"    --hash=sha256:{'b' * 64}\n    # via x\npyjwt[crypto]==2.0 --hash=sha256:{HASH}\n"
    )
    assert read_requirements(path) == [
        LockedPackage("pypi", "pyjwt", "2.0", (HASH,)),
        LockedPackage("pypi", "zope-interface", "1.0", (HASH, "b" * 64)),
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
    assert read_cargo_lock(path) == [LockedPackage("cargo", "cc", "1.0", (HASH,))]
    path.write_text('[[package]]\nname = "cc"\nversion = "1.0"\nsource = "git+x"\n')
    with pytest.raises(ValueError, match="expected a checksum of cc"):
        read_cargo_lock(path)


def test_our_own_locks_can_be_read() -> None:
    assert {"aiohttp", "cryptography"} <= {package.name for package in read_requirements()}
    assert "pyo3" in {package.name for package in read_cargo_lock()}


def test_go_modules(tmp_path: Path) -> None:
    path = tmp_path / "go.mod"
    path.write_text(
        "module ours\n\ngo 1.26.7\n\ntool a.b/x/cmd/x\n\nrequire (\n\ta.b/x v1.2.3\n\tc.d/y v0.4.0 // indirect\n)\n"
    )
    assert [each.purl for each in read_go_mod(path)] == ["pkg:golang/a.b/x@v1.2.3", "pkg:golang/c.d/y@v0.4.0"]
    assert "oras.land/oras" in {package.name for package in read_go_mod()}
