"""Writes to the cluster, reads of single objects, and lists of uids. The cache is compared with these lists, because an
informer that lists again does not learn what was deleted meanwhile."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import orjson

from lookupdb.router.routing_table import DIGEST_DIGITS, tells_contradiction
from lookupdb_operator import manifests, names
from lookupdb_operator.cluster.api import (
    APPLY_PATCH,
    METADATA_ONLY,
    AlreadyExists,
    ApiError,
    Conflict,
    NotFound,
    Requests,
    read_at_most,
    read_pages,
)
from lookupdb_operator.model import Manifest, ObjectRef, ObservedDataset, RouterReport, format_moment
from lookupdb_operator.names import Kind
from lookupdb_operator.status import DatasetStatus

if TYPE_CHECKING:
    import aiohttp

# Reads and writes; the only I/O besides the informers. Methods raise NotFound, Conflict, Refused or Unreachable.


_ROUTER_SECONDS: Final = 2.0
_ROUTER_ANSWER_AT_MOST: Final = 1 << 20
_TABLE_DIGEST: Final = re.compile(rf"[0-9a-f]{{{DIGEST_DIGITS}}}")
_EVENT_MESSAGE_AT_MOST: Final = 1024
_EVENTS_A_PAGE: Final = 500
_PAGES_OF_EVENTS: Final = 4
_WITHOUT_IMAGE_VOLUMES: Final = (
    ".image: field not declared in schema",
    "must specify a volume type",
    'volumeMounts[0].name: Not found: "data"',
)
"""What an API server says if it does not know image volumes, or has them turned off."""
_MERGED_SILENTLY: Final = (names.CONFIG_MAP, names.SERVICE, names.AUTOSCALER)
"""Kinds in which the fields of two managers can be combined, so that an apply without force could change somebody
else's object. In all other kinds the selector or template conflicts."""


@dataclass(frozen=True, slots=True)
class WarningEvent:
    """The latest Warning event about an object."""

    reason: str
    """The reason that Kubernetes gives: FailedCreate, FailedMount, …"""
    message: str


