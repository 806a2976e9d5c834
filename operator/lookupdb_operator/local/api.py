"""The API server of `lookupdb up`: objects in memory, and in files so that the next `up` continues.

It has what the operator and the plugin use: lists with selectors, server-side apply, merge patches, the status
subresource, resource versions and uid preconditions. It does not record the owners of fields, because nobody else
writes the operator's objects here. Datasets are kept without the fields that only a cluster uses.

The operator calls it directly. Commands send requests to a running `up`, whose address is in a file beside a dataset's
objects. While no `up` runs, commands edit these files (``FolderApi``). ``parse_local`` returns a dataset whose
messages name commands of `lookupdb` instead of annotations.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import logging
import re
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlencode, urlsplit

import orjson

from lookupdb.dataset import schema
from lookupdb.dataset.spec import LOCAL
from lookupdb.errors import LookupdbError
from lookupdb.process import launch
from lookupdb.process.launch import call_in_thread
from lookupdb.up.run_state import DATA_DIRECTORY, DEFAULT_NAMESPACE, RunFolder, is_locked, shorten_name
from lookupdb.wording import format_command
from lookupdb_operator import names
from lookupdb_operator.cluster.api import JSON, Answer, Conflict, NotFound, Refused, Unreachable
from lookupdb_operator.cluster.parse import read_annotations
from lookupdb_operator.console.dataset import Dataset
from lookupdb_operator.model import format_moment
from lookupdb_operator.names import Kind

log = logging.getLogger(__name__)

Object = dict[str, Any]
Place = tuple[str, str, str]
"""Kind, namespace, name."""

_IN_MEMORY: Final = (names.POD.name, names.EVENT.name)
"""Kinds that have no files, because their processes end with `up`."""
_MOST_EVENTS: Final = 256
_KEPT_METADATA: Final = ("uid", "creationTimestamp", "generation", "resourceVersion")
_LEFT_OUT: Final = {
    "": ("store", "sync", "image", "imagePullSecrets", "scheduling", "adopt", "deletionPolicy"),
    "build": ("resources", "scratchSize", "deadlineSeconds", "pod"),
    "router": ("autoscaling", "tls", "auth", "service", "pod", "resources", "clients"),
    "serving": ("delivery", "storageClassName", "pod", "resources"),
}
"""Members of a spec and of its sections that have no effect on a laptop."""
_KINDS: Final = {(kind.api_version, kind.plural): kind for kind in names.ALL}
OBJECTS: Final = "objects"
"""The folder of a dataset's objects in its run folder."""
ADDRESS: Final = "address"
"""The file in that folder with the URL of the API server; the URL's path is a token."""
ADMIN: Final = f"{names.GROUP}/admin"
"""The annotation of a pod with its admin port, as host:port."""
PATIENCE: Final = 10.0
"""Time limit of one request, in seconds."""
_START_SECONDS: Final = 3.0
"""Time in which an `up` that holds the lock must begin to listen."""
_POLL_SECONDS: Final = 0.05
_ADVICE: Final = re.compile(
    r"(?:set the annotation |kubectl annotate lds \S+ -n \S+ --overwrite )?"
    r"lookupdb\.dev/(?P<verb>promote|reject|override-gates|refresh)(?:=| to )(?:(?P<generation>g[0-9]+)|another value)"
    r"|remove spec\.generation|set spec\.generation to (?P<pinned>g[0-9]+)"
)
"""Advice to set an annotation, for which there is a command of the same name, or to set or remove a pin."""


