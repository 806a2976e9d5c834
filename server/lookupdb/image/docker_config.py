"""The credentials for a registry, from the file that `docker login` writes and a Secret of type dockerconfigjson holds.

Programs that such a file names (credsStore, credHelpers) are not run.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from lookupdb.errors import UsageError

_MAX_BYTES: Final = 1 << 20
_HELPERS: Final = ("credsStore", "credHelpers")


@dataclass(frozen=True, slots=True)
class Credentials:
    """A name and a password."""

    user: str
    password: str = field(repr=False)

    @property
    def header(self) -> str:
        """As HTTP's basic authentication has it."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


def default_path() -> Path:
    """Where `docker login` keeps them."""
    folder = os.environ.get("DOCKER_CONFIG")
    return (Path(folder) if folder else Path.home() / ".docker") / "config.json"


def read_credentials(path: Path, repository: str, *, must_exist: bool) -> Credentials | None:
    """Those for ``repository`` (``host[:port]/path``); None if the file has none, or is not there and need not be.
    Raises UsageError, which shows nothing of the file's content."""
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES + 1)
    except FileNotFoundError as error:
        if must_exist:
            raise UsageError(f"cannot read {path}: {error.strerror}") from error
        return None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    try:
        if len(text) > _MAX_BYTES:
            raise ValueError
        return _find(orjson.loads(text), repository, path)
    except (ValueError, AttributeError, TypeError, binascii.Error):
        raise UsageError(
            f"{path} is no Docker configuration", hint='it is JSON with "auths": a Secret\'s key .dockerconfigjson'
        ) from None


def _find(config: Mapping[str, Any], repository: str, path: Path) -> Credentials | None:
    """The longest name of ``auths`` that begins ``repository`` counts, as for a kubelet."""
    by_place = {_strip(name): entry for name, entry in (config.get("auths") or {}).items()}
    places = [place for place in by_place if repository == place or repository.startswith(f"{place}/")]
    entry = by_place[max(places, key=len)] if places else {}
    if entry.get("auth"):
        user, colon, password = base64.b64decode(entry["auth"], validate=True).decode().partition(":")
        if not colon:
            raise ValueError
        return Credentials(user, password)
    if entry.get("username"):
        return Credentials(str(entry["username"]), str(entry.get("password") or ""))
    if any(config.get(member) for member in _HELPERS):
        raise UsageError(
            f"{path} leaves the credentials of {repository} to a helper, and none is run",
            hint="give a file that holds them, as `kubectl create secret docker-registry` makes it",
        )
    return None


def _strip(name: str) -> str:
    """``registry.example/team`` for ``https://registry.example/team/``; old files have the path of an API, too."""
    place = name.removeprefix("https://").removeprefix("http://").rstrip("/")
    for ending in ("/v1", "/v2"):
        place = place.removesuffix(ending)
    return place
