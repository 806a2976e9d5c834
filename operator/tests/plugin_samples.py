"""Datasets as an API server holds them, for tests of the plugin."""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web

from lookupdb_operator.console.dataset import Dataset, DatasetPods
from lookupdb_operator.model import Pod, Trouble

NOW_TEXT: Final = "2026-01-02T12:00:00Z"


def condition(kind: str, truth: str, reason: str, message: str = "Why.", since: str = "2026-01-02T11:57:00Z") -> Any:
    return {"type": kind, "status": truth, "reason": reason, "message": message, "lastTransitionTime": since}


HEALTHY: Final = [
    condition("Ready", "True", "Serving"),
    condition("Built", "True", "GenerationBuilt"),
    condition("RolledOut", "True", "UpToDate"),
    condition("Degraded", "False", "Healthy"),
]


def generation(name: str, built_at: str = "2026-01-02T10:00:00Z", **members: Any) -> dict[str, Any]:
    return {
        "generation": name,
        "content": "c",
        "fingerprint": f"of-{name}",
        "records": 28_298,
        "bytes": 12_900_000,
        "largestShardBytes": 6_450_000,
        "shards": 2,
        "normalize": [],
        "valueFormat": "json",
        "builtAt": built_at,
    } | members


STATUS: Final[dict[str, Any]] = {
    "observedGeneration": 1,
    "conditions": HEALTHY,
    "phase": "Ready",
    "endpoint": "http://airports-router.shop.svc",
    "generation": "g12",
    "records": 28_298,
    "builtAt": "2026-01-02T10:00:00Z",
    "shards": "2/2",
    "generations": [generation("g11", "2026-01-01T10:00:00Z", servedBy=3), generation("g12", servedBy=7)],
    "rollouts": [
        {"rollout": "r34", "generation": "g12", "template": "t", "startedAt": "2026-01-02T10:01:00Z", "named": 2}
    ],
    "table": {
        "version": 7,
        "rollout": "r34",
        "generation": "g12",
        "replicas": 2,
        "workers": 1,
        "writtenAt": "2026-01-02T10:02:00Z",
        "confirmedAt": "2026-01-02T10:02:01Z",
    },
}


def body(name: str = "airports", spec: Any = None, **status: Any) -> dict[str, Any]:
    """Return the resource with ``STATUS`` and ``status``; members that are None are left out."""
    members = {member: value for member, value in (STATUS | status).items() if value is not None}
    return {
        "apiVersion": "lookupdb.dev/v1alpha1",
        "kind": "LookupDataset",
        "metadata": {"namespace": "shop", "name": name, "uid": f"uid-of-{name}", "resourceVersion": "1"},
        "spec": {"source": {"url": "s3://b/f.csv"}, "key": {"columns": ["id"]}, **(spec or {})},
        "status": members,
    }


def dataset(spec: Any = None, **status: Any) -> Dataset:
    return Dataset.from_body(body(spec=spec, **status))


def server(rollout: str, shard: int, replica: int = 0, *, ready: bool = True, trouble: str = "") -> Pod:
    name = f"airports-{rollout}-s{shard}-{replica}"
    found = Trouble("Unschedulable", trouble) if trouble else None
    return Pod(name, f"uid-{name}", "shard", rollout=rollout, shard=shard, phase="Running", ready=ready, trouble=found)


def router(number: int, *, ready: bool = True) -> Pod:
    return Pod(f"airports-router-{number}", f"uid-r{number}", "router", phase="Running", ready=ready)


def view(*pods: Pod, spec: Any = None, **status: Any) -> DatasetPods:
    return DatasetPods(dataset(spec, **status), pods)


SERVERS: Final = tuple(server("r34", shard, replica) for shard in range(2) for replica in range(2))
ROUTERS: Final = (router(0), router(1))


ROUTER = "/api/v1/namespaces/shop/services/airports-router:http/proxy/v1/lookup"
VALUES = {"KJFK": b'{"name":"John F Kennedy","m":1e400}', "a/b c+": b'"odd"'}


def answer_lookup(request: web.Request) -> web.Response:
    """Answer like a router, as far as `get` needs it."""
    assert request.path in (ROUTER, "/v1/lookup")
    key, headers = request.query["key"], {"Lookupdb-Generation": request.headers.get("Lookupdb-Generation", "g12")}
    if key == "away":
        problem = {"type": "https://lookupdb.dev/problems/unavailable", "detail": "shard 1 is away"}
        return web.json_response(problem, status=503, content_type="application/problem+json")
    if key not in VALUES:
        problem = {"type": "https://lookupdb.dev/problems/missing", "detail": "no record has it"}
        return web.json_response(problem, status=404, content_type="application/problem+json", headers=headers)
    return web.Response(body=VALUES[key], content_type="application/json", headers=headers)
