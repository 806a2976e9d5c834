"""An API server in memory, over HTTP, with controllers. It runs in its own process, so that only the operator is
measured.

``python -m benchmarks.operator_load.simulator PORT ADMIN_PORT DATASETS SHARDS REPLICAS [WORLD]``: the file WORLD keeps
a settled cluster from one run to the next.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import gc
import pickle
import sys
import time
from pathlib import Path
from typing import Final

import orjson
from aiohttp import web

from benchmarks.operator_load.api_protocol import discovery, merge_patch, parse_path
from benchmarks.operator_load.controllers import Controllers, managed_fields
from benchmarks.operator_load.store import Object, Store, Stored
from lookupdb_operator import names
from lookupdb_operator.names import Kind

_NAMESPACES: Final = 10
_BOOKMARK_SECONDS: Final = 60.0
_KINDS: Final = {(kind.api_version, kind.plural): kind for kind in names.ALL}


def dataset(index: int, shards: int, replicas: int) -> Object:
    """Return one of the objects."""
    item: Object = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"namespace": f"team-{index % _NAMESPACES}", "name": f"dataset-{index}", "generation": 1},
        "spec": {
            "source": {"url": f"s3://data/dataset-{index}/*.parquet", "secretName": "source"},
            "key": {"columns": ["id"]},
            "shards": shards,
            "replicas": replicas,
            "rollout": {"drainSeconds": 1},
        },
    }
    item["metadata"]["managedFields"] = managed_fields(item, "kubectl")
    return item


class Simulator:
    """Answers requests."""

    def __init__(self, store: Store, world: str) -> None:
        self._store = store
        self._world = world
        self._controllers = Controllers(store)
        self._counts: collections.Counter[str] = collections.Counter()
        self._bytes = 0
        self._asked: set[tuple[str, str]] = set()
        self._last_write = time.monotonic()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer the operator's requests below /api and /apis."""
        path = parse_path(request.path)
        if path is None:
            return web.json_response(discovery(request.path, names.ALL))
        kind = _KINDS[path.api_version, path.plural]
        if request.method == "GET":
            return await self._read(request, kind, path.namespace, path.name)
        body, is_status = await request.read(), bool(path.subresource)
        return self._write(request, kind, path.namespace, path.name, body, is_status=is_status)

    async def _read(self, request: web.Request, kind: Kind, namespace: str, name: str) -> web.StreamResponse:
        if "watch" in request.query:
            return await self._watch(request, kind, namespace)
        if not name:
            return self._list(request, kind, namespace)
        if kind == names.NAMESPACE:
            return web.json_response({"metadata": {"name": name, "uid": "cluster-uid"}})
        stored = self._store.objects[kind.name].get((namespace, name))
        return _json(stored.text) if stored else _status(404, "NotFound", f"{name} not found")

    def _list(self, request: web.Request, kind: Kind, namespace: str) -> web.Response:
        limit = int(request.query.get("limit", "0")) or sys.maxsize
        begin = int(request.query.get("continue", "0"))
        is_partial = "PartialObjectMetadata" in request.headers.get("Accept", "")
        found = self._selected(kind, namespace, request.query.get("fieldSelector", ""))
        page = found[begin : begin + limit]
        more = str(begin + limit) if begin + limit < len(found) else ""
        name = "PartialObjectMetadataList" if is_partial else f"{kind.name}List"
        about = {"resourceVersion": str(self._store.version), "continue": more}
        head = orjson.dumps({"kind": name, "apiVersion": kind.api_version, "metadata": about})[:-1]
        items = b",".join(_text(stored, is_partial) for stored in page)
        self._counts["lists"] += 1
        self._bytes += len(items)
        return _json(head + b',"items":[' + items + b"]}")

    def _selected(self, kind: Kind, namespace: str, field_selector: str) -> list[Stored]:
        objects = self._store.objects[kind.name]
        if field_selector.startswith("metadata.name="):
            found = objects.get((namespace, field_selector.partition("=")[2]))
            return [found] if found else []
        return [item for (where, _), item in objects.items() if namespace in ("", where) and item.is_labelled]

    async def _watch(self, request: web.Request, kind: Kind, namespace: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        is_partial = "PartialObjectMetadata" in request.headers.get("Accept", "")
        seen = int(request.query.get("resourceVersion", "0"))
        deadline = time.monotonic() + float(request.query.get("timeoutSeconds", "300"))
        self._counts["watches"] += 1
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < deadline:
                changed = self._store.changed[kind.name]
                lines = []
                for event in reversed(self._store.history[kind.name]):
                    if event.version <= seen:
                        break
                    if namespace in ("", event.namespace) and event.stored.is_labelled:
                        text = _text(event.stored, is_partial)
                        lines.append(b'{"type":"%s","object":%s}\n' % (event.type.encode(), text))
                seen = max(seen, self._store.version)
                if lines:
                    await response.write(b"".join(reversed(lines)))
                    self._bytes += sum(map(len, lines))
                    self._counts["events"] += len(lines)
                try:
                    await asyncio.wait_for(changed.wait(), min(_BOOKMARK_SECONDS, deadline - time.monotonic()))
                except TimeoutError:
                    await response.write(_bookmark(kind, self._store.version))
        return response

    def _write(
        self, request: web.Request, kind: Kind, namespace: str, name: str, body: bytes, *, is_status: bool
    ) -> web.Response:
        self._counts[f"{request.method} {kind.name}"] += 1
        self._last_write = time.monotonic()
        if kind == names.EVENT:
            return web.json_response({"kind": "Event"}, status=201)
        before = self._store.get(kind.name, namespace, name)
        if request.method == "DELETE":
            self._store.remove(kind.name, namespace, name)
            return web.json_response({"kind": "Status", "status": "Success"})
        given = orjson.loads(body)
        if is_status:
            version = given["metadata"].get("resourceVersion")
            if before is None or version not in (None, before["metadata"]["resourceVersion"]):
                return _status(409, "Conflict", "the object has been modified")
            return _json(self._store.put({**before, "status": given["status"]}))
        item = merge_patch(before or {}, given)
        generation = before["metadata"].get("generation", 0) if before else 0
        is_changed = before is None or before.get("spec") != item.get("spec")
        item["metadata"]["generation"] = generation + is_changed
        item["metadata"].setdefault("managedFields", managed_fields(given, names.FIELD_MANAGER))
        text = self._store.put(item)
        if is_changed:
            self._controllers.written(item, is_new=before is None)
        return _json(text)

    # Requests of the harness, and answers of routers.

    async def admin(self, request: web.Request) -> web.Response:
        """A router's admin port, by the requested address."""
        address = request.transport.get_extra_info("sockname")[0] if request.transport else ""
        # It listens on all addresses, because every router has its own in 127.0.0.0/8.
        if not (request.remote or "").startswith("127."):
            raise web.HTTPForbidden
        where = self._controllers.routers.get(address)
        if where is None:
            return _status(404, "NotFound", f"nobody has {address}")
        self._asked.add(where)
        self._counts["router asks"] += 1
        table = self._store.get("ConfigMap", where[0], names.routing_table(where[1]))
        version = orjson.loads(table["data"][names.TABLE_FILE])["version"] if table else None
        return web.json_response({"workers": [{"report": {"tableVersion": version}}]})

    async def state(self, _request: web.Request) -> web.Response:
        """Return the state of the cluster."""
        statuses = [orjson.loads(stored.text).get("status", {}) for stored in self._store.objects[names.KIND].values()]
        settled = collections.Counter(status.get("generation", "") for status in statuses if _is_settled(status))
        return web.json_response(
            {
                "settled": dict(settled),
                "asked": len(self._asked),
                "busy": self._controllers.busy,
                "quiet": time.monotonic() - self._last_write,
                "objects": {kind: len(held) for kind, held in self._store.objects.items()},
                "bytes": self._bytes,
                "checked": sum(_was_checked(status) for status in statuses),
                "counts": dict(self._counts),
            }
        )

    async def forget(self, _request: web.Request) -> web.Response:
        """Reset the counts."""
        self._counts.clear()
        self._asked.clear()
        self._bytes = 0
        return web.json_response({})

    async def refresh(self, request: web.Request) -> web.Response:
        """Ask for a refresh of every dataset."""
        for namespace, name in list(self._store.objects[names.KIND]):
            item = self._store.get(names.KIND, namespace, name) or {}
            item["metadata"]["annotations"] = {names.REFRESH: request.query["value"]}
            self._store.put(item)
        return web.json_response({})

    async def schedule(self, request: web.Request) -> web.Response:
        """Give every dataset a schedule, or none. Checks find nothing new."""
        expression = request.query["value"]
        self._controllers.is_source_unchanged = bool(expression)
        for namespace, name in list(self._store.objects[names.KIND]):
            item = self._store.get(names.KIND, namespace, name) or {}
            item["spec"]["refresh"] = {"schedule": expression} if expression else {}
            item["metadata"]["generation"] += 1
            self._store.put(item)
        return web.json_response({})

    async def keep(self, _request: web.Request) -> web.Response:
        """Keep the cluster in a file."""
        await asyncio.to_thread(Path(self._world).write_bytes, pickle.dumps(self._store))
        return web.json_response({})


def _is_settled(status: Object) -> bool:
    reasons = {condition["reason"] for condition in status.get("conditions", ())}
    return len(status.get("rollouts", ())) == 1 and "UpToDate" in reasons


def _was_checked(status: Object) -> bool:
    """Return whether a check found the source unchanged, and nothing is pending."""
    outcomes = [record["outcome"] for record in status.get("builds", ())]
    is_at_rest = "build" not in status and "due" not in status.get("schedule", {})
    return is_at_rest and outcomes[-1:] == ["unchanged"]


def _text(stored: Stored, is_partial: bool) -> bytes:
    return stored.metadata if is_partial else stored.text


def _json(text: bytes) -> web.Response:
    return web.Response(body=text, content_type="application/json")


def _status(code: int, reason: str, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "reason": reason, "message": message}, status=code)


