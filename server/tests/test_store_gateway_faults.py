"""A gateway behind a network that loses, repeats, delays and forges answers: the same that a bucket is put to, request
by request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.faults import Proxy, faulty_proxy
from support.gateways import FakeGateway, fake_gateway, gateway_bucket, use_token
from support.sites import LEASE, Site
from test_store_faults import TestEveryRequest, TestEveryRequestOfASweep

pytestmark = pytest.mark.long

__all__ = ["TestEveryRequest", "TestEveryRequestOfASweep"]


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[FakeGateway, str, Proxy]]:
    with fake_gateway() as gateway, faulty_proxy(gateway.url) as (front, proxy):
        yield gateway, front, proxy


@pytest.fixture
def site(servers: tuple[FakeGateway, str, Proxy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    gateway, front, proxy = servers
    gateway.reset()
    proxy.reset()
    use_token(tmp_path, monkeypatch)
    choice = {"lease": LEASE, "heartbeat": 3600.0, "patience": 0.0, "retries": 0}
    return Site(
        tmp_path,
        gateway_bucket(gateway.url, **choice),
        lambda **other: gateway_bucket(front, **{**choice, **other}),
        proxy,
    )
