"""A LookupDataset, completed and checked as a laptop would, so that builder and operator cannot differ."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from lookupdb import schema, spec
from lookupdb.errors import LookupdbError
from lookupdb.spec import DatasetSpec
from lookupdb_operator import names
from lookupdb_operator.model import ObservedDataset
from lookupdb_operator.parse.header import Body, is_deleting, parse_header, read_annotations
from lookupdb_operator.status import DatasetStatus

_MAX_NAME_CHARACTERS: Final = 32
"""Of an annotation that names a generation: more than any name has."""
_MAX_IDENTITY_CHARACTERS: Final = 512
"""Of the annotation that names an operator: as in status, and more than any identity has."""
_MAX_REFRESH_CHARACTERS: Final = 256
"""Of the refresh annotation, as in status."""


def parse_dataset(body: Body, before: ObservedDataset | None = None) -> ObservedDataset:
    """The LookupDataset ``body``. ``before``, as it was last parsed, saves checking a spec that has not changed."""
    header = parse_header(body)
    generation = int(body["metadata"].get("generation") or 0)
    # The metadata.generation of one uid changes whenever its spec does.
    if before is not None and before.uid == header.uid and before.generation == generation > 0:
        completed, parsed, problem, renderings = before.spec, before.parsed, before.problem, before.renderings
    else:
        completed, parsed, problem = _complete_spec(body)
        renderings = {}
    status, status_problem = _parse_status(body)
    annotations = read_annotations(body)
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
        refresh=_shorten_refresh(annotations.get(names.REFRESH) or ""),
        override_gates=(annotations.get(names.OVERRIDE_GATES) or "")[:_MAX_NAME_CHARACTERS],
        promote=(annotations.get(names.PROMOTE) or "")[:_MAX_NAME_CHARACTERS],
        reject=(annotations.get(names.REJECT) or "")[:_MAX_NAME_CHARACTERS],
        assigned=(annotations.get(names.OPERATOR) or "")[:_MAX_IDENTITY_CHARACTERS],
        deleting=is_deleting(body),
        renderings=renderings,
    )


def _shorten_refresh(refresh: str) -> str:
    """``refresh``, or its hash when it is long: an annotation may have 256 KiB, and is kept for every dataset."""
    return refresh if len(refresh) <= _MAX_REFRESH_CHARACTERS else hashlib.sha256(refresh.encode()).hexdigest()


def _complete_spec(body: Body) -> tuple[Mapping[str, Any], DatasetSpec | None, str | None]:
    """The completed spec, the same parsed, and why it cannot be."""
    meta = body["metadata"]
    written = body.get("spec") or {}
    resource = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {member: meta[member] for member in ("namespace", "name", "uid") if member in meta},
        "spec": _drop_unknown(written, schema.resource_schema()["properties"]["spec"]),
    }
    try:
        completed = schema.complete_resource(resource)
        return completed["spec"], spec.parse_completed_resource(completed), None
    except LookupdbError as error:
        # Without the hint, which names a file that people of a cluster do not have.
        return written, None, error.message
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        return written, None, f"the spec cannot be read: {type(error).__name__}: {error}"


def _drop_unknown(value: Any, fields: Mapping[str, Any]) -> Any:
    """``value`` without the fields that this operator does not know. A user's typo has been refused or dropped by the
    API server: what is left is of a newer CRD, whose defaults must not stop an operator that is not yet replaced."""
    properties = fields.get("properties")
    if isinstance(value, Mapping):
        if not properties:
            return dict(value)
        return {name: _drop_unknown(item, properties[name]) for name, item in value.items() if name in properties}
    if isinstance(value, list):
        return [_drop_unknown(item, fields.get("items") or {}) for item in value]
    return value


def _parse_status(body: Body) -> tuple[DatasetStatus, str | None]:
    try:
        return DatasetStatus.from_json(body.get("status")), None
    except ValueError as error:
        return DatasetStatus(), str(error)