class LocalApi:
    """The objects of the datasets whose folders were added. Use it from one event loop only."""

    def __init__(self) -> None:
        self._objects: dict[Place, Object] = {}
        self._folders: dict[tuple[str, str], Path] = {}
        """The folder with the objects of each dataset, by namespace and name."""
        self._versions = itertools.count(1)
        self._unwritten: set[Place] = set()
        """Objects that differ from their files, for example because the disk is full."""
        self.watchers: list[Callable[[str, Object], None]] = []
        """Called with ADDED, MODIFIED or DELETED, and the object, which must not be changed."""
        self.check: Callable[[Object], object] = schema.complete_resource
        """Raises LookupdbError for a dataset that is not admitted."""

    def add_folder(self, namespace: str, name: str, folder: Path) -> None:
        """Keep the objects of the dataset ``name`` in ``folder``, and load those that are there. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folders[namespace, name] = folder
        highest = next(self._versions)
        for path in sorted(folder.glob("*.json")):
            try:
                item = orjson.loads(path.read_bytes())
                place, version = find_place(item), int(item["metadata"]["resourceVersion"])
            except (ValueError, KeyError, TypeError) as error:
                log.warning("%s is not an object, and is ignored: %s", path, error)
                continue
            highest = max(highest, version)
            self._objects[place] = item
        self._versions = itertools.count(highest + 1)

    def flush(self) -> str:
        """Write the objects whose files could not be written. Return why one still cannot be written, else nothing."""
        problem = ""
        for place in sorted(self._unwritten):
            problem = self._write(place) or problem
        return problem

    def all(self, kind: Kind) -> list[Object]:
        """Return all objects of ``kind``."""
        return [item for place, item in self._objects.items() if place[0] == kind.name]

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """Return one object; None if there is none."""
        return self._objects.get((kind.name, namespace, name))

    def find_admin(self, namespace: str, pod: str) -> str | None:
        """Return the admin port of ``pod``, as host:port; None if the pod does not run."""
        held = self.get(names.POD, namespace, pod)
        return None if held is None else read_annotations(held).get(ADMIN)

    def put(self, new: Object, *, must_save: bool = False) -> Object:
        """Create or replace an object and return it with its metadata. With ``must_save``, raises Refused if it
        exists and its file cannot be written."""
        place = find_place(new)
        old = self._objects.get(place)
        held = old["metadata"] if old else {"uid": LOCAL if place[0] == names.KIND else str(uuid.uuid4())}
        held = {"creationTimestamp": format_moment(datetime.now(UTC)), "generation": 1, **held}
        meta = {**new["metadata"], **{member: held[member] for member in _KEPT_METADATA if member in held}}
        new = {**new, "metadata": meta}
        if old == new:
            return old
        if old is not None and old.get("spec") != new.get("spec"):
            meta["generation"] += 1
        meta["resourceVersion"] = str(next(self._versions))
        self._objects[place] = new
        if (problem := self._write(place)) and old is not None and must_save:
            self._objects[place] = old
            raise Refused(place[2], f"nothing is changed: {problem}; correct this, and try again")
        for watcher in self.watchers:
            watcher("MODIFIED" if old else "ADDED", new)
        if place[0] == names.EVENT.name and old is None:
            for event in [place for place in self._objects if place[0] == names.EVENT.name][:-_MOST_EVENTS]:
                del self._objects[event]
        return new

    def remove(self, kind: Kind, namespace: str, name: str) -> None:
        """Delete an object. No error if there is none. The kubelet removes pods without an owner."""
        gone = self._objects.pop((kind.name, namespace, name), None)
        if gone is None:
            return
        self._unwritten.discard(find_place(gone))
        if path := self._find_file(gone):
            with suppress(OSError):
                path.unlink(missing_ok=True)
        last = {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(next(self._versions))}}
        for watcher in self.watchers:
            watcher("DELETED", last)

    def put_status(self, item: Object, status: Mapping[str, Any]) -> None:
        """Replace the status of ``item``, unless it is gone."""
        if (now := self._objects.get(find_place(item))) is not None:
            self.put({**now, "status": dict(status)})

    async def request(
        self,
        method: str,
        path: str,
        *,
        subject: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> Any:
        """Return the JSON answer to ``method`` on ``path``; see ``cluster.api.Requests``."""
        kind, namespace, name, subresource = _parse_path(path, subject)
        query = query or {}
        if method == "GET" and not name:
            items = [item for item in self.all(kind) if namespace in ("", _namespace(item)) and _matches(item, query)]
            meta = {"resourceVersion": str(next(self._versions))}
            return {"kind": f"{kind.name}List", "apiVersion": kind.api_version, "metadata": meta, "items": items}
        if method == "POST":  # an event
            meta = {"namespace": namespace, "name": f"{body['metadata']['generateName']}{uuid.uuid4().hex[:8]}"}
            return self.put({**body, "metadata": meta})
        applies = method == "PATCH" and "apply-patch" in content_type
        old = self._objects.get((kind.name, namespace, name))
        if old is None and (not applies or kind in (names.POD, names.DATASET_KIND)):
            raise NotFound(subject, f"there is no {kind.name} {name}")
        wanted = (body or {}).get("preconditions" if method == "DELETE" else "metadata") or {}
        for member in ("uid", "resourceVersion"):
            if wanted.get(member) not in (None, "", (old or {"metadata": {}})["metadata"].get(member)):
                raise Conflict(subject, "the object has been modified; please apply your changes to the latest version")
        if method == "GET":
            return old
        if method == "DELETE":
            self.remove(kind, namespace, name)
            return {"kind": "Status", "status": "Success"}
        if subresource == "status":
            return self.put({**(old or {}), "status": body["status"]})
        # the operator always applies whole objects
        is_whole = applies and query.get("fieldManager") == names.FIELD_MANAGER and kind != names.POD
        new = body if old is None or method == "PUT" or is_whole else merge_patch(old, body)
        if find_place(new) != (kind.name, namespace, name):
            raise Refused(subject, "kind, metadata.namespace and metadata.name cannot change")
        if kind == names.DATASET_KIND:
            new = {**new, "spec": localize(new)["spec"]} if "spec" in new else new
            try:
                self.check(new)
            except LookupdbError as error:
                raise Refused(subject, error.message) from error
        new = {**new, "status": old["status"]} if old and "status" in old else new
        if "dryRun" in query:
            return new
        return self.put(new, must_save=kind == names.DATASET_KIND)  # a command's change; the operator writes the status

    def _find_file(self, item: Object) -> Path | None:
        """Return the file of an object; None if it has none."""
        kind, namespace, name = find_place(item)
        labels = item["metadata"].get("labels") or {}
        folder = self._folders.get((namespace, name if kind == names.KIND else labels.get(names.DATASET, "")))
        return None if folder is None or kind in _IN_MEMORY else folder / f"{kind}.{name}.json"

    def _write(self, place: Place) -> str:
        """Write the file of an object. Return why it cannot be written; empty if it is. ``flush`` tries again."""
        if (path := self._find_file(self._objects[place])) is None:
            return ""
        self._unwritten.add(place)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            launch.write(path, self._objects[place])
        except OSError as error:
            return f"{path} cannot be written: {error.strerror or error}"
        self._unwritten.discard(place)
        return ""


def find_place(item: Mapping[str, Any]) -> Place:
    """Return kind, namespace and name of an object."""
    return item["kind"], _namespace(item), item["metadata"]["name"]


def merge_patch(old: Any, new: Any) -> Any:
    """Return ``old`` after a JSON merge patch ``new`` (RFC 7386)."""
    if not isinstance(new, dict):
        return new
    kept = dict(old) if isinstance(old, dict) else {}
    for member, value in new.items():
        if value is None:
            kept.pop(member, None)
        else:
            kept[member] = merge_patch(kept.get(member), value)
    return kept


def _parse_path(path: str, subject: str) -> tuple[Kind, str, str, str]:
    """Return kind, namespace, name and subresource of ``path``. Raises NotFound."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    length = 2 if parts[0] == "api" else 3
    version, rest, namespace = "/".join(parts[1:length]), parts[length:], ""
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    kind = _KINDS.get((version, rest[0] if rest else ""))
    name, subresource = [*rest[1:3], "", ""][:2]
    if kind is None or subresource not in ("", "status"):
        raise NotFound(subject, f"there is no {path} here")
    return kind, namespace, name, subresource


