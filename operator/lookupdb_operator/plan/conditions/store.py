"""What is said of the store where it is what somebody waits for: which one, and never a secret."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from lookupdb_operator.model import Trouble
from lookupdb_operator.plan import reasons
from lookupdb_operator.plan.situation import Situation

_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT")


def name_store(trouble: Trouble | None, situation: Situation) -> Trouble | None:
    """``trouble``, and of which store it is when it is a store's and does not say so."""
    url = situation.config.store
    if trouble is None or trouble.reason not in reasons.ABOUT_THE_STORE - {reasons.SECRET_MISSING}:
        return trouble
    host = _host(situation)
    named = [part for part in (url, host and f"at {host}") if part and part.removeprefix("at ") not in trouble.message]
    return Trouble(trouble.reason, f"{trouble.message}; the store is {' '.join(named)}") if named else trouble


def _host(situation: Situation) -> str:
    """Host and port of the endpoint, without what a URL may hold of a secret: user, password, query."""
    environment = situation.observed.store.environment
    endpoint = next((environment[name] for name in _ENDPOINTS if environment.get(name)), "")
    return urlsplit(endpoint).netloc.rpartition("@")[2]