def _bookmark(kind: Kind, version: int) -> bytes:
    item = {"kind": kind.name, "apiVersion": kind.api_version, "metadata": {"resourceVersion": str(version)}}
    return orjson.dumps({"type": "BOOKMARK", "object": item}) + b"\n"


async def _serve(port: int, admin_port: int, store: Store, world: str) -> None:
    simulator = Simulator(store, world)
    api, admin = web.Application(client_max_size=1 << 24), web.Application()
    api.router.add_get("/bench/state", simulator.state)
    for verb in (simulator.forget, simulator.refresh, simulator.schedule, simulator.keep):
        api.router.add_post(f"/bench/{verb.__name__}", verb)
    api.router.add_route("*", "/{path:.*}", simulator.handle)
    admin.router.add_get("/status", simulator.admin)
    for app, host, number in ((api, "127.0.0.1", port), (admin, "0.0.0.0", admin_port)):
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, host, number, backlog=1024).start()
    gc.freeze()
    await asyncio.Event().wait()


def _main() -> None:
    port, admin_port, datasets, shards, replicas = map(int, sys.argv[1:6])
    world = sys.argv[6] if len(sys.argv) > 6 else ""
    if world and Path(world).exists():
        store: Store = pickle.loads(Path(world).read_bytes())
    else:
        store = Store()
        for index in range(datasets):
            store.put(dataset(index, shards, replicas))
    import uvloop

    uvloop.run(_serve(port, admin_port, store, world))


if __name__ == "__main__":
    _main()