class Cluster:
    """One cluster: its API server and its routers' admin ports."""

    def __init__(
        self,
        api: Requests,
        *,
        admin_port: int = names.ADMIN_PORT,
        on_write: Callable[[str, str], None] = lambda verb, kind: None,
    ) -> None:
        """``on_write`` is called with verb and kind before each write request."""
        self._api = api
        self._on_write = on_write
        self._admin_port = admin_port
        self._routers: aiohttp.ClientSession | None = None

    async def apply(self, manifest: Manifest, *, force: bool = True) -> Manifest:
        """Server-side apply ``manifest`` and return the result. Without ``force``, raises Conflict if another manager
        owns a field or the object has another owner."""
        kind, meta = names.find_kind(manifest["kind"]), manifest["metadata"]
        if not force and kind in _MERGED_SILENTLY:
            await self._check_absent(kind, manifest)
        self._on_write("apply", kind.name)
        answer = await self._api.request(
            "PATCH",
            kind.path(meta.get("namespace", ""), meta["name"]),
            subject=_describe(kind, meta["name"]),
            query={"fieldManager": manifests.field_manager(manifest), "force": "true" if force else "false"},
            body=manifest,
            content_type=APPLY_PATCH,
        )
        return dict(answer)

    async def keeps_image_volumes(self, namespace: str) -> bool | None:
        """Find out by a dry run in ``namespace`` whether the API server keeps image volumes. None if the answer does
        not say; then ask in another namespace."""
        probe = manifests.render_image_probe(namespace)
        name = probe["metadata"]["name"]
        try:
            answer = await self._api.request(
                "PATCH",
                names.STATEFUL_SET.path(namespace, name),
                subject=_describe(names.STATEFUL_SET, name),
                query={"fieldManager": names.FIELD_MANAGER, "force": "true", "dryRun": "All"},
                body=probe,
                content_type=APPLY_PATCH,
            )
        except ApiError as error:
            return False if any(words in error.message for words in _WITHOUT_IMAGE_VOLUMES) else None
        return manifests.has_image_volume(answer)

    async def _check_absent(self, kind: Kind, manifest: Manifest) -> None:
        """Raise Conflict if an object of this name has another owner. Uses a list, because the operator cannot get
        single objects."""
        meta = manifest["metadata"]
        page = await self._api.request(
            "GET",
            kind.path(meta["namespace"]),
            subject=_describe(kind, meta["name"]),
            query={"fieldSelector": f"metadata.name={meta['name']}", "limit": "1"},
            accept=METADATA_ONLY,
        )
        for found in page.get("items") or ():
            if not _owner_uids(found) & _owner_uids(manifest):
                raise Conflict(
                    _describe(kind, meta["name"]),
                    f"{kind.name} {meta['name']} exists and is not this dataset's, so it is not changed. Rename or"
                    " delete it, or give the dataset another name",
                )

    async def delete(self, ref: ObjectRef, namespace: str) -> None:
        """Delete exactly the object of ``ref``, then its dependents. No error if it is already gone."""
        kind = names.find_kind(ref.kind)
        options: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": ref.uid},
            "propagationPolicy": "Background",
        }
        if ref.by_force:
            options["gracePeriodSeconds"] = 0
        self._on_write("delete", kind.name)
        with contextlib.suppress(NotFound, Conflict):
            await self._api.request(
                "DELETE", kind.path(namespace, ref.name), subject=_describe(kind, ref.name), body=options
            )

    async def write_status(self, dataset: ObservedDataset, status: DatasetStatus) -> Manifest:
        """Replace ``dataset``'s status and return the result. Raises Conflict if the dataset was written since it was
        observed, or is another one of that name."""
        body = names.DATASET_KIND.make(
            {
                "namespace": dataset.namespace,
                "name": dataset.name,
                "uid": dataset.uid,
                "resourceVersion": dataset.resource_version,
            },
            spec=dict(dataset.spec),  # ignored by the API server, but validated
            status=status.to_json(),
        )
        self._on_write("status", names.DATASET_KIND.name)
        answer = await self._api.request(
            "PUT",
            names.DATASET_KIND.path(dataset.namespace, dataset.name, "status"),
            subject=_describe(names.DATASET_KIND, dataset.name),
            query={"fieldManager": names.FIELD_MANAGER},
            body=body,
        )
        return dict(answer)

    async def post_event(
        self, dataset: ObservedDataset, kind: Literal["Normal", "Warning"], reason: str, message: str
    ) -> None:
        """Write a core/v1 Event about ``dataset``."""
        now = format_moment(datetime.now(UTC))
        body = names.EVENT.make(
            {"namespace": dataset.namespace, "generateName": f"{dataset.name}."},
            involvedObject={
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "namespace": dataset.namespace,
                "name": dataset.name,
                "uid": dataset.uid,
                "resourceVersion": dataset.resource_version,
            },
            type=kind,
            reason=reason,
            message=_truncate(message, _EVENT_MESSAGE_AT_MOST),
            source={"component": names.FIELD_MANAGER},
            reportingComponent=names.FIELD_MANAGER,
            firstTimestamp=now,
            lastTimestamp=now,
            count=1,
        )
        self._on_write("create", names.EVENT.name)
        await self._api.request(
            "POST",
            names.EVENT.path(dataset.namespace),
            subject=_describe(names.EVENT, f"about {dataset.name}"),
            body=body,
        )

    async def list_warnings(self, namespace: str) -> Mapping[str, WarningEvent]:
        """Return the latest Warning event about each object in the namespace, by uid. Only a limited number of events
        is read.
        """
        latest: dict[str, tuple[str, WarningEvent]] = {}
        query = {"fieldSelector": "type=Warning", "limit": str(_EVENTS_A_PAGE)}
        for _ in range(_PAGES_OF_EVENTS):
            page = await self._api.request(
                "GET", names.EVENT.path(namespace), subject=f"the events of {namespace}", query=query
            )
            for event in page.get("items") or ():
                uid = (event.get("involvedObject") or {}).get("uid")
                # When it was last seen; ISO 8601 in UTC sorts by time.
                series = (event.get("series") or {}).get("lastObservedTime")
                created = (event.get("metadata") or {}).get("creationTimestamp")
                when = str(series or event.get("lastTimestamp") or event.get("eventTime") or created or "")
                if uid and (uid not in latest or when >= latest[uid][0]):
                    message = _truncate(event.get("message") or "", _EVENT_MESSAGE_AT_MOST)
                    latest[uid] = (when, WarningEvent(event.get("reason") or "", message))
            more = (page.get("metadata") or {}).get("continue")
            if not more:
                break
            query = {**query, "continue": more}
        return {uid: warned for uid, (_, warned) in latest.items()}

    async def ask_router(self, ip: str, dataset_uid: str) -> RouterReport:
        """Return the report of the router at ``ip``. If it cannot be asked, or has the table of a dataset other than
        ``dataset_uid``, the report names the problem."""
        import aiohttp  # not at the top: `lookupdb up` starts servers before it loads aiohttp

        if self._routers is None:
            self._routers = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=_ROUTER_SECONDS), auto_decompress=False
            )
        host = f"[{ip}]" if ":" in ip else ip
        url = f"http://{host}:{self._admin_port}/status"
        try:
            async with self._routers.get(url, allow_redirects=False) as response:
                if response.status != 200:
                    return RouterReport(None, f"{url} answers {response.status}")
                return parse_report(url, await read_at_most(response.content, _ROUTER_ANSWER_AT_MOST), dataset_uid)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return RouterReport(None, f"{url} does not answer: {str(error) or type(error).__name__}")

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """Return one object; None if there is none."""
        try:
            return dict(await self._api.request("GET", kind.path(namespace, name), subject=_describe(kind, name)))
        except NotFound:
            return None

    async def get_secret(self, namespace: str, name: str) -> Manifest | None:
        """Return a Secret (``data`` is base64); None if there is none."""
        return await self.get(names.SECRET, namespace, name)

    async def create_secret(self, manifest: Manifest) -> bool:
        """Create a Secret. Return False if one of that name exists; it is not changed."""
        meta = manifest["metadata"]
        self._on_write("create", names.SECRET.name)
        try:
            await self._api.request(
                "POST",
                names.SECRET.path(meta["namespace"]),
                subject=_describe(names.SECRET, meta["name"]),
                query={"fieldManager": names.FIELD_MANAGER},
                body=manifest,
            )
        except AlreadyExists:
            return False
        return True

    async def namespace_uid(self, name: str) -> str:
        """Return the uid of a namespace."""
        answer = await self._api.request(
            "GET", names.NAMESPACE.path(name=name), subject=_describe(names.NAMESPACE, name)
        )
        return str(answer["metadata"]["uid"])

    async def close(self) -> None:
        """Close the connections to routers."""
        if self._routers is not None:
            await self._routers.close()


