"""The cluster's keys as the operator passes them on: read, checked, and always written the same way."""

from __future__ import annotations

import json
import logging
from typing import Any, cast

import pytest
from support.signers import ec_signer, jwks, rsa_signer

from lookupdb_operator.cluster.api import Answer, Unreachable
from lookupdb_operator.cluster.client import MAX_BYTES, Api, Keys


class Server:
    """An API server with prepared answers."""

    def __init__(self, body: Any, status: int = 200) -> None:
        self.status = status
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def fetch(self, path: str, *, subject: str) -> Answer:
        if not self.status:
            raise Unreachable("the keys", "no answer")
        return Answer(self.status, {}, self.body)


async def test_keys_are_the_same_text_whatever_the_order_of_their_members() -> None:
    server = Server(jwks(ec_signer(), rsa_signer()))
    keys = Keys(cast(Api, server))
    assert keys.text == ""
    assert await keys.refresh()
    assert json.loads(keys.text) == jwks(ec_signer(), rsa_signer())
    turned = [dict(reversed(key.items())) for key in jwks(ec_signer(), rsa_signer())["keys"]]
    server.body = json.dumps({"keys": turned}).encode()
    assert not await keys.refresh()
    server.body = json.dumps(jwks(ec_signer("ec-2"))).encode()
    assert await keys.refresh()


@pytest.mark.parametrize(
    "failing",
    [
        Server(b"", 0),
        Server(b"no", 403),
        Server(b"{}"),
        Server({"keys": []}),
        Server(b" " * (MAX_BYTES + 1)),
    ],
)
async def test_what_cannot_be_read_leaves_the_last_keys_and_is_logged_once(
    failing: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(jwks(ec_signer()))
    keys = Keys(cast(Api, server))
    await keys.refresh()
    before = keys.text
    server.status, server.body = failing.status, failing.body
    with caplog.at_level(logging.WARNING):
        assert not await keys.refresh()
        assert not await keys.refresh()
    assert keys.text == before
    assert len(caplog.records) == 1
