"""`lookupdb up --kubeconfig FILE`: the API server on a port of loopback, for `kubectl` and Kubernetes' clients.

The file holds an address whose path begins with a token that changes with each `up`. Only the user can read it. The
token is not in a header, because `kubectl` sends credentials over HTTPS alone, and this port needs no certificate.

Datasets are those of the manifests: none can be deleted, and nothing can be created.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import orjson

from lookupdb.errors import UsageError
from lookupdb_operator import names
from lookupdb_operator.cluster.api import JSON, Answer, Refused
from lookupdb_operator.local.api import LocalApi
from lookupdb_operator.local.socket_api import SocketServer, render_error

_HOST: Final = "127.0.0.1"
_HEADER: Final = {"apiVersion": "v1", "kind": "Config", "current-context": "lookupdb"}
_SHORT_NAMES: Final = ("lds",)
_VERBS: Final = ("get", "list", "create", "update", "patch", "delete")


class KubernetesServer(SocketServer):
    """Answers requests for ``api`` that have the token of the file at ``path``, also those that list the kinds."""

    def __init__(self, api: LocalApi, find_admin: Callable[[str, str], str | None], path: Path) -> None:
        super().__init__(api, find_admin)
        self._path = path
        self._prefix = f"/{secrets.token_urlsafe(32)}"

    @asynccontextmanager
    async def listening_on_port(self) -> AsyncIterator[None]:
        """Listen, and write the file, until the block ends. Raises UsageError."""
        with suppress(OSError):  # then writing it reports why
            if (present := self._path.read_bytes()) and not present.startswith(orjson.dumps(_HEADER)[:-1]):
                raise UsageError(
                    f"--kubeconfig {self._path} exists, and no `lookupdb up` has written it",
                    hint="give a new file: `up` writes it, and removes it when it ends",
                )
        server = await asyncio.start_server(self._serve, _HOST, 0)
        try:
            self._write(server.sockets[0].getsockname()[1])
            yield
        finally:
            server.close()
            with suppress(OSError):
                self._path.unlink(missing_ok=True)

    def _write(self, port: int) -> None:
        named = {
            "clusters": [{"name": "lookupdb", "cluster": {"server": f"http://{_HOST}:{port}{self._prefix}"}}],
            "contexts": [{"name": "lookupdb", "context": {"cluster": "lookupdb", "user": ""}}],
        }
        unfinished = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        content = orjson.dumps({**_HEADER, **named})
        try:
            with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(content)
            unfinished.replace(self._path)
        except OSError as error:
            raise UsageError(
                f"--kubeconfig {self._path} cannot be written: {error.strerror}", hint="give another file"
            ) from error

    async def _answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        shown, target = target[: len(self._prefix)], target[len(self._prefix) :]
        if not hmac.compare_digest(shown.encode(), self._prefix.encode()):
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Unauthorized", "code": 401}
            return Answer(401, {"Content-Type": JSON}, orjson.dumps(status))
        is_dataset = f"/{names.DATASET_KIND.plural}" in target
        is_apply = "apply-patch" in headers.get("content-type", "")
        if method == "POST" or (method == "DELETE" if is_dataset else is_apply):
            return render_error(
                Refused("", "the datasets are those of the manifests of `lookupdb up`, and nothing else can be created")
            )
        document = _discover(target.partition("?")[0], self._prefix) if method == "GET" else None
        if document is not None:
            return Answer(200, {"Content-Type": JSON}, orjson.dumps(document))
        return await super()._answer(method, target, headers, body)


def _discover(path: str, prefix: str) -> dict[str, Any] | None:
    """Return the document at ``path`` about versions and kinds; None if it is about neither."""
    groups = sorted({kind.api_version for kind in names.ALL if "/" in kind.api_version})
    versions = [{"groupVersion": group, "version": group.partition("/")[2]} for group in groups]
    match path.strip("/"):
        case "version":
            return {"major": "1", "minor": "30", "gitVersion": "v1.30.0"}
        case "api":
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case "apis":
            listed = [
                {"name": found["groupVersion"].partition("/")[0], "versions": [found], "preferredVersion": found}
                for found in versions
            ]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
        case "openapi/v3":
            about = f"apis/{names.API_VERSION}"
            return {"paths": {about: {"serverRelativeURL": f"{prefix}/openapi/v3/{about}"}}}
    if path.startswith("/openapi/v3/"):
        return _describe_patch()
    version = path.strip("/").removeprefix("apis/").removeprefix("api/")
    kinds = [kind for kind in names.ALL if kind.api_version == version]
    if not kinds:
        return None
    resources = [
        {
            "name": kind.plural,
            "singularName": kind.name.lower(),
            "kind": kind.name,
            "namespaced": True,
            "verbs": _VERBS,
            "shortNames": _SHORT_NAMES if kind == names.DATASET_KIND else (),
        }
        for kind in kinds
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}


def _describe_patch() -> dict[str, Any]:
    """Return what `kubectl apply` asks the schema: that this server checks fields itself."""
    group, _, version = names.API_VERSION.partition("/")
    about = {"group": group, "version": version, "kind": names.KIND}
    patch = {
        "parameters": [{"name": name, "in": "query", "schema": {"type": "string"}} for name in ("fieldValidation",)],
        "x-kubernetes-group-version-kind": about,
        "x-kubernetes-action": "patch",
        "responses": {},
    }
    path = f"/apis/{names.API_VERSION}/namespaces/{{namespace}}/{names.DATASET_KIND.plural}/{{name}}"
    info = {"title": "lookupdb", "version": "1"}
    return {"openapi": "3.0.0", "info": info, "paths": {path: {"patch": patch}}}
