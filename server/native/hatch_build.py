"""Hatch's hook: a wheel contains the native kernels if cargo is available, and is pure Python otherwise."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FALLBACK = ["lmdb", "zstandard"]
"""What the Python fallback of `lookupdb.open` needs."""


class NativeKernels(BuildHookInterface[Any]):
    """Builds the kernels for a wheel. An editable installation gets them from `make`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the kernels to the wheel. Those of the checkout stay as they are."""
        sys.path.insert(0, str(Path(self.root, "server", "native")))
        import native_build

        if version == "editable":
            return
        try:
            library = native_build.build_library()
        except native_build.NoKernels as error:
            if native_build.explain(error):
                raise SystemExit(1) from None
            build_data["dependencies"] += FALLBACK
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["force_include"][str(library)] = f"lookupdb/{native_build.MODULE.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{platform}"