def _matches(item: Object, query: Mapping[str, str]) -> bool:
    """Return whether the selectors of a list choose ``item``."""
    labels = item["metadata"].get("labels") or {}
    for term in filter(None, query.get("labelSelector", "").split(",")):
        name, mark, value = term.partition("=")
        if name not in labels or (mark and labels[name] != value.removeprefix("=")):
            return False
    for term in filter(None, query.get("fieldSelector", "").split(",")):
        path, _, value = term.partition("=")
        found: Any = item
        for part in path.split("."):
            found = found.get(part, "") if isinstance(found, Mapping) else ""
        if found != value.removeprefix("="):
            return False
    return True


def _namespace(item: Mapping[str, Any]) -> str:
    return str(item["metadata"].get("namespace") or "")


def localize(resource: Mapping[str, Any]) -> Object:
    """Return a manifest's ``resource`` without what only a cluster can do."""
    spec = copy.deepcopy(resource.get("spec", {}))
    for section, members in _LEFT_OUT.items():
        for member in members:
            ((spec.get(section) or {}) if section else spec).pop(member, None)
    meta = {"namespace": resource["metadata"].get("namespace", DEFAULT_NAMESPACE), "name": resource["metadata"]["name"]}
    return {**resource, "metadata": meta, "spec": {**spec, "router": {**(spec.get("router") or {}), "replicas": 1}}}


