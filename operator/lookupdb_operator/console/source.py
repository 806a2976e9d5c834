"""The place where the console's datasets, metrics and lookups come from: a cluster, or a `lookupdb up`."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from lookupdb.errors import LookupdbError
from lookupdb_operator.cluster.api import Answer, read_at_most
from lookupdb_operator.console.dataset import (
    GENERATION_HEADER,
    Dataset,
    DatasetPods,
    Lookup,
    UnavailableKey,
    read_answer,
    read_detail,
    read_refusal,
)
from lookupdb_operator.model import Pod

if TYPE_CHECKING:
    import aiohttp

_CONNECTIONS: Final = 64
_METRICS_SECONDS: Final = 3.0
_MAX_METRICS_BYTES: Final = 4 << 20
_LOOKUP_SECONDS: Final = 10.0
_MAX_VALUE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Says why the console cannot do something, and names the command that does it, if there is one."""

    why: str
    command: str = ""


Difference = Mapping[str, Any]
"""The JSON document of `lookupdb diff --json`."""


class ConsoleSource(Protocol):
    """Everything that the console reads. Nothing is written."""

    def list_datasets(self) -> Sequence[DatasetPods]:
        """Return all datasets with their pods, by namespace and name. Uses a cache, because every page calls this."""

    def find_dataset(self, namespace: str, name: str) -> DatasetPods | None:
        """Return one dataset with its pods; None if there is none, or it must not be seen."""

    async def read_metrics(self, dataset: Dataset, pod: Pod) -> str:
        """Return the metrics of the admin port of ``pod``, within seconds. Raises LookupdbError."""

    async def look_up(self, dataset: Dataset, key: str, generation: str | None) -> Lookup | Elsewhere:
        """Look ``key`` up through a router, in ``generation`` or in the active one."""

    async def compare(self, dataset: Dataset, before: str, after: str) -> Difference | Elsewhere:
        """Compare the records of two generations. May take long; cancelled when the client leaves."""


class TooLarge(LookupdbError):
    """The answer has more bytes than the console reads."""


class PodClient:
    """Requests to admin ports and routers, bounded in time and size."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        """``tls`` verifies the certificates of routers."""
        self._tls = tls
        self._http: aiohttp.ClientSession | None = None

    async def read_metrics(self, address: str, path: str = "/metrics") -> str:
        """Return the metrics of the admin port at ``address``, or what is at another ``path``. Raises LookupdbError."""
        url = f"http://{address}{path}"
        answer = await self._get(url, {}, {}, _METRICS_SECONDS, _MAX_METRICS_BYTES)
        if answer.status != 200:
            raise LookupdbError(f"{url} answers {answer.status}")
        return answer.body.decode(errors="replace")

    async def look_up(
        self, dataset: Dataset, url: str, key: str, generation: str | None, token: str = "", advice: str = ""
    ) -> Lookup | Elsewhere:
        """Return the answer of the router of ``dataset`` at ``url`` about ``key``. An empty ``token`` is not sent;
        ``advice`` is added if no router answers."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        if generation:
            headers[GENERATION_HEADER] = generation
        try:
            answer = await self._get(url, {"key": key}, headers, _LOOKUP_SECONDS, _MAX_VALUE_BYTES)
        except TooLarge:
            why = f"The value has more than {_MAX_VALUE_BYTES:,} bytes, which is too large for a page."
            return Elsewhere(why, render_get(dataset, key, generation))
        except LookupdbError as error:
            return UnavailableKey(key, f"{error.message}{advice}")
        if (found := read_answer(key, answer.status, answer.headers, answer.body)) is not None:
            return found
        refusal = read_refusal(answer.status, answer.body)
        why = refusal[0] if refusal else read_detail(answer.body) or f"a router answers {answer.status}"
        return Elsewhere(f"The routers refuse: {why}.", render_get(dataset, key, generation))

    async def _get(
        self, url: str, query: Mapping[str, str], headers: Mapping[str, str], seconds: float, at_most: int
    ) -> Answer:
        """Return the answer to GET ``url``. Raises TooLarge, and LookupdbError if there is none."""
        import aiohttp  # here, because commands about a laptop do without it

        if self._http is None:
            connector = aiohttp.TCPConnector(limit=_CONNECTIONS, ssl=self._tls or True)
            self._http = aiohttp.ClientSession(
                connector=connector, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
            )
        timeout = aiohttp.ClientTimeout(total=seconds)
        try:
            async with self._http.get(
                url, params=query, headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                body = await read_at_most(response.content, at_most + 1)
        except TimeoutError as error:
            raise LookupdbError(f"{url} does not answer within {seconds:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise LookupdbError(f"{url} does not answer: {str(error) or type(error).__name__}") from error
        if len(body) > at_most:
            raise TooLarge(f"{url} answers with more than {at_most} bytes")
        return Answer(response.status, response.headers, body)

    async def close(self) -> None:
        """Close all connections."""
        if self._http is not None:
            await self._http.close()


def render_get(dataset: Dataset, key: str, generation: str | None) -> str:
    """Return the command that looks ``key`` up, with a token if routers ask for one."""
    token = ("--token-file", "TOKEN_FILE") if dataset.asks_for_token else ()
    words = (*token, *(("--generation", generation) if generation else ()), *(("--",) if key.startswith("-") else ()))
    return dataset.command("get", *words, key)
