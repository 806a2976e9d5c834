"""A pod's port through ``kubectl port-forward``, which ends at the pod's own loopback: no NetworkPolicy is in its way,
as it may be in that of the API server's proxy."""

from __future__ import annotations

import asyncio
import contextlib
import re
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import aiohttp

from lookupdb_operator.api.client import Unreachable

_ADDRESS: Final = re.compile(rb"Forwarding from (127\.0\.0\.1:\d+) ")
_PATIENCE: Final = 10.0
_ANSWER_AT_MOST: Final = 1 << 22
_MESSAGE_AT_MOST: Final = 2000


async def read_through(kubectl: Sequence[str], pod: str, port: int, path: str) -> str:
    """What ``pod`` answers to GET ``path`` on ``port``. ``kubectl`` is the program, with the options that name cluster
    and namespace. Raises Unreachable."""
    subject = f"port {port} of pod {pod}"
    try:
        async with (
            asyncio.timeout(_PATIENCE),
            _forward([*kubectl, "port-forward", f"pod/{pod}", f":{port}"]) as address,
            aiohttp.ClientSession() as http,
            http.get(f"http://{address}{path}") as response,
        ):
            text = await response.content.read(_ANSWER_AT_MOST)
            while not response.content.at_eof() and len(text) < _ANSWER_AT_MOST:
                text += await response.content.read(_ANSWER_AT_MOST - len(text))
    except (OSError, TimeoutError, aiohttp.ClientError) as error:
        raise Unreachable(subject, f"kubectl port-forward: {str(error) or type(error).__name__}") from error
    if response.status != 200:
        raise Unreachable(subject, f"it answers {response.status}")
    return text.decode(errors="replace")


@asynccontextmanager
async def _forward(words: Sequence[str]) -> AsyncIterator[str]:
    """The address on which the program listens, until the block ends."""
    process = await asyncio.create_subprocess_exec(*words, "--address", "127.0.0.1", stdout=PIPE, stderr=PIPE)
    try:
        yield await _read_address(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.communicate()


async def _read_address(process: Process) -> str:
    assert process.stdout is not None
    assert process.stderr is not None
    while line := await process.stdout.readline():
        if found := _ADDRESS.match(line):
            return found[1].decode()
    said = (await process.stderr.read(_MESSAGE_AT_MOST)).decode(errors="replace")
    raise OSError(said.strip() or "it has ended without a word")
