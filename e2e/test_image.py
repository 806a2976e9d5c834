"""The image is small and runs without root. It holds no build tools and cannot be written to."""

from __future__ import annotations

import json
from typing import Final

import pytest
from e2e.support import pods
from e2e.support.figures import record
from e2e.support.kubectl import find
from e2e.support.scenario import Scenario

pytestmark = pytest.mark.side_by_side

MOST_BYTES: Final = 450_000_000
LOOK: Final = """
import json, os, shutil
def written(path):
    try:
        open(path, "w").close()
    except OSError as error:
        return type(error).__name__
tools = ("gcc", "cc", "c++", "ld", "as", "make", "uv", "curl", "git")
print(json.dumps({
    "uid": os.getuid(), "gid": os.getgid(), "written": written("/opt/lookupdb/x"), "tmp": written("/tmp/x"),
    "tools": [tool for tool in tools if shutil.which(tool)],
}))
"""
PACKAGES: Final = "import importlib.util as u; print([n for n in ('pip', 'setuptools', 'hatchling') if u.find_spec(n)])"


def test_the_image_holds_what_runs_and_nothing_else(scenario: Scenario) -> None:
    seen = json.loads(scenario.client_run("python", "-c", LOOK))
    assert seen == {"uid": 10001, "gid": 10001, "written": "OSError", "tmp": "OSError", "tools": []}
    assert scenario.client_run("python", "-c", PACKAGES).strip() == "[]"
    assert "(native kernels)" in scenario.client_run("lookupdb", "--version")

    size = _size()
    record("image", "size on a node", round(size / 1_000_000), "MB", at_most=MOST_BYTES / 1_000_000)
    assert size < MOST_BYTES


def _size() -> int:
    """Return the image's size in bytes, as a node reports it. Nodes know it by several names."""
    images = (image for node in find("nodes") for image in node["status"].get("images", []))
    name = pods.IMAGE.partition("@")[0]
    return max(
        int(image["sizeBytes"]) for image in images if any(known.endswith(name) for known in image["names"] or ())
    )
