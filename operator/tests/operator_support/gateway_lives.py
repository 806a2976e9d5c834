"""Lives in which a gateway is put in front of the store and removed again. The gateway is a flag of the operator, so
the operator restarts each time."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from lookupdb_operator.model import StoreAccess
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
        """Let one moment pass. At times the gateway comes or goes; once it is there, somebody deletes the old
        Secret."""
        if self._gateways.random() < 0.03:
            self._put_gateway("" if self.world.config.gateway else GATEWAY)
        if self.world.config.gateway and self._gateways.random() < 0.1:
            self.world.secret = None
        super().act()

    def _put_gateway(self, url: str) -> None:
        self._snapshots.clear()  # they are those of an operator with other credentials
        self.world.config = replace(self.world.config, gateway=url)
        self.world.store = StoreAccess() if url else _CREDENTIALS
        self.world.start_operator()

    def _change_store(self) -> None:
        if not self.world.config.gateway:  # else nothing reports it to the operator
            super()._change_store()
