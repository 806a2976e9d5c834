"""Whose credentials a bucket is used with: the store's own, where source and store are not the same owner's.

A builder reads the user's source and writes the operator's store, and both are told by environment variables.
LOOKUPDB_STORE_<NAME> is <NAME> for the store alone: LOOKUPDB_STORE_AWS_ACCESS_KEY_ID and the like. When there is any
for the store's provider, they are all that the store is told; else it is told what sources are, the plain ones.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

PREFIX: Final = "LOOKUPDB_STORE_"

_PROVIDERS: Final = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
"""Scheme of a bucket → how the variables begin that obstore reads for it."""

_environment_lock: Final = threading.Lock()


def store_variables(scheme: str, environment: Mapping[str, str]) -> dict[str, str]:
    """What the store is told: plain names, and their values."""
    provider = _PROVIDERS[scheme]
    own = {
        name.removeprefix(PREFIX): value
        for name, value in environment.items()
        if name.startswith(PREFIX + provider) and value
    }
    return own or {name: value for name, value in environment.items() if name.startswith(provider)}


@contextmanager
def store_environment(scheme: str) -> Iterator[dict[str, str]]:
    """While the block runs, the environment is what the store is told: obstore begins with the environment whatever
    else it is given, and a session token of the source must not go with a key of the store. Yields the variables."""
    provider = _PROVIDERS[scheme]
    variables = store_variables(scheme, os.environ)
    with _environment_lock:
        saved = {name: value for name, value in os.environ.items() if name.startswith(provider)}
        if saved == variables:
            yield variables
            return
        try:
            _replace_variables(saved, variables)
            yield variables
        finally:
            _replace_variables(variables, saved)


def _replace_variables(old: Mapping[str, str], new: Mapping[str, str]) -> None:
    for name in old:
        os.environ.pop(name, None)
    os.environ.update(new)


def find_endpoint(scheme: str, variables: Mapping[str, str]) -> str | None:
    """Where the bucket's server is, when it is not the provider's own."""
    names = ("ENDPOINT_URL", "ENDPOINT", "ENDPOINT_URL_S3", "STORAGE_ENDPOINT", "BASE_URL")
    return next((found for name in names if (found := variables.get(_PROVIDERS[scheme] + name))), None)


def allows_http(scheme: str, variables: Mapping[str, str]) -> bool:
    """Whether the bucket's endpoint may be plain http: for a store of one's own, on one's own network."""
    return variables.get(f"{_PROVIDERS[scheme]}ALLOW_HTTP", "").lower() in ("1", "true", "yes", "on")
