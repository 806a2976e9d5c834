"""The image's bill of materials: CycloneDX 1.6 as JSON, from the lock files and from what is installed.

The same image gives the same bytes: it has no time in it, and its serial number is of its content. It needs nothing but
Python's library, because the image's build runs it where nothing more is to be installed.

``python -m supply_chain.sbom`` writes what the lock files name. ``--image`` is for the image's build: it checks that
the lock and the installed packages agree, and adds licences and Debian's packages.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import re
import subprocess
import sys
import tomllib
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

ROOT: Final = Path(__file__).parents[1]
REQUIREMENTS: Final = ROOT / "requirements" / "iceberg.txt"
"""The image's packages."""
EXTRA_REQUIREMENTS: Final = ROOT / "requirements" / "delta.txt"
"""Those of an image that reads Delta tables, too."""
CARGO_LOCK: Final = ROOT / "server" / "native" / "Cargo.lock"
GO_MOD: Final = ROOT / "server" / "oras" / "go.mod"
OWN: Final = "lookupdb"
_FORMAT: Final = "${db:Status-Abbrev}\t${Package}\t${Version}\t${Architecture}\n"
_MAX_LICENSE: Final = 100
"""Most characters: some packages put the full text in place of the name."""
_SERIAL: Final = uuid.UUID("b4a55c9e-6f0c-5e0b-9a3f-0d1a5a2f7c11")
_UNKNOWN: Final = ("", "UNKNOWN")
_PINNED: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;\\]+)")
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_REQUIRED: Final = re.compile(r"^\t(\S+) (v\S+)(?: // indirect)?$", re.MULTILINE)

Component = dict[str, Any]


@dataclass(frozen=True, slots=True, order=True)
class LockedPackage:
    """One package of a lock file."""

    kind: str
    """The type in package URLs: ``pypi``, ``cargo`` or ``golang``."""
    name: str
    version: str
    checksums: tuple[str, ...] = ()
    """Hexadecimal SHA-256 of the allowed files, one of which is installed."""

    @property
    def purl(self) -> str:
        """The package URL."""
        return f"pkg:{self.kind}/{quote(self.name)}@{quote(self.version)}"


def read_requirements(path: Path = REQUIREMENTS) -> list[LockedPackage]:
    """Return the packages of a requirements file that pins each with its hashes. Raises ValueError for other lines."""
    packages = []
    for line in path.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        pinned, checksums = _PINNED.match(text), _HASH.findall(text)
        if pinned is None or not checksums:
            raise ValueError(f"{path.name}: expected name==version with hashes, found {text[:80]!r}: run `make lock`")
        packages.append(LockedPackage("pypi", normalize(pinned[1]), pinned[2], tuple(sorted(checksums))))
    return sorted(packages)


def read_cargo_lock(path: Path = CARGO_LOCK) -> list[LockedPackage]:
    """Return the crates of a Cargo.lock except our own, which have no source. Raises ValueError without a checksum."""
    packages = []
    for package in tomllib.loads(path.read_text(encoding="utf-8"))["package"]:
        if "source" not in package:
            continue
        if "checksum" not in package:
            raise ValueError(f"{path.name}: expected a checksum of {package['name']}, found none: is it from git?")
        packages.append(LockedPackage("cargo", package["name"], package["version"], (package["checksum"],)))
    return sorted(packages)


def read_go_mod(path: Path = GO_MOD) -> list[LockedPackage]:
    """Return the modules that a go.mod requires, without hashes: go.sum has other checksums."""
    return sorted(
        LockedPackage("golang", name, version) for name, version in _REQUIRED.findall(path.read_text("utf-8"))
    )


