"""The client for asyncio, from which ``make sync-client`` generates ``sync_client.py``, the one for threads.

A lookup of one key asks the cache, then a combiner (``async_transport.py``), which puts concurrent lookups into one
request. A call with many keys follows its plan (``ManyKeys``). Either ends in a request, which is repeated while that
is allowed. Its answer goes into the cache.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, ClassVar, Final, Literal, NoReturn, Self, TypeVar, Unpack

from lookupdb.client.async_transport import AsyncCombiner, AsyncRouterLink
from lookupdb.client.core import (
    DEADLINE,
    MAX_PASSES,
    TOO_MANY_CONNECTIONS,
    UNAUTHENTICATED,
    ConnectionFailure,
    Outcome,
    Part,
    Piece,
    SharedAnswer,
    Step,
    changing_error,
    is_divisible,
    refuse_copy,
)
from lookupdb.client.settings import PROCESS, ClientOptions, check_settings
from lookupdb.client.wire import (
    MAX_TARGET_CHARACTERS,
    MISSING,
    DatasetDescription,
    KeyAnswer,
    KeyColumns,
    KeysAnswer,
    Lookup,
    LookupResults,
    Render,
    RequestRenderer,
    Response,
    check_key,
    is_of_the_connection,
    read_batch_answer,
    read_dataset,
    read_key_answer,
)
from lookupdb.errors import LookupFailed, RequestRefused, UnknownGeneration
from lookupdb.records import Key

_MAX_COMBINERS: Final = 64
F = TypeVar("F")
"""A DataFrame, of pandas or polars."""


class AsyncLookups:
    """Lookups in the active generation, or in that of ``AsyncClient.at``. Concurrent lookups of single keys share a
    request.

    Each call takes at most the client's ``timeout``. It raises Unavailable if a key cannot be looked up now,
    InvalidAnswer for an answer that is not a router's, and RequestRefused if the router refuses the request.
    """

    __iter__: ClassVar[None] = None  # not iterable: a router does not list its keys

    def __init__(self, link: AsyncRouterLink, generation: str | None) -> None:
        self._link = link
        self._generation = generation
        self._renderer = RequestRenderer(link.core.settings.address, generation)

    def __repr__(self) -> str:
        which = f" at {self._generation}" if self._generation is not None else ""
        return f"<lookupdb {type(self).__name__} of {self._link.core.settings.address.url}{which}>"

    def __reduce__(self) -> NoReturn:
        refuse_copy(self)

    async def get(self, key: Key, default: Any = None) -> Any:
        """Return the value of ``key``, or ``default`` if no record has it."""
        answer = await self._find(key)
        return answer.value if answer.is_found else default

    async def __getitem__(self, key: Key) -> Any:
        answer = await self._find(key)
        if not answer.is_found:
            raise KeyError(key)
        return answer.value

    def __contains__(self, key: object) -> bool:
        raise TypeError(f"`{key!r:.60} in client` cannot wait for its answer: write `await client.has(…)`")

    async def has(self, key: Key) -> bool:
        """Return whether a record has ``key``."""
        return (await self._find(key)).is_found

    async def lookup(self, key: Key) -> Lookup:
        """Return the result for ``key``, with the generation that answered."""
        deadline = self._link.enter()
        if isinstance(key, tuple):
            lookup: Lookup = await self._find_columns(key, self._lookup, deadline)
            return lookup
        return await self._lookup(check_key(key), deadline)

    async def _lookup(self, key: str, deadline: float) -> Lookup:
        answer = await self._find(key, deadline)
        if answer.generation is None:  # several generations answered the batch: ask for this key alone
            self._link.enter()
            answer = await self._ask_key(key, deadline)
        return Lookup(answer.value if answer.is_found else None, answer.is_found, answer.generation)

    async def get_many(self, keys: Iterable[Key], *, partial: bool = False) -> LookupResults:
        """Return the results for ``keys``, each once, all of one generation, in as many requests as needed.

        With ``partial``, unavailable keys are listed; Unavailable is raised only if all keys are. During a rollout
        shard by shard, results may come from several generations.
        """
        deadline = self._link.enter()
        listed: Any = keys if isinstance(keys, str) else [*keys]
        if not any(issubclass(kind, tuple) for kind in {*map(type, listed)}):  # no key has several columns
            return await self._get_many(listed, deadline, partial=partial)
        columns = await self._key_columns(deadline)
        for _ in range(MAX_PASSES):
            texts = {key: columns.join(key) for key in listed}
            results = await self._get_many(texts.values(), deadline, partial=partial)
            before, columns = columns, await self._key_columns(deadline, results.generations)
            if before == columns and self._link.core.confirms(results.generations):
                return results.of_columns(texts)
        raise changing_error([*texts.values()])

    async def _get_many(self, keys: Iterable[str], deadline: float, *, partial: bool) -> LookupResults:
        link = self._link
        now = asyncio.get_running_loop().time()
        many = link.core.begin_many(keys, self._generation, now, partial=partial)
        outcome: Outcome = None
        plan = many.plan()
        try:
            if many.fits_one_part:
                outcome = await self._take_step(Part(many.keys, None), deadline, partial=partial)
                if isinstance(outcome, KeysAnswer):
                    return outcome.to_results()
                next(plan)  # the same part
            while True:
                outcome = await self._take_step(plan.send(outcome), deadline, partial=partial)
        except StopIteration as end:
            results: LookupResults = end.value
            return results

    async def lookup_frame(
        self,
        frame: F,
        on: str | Sequence[str],
        columns: str | Sequence[str] | None = None,
        *,
        prefix: str = "",
        suffix: str = "",
        missing: Literal["null", "error"] = "null",
    ) -> F:
        """Return ``frame``, a DataFrame of pandas or polars, with new columns: the values of its rows' keys.

        ``on`` names the column with the keys, or those of a key of several columns. ``columns`` names the members of
        the values that become columns; without it, whole values become the column ``value``. ``prefix`` and ``suffix``
        are added to the new names. A row without a record has nulls, or raises KeyMissing with ``missing="error"``.

        Rows are looked up in batches, all in one generation unless the dataset is rolled out shard by shard. Each
        batch may take the client's ``timeout``. Raises UsageError.
        """
        from lookupdb.client.frames import FrameLookup

        work = FrameLookup(frame, on, columns, prefix=prefix, suffix=suffix, missing=missing)
        lookups: AsyncLookups = self
        while not work.is_done:
            keys = work.next_keys(self._link.core.max_keys)
            try:
                results = await lookups.get_many(keys)
            except UnknownGeneration:
                if lookups is self or not work.begin_again(MAX_PASSES):
                    raise
                lookups = self  # the first batch's generation has ended: look up all rows again
                continue
            if lookups is self and results.generation is not None:
                lookups = self.at(results.generation)
            work.take(results.found)
        enriched: F = work.finish()
        return enriched

    async def dataset(self) -> DatasetDescription:
        """Return the description of the dataset and its active generation, even if this client uses another one."""
        return await self._describe(self._link.enter())

    async def _describe(self, deadline: float) -> DatasetDescription:
        return read_dataset(await self._ask(self._renderer.dataset, (), deadline))

    def at(self, generation: str) -> AsyncLookups:
        """Return lookups in ``generation`` only, for example in a candidate: they raise UnknownGeneration once the
        router no longer serves it. They share this client's connections, and end with it. Nothing is cached."""
        if generation is None:
            raise TypeError(
                "a generation's name is text like 'g12', found None; without at(), lookups use the active one"
            )
        return AsyncLookups(self._link, generation)

    async def _key_columns(self, deadline: float, answered: Sequence[str] | None = None) -> KeyColumns:
        """Return the key columns of the generations that ``answered``; if None, those of the generation that is to
        answer. If the keys were joined by other columns than these, the answer is wrong.
        """
        core = self._link.core
        columns = core.key_columns(self._generation) if answered is None else core.find_columns(answered)
        if columns is not None:
            return columns
        columns = core.learn_dataset(await self._describe(deadline), self._generation)
        return core.find_columns(answered or ()) or columns

    async def _find_columns(
        self, key: Key, find: Callable[[str, float], Awaitable[Any]], deadline: float | None = None
    ) -> Any:
        """Join ``key`` to a text as the answering generation does, and return what ``find`` returns for it."""
        deadline = deadline or self._link.enter()
        columns = await self._key_columns(deadline)
        for _ in range(MAX_PASSES):
            answer = await find(text := columns.join(key), deadline)
            generations = () if answer.generation is None else (answer.generation,)
            before, columns = columns, await self._key_columns(deadline, generations)
            if before == columns and self._link.core.confirms(generations):
                return answer
        raise changing_error((text,))

    async def _find(self, key: Key, deadline: float | None = None) -> KeyAnswer:
        if isinstance(key, tuple):
            found: KeyAnswer = await self._find_columns(key, self._find)
            return found
        key = check_key(key)
        link = self._link
        deadline = deadline or link.enter()
        if link.core.cache is not None and self._generation is None:
            known = link.core.cache.find(key, asyncio.get_running_loop().time())
            if known is not None:
                return KeyAnswer(*known)
        combiner = link.combiners.get(self._generation)
        if combiner is None:
            combiner = AsyncCombiner(self._ask_batch, link.core)
            with PROCESS.lock:
                if len(link.combiners) >= _MAX_COMBINERS and self._generation not in link.combiners:
                    link.combiners.pop(next(iter(link.combiners)))
                combiner = link.combiners.setdefault(self._generation, combiner)
        return (await combiner.find(key, deadline)).take(key)

    async def _ask(
        self, render: Render, keys: Sequence[str], deadline: float, answer_by: float | None = None
    ) -> Response:
        """Send the request that ``render`` makes, and return its answer. Raises LookupFailed. The router should answer
        by ``answer_by``, without it by ``deadline``. A failed request is repeated: lookups change nothing."""
        link = self._link
        tokens, retries_left = link.core.tokens, link.core.settings.retries
        has_met_stale = has_new_token = is_fresh = False
        while True:
            token = tokens.line()
            try:
                response = await link.exchange(render, token, deadline, answer_by, is_fresh=is_fresh)
                if response.status == UNAUTHENTICATED and not has_new_token:
                    has_new_token = True
                    if tokens.refresh(token):
                        continue
                if not is_of_the_connection(response):
                    return response
                raise ConnectionFailure(TOO_MANY_CONNECTIONS, "the router takes no more connections now")
            except ConnectionFailure as failure:  # deleted below, because its traceback holds the frames of all callers
                if failure.is_stale and not has_met_stale:
                    has_met_stale = True  # the first stale connection does not count as a retry
                elif failure.reason == DEADLINE or not retries_left:
                    raise failure.to_error(keys) from failure
                else:
                    retries_left -= 1
            is_fresh = True

    async def _ask_key(self, key: str, deadline: float, answer_by: float | None = None) -> KeyAnswer:
        if len(key) > MAX_TARGET_CHARACTERS:
            answers = await self._ask_part(self._renderer, (key,), deadline, answer_by, partial=False)
            return KeyAnswer(answers.found.get(key, MISSING), answers.generation)
        sent_at = asyncio.get_running_loop().time()
        response = await self._ask(lambda fields: self._renderer.lookup(key, fields), (key,), deadline, answer_by)
        answer = read_key_answer(response, key, self._generation, self._link.core.decode_value)
        if self._link.core.cache is not None and self._generation is None:
            found, missing = ({key: answer.value}, ()) if answer.is_found else ({}, (key,))
            self._link.core.cache.learn(answer.generation, found, missing, sent_at)
        return answer

    async def _ask_batch(self, keys: Sequence[str], deadline: float, answer_by: float) -> SharedAnswer:
        pieces: list[tuple[Sequence[str], Piece]] = []
        remaining: list[Sequence[str]] = [[*dict.fromkeys(keys)]]
        while remaining:
            part = remaining.pop()
            piece: Piece
            try:
                if len(part) == 1:
                    piece = await self._ask_key(part[0], deadline, answer_by)
                else:
                    piece = await self._ask_part(self._renderer, part, deadline, answer_by, partial=True)
            except LookupFailed as error:
                piece = error
            if is_divisible(piece, part):
                middle = len(part) // 2
                remaining += (part[middle:], part[:middle])
            else:
                pieces.append((part, piece))
        return SharedAnswer(keys, pieces)

    async def _ask_part(
        self, renderer: RequestRenderer, keys: Sequence[str], deadline: float, answer_by: float | None, *, partial: bool
    ) -> KeysAnswer:
        sent_at = asyncio.get_running_loop().time()
        response = await self._ask(
            lambda fields: renderer.batch(keys, fields, partial=partial), keys, deadline, answer_by
        )
        try:
            decode = self._link.core.decode
            answer = read_batch_answer(response, keys, renderer.generation, partial=partial, decode=decode)
        except RequestRefused as error:
            if error.limit is not None:
                self._link.core.max_keys = min(self._link.core.max_keys, error.limit)
            raise
        if self._link.core.cache is not None and renderer.generation is None:
            self._link.core.cache.learn(answer.generation, answer.found, answer.missing, sent_at)
        return answer

    async def _take_step(self, step: Step, deadline: float, *, partial: bool) -> Outcome:
        if not isinstance(step, Part):
            await asyncio.sleep(max(0.0, min(step, deadline - asyncio.get_running_loop().time())))
            return None
        renderer = self._renderer
        if step.generation is not None and step.generation != self._generation:
            renderer = RequestRenderer(self._link.core.settings.address, step.generation)
        try:
            return await self._ask_part(renderer, step.keys, deadline, None, partial=partial)
        except LookupFailed as error:
            return error


