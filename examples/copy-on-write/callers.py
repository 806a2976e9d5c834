"""Callers of the service: threads that post batches of random customers at a fixed rate."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, Self

_THREADS: Final = 8
"""More than the number of workers, so that all workers are busy."""
_TIMEOUT: Final = 60.0


def get_recommendations(port: int, customers: Sequence[str], sold_out: Sequence[str] = ()) -> dict[str, list[str]]:
    """Return the products of each known customer. Raises OSError, or RuntimeError if the service returns an error."""
    question = json.dumps({"customers": customers, "soldOut": sold_out})
    products: dict[str, list[str]] = _ask(port, "POST", "/recommendations", question)
    return products


def get_process(port: int) -> dict[str, int]:
    """Return a worker's pid and number of records. Raises as ``get_recommendations`` does."""
    process: dict[str, int] = _ask(port, "GET", "/process", None)
    return process


def _ask(port: int, method: str, path: str, body: str | None) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise RuntimeError(f"{method} {path} of port {port}: expected 200, found {response.status}: {text[:200]!r}")
    return json.loads(text)


class Callers:
    """A context in which threads look up ``rate`` customers a second, or fewer if the service cannot keep up."""

    def __init__(self, port: int, customers: Sequence[str], rate: int, batch: int) -> None:
        self._port, self._customers, self._batch = port, customers, batch
        self._seconds = _THREADS * batch / rate
        self._answered = [0] * _THREADS
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(_THREADS)

    @property
    def answered(self) -> int:
        """Return the number of records found so far."""
        return sum(self._answered)

    def __enter__(self) -> Self:
        self._futures = [self._pool.submit(self._call, number) for number in range(_THREADS)]
        return self

    def _call(self, number: int) -> None:
        """Send requests at a fixed rate. If the service is too slow, late requests follow at once."""
        rng = random.Random(number)
        sold_out: list[str] = []
        due = time.monotonic() + self._seconds * number / _THREADS
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            customers = rng.choices(self._customers, k=self._batch)
            products = get_recommendations(self._port, customers, sold_out)
            if missing := set(customers) - set(products):
                raise RuntimeError(f"expected products for all of {self._batch} customers, missing: {missing}")
            sold_out = products[customers[0]][:3]
            self._answered[number] += self._batch
            due += self._seconds

    def check(self) -> None:
        """Raise the error of a caller that failed."""
        for future in self._futures:
            if future.done():
                future.result()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._pool.shutdown()
        if error is None:
            self.check()
