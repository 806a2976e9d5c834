"""What `pip install lookupdb` and its extras bring, and which commands run with it."""

import functools
import os
import subprocess
import sys
import tomllib
import venv
from collections.abc import Collection
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import grimp
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support.shards import write_generation

from lookupdb import native
from lookupdb.cli import EXTRAS, VERBS, cli, other_verbs
from lookupdb.manifest import ANNOUNCEMENT_NOTE, Announcement

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NOT_LOCKED = ("pbr", "setuptools")  # see [tool.uv] in pyproject.toml


def list_packages(extras: Collection[str] = (), name: str = "lookupdb") -> set[str]:
    """Return the packages that ``pip install name[extras]`` brings, itself included, without those that the lock
    leaves out."""
    found: dict[str, set[str]] = {}
    _add_packages(found, name, {*extras})
    return found.keys() - {*NOT_LOCKED}


def _add_packages(found: dict[str, set[str]], name: str, extras: set[str]) -> None:
    if name in found and extras <= found[name]:
        return
    found[name] = found.get(name, set()) | extras
    if name == "lookupdb":
        texts = [*PROJECT["dependencies"]]
        texts += [text for extra in extras for text in PROJECT["optional-dependencies"][extra]]
    else:
        texts = [] if name in NOT_LOCKED else _read_requirements(name)
    for requirement in map(_parse_requirement, texts):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            _add_packages(found, canonicalize_name(requirement.name), requirement.extras)


@functools.cache
def _read_requirements(name: str) -> list[str]:
    return metadata.requires(name) or []


_parse_requirement = functools.cache(Requirement)


class Install:
    """A virtual environment with lookupdb, and links to the packages that ``extras`` bring."""

    def __init__(self, folder: Path, extras: Collection[str] = ()) -> None:
        venv.create(folder, symlinks=True)
        self._python = folder / "bin" / "python"
        (site,) = folder.glob("lib/python*/site-packages")
        for name in list_packages(extras):
            tops = {file.parts[0]: file for file in metadata.files(name) or []}
            for top in tops.keys() - {"..", "__pycache__"}:
                if name != "lookupdb" or top.endswith(".dist-info"):
                    (site / top).symlink_to(Path(str(metadata.distribution(name).locate_file(top))))
        (site / "lookupdb").symlink_to(ROOT / "server" / "lookupdb")
        (site / "lookupdb_operator").symlink_to(ROOT / "operator" / "lookupdb_operator")

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run its Python with ``words``."""
        own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV"))}
        return subprocess.run(
            [self._python, *words], env=own | variables, capture_output=True, text=True, timeout=120, check=False
        )


KUBECTL = "kubectl-lookupdb"
COMMANDS = {*VERBS, *other_verbs(), KUBECTL}


def commands_of(*extras: str) -> set[str]:
    """The commands that run with ``extras``."""
    given = {*extras} | ({"serve"} if "operator" in extras else set())
    return {
        command
        for command in COMMANDS
        if {name for name, (_, commands) in EXTRAS.items() if command in commands} <= given
    }


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Install:
    return Install(tmp_path_factory.mktemp("plain"))


def test_the_plain_install_has_three_other_packages() -> None:
    assert list_packages() == {"lookupdb", "click", "orjson", "xxhash"}


def test_each_extra_is_recognised_by_a_package_that_it_alone_brings() -> None:
    for name, (package, _) in EXTRAS.items():
        others = EXTRAS.keys() - {name, "operator" if name == "serve" else name}  # with [operator] comes [serve]
        assert package in list_packages({name})
        assert package not in list_packages(others)
    assert list_packages({"all"}) == list_packages({*EXTRAS, "otel"})
    assert {*EXTRAS, "all", "iceberg", "delta", "spark"} <= PROJECT["optional-dependencies"].keys()


def test_every_command_names_its_extras() -> None:
    assert {command for _, commands in EXTRAS.values() for command in commands} == COMMANDS - {"completion"}


ONLY_IN_A_CLUSTER = {
    ("lookupdb_operator.plugin.options", "lookupdb_operator.plugin.cluster_session"),
    ("lookupdb_operator.cluster.cluster", "aiohttp"),
}
"""Late imports for which no command of a laptop asks."""

OPTIONAL = {"deltalake", "opentelemetry", "pyarrow", "pygal", "pyiceberg", "pyroaring", "pyspark"}
"""Packages whose absence is an error of its own, when a manifest, an option or a variable asks for
them."""


def test_nothing_that_a_command_imports_anywhere_is_of_another_extra() -> None:
    """This includes imports inside functions."""
    graph = grimp.build_graph(
        "lookupdb",
        "lookupdb_operator",
        include_external_packages=True,
        exclude_type_checking_imports=True,
        cache_dir=None,
    )
    for importer, imported in ONLY_IN_A_CLUSTER:
        graph.remove_import(importer=importer, imported=imported)
    owners = metadata.packages_distributions()
    roots = {name: cli.get_command(click.Context(cli), name) for name in COMMANDS - {KUBECTL}}
    modules = {
        name: str(command.callback.__module__) for name, command in roots.items() if command and command.callback
    }
    modules[KUBECTL] = "lookupdb_operator.plugin.cli"
    assert modules.keys() == COMMANDS
    for command, module in modules.items():
        found: set[str] = set()
        waiting = {module}
        while waiting:
            name = waiting.pop()
            found.add(name)
            if name in graph.modules and not graph.is_module_squashed(name):
                parents = {name.rpartition(".")[0]} & graph.modules
                waiting |= (graph.find_modules_directly_imported_by(name) | parents) - found
        foreign = {name for name in found if not name.startswith("lookupdb")} - sys.stdlib_module_names - OPTIONAL
        extras = {name for name, (_, commands) in EXTRAS.items() if command in commands}
        brought = list_packages(extras)
        assert foreign, command
        lacking = {name for name in foreign if brought.isdisjoint(map(canonicalize_name, owners[name]))}
        assert not lacking, f"{command} with {extras}"


_LISTED = """
import click
from click.shell_completion import ShellComplete
from lookupdb.cli import cli
from lookupdb.errors import UsageError
for name in cli.list_commands(click.Context(cli)):
    try:
        cli.get_command(click.Context(cli), name)
        print(name)
    except UsageError as error:
        assert error.hint.startswith("pip install 'lookupdb["), error.hint
