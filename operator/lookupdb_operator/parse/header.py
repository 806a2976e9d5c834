"""What every object has: its metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from lookupdb_operator import names
from lookupdb_operator.model import Deletion

Body = Mapping[str, Any]
"""An object as the API server writes it."""

_MAX_FINALIZERS: Final = 3
_MAX_FINALIZER_CHARACTERS: Final = 100
_LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Header:
    """The part of an object's metadata that is used."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    dataset: str
    """The label with the dataset's name."""
    dataset_uid: str
    """The label with the dataset's uid."""
    owner_kind: str
    owner_name: str
    owner_uid: str
    """Of its controller; empty when it has none."""
    created: datetime


def parse_header(body: Body) -> Header:
    """The header of any object. Raises KeyError when ``body`` has no name or no uid: then it is no object."""
    meta = body["metadata"]
    owners = meta.get("ownerReferences") or ()
    owner: Mapping[str, Any] = next((reference for reference in owners if reference.get("controller")), {})
    return Header(
        namespace=meta.get("namespace") or "",
        name=meta["name"],
        uid=meta["uid"],
        resource_version=meta.get("resourceVersion") or "",
        dataset=read_labels(body).get(names.DATASET) or "",
        dataset_uid=read_labels(body).get(names.DATASET_UID) or "",
        owner_kind=owner.get("kind") or "",
        owner_name=owner.get("name") or "",
        owner_uid=owner.get("uid") or "",
        created=parse_time(meta.get("creationTimestamp")),
    )


def read_labels(body: Body) -> Mapping[str, str]:
    """The object's labels."""
    return body["metadata"].get("labels") or {}


def read_annotations(body: Body) -> Mapping[str, str]:
    """The object's annotations."""
    return body["metadata"].get("annotations") or {}


def is_deleting(body: Body) -> bool:
    """Whether the object's deletion has begun."""
    return bool(body["metadata"].get("deletionTimestamp"))


def parse_deletion(body: Body) -> Deletion | None:
    """The object's deletion; None when it has not begun."""
    if not is_deleting(body):
        return None
    finalizers = (body["metadata"].get("finalizers") or ())[:_MAX_FINALIZERS]
    cut = tuple(str(name)[:_MAX_FINALIZER_CHARACTERS] for name in finalizers)
    return Deletion(parse_time(body["metadata"]["deletionTimestamp"]), cut)


def read_status(body: Body) -> Mapping[str, Any]:
    """The object's status; empty when it has none."""
    return body.get("status") or {}


def find_condition(body: Body, kind: str) -> Mapping[str, Any]:
    """The condition of type ``kind`` in the object's status; empty when there is none."""
    conditions = read_status(body).get("conditions") or ()
    return next((condition for condition in conditions if condition.get("type") == kind), {})


def parse_number(text: str | None) -> int:
    """The number that a label says; -1 when it says none, or one of more than 15 digits."""
    return int(text) if text and len(text) <= 15 and text.isdecimal() else -1


def parse_time(text: str | None) -> datetime:
    """A time as the API server writes it; long ago when there is none."""
    try:
        return datetime.fromisoformat(text or "")
    except ValueError:
        return _LONG_AGO
