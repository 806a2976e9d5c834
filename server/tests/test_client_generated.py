"""The client for threads is what its generator makes of the one for asyncio."""

from __future__ import annotations

import pytest

from generate_sync_client import SOURCE, TARGET, generate


def test_the_committed_client_is_the_generated_one() -> None:
    assert TARGET.read_text() == generate(SOURCE.read_text()), "run `make sync-client`"


def test_nothing_of_asyncio_is_left_in_it() -> None:
    text = TARGET.read_text().partition('"""\n\nfrom')[2]
    assert "async" not in text.lower()
    assert "await" not in text


def test_a_replacement_that_replaces_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="has nothing like"):
        generate("import asyncio\n")
