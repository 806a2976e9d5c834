"""Which kernels are used: by LOOKUPDB_NATIVE, by what is installed, and by what it was built from."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import native_build
import pytest
import xxhash

import lookupdb
from lookupdb import native
from lookupdb.errors import UsageError

Load = Callable[..., ModuleType]


@pytest.fixture(autouse=True)
def _nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Act as in a new process, whatever earlier tests have imported."""
    monkeypatch.delattr(lookupdb, "_native", raising=False)


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    """Loads the chooser again, as it is where ``installed`` is what ``import lookupdb._native`` finds."""

    def load(installed: ModuleType | None) -> ModuleType:
        monkeypatch.setitem(sys.modules, "lookupdb._native", installed)
        return load_copy()

    return load


def load_copy() -> ModuleType:
    spec = importlib.util.spec_from_file_location("native_copy", native.__file__)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def built(**members: int) -> ModuleType:
    """A module as the crate makes it, or with other members."""
    module = ModuleType("lookupdb._native")
    vars(module).update(members or {"INTERFACE": xxhash.xxh3_64_intdigest(native.INTERFACE.read_bytes())})
    return module


def test_kernels_are_used_where_they_are_installed(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    module = built()
    chooser = load(module)
    for value in ("", "1"):
        monkeypatch.setenv(native.VARIABLE, value)
        assert (chooser.kernels(), chooser.kind(), chooser.describe()) == (module, "native", "native kernels")
    monkeypatch.delenv(native.VARIABLE)
    assert chooser.kernels() is module


def test_0_takes_the_twins_at_the_next_call(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    chooser = load(built())
    monkeypatch.setenv(native.VARIABLE, "0")
    assert (chooser.kernels(), chooser.kind()) == (None, "python")
    assert chooser.describe() == "Python kernels: LOOKUPDB_NATIVE=0"
    monkeypatch.setenv(native.VARIABLE, "")
    assert chooser.kind() == "native"


def test_the_twins_are_used_where_none_are_installed_and_1_demands_what_is_not_there(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    chooser = load(None)  # which import answers by ModuleNotFoundError
    monkeypatch.delenv(native.VARIABLE, raising=False)
    assert (chooser.kernels(), chooser.kind()) == (None, "python")
    assert chooser.describe() == "Python kernels: native ones are not installed"
    monkeypatch.setenv(native.VARIABLE, "1")
    with pytest.raises(UsageError, match="LOOKUPDB_NATIVE=1 requires native kernels: native ones are not installed\n"):
        chooser.kernels()
    monkeypatch.setenv(native.VARIABLE, "0")
    assert chooser.describe() == "Python kernels: LOOKUPDB_NATIVE=0"


@pytest.mark.parametrize("members", [{"INTERFACE": 1}, {"SOURCES": 0}], ids=["another", "none"])
def test_a_module_of_another_interface_is_not_used(
    load: Load, monkeypatch: pytest.MonkeyPatch, members: dict[str, int]
) -> None:
    """After a pull without a build, the module may lack what Python calls, or do something else."""
    chooser = load(built(**members))
    monkeypatch.delenv(native.VARIABLE, raising=False)
    assert chooser.kernels() is None
    assert chooser.describe() == "Python kernels: native ones were built from other code"
    monkeypatch.setenv(native.VARIABLE, "1")
    with pytest.raises(UsageError, match="requires native kernels: native ones were built from other code"):
        chooser.kernels()


def test_a_module_that_cannot_be_loaded_is_told_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """For example, the file was cut short, or is for another libc."""
    (tmp_path / "_native.abi3.so").write_bytes(b"\x7fELF")
    monkeypatch.setattr(lookupdb, "__path__", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "lookupdb._native", raising=False)
    monkeypatch.delenv(native.VARIABLE, raising=False)
    chooser = load_copy()
    assert chooser.kernels() is None
    assert chooser.describe().startswith("Python kernels: native ones cannot be loaded: ")
    assert "file too short" in chooser.describe()


@pytest.mark.parametrize("value", ["2", "yes", "on", " 1"])
def test_other_values_are_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(native.VARIABLE, value)
    with pytest.raises(UsageError, match=f"LOOKUPDB_NATIVE: expected 0 or 1, found '{value}'"):
        native.kernels()


def test_what_is_installed_was_built_from_the_sources_that_are_here() -> None:
    """A change within the crate alone would leave the tests with an old build."""
    if native.kernels() is not None:
        from lookupdb import _native

        assert native_build.digest_sources() == _native.SOURCES, "server/native has changed: run `make native`"
        assert native_build.is_up_to_date(), "which is seen without loading it"
