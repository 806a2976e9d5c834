"""The operator's command with another port for asking routers: ``… launch ADMIN_PORT OPTIONS``."""

from __future__ import annotations

import cProfile
import os
import sys
from dataclasses import replace

import uvloop

from lookupdb import telemetry
from lookupdb_operator.command import command, options
from lookupdb_operator.main import run


def _main() -> None:
    admin_port, *arguments = sys.argv[1:]
    telemetry.configure_logging("text")
    given = command.make_context("operator", arguments).params
    chosen = replace(options(**given), admin_port=int(admin_port))
    if path := os.environ.get("OPERATOR_PROFILE"):
        profile = cProfile.Profile()
        profile.enable()
        try:
            uvloop.run(run(chosen))
        finally:
            profile.disable()
            profile.dump_stats(path)
    else:
        uvloop.run(run(chosen))


if __name__ == "__main__":
    _main()
