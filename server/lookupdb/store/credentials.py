"""Select the credentials for a bucket: the store may have its own, other than those of the source.

A builder reads the user's source and writes the operator's store, and takes the credentials of both from environment
variables. LOOKUPDB_STORE_<NAME> is <NAME> for the store alone, for example LOOKUPDB_STORE_AWS_ACCESS_KEY_ID. If there
are any for the store's provider, the store gets only these; else it gets the plain ones, like sources.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

PREFIX: Final = "LOOKUPDB_STORE_"
SOURCE_PREFIX: Final = "LOOKUPDB_SOURCE_STORE_"
"""Variables of the store that `lookupdb copy` reads, if it has others."""

_PROVIDERS: Final = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
"""Scheme of a bucket → the prefix of the variables that obstore reads for it."""

_environment_lock: Final = threading.Lock()


SECRET_VARIABLE: Final = f"{PREFIX}SECRET"
"""Names the Secret with the store's variables, if there is one: missing variables are not taken from elsewhere."""


def store_variables(scheme: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for the store, by their plain names. Empty ones are ignored: obstore would take one for an
    address, and panic."""
    provider = _PROVIDERS[scheme]
    own = {
        name.removeprefix(PREFIX): value
        for name, value in environment.items()
        if name.startswith(PREFIX + provider) and value
    }
    if own or environment.get(SECRET_VARIABLE):
        return own
    return {name: value for name, value in environment.items() if name.startswith(provider) and value}


@contextmanager
def store_environment(scheme: str) -> Iterator[dict[str, str]]:
    """Replace the provider's variables in the environment by the store's while the block runs: obstore always reads the
    environment, and a session token of the source must not go with a key of the store. Yields the variables."""
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


@contextmanager
def source_store() -> Iterator[None]:
    """While the block runs, open the store to copy from: LOOKUPDB_SOURCE_STORE_<NAME> replaces every
    LOOKUPDB_STORE_<NAME>, if there are any."""
    own = {
        PREFIX + name.removeprefix(SOURCE_PREFIX): value
        for name, value in os.environ.items()
        if name.startswith(SOURCE_PREFIX) and value
    }
    if not own:
        yield
        return
    with _environment_lock:
        saved = {name: value for name, value in os.environ.items() if name.startswith(PREFIX)}
        _replace_variables(saved, own)
    try:
        yield
    finally:
        with _environment_lock:
            _replace_variables(own, saved)


def _replace_variables(old: Mapping[str, str], new: Mapping[str, str]) -> None:
    for name in old:
        os.environ.pop(name, None)
    os.environ.update(new)


def identify_store(url: str, variables: Mapping[str, str]) -> str:
    """Return a text that is equal for two references to the same store with the same rights: the same URL may lead to
    another server, or for another user to another bucket. It is a hash, because credentials are secrets."""
    return hashlib.sha256(json.dumps([url, dict(variables)], sort_keys=True).encode()).hexdigest()


def find_endpoint(scheme: str, variables: Mapping[str, str]) -> str | None:
    """Return the URL of the bucket's server, if it is not the provider's own."""
    names = ("ENDPOINT_URL", "ENDPOINT", "ENDPOINT_URL_S3", "STORAGE_ENDPOINT", "BASE_URL")
    return next((found for name in names if (found := variables.get(_PROVIDERS[scheme] + name))), None)


def allows_http(scheme: str, variables: Mapping[str, str]) -> bool:
    """Return whether the bucket's endpoint may be plain http, as a private store on a private network may."""
    return variables.get(f"{_PROVIDERS[scheme]}ALLOW_HTTP", "").lower() in ("1", "true", "yes", "on")
