"""`lookupdb token`: create a client token, or hash one."""

from __future__ import annotations

import secrets
import sys
from typing import Final

import click

from lookupdb.cli.options import option
from lookupdb.errors import UsageError
from lookupdb.router.access import NoToken, hash_token, read_bearer_token
from lookupdb.tokens import MAX_TOKEN_BYTES

RANDOM_BYTES: Final = 32  # 256 bits cannot be guessed, so a fast hash of them is safe to store


@click.command()
@option("--hash", "hashes", is_flag=True, help="Hash the token on standard input instead of creating one.")
def command(hashes: bool) -> None:
    """Create a token for a client of a dataset with spec.router.auth.tokens.

    Standard output gets only the token. Standard error gets its hash, the command that makes a Secret of the hash, and
    where `lookupdb route` looks for it. Give the token only to the client: keep it in a file or in a Secret of the
    client.

    \b
        lookupdb token > web.token
        lookupdb token --hash < web.token
    """
    if hashes:
        shown = sys.stdin.buffer.read(MAX_TOKEN_BYTES + 2).strip()
        try:
            click.echo(hash_token(read_bearer_token(b"Bearer " + shown)))
        except NoToken as error:  # which does not show it
            raise UsageError(
                f"standard input holds no token that a router would take: {error}",
                hint="make one with `lookupdb token`",
            ) from error
        return
    token = secrets.token_urlsafe(RANDOM_BYTES)
    hashed = hash_token(token.encode())
    click.echo(token)
    click.echo(
        f"its hash: {hashed}\n"
        f"in a cluster, for example: kubectl create secret generic lookup-tokens --from-literal=web={hashed}\n"
        "and, in the dataset: spec.router.auth.tokens.secretName: lookup-tokens\n"
        "for `lookupdb route --auth-tokens FOLDER`: a file FOLDER/web that holds the hash",
        err=True,
    )
