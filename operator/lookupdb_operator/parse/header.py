"""What every object has: its metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from lookupdb_operator import names

Body = Mapping[str, Any]
"""An object as the API server writes it."""

_LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Header:
    """Of an object's metadata what is used."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    dataset: str
    """The dataset label."""
    dataset_uid: str
    """The label with the dataset's uid."""
    owner_kind: str
    owner_name: str
    owner_uid: str
    """Of its controller; empty for none."""
    created: datetime


def header(body: Body) -> Header:
    """Of any object. Raises KeyError when it has no name or no uid: then it is none."""
    meta = body["metadata"]
    owners = meta.get("ownerReferences") or ()
    owner: Mapping[str, Any] = next((reference for reference in owners if reference.get("controller")), {})
    return Header(
        namespace=meta.get("namespace") or "",
        name=meta["name"],
        uid=meta["uid"],
        resource_version=meta.get("resourceVersion") or "",
        dataset=labels(body).get(names.DATASET) or "",
        dataset_uid=labels(body).get(names.DATASET_UID) or "",
        owner_kind=owner.get("kind") or "",
        owner_name=owner.get("name") or "",
        owner_uid=owner.get("uid") or "",
        created=moment(meta.get("creationTimestamp")),
    )


def labels(body: Body) -> Mapping[str, str]:
    """The object's labels."""
    return body["metadata"].get("labels") or {}


def annotations_of(body: Body) -> Mapping[str, str]:
    """The object's annotations."""
    return body["metadata"].get("annotations") or {}


def deleting(body: Body) -> bool:
    """Whether the object's deletion has begun."""
    return bool(body["metadata"].get("deletionTimestamp"))


def status(body: Body) -> Mapping[str, Any]:
    """The object's status; empty for none."""
    return body.get("status") or {}


def condition(body: Body, kind: str) -> Mapping[str, Any]:
    """The condition of type ``kind`` in the object's status; empty for none."""
    conditions = status(body).get("conditions") or ()
    return next((condition for condition in conditions if condition.get("type") == kind), {})


def number(text: str | None) -> int:
    """A label's number; -1 for what is none."""
    return int(text) if text and text.isdecimal() else -1


def moment(text: str | None) -> datetime:
    """A time of the API server's; long ago for none."""
    try:
        return datetime.fromisoformat(text or "")
    except ValueError:
        return _LONG_AGO
