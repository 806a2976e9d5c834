"""`lookupdb up --watch` on a Delta table: a new version of the table is a new generation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from support.up_stack import MANIFEST, Stack, people

pytestmark = pytest.mark.long

__all__ = ["people"]


def test_a_new_version_is_a_new_generation(people: Callable[..., Stack], tmp_path: Path) -> None:
    rows = {"email": ["ada@example.com", "alan@example.com"], "title": ["Countess", "Reader"]}
    write_deltalake(tmp_path / "people", pa.table(rows))
    (tmp_path / "people.yaml").write_text(
        MANIFEST.replace("source: {url: people.csv}", "source: {format: delta, url: people}")
    )
    stack = people("--watch", "--watch-seconds", "0.1")
    assert stack.find("ada@example.com") == {"ada@example.com": {"title": "Countess"}}
    DeltaTable(tmp_path / "people").update({"title": "'Duchess'"}, predicate="email = 'ada@example.com'")
    stack.says("cut over to g2")
    assert stack.find("ada@example.com") == {"ada@example.com": {"title": "Duchess"}}
