"""The developer interface: `make help` lists every target, and a commit hook runs each command of `make check`."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()


def recipe(target: str) -> list[str]:
    """The commands of ``target``, with variables replaced."""
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.M)
    assert found, f"there is no target {target}"
    lints = re.search(r"^LINTS := (.+?) #", MAKEFILE, re.M)
    assert lints
    text = found[1].replace("$(BIN)", ".venv/bin").replace("$(MAKE)", "make").replace("$(LINTS)", lints[1])
    return [line.strip().lstrip("@") for line in text.splitlines()]


def test_help_lists_every_target_on_a_line_of_its_own() -> None:
    phony = re.search(r"^\.PHONY: (.+)$", MAKEFILE, re.M)
    assert phony
    # make test is a make, too: one that runs within another tells more.
    environment = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    }
    make = subprocess.run(["make", "help"], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    listed = make.stdout
    names = [line.split()[1] for line in listed.splitlines()]
    assert sorted(names) == sorted(phony[1].split())
    widest = max(len(name) for name in names)
    assert {line[7 + widest] for line in listed.splitlines()} == {" "}, "explanations begin in one column"


def test_every_target_that_makes_no_file_is_phony() -> None:
    phony = re.search(r"^\.PHONY: (.+)$", MAKEFILE, re.M)
    assert phony
    assert set(re.findall(r"^([a-z][a-z0-9-]*):", MAKEFILE, re.M)) == set(phony[1].split())


def test_the_hooks_of_a_commit_run_what_make_check_runs() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert [repository["repo"] for repository in config["repos"]] == ["local"], "nothing comes over the network"
    entries = [re.sub(r"^bash -c '(.*)'$", r"\1", hook["entry"]) for hook in config["repos"][0]["hooks"]]
    assert re.search(r"^check: lint chart ", MAKEFILE, re.M)
    assert entries == [*recipe("lint"), "make --no-print-directory chart"]
    assert not any(hook["pass_filenames"] for hook in config["repos"][0]["hooks"])
