"""``lookupdb operator``: its options, each also an environment variable."""

from __future__ import annotations

import logging
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import click
import orjson

from lookupdb.cli.options import NameList, log_format, option
from lookupdb.errors import UsageError
from lookupdb_operator import names
from lookupdb_operator.model import (
    ANY_ADDRESS,
    DEFAULT_IDENTITY,
    LISTEN_ADDRESSES,
    POD_SECURITY,
    SPARK_SERVICE_ACCOUNT,
    Config,
)
from lookupdb_operator.plan import turns

if TYPE_CHECKING:
    from lookupdb_operator.main import OperatorOptions

log = logging.getLogger(__name__)

_STORES: Final = ("s3://", "gs://", "az://")
_HIGHEST_ID: Final = 2**31 - 1
"""The highest user or group id that the API server accepts."""


class _Json(click.ParamType[Any]):
    """A JSON text of one type."""

    def __init__(self, kind: type, name: str) -> None:
        self._kind = kind
        self.name = name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse ``value``. Fails with a usage error if it is not JSON, or of another type."""
        if not isinstance(value, str):
            return value
        try:
            parsed = orjson.loads(value)
        except ValueError as error:
            self.fail(f"{value!r} is not JSON: {error}", param, ctx)
        if not isinstance(parsed, self._kind):
            self.fail(f"{value!r} is not {self.name}", param, ctx)
        return tuple(parsed) if isinstance(parsed, list) else parsed


class _PodSecurity(_Json):
    """Users and groups of pods."""

    def __init__(self) -> None:
        super().__init__(dict, "a JSON object")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse ``value``. Fails also for unknown members, and for invalid ids or root's."""
        parsed: dict[str, Any] = super().convert(value, param, ctx)
        for name, number in parsed.items():
            if name not in POD_SECURITY:
                self.fail(f"{name!r} is none of {', '.join(POD_SECURITY)}", param, ctx)
            if type(number) is not int or not 1 <= number <= _HIGHEST_ID:
                self.fail(f"{name} is {number!r}; expected a number from 1 to {_HIGHEST_ID}", param, ctx)
        return parsed


_PEERS: Final = _Json(list, "a JSON list of NetworkPolicy peers")


