"""`lookupdb route`: run the router. `lookupdb token`: create a client token for it, or hash one."""

from __future__ import annotations

import re
import secrets
import sys
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Final

import click

from lookupdb.cli.options import FILE, FOLDER, Size, chosen_log_format, log_format, option, password_file
from lookupdb.credentials import MAX_SUBJECTS, MAX_TOKEN_BYTES, is_subject
from lookupdb.dataset import schema
from lookupdb.dataset.spec import ROUTER_FLAGS
from lookupdb.errors import UsageError
from lookupdb.process.launch import become_supervisor
from lookupdb.router.access import AccessSettings, NoToken, hash_token, read_bearer_token
from lookupdb.router.budget import RouterLimits

_ROUTER_FIELDS: Final[dict[str, Any]] = schema.resource_schema()["properties"]["spec"]["properties"]["router"][
    "properties"
]
"""The CRD's ``spec.router``, which has the defaults, bounds and descriptions of the options."""


DIRECTIVES: Final = re.compile("[a-z][a-z-]*(=[A-Za-z0-9-]+)?(, ?[a-z][a-z-]*(=[A-Za-z0-9-]+)?)*")
"""Must equal the pattern in the CRD."""
_SHARED: Final = re.compile("public|s-maxage|must-revalidate")
"""Directives that let shared caches keep answers to requests with a token (RFC 9111, 3.5)."""


