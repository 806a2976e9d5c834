"""An unmodified redis-py reads a dataset through the routers' Service. No MGET mixes generations during a rebuild."""

from __future__ import annotations

import base64
import io
import json
import threading
import zipfile
from pathlib import Path
from typing import Any, Final

import pytest
import redis
from e2e.support import pods, wrong_answers
from e2e.support.kubectl import run_in
from e2e.support.scenario import Scenario

pytestmark = pytest.mark.side_by_side

DATASET: Final = "records"
RECORDS: Final = 500


def test_a_client_of_redis_asks_the_whole_dataset(scenario: Scenario) -> None:
    keys = scenario.source(DATASET, version="v1", records=RECORDS)
    scenario.apply(scenario.dataset(DATASET, DATASET, shards=4))
    scenario.wait_settled(DATASET)

    found = _ask(scenario, [*keys, "nowhere"])
    assert found["info"]["dataset"] == f"{scenario.namespace}/{DATASET}"
    assert found["info"]["generation"] == "g1"
    for kind in ("many", "pipelined"):
        assert found[kind][-1] is None, f"{kind}: a key that no record has"
        _check_versions(scenario, kind, found[kind][:-1], {"v1"})
    _check_versions(scenario, "single", found["single"], {"v1"})

    scenario.source(DATASET, version="v2", records=RECORDS)
    scenario.refresh(DATASET)
    settled = threading.Event()

    def wait() -> None:
        scenario.wait_settled(DATASET, generation="g2")
        settled.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    rounds = 0
    while not settled.is_set() and waiting.is_alive():
        many = _ask(scenario, keys)["many"]
        assert len(_check_versions(scenario, "MGET during the rebuild", many, {"v1", "v2"})) == 1, (
            "it mixes generations"
        )
        rounds += 1
    waiting.join()
    assert settled.is_set()
    assert rounds
    _check_versions(scenario, "after the rebuild", _ask(scenario, keys)["pipelined"], {"v2"})


def _ask(scenario: Scenario, keys: list[str]) -> dict[str, Any]:
    """Return redis-py's answers in a pod of the scenario's namespace."""
    scenario.wait_client()
    host = f"{DATASET}-router.{scenario.namespace}.svc"
    asked = json.dumps({"library": _pack_library(), "keys": keys})
    answered = run_in(pods.CLIENT, scenario.namespace, "python", "/inside/redis_ask.py", host, stdin=asked)
    found: dict[str, Any] = json.loads(answered)
    return found


def _pack_library() -> str:
    """Pack this process's redis-py, in base64."""
    folder = Path(redis.__file__).parent
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as library:
        for path in folder.rglob("*.py"):
            library.write(path, path.relative_to(folder.parent))
    return base64.b64encode(content.getvalue()).decode()


def _check_versions(scenario: Scenario, what: str, values: Any, versions: set[str]) -> set[str]:
    """Return the versions among ``values``, which are JSON. Fail if one of them is an error."""
    assert isinstance(values, list), f"{what}: {values}"
    errors = [value for value in values if isinstance(value, dict)]
    assert not errors, f"{what}: {errors[:3]}"
    found = {json.loads(value)["version"] if value is not None else "missing" for value in values}
    where = f"{scenario.namespace}/{DATASET} over RESP, {what}"
    wrong_answers.check(found <= versions, where, f"answered {found}, expected {versions}")
    return found
