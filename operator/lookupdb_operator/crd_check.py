"""Check that the cluster's CustomResourceDefinition has everything that this operator reads and writes.

An older CRD would prune or reject parts of the status, and the operator would forget what it claimed. So it does not
start with one. It compares its packaged CRD with the API server's OpenAPI document, which every service account may
read. A newer CRD is fine.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from lookupdb import __version__
from lookupdb.dataset import schema
from lookupdb.errors import UsageError
from lookupdb_operator import names
from lookupdb_operator.cluster.client import Api, ApiError

log = logging.getLogger(__name__)

_PATH: Final = f"/openapi/v3/apis/{names.DATASET_KIND.api_version}"
_PATIENCE: Final = 10.0
"""Seconds that the document may lag behind a new CRD; usually about two."""
_RETRY_SECONDS: Final = 1.0
_NAMED_AT_MOST: Final = 5

Schema = Mapping[str, Any]


class OutdatedCrd(UsageError):
    """The cluster's CustomResourceDefinition lacks what this operator needs."""

    reason = "OutdatedCrd"


async def wait_for_crd(api: Api, patience: float = _PATIENCE) -> None:
    """Return once the published schema of LookupDatasets has everything that this operator needs. Raises OutdatedCrd if
    it
    still lacks something after ``patience`` seconds."""
    deadline = time.monotonic() + patience
    while True:
        try:
            found = _find_schema(await api.request("GET", _PATH, subject=f"the OpenAPI document {_PATH}"))
        except ApiError as error:
            log.warning("%s; is the CustomResourceDefinition of LookupDatasets installed?", error)
        else:
            missing = [] if found is None else list(find_missing(schema.resource_schema(), found))
            if found is None:
                log.warning("the API server does not publish the schema of LookupDatasets yet")
            elif not missing:
                return
            elif time.monotonic() >= deadline:
                raise _make_error(missing)
        await asyncio.sleep(_RETRY_SECONDS)


def _find_schema(document: Schema) -> Schema | None:
    """Return the schema of one LookupDataset; None if ``document`` has none."""
    kind = {"group": names.DATASET_KIND.group, "version": names.DATASET_KIND.version, "kind": names.DATASET_KIND.name}
    schemas = document.get("components", {}).get("schemas", {}).values()
    return next((item for item in schemas if kind in item.get("x-kubernetes-group-version-kind", ())), None)


def find_missing(expected: Schema, found: Schema) -> Iterator[str]:
    """Yield the parts of ``expected`` that ``found`` lacks, for example ``status.rollouts[].push``."""
    for part in ("spec", "status"):
        yield from _find_missing(expected["properties"][part], found.get("properties", {}).get(part, {}), part)


def _find_missing(expected: Schema, found: Schema, path: str) -> Iterator[str]:
    if found.get("x-kubernetes-preserve-unknown-fields"):
        return
    fields = found.get("properties", {})
    for name, member in expected.get("properties", {}).items():
        if name in fields:
            yield from _find_missing(member, fields[name], f"{path}.{name}")
        else:
            yield f"{path}.{name}"
    for keyword, suffix in (("items", "[]"), ("additionalProperties", ".*")):
        if isinstance(member := expected.get(keyword), Mapping):
            counterpart = found.get(keyword)
            yield from _find_missing(member, counterpart if isinstance(counterpart, Mapping) else {}, path + suffix)
    if "enum" in found:
        yield from (f"{path}={value}" for value in expected.get("enum", ()) if value not in found["enum"])


def _make_error(missing: list[str]) -> OutdatedCrd:
    crd = f"{names.DATASET_KIND.plural}.{names.DATASET_KIND.group}"
    named = ", ".join(missing[:_NAMED_AT_MOST]) + (", …" if len(missing) > _NAMED_AT_MOST else "")
    return OutdatedCrd(
        f"the CustomResourceDefinition {crd} of this cluster lacks {len(missing)} of the fields and values that the"
        f" operator {__version__} needs: {named}",
        hint="upgrade it with that of the operator's version: kubectl apply --server-side -f crds/",
    )