class AsyncClient(AsyncLookups):
    """A client of the router at ``url``, for asyncio.

    It is cheap to create, and connects on its first request. Close it, or use it as a context manager.

    ``timeout``            seconds that a call may take in all
    ``connect_timeout``    seconds for connecting to one address
    ``read_timeout``       seconds without a byte of an answer, after which another connection is tried
    ``token, token_file``  the bearer token for the router; a file is read again when it changes
    ``ca_file``            PEM file with the CAs to trust instead of the system's
    ``cert_file, key_file``  the client's certificate, for a router that requires one
    ``max_connections``    the most connections at a time
    ``retries``            how often a request is repeated on another connection after a failure
    ``traceparent``        a function that returns a request's ``traceparent`` field, or None
    ``cache_bytes``        memory for cached results; 0: no cache
    ``cache_seconds``      seconds that a cached result is valid after the last answer of its generation
    ``max_keys``           keys in one request; fewer if the router's limit is lower

    Raises UsageError for a wrong value of an argument, TypeError for a wrong type.
    """

    def __init__(self, url: str, **options: Unpack[ClientOptions]) -> None:
        super().__init__(AsyncRouterLink(check_settings(url, options)), None)

    async def close(self) -> None:
        """Close all connections. Pending and further lookups raise RuntimeError."""
        await self._link.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        await self.close()
