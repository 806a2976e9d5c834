"""redis-py, which knows nothing of lookupdb, asks the whole dataset through the routers' Service, and after a rebuild
gets the new values: no MGET has values of two generations meanwhile."""

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
from e2e.support.story import Story

pytestmark = pytest.mark.side_by_side

DATASET: Final = "records"
RECORDS: Final = 500


def test_a_client_of_redis_asks_the_whole_dataset(story: Story) -> None:
    keys = story.source(DATASET, version="v1", records=RECORDS)
    story.apply(story.dataset(DATASET, DATASET, shards=4))
    story.wait_settled(DATASET)

    found = _ask(story, [*keys, "nowhere"])
    assert found["info"]["dataset"] == f"{story.namespace}/{DATASET}"
    assert found["info"]["generation"] == "g1"
    for kind in ("many", "pipelined"):
        assert found[kind][-1] is None, f"{kind}: a key that no record has"
        _check_versions(story, kind, found[kind][:-1], {"v1"})
    _check_versions(story, "single", found["single"], {"v1"})

    story.source(DATASET, version="v2", records=RECORDS)
    story.refresh(DATASET)
    settled = threading.Event()

    def wait() -> None:
        story.wait_settled(DATASET, generation="g2")
        settled.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    rounds = 0
    while not settled.is_set() and waiting.is_alive():
        many = _ask(story, keys)["many"]
        assert len(_check_versions(story, "MGET during the rebuild", many, {"v1", "v2"})) == 1, "it mixes generations"
        rounds += 1
    waiting.join()
    assert settled.is_set()
    assert rounds
    _check_versions(story, "after the rebuild", _ask(story, keys)["pipelined"], {"v2"})


def _ask(story: Story, keys: list[str]) -> dict[str, Any]:
    """What redis-py is answered in a pod of the story's namespace."""
    story.wait_client()
    host = f"{DATASET}-router.{story.namespace}.svc"
    asked = json.dumps({"library": _pack_library(), "keys": keys})
    answered = run_in(pods.CLIENT, story.namespace, "python", "/inside/redis_ask.py", host, stdin=asked)
    found: dict[str, Any] = json.loads(answered)
    return found


def _pack_library() -> str:
    """redis-py, as this process has it, in base64."""
    folder = Path(redis.__file__).parent
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as library:
        for path in folder.rglob("*.py"):
            library.write(path, path.relative_to(folder.parent))
    return base64.b64encode(content.getvalue()).decode()


def _check_versions(story: Story, what: str, values: Any, versions: set[str]) -> set[str]:
    """The versions among ``values``, which are JSON; an error is no value, and none is among them."""
    assert isinstance(values, list), f"{what}: {values}"
    errors = [value for value in values if isinstance(value, dict)]
    assert not errors, f"{what}: {errors[:3]}"
    found = {json.loads(value)["version"] if value is not None else "missing" for value in values}
    where = f"{story.namespace}/{DATASET} over RESP, {what}"
    wrong_answers.check(found <= versions, where, f"answered {found}, expected {versions}")
    return found
