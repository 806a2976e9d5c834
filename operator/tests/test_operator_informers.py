"""How the informers ask the API server."""

from __future__ import annotations

from lookupdb_operator.informers import settings


def test_a_watch_ends_after_whole_seconds() -> None:
    # It goes into the URL as it stands, and Go's ParseInt refuses 290.0: emulators of the API server do not.
    assert str(settings().watching.server_timeout).isdigit()
