"""Run ``kubectl-lookupdb``: the entry point of the installed programs. The plugin is imported if its extra is there."""

from __future__ import annotations

from types import ModuleType

from lookupdb.cli import check_extras
from lookupdb.cli.program import run_program


def main() -> None:
    """Run the program."""
    run_program(lambda: _load().main())


def complete_for_kubectl() -> None:
    """Run ``kubectl_complete-lookupdb``, which kubectl runs to complete ``kubectl lookupdb``."""
    run_program(lambda: _load().complete_for_kubectl())


def _load() -> ModuleType:
    check_extras("kubectl-lookupdb")
    from lookupdb_operator.plugin import cli

    return cli


if __name__ == "__main__":
    main()