@click.command()
@option("--image", required=True, help="Image of builders, shard servers and routers: the one the operator runs.")
@option(
    "--spark-image",
    default="",
    help="Image of the drivers and executors of builds by Spark.  [default: none; datasets name theirs]",
)
@option(
    "--spark-service-account",
    default=SPARK_SERVICE_ACCOUNT,
    help="ServiceAccount of Spark's drivers in the namespaces of datasets, with the right to create pods.",
)
@option("--store", required=True, help="URL of the store: s3://bucket/path, gs://… or az://…")
@option(
    "--gateway",
    default="",
    metavar="URL",
    help="URL of the store's gateway (lookupdb gateway). Pods then show it a token of their namespace; without"
    " a gateway, every namespace with a dataset gets a Secret with the credentials of the whole store.",
)
@option(
    "--gateway-token-file",
    "gateway_token",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File with a token of the operator's service account, the gateway's --announcer. With it, the operator"
    " announces active generations in the store, for lookupdb sync.  [default: nothing is announced]",
)
@option(
    "--store-secret",
    default="",
    help="Secret in the operator's namespace whose keys are the store's environment variables (AWS_ACCESS_KEY_ID, …)."
    " With --gateway it is not read.",
)
@option(
    "--create-store-secret",
    is_flag=True,
    help="If --store-secret does not exist, create it once, with random credentials, for the chart's own store.",
)
@option(
    "--shard-key-secret",
    default="",
    help="Secret in the operator's namespace with the key from which the passwords of shard servers are derived; the"
    " operator makes it. Without it, shard servers ask for no password.",
)
@option(
    "--store-env",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of the store that is not secret, such as AWS_REGION=eu-west-1. May be repeated. With --gateway it"
    " is not used.",
)
@option(
    "--cluster-id",
    "cluster",
    default="",
    help="This cluster's part of the store.  [default: uid of namespace kube-system]",
)
@option(
    "--namespaces",
    type=NameList(),
    default="",
    help="Namespaces whose datasets the operator handles, by a Role in each.  [default: all, by a ClusterRole]",
)
@option("--namespace", required=True, help="The operator's own namespace, from the downward API.")
@option(
    "--identity",
    default=DEFAULT_IDENTITY,
    help="NAMESPACE/RELEASE of this installation. Only one installation acts on a dataset: the first that saw it.",
)
@option("--living-list", default="", help="ConfigMap in the operator's namespace with the list of live datasets.")
@option(
    "--image-pull-policy",
    type=click.Choice(["Always", "IfNotPresent", "Never"]),
    default="IfNotPresent",
    help="Image pull policy of all pods.",
)
@option("--image-pull-secrets", type=NameList(), default="", help="Names of pull secrets, present in every namespace.")
@option("--network-policies/--no-network-policies", default=True, help="Whether to write NetworkPolicies.")
@option(
    "--router-resp/--no-router-resp",
    default=True,
    help=f"Whether routers speak the Redis protocol, too, on port {names.RESP_PORT}.",
)
@option("--router-clients", type=_PEERS, default="[]", help="NetworkPolicy peers that may ask routers; [] for anyone.")
@option(
    "--admin-clients", type=_PEERS, default="[]", help="NetworkPolicy peers that may read admin ports: the operator, …"
)
@option("--pod-labels", type=_Json(dict, "a JSON object"), default="{}", help="Further labels of all pods.")
@option(
    "--tracing-env",
    type=_Json(list, "a JSON list"),
    default="[]",
    help="Environment variables of routers and builders with the endpoint of traces, as in a container: OTEL_…",
)
@option(
    "--pod-security",
    type=_PodSecurity(),
    default=orjson.dumps(POD_SECURITY).decode(),
    help="runAsUser, runAsGroup and fsGroup of all pods, as JSON; the cluster chooses what is left out.",
)
@option(
    "--pod-host",
    type=click.Choice(LISTEN_ADDRESSES),
    default=ANY_ADDRESS,
    help="Where shard servers and routers listen; use :: if pods have IPv6 addresses.",
)
@option("--host", default=ANY_ADDRESS, help="Where health and metrics are served.")
@option("--port", type=click.IntRange(0, 65535), default=names.OPERATOR_PORT, help="Port of /healthz and /metrics.")
@option(
    "--resync-seconds",
    type=click.FloatRange(1, 86400),
    default=300,
    help="How often to reconcile every dataset even if nothing happens.",
)
@option("--workers", type=click.IntRange(1, 64), default=4, help="Number of datasets to reconcile at once.")
@option(
    "--max-concurrent-builds",
    type=click.IntRange(1, 10_000),
    default=turns.DEFAULT_LIMIT,
    help="Number of build slots; other datasets are queued.",
)
@option(
    "--max-concurrent-rollouts",
    type=click.IntRange(1, 10_000),
    default=turns.DEFAULT_LIMIT,
    help="Number of rollout slots. Each needs room for the old and the new servers until the new ones serve.",
)
@log_format
def command(**values: Any) -> None:
    """Operate LookupDatasets: build them, roll them out and keep them served, in the cluster this runs in.

    Reaches the cluster as the pod's service account, or by KUBECONFIG. It keeps no state of its own: it can be
    stopped and started anywhere at any moment, and lookups are answered while it is away.

    Answers /healthz and /metrics on --port. Run one for each --identity; the chart does.
    """
    parsed = options(**values)

    from lookupdb_operator.cluster.client import run_service
    from lookupdb_operator.main import run

    run_service(run(parsed))


def options(**values: Any) -> OperatorOptions:
    """Return the checked options in ``values``. Raises UsageError."""
    from lookupdb_operator.main import OperatorOptions

    if not values["store"].startswith(_STORES):
        raise UsageError(
            f"--store {values['store']} is not a store that pods share", hint=f"give one of {', '.join(_STORES)}"
        )
    _check_gateway(values["gateway"])
    if values["gateway_token"] and not values["gateway"]:
        raise UsageError("--gateway-token-file needs --gateway")
    if values["create_store_secret"] and not values["store_secret"]:
        raise UsageError("--create-store-secret needs --store-secret, the name of the Secret to create")
    variables = [text.partition("=") for text in values["store_env"]]
    for name, equals, value in variables:
        if not name or not equals:
            text = f"{name}{equals}{value}"
            raise UsageError(f"--store-env {text!r} is not NAME=VALUE", hint="as in --store-env AWS_REGION=eu-west-1")
    del values["store_env"]
    values["store_environment"] = {name: value for name, _, value in variables}
    values["gateway"] = values["gateway"].rstrip("/")
    values["pod_labels"] = {str(name): str(value) for name, value in values["pod_labels"].items()}
    # Options are named like the fields that they set.
    settings = {field.name: values.pop(field.name) for field in fields(Config) if field.name in values}
    return OperatorOptions(config=Config(**settings), **values)


def _check_gateway(url: str) -> None:
    """Raise UsageError unless it is a bare URL: a path would be lost, and a password would be visible in every pod."""
    if not url:
        return
    parts = urlsplit(url)
    is_bare = parts.path in ("", "/") and not (parts.query or parts.fragment or "@" in parts.netloc)
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_bare:
        raise UsageError(
            "--gateway is not the URL of a gateway: expected a scheme, a host and a port, and nothing else",
            hint="as in --gateway http://lookupdb-gateway.lookupdb.svc:7071",
        )
