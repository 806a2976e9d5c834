"""The client for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, ClassVar, Final, NoReturn, Self, Unpack

from lookupdb.client.answers import KeyAnswer, KeysAnswer, read_batch_answer, read_dataset, read_key_answer
from lookupdb.client.async_combiner import AsyncCombiner
from lookupdb.client.async_connection import CLOSED, AsyncConnectionPool
from lookupdb.client.attempts import TOO_MANY_CONNECTIONS, Attempts, ConnectionFailure
from lookupdb.client.client_core import ClientCore, refuse_copy
from lookupdb.client.fork_epoch import current_epoch, process_lock
from lookupdb.client.many_keys import Outcome, Part, Pause
from lookupdb.client.refusals import is_of_the_connection
from lookupdb.client.requests import MAX_TARGET_CHARACTERS, RequestRenderer, check_key
from lookupdb.client.response_reader import Response
from lookupdb.client.results import DatasetDescription, Lookup, LookupResults
from lookupdb.client.settings import ClientOptions, ClientSettings, check_settings
from lookupdb.client.shared_answer import Piece, SharedAnswer, plan_requests
from lookupdb.client.sync_client import MAX_KEPT
from lookupdb.errors import LookupFailed, UnknownGeneration

_UNAUTHENTICATED: Final = 401
_left_behind: list[object] = []
"""Connections of a parent's event loop. A process that was forked off may not even close them: the parent's loop
watches them by the same means, and would lose them."""


class AsyncRouterLink:
    """The connections to a router, and how often a request is sent over them. They belong to an event loop: in another
    one, and in a process that was forked off, there are others."""

    def __init__(self, settings: ClientSettings) -> None:
        self.core = ClientCore(settings)
        self.combiners: dict[str | None, AsyncCombiner] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pool: AsyncConnectionPool | None = None
        self._epoch = current_epoch()
        self._is_closed = False

    async def ask(
        self,
        render: Callable[[bytes], bytes],
        keys: Sequence[str],
        deadline: float,
        answer_by: float | None = None,
    ) -> Response:
        """The answer to the request that ``render`` makes, given further lines of its head. Raises LookupFailed.
        ``answer_by``: when the router should answer, if that is not ``deadline``."""
        core = self.core
        attempts = Attempts(core.settings.retries)
        is_fresh = False
        while True:
            token = core.tokens.line()
            try:
                response = await self._exchange(render, token, deadline, answer_by, is_fresh=is_fresh)
            except ConnectionFailure as error:
                if self._is_closed:
                    raise RuntimeError(CLOSED) from error
                failure = error
            else:
                if response.status == _UNAUTHENTICATED and attempts.allow_new_token() and core.tokens.refresh(token):
                    continue
                if not is_of_the_connection(response):
                    return response
                failure = ConnectionFailure(TOO_MANY_CONNECTIONS, "the router takes no more connections now")
            if not attempts.allow_another(failure):
                raise failure.to_error(keys) from failure
            is_fresh = True

    async def _exchange(
        self,
        render: Callable[[bytes], bytes],
        token: bytes,
        deadline: float,
        answer_by: float | None,
        *,
        is_fresh: bool,
    ) -> Response:
        pool = self._pool
        assert pool is not None
        connection = await pool.acquire(deadline, is_fresh=is_fresh)
        try:
            fields = self.core.render_fields(token, asyncio.get_running_loop().time(), deadline, answer_by)
            return await connection.exchange(render(fields), deadline)
        finally:
            pool.release(connection)

    def enter_loop(self) -> asyncio.AbstractEventLoop:
        """The running loop, to which the connections belong from now on. Raises RuntimeError if the client is closed,
        or the loop to which they belonged runs elsewhere."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop or self._epoch is not current_epoch():
            with process_lock():
                self._move(loop)
        if self._is_closed:
            raise RuntimeError(CLOSED)
        return loop

    def _move(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._epoch is not current_epoch():
            _left_behind.append((self._pool, self._loop, dict(self.combiners)))
            self.core.renew_after_fork()
        elif self._loop is not None and self._loop.is_running():
            raise RuntimeError(
                "an AsyncClient belongs to one event loop at a time, and that of this one still runs in another thread;"
                " make one for each loop"
            )
        elif self._pool is not None:
            self._pool.close()
        self._loop = loop
        self._pool = AsyncConnectionPool(loop, self.core.settings)
        self.combiners = {}
        self._epoch = current_epoch()

    async def close(self) -> None:
        """Close the connections, and end what is under way."""
        self._is_closed = True
        if self._loop is asyncio.get_running_loop() and self._epoch is current_epoch():
            for combiner in [*self.combiners.values()]:
                await combiner.close()
            if self._pool is not None:
                self._pool.close()
                await self._pool.wait_closed()


class AsyncLookups:
    """Lookups in the active generation, or in the one that ``AsyncClient.at`` was given. Concurrent lookups of single
    keys leave together, as one request.

    Each call takes at most the client's ``timeout``. It raises Unavailable if nothing can be said now of a key that was
    asked for, InvalidAnswer for what no router would answer, and RequestRefused for what the router refuses.
    """

    __iter__: ClassVar[None] = None
    """Not iterable: a router does not list its keys."""

    def __init__(self, link: AsyncRouterLink, generation: str | None) -> None:
        self._link = link
        self._generation = generation
        self._renderer = RequestRenderer(link.core.settings.address, generation)

    def __repr__(self) -> str:
        which = f" at {self._generation}" if self._generation is not None else ""
        return f"<lookupdb {type(self).__name__} of {self._link.core.settings.address.url}{which}>"

    def __reduce__(self) -> NoReturn:
        refuse_copy(self)

    async def get(self, key: str, default: Any = None) -> Any:
        """The value of ``key``, or ``default`` if no record has it."""
        answer = await self._find(key)
        return answer.value if answer.is_found else default

    def __getitem__(self, key: str) -> Awaitable[Any]:
        return self._get_item(key)

    async def _get_item(self, key: str) -> Any:
        answer = await self._find(key)
        if not answer.is_found:
            raise KeyError(key)
        return answer.value

    def __contains__(self, key: object) -> bool:
        raise TypeError(f"`{key!r:.60} in client` cannot wait for its answer: write `await client.has(…)`")

    async def has(self, key: str) -> bool:
        """Whether a record has ``key``."""
        return (await self._find(key)).is_found

    async def lookup(self, key: str) -> Lookup:
        """What was found of ``key``, and the generation that has it, or has it not."""
        deadline = self._link.enter_loop().time() + self._link.core.settings.timeout
        answer = await self._find(key := check_key(key))
        if answer.generation is None:  # of a batch that several have answered: alone, its shard's answers
            self._link.enter_loop()
            answer = await self._ask_key(key, deadline)
        return Lookup(answer.value if answer.is_found else None, answer.is_found, answer.generation)

    async def get_many(self, keys: Iterable[str], *, partial: bool = False) -> LookupResults:
        """What was found of ``keys``, each once, out of one generation, in as many requests as it takes.

        ``partial``: if some keys are unavailable, tell which, rather than raise Unavailable; that is still raised if
        nothing can be said of any. While the dataset is rolled out shard by shard, keys may be of several generations.
        """
        link = self._link
        deadline = link.enter_loop().time() + link.core.settings.timeout
        many = link.core.begin_many(keys, self._generation, partial=partial)
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
        except UnknownGeneration as error:
            raise self._name(error) from error

    async def dataset(self) -> DatasetDescription:
        """The dataset that the router serves, and its active generation, also of a client that asks another one."""
        deadline = self._link.enter_loop().time() + self._link.core.settings.timeout
        return read_dataset(await self._link.ask(self._renderer.dataset, (), deadline))

    def at(self, generation: str) -> AsyncLookups:
        """Lookups in ``generation``, such as a candidate, and in no other: they raise UnknownGeneration once the router
        does not serve it any more. They are of this client, and end with it. Nothing of them is cached."""
        if generation is None:
            raise TypeError("a generation's name is text like 'g12', found None; leave at() out to ask the active one")
        return AsyncLookups(self._link, generation)

    async def _find(self, key: str) -> KeyAnswer:
        key = check_key(key)
        link = self._link
        loop = link.enter_loop()
        if link.core.cache is not None:
            known = link.core.find_cached(key, self._generation)
            if known is not None:
                return known
        combiner = link.combiners.get(self._generation) or self._add_combiner(loop)
        shared = await combiner.find(key)
        try:
            return shared.take(key)
        except UnknownGeneration as error:
            raise self._name(error) from error

    def _add_combiner(self, loop: asyncio.AbstractEventLoop) -> AsyncCombiner:
        core, combiners = self._link.core, self._link.combiners
        if len(combiners) >= MAX_KEPT:
            combiners.pop(next(iter(combiners)))
        combiner = AsyncCombiner(loop, self._ask_batch, lambda: core.max_keys, core.settings.timeout)
        combiners[self._generation] = combiner
        return combiner

    async def _ask_key(self, key: str, deadline: float, answer_by: float | None = None) -> KeyAnswer:
        if len(key) > MAX_TARGET_CHARACTERS:
            answers = await self._ask_part(self._renderer, (key,), deadline, answer_by, partial=False)
            return answers.to_key_answer(key)
        sent_at = asyncio.get_running_loop().time()
        response = await self._link.ask(lambda fields: self._renderer.lookup(key, fields), (key,), deadline, answer_by)
        answer = read_key_answer(response, key, self._generation)
        if self._generation is None:
            self._link.core.learn_key(key, answer, sent_at)
        return answer

    async def _ask_batch(self, keys: Sequence[str], deadline: float, answer_by: float) -> SharedAnswer:
        plan = plan_requests(keys)
        part = next(plan)
        while True:
            piece: Piece
            try:
                if len(part) == 1:
                    piece = await self._ask_key(part[0], deadline, answer_by)
                else:
                    piece = await self._ask_part(self._renderer, part, deadline, answer_by, partial=True)
            except LookupFailed as error:
                self._link.core.learn_limit(error)
                piece = error
            try:
                part = plan.send(piece)
            except StopIteration as end:
                shared: SharedAnswer = end.value
                return shared

    async def _ask_part(
        self,
        renderer: RequestRenderer,
        keys: Sequence[str],
        deadline: float,
        answer_by: float | None = None,
        *,
        partial: bool,
    ) -> KeysAnswer:
        sent_at = asyncio.get_running_loop().time()
        response = await self._link.ask(
            lambda fields: renderer.batch(keys, fields, partial=partial), keys, deadline, answer_by
        )
        answer = read_batch_answer(response, keys, renderer.generation, partial=partial)
        if renderer.generation is None:
            self._link.core.learn_batch(answer, sent_at)
        return answer

    async def _take_step(self, step: Part | Pause, deadline: float, *, partial: bool) -> Outcome:
        if isinstance(step, Pause):
            loop = asyncio.get_running_loop()
            await asyncio.sleep(max(0.0, min(step.seconds, deadline - loop.time())))
            return None
        renderer = self._renderer
        if step.generation is not None and step.generation != self._generation:
            renderer = RequestRenderer(self._link.core.settings.address, step.generation)
        try:
            return await self._ask_part(renderer, step.keys, deadline, partial=partial)
        except LookupFailed as error:
            self._link.core.learn_limit(error)
            return error

    def _name(self, error: UnknownGeneration) -> UnknownGeneration:
        return UnknownGeneration(error.message, generation=self._generation or "", active=error.active)


class AsyncClient(AsyncLookups):
    """A client of the router at ``url``, for asyncio. It is cheap to make, and connects when it is first asked. A
    context manager: it is closed at its end. Its arguments are those of ``Client``.

    Raises UsageError for arguments that cannot be used, TypeError for those of another type.
    """

    def __init__(self, url: str, **options: Unpack[ClientOptions]) -> None:
        super().__init__(AsyncRouterLink(check_settings(url, options)), None)

    async def close(self) -> None:
        """Close all connections. Lookups that are under way, and further ones, raise RuntimeError."""
        await self._link.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        await self.close()