def _owner_uids(manifest: Manifest) -> set[str]:
    return {owner["uid"] for owner in manifest["metadata"].get("ownerReferences") or ()}


def parse_report(url: str, text: bytes, dataset_uid: str) -> RouterReport:
    """Return what the slowest worker of a router reports, because a request may reach any worker."""
    try:
        workers = orjson.loads(text)["workers"]
        reports = [worker["report"] or {} for worker in workers]
        versions = [report.get("tableVersion") for report in reports]
        generations = frozenset(str(report["generation"]) for report in reports if report.get("generation"))
        digests = frozenset(report["tableDigest"] for report in reports if report.get("tableDigest") is not None)
        if not all(map(_TABLE_DIGEST.fullmatch, digests)):
            raise ValueError("tableDigest is no digest")
        missing = frozenset(str(mark) for report in reports for mark in report.get("missingKeys") or ())
        foreign = [report for report in reports if report.get("datasetUid") not in (None, dataset_uid)]
        problems = [str(report["error"]) for report in reports if report.get("error")]
    except (ValueError, KeyError, TypeError, AttributeError):
        return RouterReport(None, f"{url} does not answer as a router does")
    # A contradiction comes first: it ends only when the operator writes another version. Other problems pass.
    problem = max(problems, key=tells_contradiction, default="")
    if foreign:
        return RouterReport(None, f"it answers from the routing table of another dataset, {foreign[0]['datasetUid']}")
    known = [version for version in versions if isinstance(version, int)]
    newest = max(known, default=0)
    is_whole = bool(known) and len(known) == len(versions)
    problem = problem or ("" if is_whole else "a worker has no routing table yet")
    return RouterReport(min(known) if is_whole else None, problem, newest, not known, generations, digests, missing)


def _describe(kind: Kind, name: str) -> str:
    return f"{kind.name} {name}"


def _truncate(text: str, limit: int) -> str:
    return text if len(text.encode()) <= limit else text.encode()[: limit - 3].decode(errors="ignore") + "…"


_PAGE: Final = 500


class Listing:
    """Lists watched objects in ``namespaces``, or everywhere if there are none."""

    def __init__(self, api: Requests, namespaces: tuple[str, ...] = ()) -> None:
        self._api = api
        self._namespaces = namespaces or ("",)

    async def list_uids(self, kind: Kind) -> frozenset[str]:
        """Return the uid of every watched object of ``kind``. Raises what ``Api`` raises; NotFound for an unknown
        kind."""
        found: set[str] = set()
        for namespace in self._namespaces:
            query = {} if kind == names.DATASET_KIND else {"labelSelector": names.DATASET}
            path, subject = kind.path(namespace), f"all {kind.plural}"
            pages = read_pages(self._api, path, subject=subject, query=query, limit=_PAGE, accept=METADATA_ONLY)
            async for page in pages:
                found.update(item["metadata"]["uid"] for item in page.get("items") or ())
        return frozenset(found)

    async def is_discovered(self, kind: Kind) -> bool:
        """Return whether the API server lists ``kind`` in its discovery, which lags behind a new
        CustomResourceDefinition. Raises what ``Api`` raises."""
        groups = await self._api.request("GET", "/apis", subject="the groups of the API")
        versions = {version["groupVersion"] for group in groups["groups"] for version in group["versions"]}
        if kind.api_version not in versions:
            return False
        resources = await self._api.request(
            "GET", f"/apis/{kind.api_version}", subject=f"the resources of {kind.api_version}"
        )
        return kind.plural in {resource["name"] for resource in resources["resources"]}
