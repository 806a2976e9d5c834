"""Lives in which a gateway is put before the store, and taken away again. The operator is started again for it: the
gateway is one of its flags."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from lookupdb_operator.config import StoreAccess
from operator_support.simulation import Simulation

GATEWAY: Final = "http://lookupdb-gateway.lookupdb.svc:7071"
_CREDENTIALS: Final = StoreAccess({"AWS_ACCESS_KEY_ID": "a"}, "d1")


class GatewayLives(Simulation):
    """A life that begins behind a gateway."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._gateways = random.Random(f"gateways {seed}")
        self._put_gateway(GATEWAY)

    def act(self) -> None:
        """One moment. At times the gateway goes or comes; once it is there, somebody deletes the Secret of before."""
        if self._gateways.random() < 0.03:
            self._put_gateway("" if self.world.config.gateway else GATEWAY)
        if self.world.config.gateway and self._gateways.random() < 0.1:
            self.world.secret = None
        super().act()

    def _put_gateway(self, url: str) -> None:
        self._snapshots.clear()  # they are of an operator that knew other credentials
        self.world.config = replace(self.world.config, gateway=url)
        self.world.store = StoreAccess() if url else _CREDENTIALS
        self.world.start_operator()

    def _change_store(self) -> None:
        if not self.world.config.gateway:  # else nobody tells the operator
            super()._change_store()
