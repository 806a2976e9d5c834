"""``lookupdb gateway``: its options, each also an environment variable."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from lookupdb.cli.options import Size, log_format, option
from lookupdb.errors import UsageError
from lookupdb.store.layout import check_cluster_id
from lookupdb.tokens.verification import Caller

if TYPE_CHECKING:
    from lookupdb_operator.gateway.service import GatewayOptions

_STORES: Final = ("s3://", "gs://", "az://")
_ACCOUNT: Final = re.compile(r"[a-z0-9-]{1,63}/[a-z0-9.-]{1,253}")
_LEAST_MEMORY: Final = 192 << 20
"""An eighth of what files have of it must do for two parts of an upload."""


@click.command()
@option("--store", required=True, help="URL of the store: s3://bucket/path, gs://… or az://…")
@option(
    "--credentials",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="Folder of the mounted Secret with the store's credentials: a file for each environment variable "
    "(AWS_ACCESS_KEY_ID, …). It is read again when it changes.  [default: the environment alone]",
)
@option(
    "--audience",
    "audiences",
    multiple=True,
    required=True,
    help="The audience of the tokens that are accepted: lookupdb-store:NAMESPACE/RELEASE; may be repeated.",
)
@option(
    "--announcer",
    default="",
    metavar="NAMESPACE/SERVICEACCOUNT",
    help="The operator's service account, which may write what is announced of datasets (active.json), in all"
    " namespaces, and do nothing else.  [default: nobody may]",
)
@option("--cluster-id", default="", help="This cluster's part of the store.  [default: uid of namespace kube-system]")
@option(
    "--reads",
    type=click.Choice(["stream", "redirect"]),
    default="stream",
    help="Whether shard files go through the gateway, or clients are sent to the store with a URL for one file.",
)
@option("--host", default="127.0.0.1", help="The address to listen on; * or :: is all, IPv4 and IPv6.")
@option("--port", type=click.IntRange(0, 65535), default=7071, help="The port for clients; 0 takes a free one.")
@option("--admin-port", type=click.IntRange(0, 65535), default=9090, help="Health, status, metrics; 0: a free one.")
@option(
    "--max-requests",
    type=click.IntRange(2, 100_000),
    default=256,
    help="Requests that are worked on at once. Transfers of files leave a quarter of them to what is short, and one "
    "namespace has half of what others leave.",
)
@option(
    "--body-memory",
    type=Size(),
    default="256MiB",
    help="Memory for what is on its way through, shared as requests are. Give the container 128 MiB more.",
)
@log_format
def command(**values: Any) -> None:
    """Stand before the store: let every namespace of the cluster reach its own part, and nothing else.

    Clients show a token of their service account, made for --audience. The gateway verifies it by the cluster's public
    keys, which it reads from the API server as the pod's service account, or by KUBECONFIG. The namespace in the token
    is the part of the store that the client may read and write. Only the gateway has the store's credentials.

    The admin port answers /healthz, /readyz, /status and /metrics. SIGTERM: not ready, finish what is in flight, end.
    """
    parsed = options(**values)

    import uvloop

    from lookupdb_operator.api.client import ApiError
    from lookupdb_operator.gateway.service import run

    try:
        uvloop.run(run(parsed))
    except ApiError as error:
        raise UsageError(str(error)) from error


def _parse_announcer(text: str) -> Caller | None:
    """Raises UsageError."""
    if not text:
        return None
    namespace, slash, account = text.partition("/")
    if not (slash and namespace and account) or not _ACCOUNT.fullmatch(text):
        raise UsageError(
            f"--announcer {text[:200]!r} is no service account", hint="give NAMESPACE/SERVICEACCOUNT: lookupdb/lookupdb"
        )
    return Caller(namespace, account)


def options(**values: Any) -> GatewayOptions:
    """The options in ``values``, checked. Raises UsageError."""
    from lookupdb_operator.gateway.service import GatewayOptions

    if not values["store"].startswith(_STORES):
        raise UsageError(
            f"--store {values['store']} is no store that pods share", hint=f"give one of {', '.join(_STORES)}"
        )
    if not all(values["audiences"]):
        raise UsageError("--audience is empty", hint="as in --audience lookupdb-store:lookupdb/lookupdb")
    if values["body_memory"] < _LEAST_MEMORY:
        raise UsageError(f"--body-memory is {values['body_memory']} bytes, {_LEAST_MEMORY} are the least")
    return GatewayOptions(
        announcer=_parse_announcer(values["announcer"]),
        store=values["store"],
        audiences=values["audiences"],
        credentials=values["credentials"],
        cluster=values["cluster_id"] and check_cluster_id(values["cluster_id"]),
        redirects=values["reads"] == "redirect",
        host=values["host"],
        port=values["port"],
        admin_port=values["admin_port"],
        max_requests=values["max_requests"],
        memory=values["body_memory"],
    )
