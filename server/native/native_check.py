"""Check the native kernels and their fuzzers, as `make check` does: ``python server/native/native_check.py``.

They must be formatted and free of clippy's warnings. All crates must come from the registry, each in one version, under
licences that deny.toml allows. If cargo deny is installed and reaches its database, no crate may have an advisory. A
check whose tool is missing is skipped with one line of output.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from native_build import CRATE, NoKernels, explain, fetch_crates, find_cargo

FUZZ: Final = CRATE / "fuzz"
DENY: Final = CRATE / "deny.toml"
"""What is allowed, here and for cargo deny, which also knows advisories."""
_CLIPPY: Final = ("clippy", "--quiet", "--locked", "--all-targets")
_STRICT: Final = ("--", "-D", "warnings")
COMMANDS: Final = (
    (CRATE, ("fmt", "--check")),
    (CRATE, (*_CLIPPY, *_STRICT)),
    (CRATE, ("deny", "--offline", "--log-level", "error", "check", "bans", "licenses", "sources")),
    (FUZZ, ("fmt", "--check")),
    (FUZZ, (*_CLIPPY, "--all-features", *_STRICT)),
)
"""The crate, and the subcommand of cargo with its arguments."""
OPTIONAL: Final = {"deny": "licences, sources and versions of crates are checked all the same, advisories are not"}
"""Optional subcommand → what its absence means."""
FETCH_ADVISORIES: Final = ("deny", "fetch", "db")
ADVISORIES: Final = ("deny", "--offline", "--log-level", "error", "check", "advisories")


def main() -> int:
    """Check everything that can be checked here. Returns the exit code."""
    try:
        cargo = find_cargo()
        for crate in (CRATE, FUZZ):
            fetch_crates(cargo, crate)
    except NoKernels as error:
        return explain(error)
    failures = [command for command in COMMANDS if not run(cargo, *command)]
    knows_advisories = check_advisories(cargo)
    metadata = read_metadata(cargo)
    problems = [*find_foreign_crates(metadata, tomllib.loads(DENY.read_text())), *find_repeated_crates(metadata)]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if failures or problems or not knows_advisories else 0


def run(cargo: str, crate: Path, arguments: Sequence[str]) -> bool:
    """Run a subcommand of cargo in ``crate``. Return False if it fails; report one that is not installed."""
    name = arguments[0]
    if not has_subcommand(cargo, name):
        print(f"no cargo {name} here: {OPTIONAL.get(name, 'not checked')}", flush=True)
        return True
    # Nothing is linked, so the fuzzers' library, which needs a C++ compiler, need not exist.
    environment = {**os.environ, "CUSTOM_LIBFUZZER_PATH": str(FUZZ / "libfuzzer.a")}
    return subprocess.run([cargo, *arguments], cwd=crate, env=environment, check=False).returncode == 0


def has_subcommand(cargo: str, name: str) -> bool:
    """Whether cargo knows the subcommand here."""
    return subprocess.run([cargo, name, "--version"], cwd=CRATE, capture_output=True, check=False).returncode == 0


def check_advisories(cargo: str) -> bool:
    """Return False if a crate has an advisory. Report a database that cannot be fetched, which is not a failure."""
    if not has_subcommand(cargo, "deny"):
        return True  # `run` has reported it
    if subprocess.run([cargo, *FETCH_ADVISORIES], cwd=CRATE, capture_output=True, check=False).returncode:
        print("the database of advisories cannot be fetched here: they are not checked", flush=True)
        return True
    return run(cargo, CRATE, ADVISORIES)


def read_metadata(cargo: str) -> dict[str, Any]:
    """Return cargo's metadata of the crate and of all its dependencies. Raises CalledProcessError."""
    command = [cargo, "metadata", "--format-version", "1", "--locked"]
    metadata: dict[str, Any] = json.loads(subprocess.run(command, cwd=CRATE, stdout=subprocess.PIPE, check=True).stdout)
    return metadata


def find_foreign_crates(metadata: dict[str, Any], allowed: dict[str, Any]) -> Iterator[str]:
    """Return a sentence for each crate whose source or licence is not allowed."""
    sources = {f"registry+{url}" for url in allowed["sources"]["allow-registry"]}
    licences = set(allowed["licenses"]["allow"])
    for package in metadata["packages"]:
        crate = f"{package['name']} {package['version']}"
        if package["source"] is not None and package["source"] not in sources:
            yield f"{crate} comes from {package['source']}, which deny.toml does not allow"
        if not is_allowed(package["license"] or "", licences):
            yield f"{crate} is under {package['license'] or 'no licence'}, which deny.toml does not allow"


def find_repeated_crates(metadata: dict[str, Any]) -> Iterator[str]:
    """Return a sentence for each crate that occurs in several versions."""
    versions: dict[str, list[str]] = {}
    for package in metadata["packages"]:
        versions.setdefault(package["name"], []).append(package["version"])
    for name, found in versions.items():
        if len(found) > 1:
            yield f"{name} is there in {len(found)} versions: {', '.join(sorted(found))}"


def is_allowed(expression: str, licences: set[str]) -> bool:
    """Return whether an SPDX expression can be satisfied by ``licences``. ``A/B``, as old crates have it, is A or B."""
    words = re.findall(r"[()]|[^\s()]+", expression.replace("/", " OR ").replace(" WITH ", "-WITH-"))
    allowed = {licence.replace(" WITH ", "-WITH-") for licence in licences}

    def parse_or() -> bool:
        result = parse_and()
        while words[:1] == ["OR"]:
            words.pop(0)
            result = parse_and() or result
        return result

    def parse_and() -> bool:
        result = parse_name()
        while words[:1] == ["AND"]:
            words.pop(0)
            result = parse_name() and result
        return result

    def parse_name() -> bool:
        word = words.pop(0) if words else ""
        if word != "(":
            return word in allowed
        result = parse_or()
        return bool(words) and words.pop(0) == ")" and result

    return parse_or() and not words


if __name__ == "__main__":
    sys.exit(main())