# Clients


class FolderApi:
    """Requests to the `lookupdb up` that runs in ``folder``; see ``cluster.api.Requests``. If none runs, they
    read and write the objects' files: a write holds the folder's lock."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    async def request(self, method: str, path: str, *, subject: str, **options: Any) -> Any:
        """Return the JSON answer to ``method`` on ``path``. Raises UsageError if an `up` has begun to run meanwhile."""
        if not is_locked(self._folder.path):
            with contextlib.nullcontext() if method == "GET" else self._folder.lock():
                api = LocalApi()
                namespace, _, name = self._folder.dataset.partition("/")
                api.add_folder(namespace, name, self._folder.path / OBJECTS)
                return await api.request(method, path, subject=subject, **options)
        target = f"{path}?{urlencode(query)}" if (query := options.get("query")) else path
        content = None if (body := options.get("body")) is None else orjson.dumps(body)
        return orjson.loads(await self._send(method, target, subject, options.get("content_type", JSON), content))

    async def fetch(self, path: str, *, subject: str) -> bytes:
        """Return the answer to GET ``path``. Raises ApiError."""
        return await self._send("GET", path, subject, JSON, None)

    async def _send(self, method: str, target: str, subject: str, content_type: str, body: bytes | None) -> bytes:
        ends_at = time.monotonic() + _START_SECONDS
        while True:
            try:
                answer = await call_in_thread(self._exchange, method, target, content_type, body)
                break
            except (OSError, HTTPException) as error:
                may_start = isinstance(error, FileNotFoundError | ConnectionRefusedError)
                if not may_start or time.monotonic() > ends_at or not is_locked(self._folder.path):
                    why = f"does not answer: {str(error) or type(error).__name__}"
                    raise Unreachable(subject, f"the `lookupdb up` of {self._folder.dataset} {why}") from error
            await asyncio.sleep(_POLL_SECONDS)
        if answer.status >= 300:
            raise answer.make_error(subject)
        return answer.body

    def _exchange(self, method: str, target: str, content_type: str, body: bytes | None) -> Answer:
        """Return the answer to one request, without aiohttp: importing it takes longer than a whole command."""
        address = urlsplit(orjson.loads((self._folder.path / OBJECTS / ADDRESS).read_bytes())["url"])
        with contextlib.closing(HTTPConnection(address.netloc, timeout=PATIENCE)) as connection:
            connection.request(method, address.path + target, body, {"Content-Type": content_type})
            response = connection.getresponse()
            return Answer(response.status, dict(response.headers), response.read())


# Datasets and advice, for the user of a laptop


def _list_data_options(data: Path) -> list[str]:
    return [] if data == DATA_DIRECTORY else ["--data-dir", str(data)]


def localize_advice(message: str, namespace: str, name: str, data: Path) -> str:
    """Return ``message``, about a dataset in the folder ``data``, with commands in place of edits."""
    target = (*_list_data_options(data), shorten_name(namespace, name))

    def write_command(found: re.Match[str]) -> str:
        verb = found["verb"] or ("pin" if found["pinned"] else "unpin")
        words = (verb, *target, found["generation"] or found["pinned"])
        return "run " * found[0].startswith(("set ", "remove ")) + format_command(*filter(None, words))

    return _ADVICE.sub(write_command, message)


def parse_local(body: Mapping[str, Any], url: str, data: Path) -> Dataset:
    """Return a dataset of the data folder ``data`` as its user knows it: with its router's ``url``, if it runs, and
    with commands for `lookupdb`."""
    namespace, name = body["metadata"]["namespace"], body["metadata"]["name"]
    if url:
        endpoint = names.endpoint(name, namespace)
        body = orjson.loads(orjson.dumps(body).replace(endpoint.encode(), url.encode()))
    status = dict(body.get("status") or {})
    if conditions := status.get("conditions"):
        status["conditions"] = [
            {**found, "message": localize_advice(found.get("message", ""), namespace, name, data)}
            for found in conditions
        ]
    return Dataset.from_body({**body, "status": status}, _list_data_options(data))
