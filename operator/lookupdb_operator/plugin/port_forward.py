"""A pod's port through ``kubectl port-forward``, which ends at the pod's own loopback: no NetworkPolicy is in its way,
as it may be in that of the API server's proxy."""

from __future__ import annotations

import asyncio
import contextlib
import re
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import aiohttp

from lookupdb_operator.api.client import Answer, Unreachable

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
async def open_port(
    kubectl: Sequence[str], pod: str, port: int, *, is_encrypted: bool = False
) -> AsyncIterator[PodPort]:
    """``port`` of ``pod``, until the block ends. Raises Unreachable. ``is_encrypted``: it speaks TLS; that it is the
    pod's, the API server says, and no certificate is verified."""
    subject = f"port {port} of pod {pod}"
    forwarding = _forward([*kubectl, "port-forward", f"pod/{pod}", f":{port}"])
    async with contextlib.AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(_PATIENCE):
                address = await stack.enter_async_context(forwarding)
        except (OSError, TimeoutError) as error:
            raise Unreachable(subject, f"kubectl port-forward: {str(error) or type(error).__name__}") from error
        http = await stack.enter_async_context(aiohttp.ClientSession())
        yield PodPort(http, f"{'https' if is_encrypted else 'http'}://{address}", subject)


class PodPort:
    """What answers at one port of a pod."""

    def __init__(self, http: aiohttp.ClientSession, url: str, subject: str) -> None:
        self._http = http
        self._url = url
        self._subject = subject

    async def get(self, path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> Answer:
        """The answer to GET ``path``. Raises Unreachable."""
        try:
            async with (
                asyncio.timeout(_PATIENCE),
                self._http.get(
                    f"{self._url}{path}", params=query, headers=headers, allow_redirects=False, ssl=False
                ) as response,
            ):
                return Answer(response.status, response.headers, await response.read())
        except (OSError, TimeoutError, aiohttp.ClientError) as error:
            raise Unreachable(self._subject, str(error) or type(error).__name__) from error


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
