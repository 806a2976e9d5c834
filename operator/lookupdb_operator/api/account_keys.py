"""The public keys of the cluster's service accounts, at the API server: any service account may read them."""

from __future__ import annotations

from typing import Final

from lookupdb_operator.api.client import Answer, Api

JWKS_PATH: Final = "/openid/v1/jwks"
SUBJECT: Final = "the keys of service accounts"


async def fetch_account_keys(api: Api) -> Answer:
    """What the API server answers. Raises Unreachable."""
    return await api.fetch(JWKS_PATH, subject=SUBJECT)
