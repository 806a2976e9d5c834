"""Asks with redis-py, which the image lacks: it comes as a zip on standard input, with the keys.

`redis_ask.py HOST` reads ``{"library": base64, "keys": […]}`` and prints ``{"single": […], "many": […], "pipelined":
[…], "info": {…}}``. A value is its text, null if missing, ``{"error": …}`` if it raised.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

PIPELINED = 16
TIMEOUT_SECONDS = 10


def main() -> None:
    request = json.load(sys.stdin)
    # Import from memory, because the file system is read-only.
    library = os.memfd_create("redis.zip")
    os.write(library, base64.b64decode(request["library"]))
    sys.path.insert(0, f"/proc/self/fd/{library}")
    # Before Python 3.11.3, redis-py imports this package, but only its asyncio half uses it.
    sys.modules["async_timeout"] = types.ModuleType("async_timeout")
    sys.modules["async_timeout"].timeout = asyncio.timeout  # type: ignore[attr-defined]
    import redis

    keys = request["keys"]
    client = redis.Redis(host=sys.argv[1], socket_timeout=TIMEOUT_SECONDS, decode_responses=True)

    def tell(ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except redis.ResponseError as error:
            return {"error": str(error)}

    def pipelined() -> Iterator[Any]:
        for start in range(0, len(keys), PIPELINED):
            with client.pipeline(transaction=False) as pipeline:
                for key in keys[start : start + PIPELINED]:
                    pipeline.get(key)
                for value in pipeline.execute(raise_on_error=False):
                    yield {"error": str(value)} if isinstance(value, Exception) else value

    found = {
        "single": [tell(lambda key=key: client.get(key)) for key in keys[:PIPELINED]],  # type: ignore[misc]
        "many": tell(lambda: client.mget(keys)),
        "pipelined": list(pipelined()),
        "info": client.info("lookupdb"),
    }
    print(json.dumps(found))


main()
