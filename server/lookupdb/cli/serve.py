"""`lookupdb serve`: serve one shard over RESP."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final, get_args

import click

from lookupdb import credentials
from lookupdb.cli.options import FILE, Seconds, Size, chosen_log_format, log_format, option, password_file
from lookupdb.errors import UsageError
from lookupdb.process.launch import become_supervisor
from lookupdb.shard.limits import ServerLimits, WarmPolicy

_LIMITS = ServerLimits()
_LAST_PORT: Final = 65535


@click.command(short_help="Serve one shard over RESP, the Redis protocol.")
@click.argument("path", metavar="GENERATION_DIR|FILE", type=click.Path(path_type=Path))
@option("--shard", type=click.IntRange(min=0), help="Shard to serve; required if the directory holds several.")
@option("--workers", type=click.IntRange(1, 64), default=1, help="Worker processes; all share one copy of the shard.")
@option("--host", default="127.0.0.1", help="The address to listen on; * or :: is all, IPv4 and IPv6.")
@option("--port", type=click.IntRange(0, 65535), default=7000, help="Worker i listens on PORT+i; 0 takes free ports.")
@option(
    "--admin-port",
    type=click.IntRange(0, 65535),
    default=9090,
    help="Port for health, status and metrics; 0 takes a free one.",
)
@option(
    "--drain-seconds",
    type=click.FloatRange(0, 3600),
    default=5.0,
    help="Seconds after SIGTERM to keep answering while not ready.",
)
@option(
    "--warm",
    type=click.Choice(get_args(WarmPolicy)),
    default="auto",
    help="Keep the verified file in the page cache; auto: if it fits into memory.",
)
@option("--read-rate", type=Size(), default="1GiB", help="Bytes per second for verifying the file.")
@password_file("Require clients to AUTH with the password in this file (or in LOOKUPDB_PASSWORD).")
@option(
    "--password-sha256",
    metavar="HEX",
    help="The password's SHA-256, in 64 digits. It need not be secret if the password is long and random.",
)
@option(
    "--max-connections",
    type=click.IntRange(min=1),
    default=_LIMITS.max_connections,
    help="Maximum clients per worker; more are rejected.",
)
@option(
    "--idle-seconds",
    type=click.FloatRange(min=0),
    default=_LIMITS.idle_seconds,
    help="Seconds after which an idle client is disconnected; 0: never.",
)
@option(
    "--slow-seconds",
    type=click.FloatRange(min=0.1),
    default=_LIMITS.slow_seconds,
    help="Seconds after which a client that does not read its replies is disconnected.",
)
@option(
    "--wait",
    type=Seconds(0),
    default=0.0,
    help="Seconds to wait for the generation to appear in GENERATION_DIR, such as a volume that is being filled.",
)
@option("--ready-file", type=FILE, help='Write this when ready: {"pid": …, "ports": […], "admin": …}.')
@option("--termination-log", type=FILE, help="Write the reason of a failure here, as one line of JSON.")
@log_format
def command(*, password: str | None, password_sha256: str | None, **options: Any) -> None:
    """Serve one shard of a generation over RESP, the protocol of Redis.

    Any Redis client can ask: GET MGET EXISTS TOUCH STRLEN GETRANGE SUBSTR TYPE TTL PTTL EXPIRETIME PEXPIRETIME HGET
    HMGET HGETALL HKEYS HVALS HLEN HEXISTS HSTRLEN MULTI EXEC DISCARD WATCH UNWATCH DBSIZE PING ECHO INFO HELLO AUTH
    CLIENT COMMAND CONFIG SELECT RESET QUIT. Writes get -READONLY. INFO lookupdb reports the dataset, generation and
    shard.

    The file is verified against manifest.json beside it (size, SHA-256) before the first answer. All workers map the
    same file read-only, so it is in memory once, in the page cache.

    GENERATION_DIR may be a folder of a read-only volume, such as an NFS share of a store. Then nothing is copied. With
    --wait, the server waits for a generation that does not exist yet, and serves it once it is complete.

    The admin port answers /healthz, /readyz, /status and /metrics. On SIGTERM it becomes unready, keeps answering for
    --drain-seconds while clients leave, finishes what has arrived, and ends. A second signal ends it at once.
    """
    port, workers = options["port"], options["workers"]
    last = port + workers - 1
    if port and last > _LAST_PORT:
        raise UsageError(
            f"{workers} workers from port {port} on need ports up to {last}, and {_LAST_PORT} is the last one",
            hint="give a lower --port; 0 takes free ones",
        )
    limits = {name: options.pop(name) for name in ("max_connections", "idle_seconds", "slow_seconds")}
    settings = {
        **options,
        "password_sha256": _choose_hash(password, password_sha256),
        "limits": limits,
        "log_format": chosen_log_format(),
    }
    become_supervisor("lookupdb.shard.server", settings)


def _choose_hash(password: str | None, password_sha256: str | None) -> str | None:
    """Return the SHA-256 of the password, or None without one. Raises UsageError."""
    if password is not None and password_sha256 is not None:
        raise UsageError(
            "both a password and the hash of one are given",
            hint="give either --password-sha256, or --password-file or LOOKUPDB_PASSWORD",
        )
    if password is not None:
        return credentials.hash_password(password.encode())
    if password_sha256 is not None and not re.fullmatch("[0-9a-f]{64}", password_sha256):
        raise UsageError(
            f"--password-sha256 must be 64 lowercase hexadecimal digits, found {password_sha256[:80]!r}",
            hint="as printed by: printf %s PASSWORD | sha256sum",
        )
    return password_sha256