def _limit_option(name: str, field: str, **settings: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return an option with the default, bounds and help of ``spec.router.<field>``."""
    schema_ = _ROUTER_FIELDS[field]
    settings.setdefault("type", click.IntRange(schema_["minimum"], schema_.get("maximum")))
    return option(name, default=schema_["default"], help=schema_["description"], **settings)


def _check_cache_control(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """Return ``value`` if ``spec.router.cacheControl`` may have it."""
    longest = _ROUTER_FIELDS["cacheControl"]["maxLength"]
    if value is not None and not (len(value) <= longest and DIRECTIVES.fullmatch(value)):
        raise click.BadParameter(
            "expected directives in lower case with a comma between them, such as public, max-age=60, of at most "
            f"{longest} characters, found {value[:80]!r}"
        )
    return value


def _check_address(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """Return ``value`` if it is a host and a port."""
    if value is not None and not re.fullmatch(r"[^\s:]+:[0-9]{1,5}", value):
        raise click.BadParameter(f"expected an address such as 127.0.0.1:8081, found {value[:80]!r}")
    return value


@click.command(short_help="Answer lookups over HTTP and RESP from the shards of a routing table.")
@option("--table", type=FILE, help="Routing table file. It is watched: changes take effect while serving.")
@option(
    "--dataset",
    "datasets",
    metavar="NAME=FILE",
    multiple=True,
    help="A dataset and its routing table, instead of --table. May be repeated: requests then name one, as "
    "/v1/datasets/NAME/lookup/KEY.",
)
@option(
    "--dataset-uid",
    metavar="UID",
    help="Dataset to route for. A table of another dataset is rejected, even of a deleted one with the same name.  "
    "[default: any]",
)
@option("--host", default="127.0.0.1", help="The address to listen on; * or :: means all, IPv4 and IPv6.")
@option("--port", type=click.IntRange(0, 65535), default=8080, help="Public HTTP port; 0 takes a free one.")
@option(
    "--resp-port",
    type=click.IntRange(0, 65535),
    help="Second public port, for the Redis protocol; 0 takes a free one.  [default: none]",
)
@option("--admin-port", type=click.IntRange(0, 65535), default=9090, help="Health, status, metrics; 0: a free one.")
@_limit_option("--workers", "workers")
@_limit_option("--deadline-ms", "deadlineMilliseconds")
@_limit_option("--hedge-ms", "hedgeMilliseconds")
@_limit_option("--max-keys", "maxKeys")
@_limit_option("--max-body-bytes", "maxBodyBytes", type=Size())
@_limit_option("--max-connections", "maxConnections")
@_limit_option("--max-queued-keys", "maxQueuedKeys")
@_limit_option("--header-timeout", "headerTimeoutSeconds")
@_limit_option("--idle-timeout", "idleTimeoutSeconds")
@_limit_option("--write-timeout", "writeTimeoutSeconds")
@_limit_option("--drain-seconds", "drainSeconds")
@option(
    "--cache-control",
    metavar="DIRECTIVES",
    callback=_check_cache_control,
    help=_ROUTER_FIELDS["cacheControl"]["description"],
)
@option(
    "--memory-limit",
    type=Size(),
    help="Memory limit of the router, which accepts only as many bytes of requests and answers as fit.  "
    "[default: the container's limit; without one, 448MiB per worker plus 56MiB]",
)
@option(
    "--tls-cert",
    type=FILE,
    help="Use TLS on the public port, with the certificate chain in this PEM file. It is watched.",
)
@option("--tls-key", type=FILE, help="Unencrypted key of the certificate.")
@option("--tls-client-ca", type=FILE, help="Require client certificates signed by a CA in this PEM file.")
@password_file(
    "Password for shard servers, in this file (or in LOOKUPDB_PASSWORD), except those whose key the routing "
    "table names."
)
@option(
    "--password-key-dir",
    type=FOLDER,
    help="Folder of the keys that the routing table names, each in a file named by its fingerprint. Passwords of "
    "shard servers are derived from them. It is watched.",
)
@option(
    "--auth-tokens",
    type=FOLDER,
    help="Folder of token hashes, one file per client (see `lookupdb token`): these clients may look up. It is "
    "watched.  [default: anybody may look up]",
)
@option(
    "--auth-keys",
    type=FILE,
    help="Public keys of a cluster's service accounts (a JWKS), so that those of --auth-subject may look up. It is "
    "watched.",
)
@option("--auth-audience", help="Required audience of service account tokens.")
@option(
    "--auth-subject",
    "auth_subjects",
    metavar="NAMESPACE/NAME",
    multiple=True,
    help="Service account that may look up, or NAMESPACE/* for all of a namespace. May be repeated.",
)
@option(
    "--console",
    metavar="HOST:PORT",
    callback=_check_address,
    help="Forward requests outside of the API to the console at this address, as `lookupdb up` does.",
)
@option(
    "--ready-file", type=FILE, help='Write this when ready: {"pid": …, "port": …, "admin": …}; "resp" is --resp-port.'
)
@log_format
def command(
    *,
    table: Path | None,
    datasets: tuple[str, ...],
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
    password_key_dir: Path | None,
    auth_tokens: Path | None,
    auth_keys: Path | None,
    auth_audience: str | None,
    auth_subjects: tuple[str, ...],
    **options: Any,
) -> None:
    """Answer lookups over HTTP from the shards that a routing table names.

    \b
      GET  /v1/lookup/KEY                       the value; 404 missing; 503 unavailable
      POST /v1/lookup  {"keys": ["a", "b"]}     {"generation": …, "found": {…}, "missing": […]}
      GET  /v1/dataset                          generation, records, shards, age
      …    /v1/datasets/NAME/lookup…, /dataset  the same for one --dataset
      GET  /healthz, /readyz                    for load balancers, without a token

    With --resp-port any Redis client can ask too: GET MGET EXISTS TOUCH STRLEN GETRANGE SUBSTR TYPE TTL PTTL
    EXPIRETIME PEXPIRETIME; for fields of objects HGET HMGET HGETALL HKEYS HVALS HLEN HEXISTS HSTRLEN; transactions
    (MULTI EXEC DISCARD WATCH UNWATCH); DBSIZE INFO; and what clients send when they connect (AUTH CLIENT COMMAND CONFIG
    ECHO HELLO PING QUIT READONLY RESET SELECT). A key that cannot be looked up now gives an error, never nil.

    Keys that arrive together are sent together: each shard has one batch in flight while the next one gathers. An
    endpoint is used only after it has proven that it serves the dataset, generation and shard of the table. A new table
    takes effect when each of its shards has such an endpoint. Until then, and if it is invalid, the old one serves.

    The admin port answers /healthz, /readyz, /status (with the reason why a table is not in effect) and /metrics.
    On SIGTERM it becomes unready, keeps answering for --drain-seconds while clients leave, finishes requests in flight,
    and ends.
    """
    access = _read_access(auth_tokens, auth_keys, auth_audience, auth_subjects)
    if access is not None and _SHARED.search(options["cache_control"] or ""):
        raise UsageError(
            "with public, s-maxage or must-revalidate, caches answer clients that show no token",
            hint="leave these out of --cache-control, or give no --auth option",
        )
    names = {
        field.name: ROUTER_FLAGS[field.name].removeprefix("--").replace("-", "_") for field in fields(RouterLimits)
    }
    limits = {field: options.pop(name) for field, name in names.items()}
    settings = {
        **options,
        "table": None if table is None else str(table.absolute()),
        "datasets": _read_datasets(datasets, table, options["resp_port"]),
        "password_key_dir": None if password_key_dir is None else str(password_key_dir.absolute()),
        "limits": limits,
        "tls": _tls_files(tls_cert, tls_key, tls_client_ca),
        "access": access,
        "log_format": chosen_log_format(),
    }
    become_supervisor("lookupdb.router.router", settings)


def _read_datasets(texts: tuple[str, ...], table: Path | None, resp_port: int | None) -> dict[str, str]:
    """Return the path of each dataset's routing table. Raises UsageError."""
    tables = {name: str(Path(path).absolute()) for name, _, path in (text.partition("=") for text in texts) if path}
    if len(tables) < len(texts):
        raise UsageError(f"--dataset takes different names, each with a file, found {', '.join(texts)}")
    if (table is None) == (not tables):
        raise UsageError("a router needs routing tables", hint="give either --table or --dataset NAME=FILE")
    if len(tables) > 1 and resp_port is not None:
        raise UsageError(
            "--resp-port serves one dataset, because no command of Redis names another",
            hint="leave it out, or run a router for each --dataset",
        )
    return tables


def _tls_files(certificate: Path | None, key: Path | None, client_ca: Path | None) -> dict[str, str | None] | None:
    """Return the TLS files in the form of the router's settings. Raises UsageError."""
    if certificate is None or key is None:
        if certificate or key or client_ca:
            raise UsageError(
                "TLS needs a certificate and its key",
                hint="give --tls-cert and --tls-key, or none of the --tls options",
            )
        return None
    paths = {"certificate": certificate, "key": key, "client_ca": client_ca}
    return {name: None if path is None else str(path.absolute()) for name, path in paths.items()}


def _read_access(
    tokens: Path | None, keys: Path | None, audience: str | None, subjects: tuple[str, ...]
) -> dict[str, Any] | None:
    """Return AccessSettings, or None if anybody may look up. Raises UsageError."""
    if len({keys is None, not audience, not subjects}) > 1:
        raise UsageError(
            "service accounts need three options: their cluster's keys, an audience and subjects; only some are given",
            hint="give --auth-keys, --auth-audience and --auth-subject together",
        )
    if len(subjects) > MAX_SUBJECTS:
        raise UsageError(f"at most {MAX_SUBJECTS} --auth-subject can be given, found {len(subjects)}")
    for subject in subjects:
        if not is_subject(subject):
            raise UsageError(
                f"--auth-subject names a service account, found {subject!r}", hint="write NAMESPACE/NAME or NAMESPACE/*"
            )
    if tokens is None and keys is None:
        return None
    return asdict(
        AccessSettings(
            tokens=None if tokens is None else str(tokens.absolute()),
            keys=None if keys is None else str(keys.absolute()),
            audience=audience,
            subjects=subjects,
        )
    )


RANDOM_BYTES: Final = 32  # 256 bits cannot be guessed, so a fast hash of them is safe to store


@click.command()
@option("--hash", "hashes", is_flag=True, help="Hash the token on standard input instead of creating one.")
def token(hashes: bool) -> None:
    """Create a token for a client of a dataset with spec.router.auth.tokens.

    Standard output gets only the token. Standard error gets its hash, the command that makes a Secret of the hash, and
    the place where `lookupdb route` looks for the hash. Give the token only to the client: keep it in a file or in a
    Secret of the client.

    \b
        lookupdb token > web.token
        lookupdb token --hash < web.token
    """
    if hashes:
        shown = sys.stdin.buffer.read(MAX_TOKEN_BYTES + 2).strip()
        try:
            click.echo(hash_token(read_bearer_token(b"Bearer " + shown)))
        except NoToken as error:  # its message does not show the token
            raise UsageError(
                f"standard input holds no token that a router would take: {error}",
                hint="make one with `lookupdb token`",
            ) from error
        return
    created = secrets.token_urlsafe(RANDOM_BYTES)
    hashed = hash_token(created.encode())
    click.echo(created)
    click.echo(
        f"its hash: {hashed}\n"
        f"in a cluster, for example: kubectl create secret generic lookup-tokens --from-literal=web={hashed}\n"
        "and, in the dataset: spec.router.auth.tokens.secretName: lookup-tokens\n"
        "for `lookupdb route --auth-tokens FOLDER`: a file FOLDER/web that holds the hash",
        err=True,
    )
