"""examples/sync/app.py answers with what the dataset has, for any key that a URL can name."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote_to_bytes
from wsgiref.util import setup_testing_defaults

import pytest
from support.mapped import SyncedDataset

APP = Path(__file__).parents[2] / "examples" / "sync" / "app.py"
RECORDS = {"7": b'{"v":1}', "100%41": b'"percent"', "é": b'"accent"', "日本 a/b": b'"japan"', "nothing": b"null"}

Get = Callable[[str], tuple[str, Any]]


@pytest.fixture
def get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Get:
    SyncedDataset(tmp_path, "people", "team").publish("g1", RECORDS, value_format="json")
    monkeypatch.setenv("LOOKUPDB_SYNC_DIR", str(tmp_path))
    monkeypatch.delenv("DATASET", raising=False)
    spec = importlib.util.spec_from_file_location("sync_app", APP)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def get(target: str) -> tuple[str, Any]:
        # PEP 3333: bytes, without escapes, each as a character
        environ: dict[str, Any] = {"PATH_INFO": unquote_to_bytes(target).decode("latin-1")}
        setup_testing_defaults(environ)
        statuses: list[str] = []
        body = b"".join(module.app(environ, lambda status, headers: statuses.append(status)))
        (status,) = statuses
        return status, json.loads(body)

    return get


@pytest.mark.parametrize("key", RECORDS)
def test_a_key_is_found(get: Get, key: str) -> None:
    assert get(f"/people/{quote(key, safe='')}") == ("200 OK", json.loads(RECORDS[key]))


@pytest.mark.parametrize("target", ["/people/8", "/people/", "/people/100A", "/people/%FF", "/people/%C3%A9%00"])
def test_a_key_of_no_record_is_missing(get: Get, target: str) -> None:
    assert get(target) == ("404 Not Found", None)
