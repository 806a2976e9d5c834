"""Parse metadata, LookupDatasets and builders' results from the API server's JSON."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from lookupdb.dataset import schema, spec
from lookupdb.dataset.spec import DatasetSpec
from lookupdb.errors import LookupdbError
from lookupdb_operator import names
from lookupdb_operator.model import BuildResult, Deletion, ObservedDataset
from lookupdb_operator.status import DatasetStatus, from_json, replace

# Metadata of every object.


Body = Mapping[str, Any]
"""An object as the API server sends it."""

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
    """The uid of its controller; empty if none."""
    created: datetime


def parse_header(body: Body) -> Header:
    """Parse the header of an object. Raises KeyError if ``body`` has no name or no uid."""
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
    """Return whether the object is being deleted."""
    return bool(body["metadata"].get("deletionTimestamp"))


def parse_deletion(body: Body) -> Deletion | None:
    """Return the object's deletion; None if it has not begun."""
    if not is_deleting(body):
        return None
    finalizers = (body["metadata"].get("finalizers") or ())[:_MAX_FINALIZERS]
    cut = tuple(str(name)[:_MAX_FINALIZER_CHARACTERS] for name in finalizers)
    return Deletion(parse_time(body["metadata"]["deletionTimestamp"]), cut)


def read_status(body: Body) -> Mapping[str, Any]:
    """Return the object's status; empty if none."""
    return body.get("status") or {}


def find_condition(body: Body, kind: str) -> Mapping[str, Any]:
    """Return the condition of type ``kind``; empty if there is none."""
    conditions = read_status(body).get("conditions") or ()
    return next((condition for condition in conditions if condition.get("type") == kind), {})


def parse_number(text: str | None) -> int:
    """Return the number in a label; -1 if there is none, or it has more than 15 digits."""
    return int(text) if text and len(text) <= 15 and text.isdecimal() else -1


def parse_time(text: str | None) -> datetime:
    """Parse a time from the API server; very old if there is none."""
    try:
        return datetime.fromisoformat(text or "")
    except ValueError:
        return _LONG_AGO


# LookupDatasets get defaults and checks from the same code as on a laptop, so that builder and operator agree.


_MAX_NAME_CHARACTERS: Final = 32
"""Length limit for an annotation with a generation's name; longer than any name."""
_MAX_IDENTITY_CHARACTERS: Final = 512
"""Length limit for an operator's identity, as in the status."""
_MAX_REFRESH_CHARACTERS: Final = 256
"""Length limit for the refresh annotation, as in the status."""


def parse_dataset(body: Body, before: ObservedDataset | None = None) -> ObservedDataset:
    """Parse the LookupDataset ``body``. ``before``, its last parsed version, saves checking an unchanged spec."""
    header = parse_header(body)
    generation = int(body["metadata"].get("generation") or 0)
    # metadata.generation changes with the spec.
    if before is not None and before.uid == header.uid and before.generation == generation > 0:
        completed, parsed, problem, renderings = before.spec, before.parsed, before.problem, before.renderings
    else:
        completed, parsed, problem = _complete_spec(body)
        renderings = {}
    status_problem = None
    try:
        status = DatasetStatus.from_json(body.get("status"))
    except ValueError as error:
        status, status_problem = DatasetStatus(), str(error)
    annotations = read_annotations(body)
    refresh = annotations.get(names.REFRESH) or ""
    if len(refresh) > _MAX_REFRESH_CHARACTERS:  # annotations may have 256 KiB, and are kept for every dataset
        refresh = hashlib.sha256(refresh.encode()).hexdigest()
    return ObservedDataset(
        namespace=header.namespace,
        name=header.name,
        uid=header.uid,
        resource_version=header.resource_version,
        generation=generation,
        spec=completed,
        parsed=parsed,
        problem=problem,
        status=status,
        status_problem=status_problem,
        refresh=refresh,
        override_gates=(annotations.get(names.OVERRIDE_GATES) or "")[:_MAX_NAME_CHARACTERS],
        promote=(annotations.get(names.PROMOTE) or "")[:_MAX_NAME_CHARACTERS],
        reject=(annotations.get(names.REJECT) or "")[:_MAX_NAME_CHARACTERS],
        assigned=(annotations.get(names.OPERATOR) or "")[:_MAX_IDENTITY_CHARACTERS],
        deleting=is_deleting(body),
        renderings=renderings,
    )


def _complete_spec(body: Body) -> tuple[Mapping[str, Any], DatasetSpec | None, str | None]:
    """Return the completed spec, the parsed spec, and why it cannot be parsed."""
    meta = body["metadata"]
    written = body.get("spec") or {}
    resource = names.DATASET_KIND.make(
        {member: meta[member] for member in ("namespace", "name", "uid") if member in meta},
        spec=_drop_unknown(written, schema.resource_schema()["properties"]["spec"]),
    )
    try:
        completed = schema.complete_resource(resource)
        return completed["spec"], spec.parse_completed_resource(completed), None
    except LookupdbError as error:
        # Leave out the hint: it names a file that does not exist in a cluster.
        return written, None, error.message
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        return written, None, f"the spec cannot be read: {type(error).__name__}: {error}"


def _drop_unknown(value: Any, fields: Mapping[str, Any]) -> Any:
    """Return ``value`` without fields unknown to this operator. The API server has already handled typos; what remains
    is from a newer CRD, whose defaults must not stop an older operator."""
    properties = fields.get("properties")
    if isinstance(value, Mapping):
        if not properties:
            return dict(value)
        return {name: _drop_unknown(item, properties[name]) for name, item in value.items() if name in properties}
    if isinstance(value, list):
        return [_drop_unknown(item, fields.get("items") or {}) for item in value]
    return value


_OUTCOMES: Final = ("built", "adopted", "unchanged", "waiting", "failed")
_MOST_SECONDS: Final = 1e9
_MOST_ADDRESS_CHARACTERS: Final = 64
"""Length limit, as in the status."""
_MOST: Final = 2**53 - 1
"""Upper limit for records and bytes, as in the status."""


def parse_build_result(message: str | None) -> BuildResult | None:
    """Parse a builder's termination message; None if it is not one."""
    members = {name: value for name, value in message_members(message).items() if value is not None}
    if type(members.get("seconds")) is int:
        members["seconds"] = float(members["seconds"])
    try:
        result: BuildResult = from_json(BuildResult, members)
    except (KeyError, TypeError, ValueError):
        return None
    counts = (result.records, result.file_bytes, result.largest_shard_bytes, result.exit_code)
    is_plausible = all(0 <= count <= _MOST for count in counts) and 0 <= result.seconds < _MOST_SECONDS
    if result.outcome not in _OUTCOMES or not is_plausible:
        return None
    return replace(
        result,
        adopted_from=result.adopted_from[:_MOST_ADDRESS_CHARACTERS],
        next_free=result.next_free[:_MOST_ADDRESS_CHARACTERS],
    )


def message_members(message: str | None) -> Mapping[str, Any]:
    """Return the JSON object in the last line of a termination message; empty if it is none."""
    lines = (message or "").strip().splitlines()
    try:
        members = orjson.loads(lines[-1]) if lines else {}
    except ValueError:
        return {}
    return members if isinstance(members, dict) else {}