def normalize(name: str) -> str:
    """Return a Python package's name as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def render_sbom(components: Iterable[Component], version: str) -> str:
    """Return the document of ``components`` as JSON. Raises ValueError for a duplicate."""
    ordered = sorted(components, key=lambda component: str(component["bom-ref"]))
    references = [component["bom-ref"] for component in ordered]
    if twice := {each for each in references if references.count(each) > 1}:
        raise ValueError(f"expected each component once, found {sorted(twice)} twice")
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": OWN,
                "name": OWN,
                "version": version,
                "licenses": [{"expression": "Apache-2.0"}],
            }
        },
        "components": ordered,
        "dependencies": [{"ref": OWN, "dependsOn": references}],
    }
    content = json.dumps(document, sort_keys=True, separators=(",", ":"))
    serial = uuid.uuid5(_SERIAL, hashlib.sha256(content.encode()).hexdigest())
    return json.dumps({**document, "serialNumber": serial.urn}, indent=1, sort_keys=True) + "\n"


def component_of(package: LockedPackage, license_name: Mapping[str, str] | None = None) -> Component:
    """Return a locked package. It has the hashes of all files that the lock allows; one of them is installed."""
    return {
        "type": "library",
        "bom-ref": package.purl,
        "name": package.name,
        "version": package.version,
        "purl": package.purl,
        **(
            {"hashes": [{"alg": "SHA-256", "content": each} for each in package.checksums]} if package.checksums else {}
        ),
        **({"licenses": [dict(license_name)]} if license_name else {}),
    }


def license_of(metadata: Mapping[str, str], classifiers: Iterable[str]) -> dict[str, Any] | None:
    """Return the licence in a distribution's metadata: an SPDX expression, else a name, else None."""
    if expression := metadata.get("License-Expression"):
        return {"expression": expression}
    text = metadata.get("License") or ""
    if text in _UNKNOWN or "\n" in text or len(text) > _MAX_LICENSE:
        named = [each.rpartition(" :: ")[2] for each in classifiers if each.startswith("License :: ")]
        text = ", ".join(named)
    return {"license": {"name": text}} if text else None


def installed_components(locked: Iterable[LockedPackage]) -> list[Component]:
    """Return the packages of this interpreter. Raises ValueError for one that is not locked in that version."""
    by_version = {(package.name, package.version): package for package in locked}  # some have one for each Python
    components = []
    for distribution in importlib.metadata.distributions():
        name = normalize(distribution.metadata["Name"])
        if name == OWN:
            continue
        package = by_version.get((name, distribution.version))
        if package is None:
            expected = " or ".join(version for each, version in by_version if each == name) or "nothing of this name"
            raise ValueError(f"expected {expected} by the lock, found {name} {distribution.version} installed")
        classifiers = distribution.metadata.get_all("Classifier") or []
        known = [key for key in ("License", "License-Expression") if key in distribution.metadata]
        metadata = {key: str(distribution.metadata[key]) for key in known}
        components.append(component_of(package, license_of(metadata, classifiers)))
    return components


def debian_components(listing: str, distribution: str) -> list[Component]:
    """Return the packages of our ``dpkg-query`` listing; ``distribution`` is like debian-12."""
    components = []
    for line in listing.splitlines():
        status, name, version, architecture = line.split("\t")
        if not status.startswith("ii"):
            continue
        purl = f"pkg:deb/debian/{quote(name)}@{quote(version)}?arch={architecture}&distro={quote(distribution)}"
        components.append({"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl})
    return components


def image_components() -> list[Component]:
    """Return the components of the image that this runs in. Raises ValueError, or CalledProcessError without dpkg."""
    release = platform.freedesktop_os_release()
    command = ["/usr/bin/dpkg-query", "--show", f"--showformat={_FORMAT}"]
    listing = subprocess.run(command, capture_output=True, text=True, check=True)
    return [
        *installed_components([*read_requirements(), *read_requirements(EXTRA_REQUIREMENTS)]),
        *map(component_of, (*read_cargo_lock(), *read_go_mod())),
        *debian_components(listing.stdout, f"{release['ID']}-{release['VERSION_ID']}"),
    ]


def main() -> None:
    """Write the document to standard output."""
    is_image = sys.argv[1:] == ["--image"]
    if sys.argv[1:] and not is_image:
        sys.exit("expected nothing or --image")
    components = image_components() if is_image else [component_of(each) for each in locked_packages()]
    sys.stdout.write(render_sbom(components, importlib.metadata.version(OWN)))


def locked_packages() -> list[LockedPackage]:
    """Return all that the image's lock files name."""
    return [*read_requirements(), *read_cargo_lock(), *read_go_mod()]


if __name__ == "__main__":
    main()