print(*(item.value for item in ShellComplete(cli, {}, "lookupdb", "_LOOKUPDB_COMPLETE").get_completions([], "")))
"""


@pytest.mark.parametrize("extras", [(), ("build", "serve"), ("operator",)], ids=str)
def test_commands_load_or_are_refused_by_what_is_installed(extras: tuple[str, ...], tmp_path: Path) -> None:
    """Shell completion offers those that load."""
    install = Install(tmp_path / "install", extras)
    run = install.run("-c", _LISTED)
    assert run.returncode == 0, run.stderr
    *loaded, completed = run.stdout.split("\n")[:-1]
    assert {*loaded} == {*completed.split()} == commands_of(*extras) - {KUBECTL}
    if "operator" in extras:
        run = install.run("-m", "lookupdb_operator.plugin", "--help")
        assert run.returncode == 0, run.stderr


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (("lookupdb", "up"), "build,serve"),
        (("lookupdb", "build", "--help"), "build"),
        (("lookupdb", "operator"), "operator"),
        (("lookupdb_operator.plugin", "status"), "operator"),
    ],
)
def test_a_command_without_its_extra_names_the_extra_and_how_to_install_it(
    plain: Install, words: tuple[str, ...], missing: str
) -> None:
    run = plain.run("-m", *words)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr == (
        f"error: this command needs extras of lookupdb that are not installed: {missing.replace(',', ', ')}\n"
        f"  pip install 'lookupdb[{missing}]'\n"
    )


def test_the_plain_install_has_help_and_version(plain: Install) -> None:
    run = plain.run("-m", "lookupdb", "--help")
    assert run.returncode == 0, run.stderr
    assert all(f"  {verb} " in run.stdout for verb in VERBS)
    run = plain.run("-m", "lookupdb", "--version")
    assert (run.returncode, run.stderr) == (0, "")


_CLIENT = """
from lookupdb.client import AsyncClient, Client
Client("http://127.0.0.1:1").close()
"""


def test_the_plain_install_has_the_client(plain: Install) -> None:
    run = plain.run("-c", _CLIENT)
    assert (run.returncode, run.stderr) == (0, "")


_OPEN = "import lookupdb, sys; print(*lookupdb.open(sys.argv[1]).items())"


def test_the_plain_install_opens_a_dataset_in_a_store(plain: Install, tmp_path: Path) -> None:
    write_generation(tmp_path, {"a": b"1"}, generation="g1")
    announcement = Announcement("default", "people", "local", "g1", 1, "2026-11-20T02:04:00Z")
    (tmp_path / ANNOUNCEMENT_NOTE).write_bytes(announcement.to_json())
    run = plain.run("-c", _OPEN, str(tmp_path))
    if native.kernels() is not None:
        assert (run.stdout, run.stderr) == ("('a', b'1')\n", "")
    run = plain.run("-c", _OPEN, str(tmp_path), LOOKUPDB_NATIVE="0")
    assert run.stderr.endswith(
        "without native kernels, lookupdb.open needs lmdb, which is not installed\n  pip install 'lookupdb[serve]'\n"
    )
