"""The client for threads and greenlets: its calls block."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, ClassVar, Final, NoReturn, Self, TypeVar, Unpack

from lookupdb.client.answers import (
    KeyAnswer,
    KeysAnswer,
    read_batch_answer,
    read_dataset,
    read_key_answer,
)
from lookupdb.client.attempts import TOO_MANY_CONNECTIONS, Attempts, ConnectionFailure
from lookupdb.client.client_core import ClientCore, refuse_copy
from lookupdb.client.combiner import Combiner
from lookupdb.client.connection_pool import ConnectionPool
from lookupdb.client.fork_epoch import current_epoch, process_lock
from lookupdb.client.many_keys import Outcome, Part, Pause
from lookupdb.client.refusals import is_of_the_connection
from lookupdb.client.requests import MAX_TARGET_CHARACTERS, RequestRenderer, check_key
from lookupdb.client.response_reader import Response
from lookupdb.client.results import DatasetDescription, Lookup, LookupResults
from lookupdb.client.settings import ClientOptions, ClientSettings, check_settings
from lookupdb.client.shared_answer import Piece, SharedAnswer, plan_requests
from lookupdb.errors import LookupFailed, UnknownGeneration

T = TypeVar("T")
_UNAUTHENTICATED: Final = 401


class RouterLink:
    """The connections to a router, and how often a request is sent over them. Those of a process that was forked off
    are its own."""

    def __init__(self, settings: ClientSettings) -> None:
        self.core = ClientCore(settings)
        self.combiners: dict[str | None, Combiner] = {}
        self._pool = ConnectionPool(settings)
        self._epoch = current_epoch()
        self._is_closed = False

    def ask(
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
                response = self._exchange(render, token, deadline, answer_by, is_fresh=is_fresh)
                if response.status == _UNAUTHENTICATED and attempts.allow_new_token() and core.tokens.refresh(token):
                    continue
                if not is_of_the_connection(response):
                    return response
                raise ConnectionFailure(TOO_MANY_CONNECTIONS, "the router takes no more connections now")
            except ConnectionFailure as failure:  # forgotten behind it: its traceback holds the frames of all callers
                if not attempts.allow_another(failure):
                    raise failure.to_error(keys) from failure
            is_fresh = True

    def _exchange(
        self,
        render: Callable[[bytes], bytes],
        token: bytes,
        deadline: float,
        answer_by: float | None,
        *,
        is_fresh: bool,
    ) -> Response:
        pool = self._pool
        lease = pool.begin()
        try:
            connection = pool.acquire(lease, deadline, is_fresh=is_fresh)
            fields = self.core.render_fields(token, time.monotonic(), deadline, answer_by)
            return connection.exchange(render(fields), deadline)
        finally:
            pool.release(lease)

    def check_process(self) -> None:
        """Begin anew in a process that was forked off. Raises RuntimeError if the client is closed."""
        if self._epoch is not current_epoch():
            self._begin_anew()
        if self._is_closed:
            raise RuntimeError("this client is closed")

    def _begin_anew(self) -> None:
        with process_lock():
            if self._epoch is not current_epoch():
                self._pool.abandon()
                self._pool = ConnectionPool(self.core.settings)
                self.combiners = {}
                self.core.renew_after_fork()
                self._epoch = current_epoch()  # last: another thread that sees it goes on with all the rest

    def close(self) -> None:
        """Close the connections."""
        self._is_closed = True
        self._pool.close()


class Lookups:
    """Lookups in the active generation, or in the one that ``Client.at`` was given. Safe for threads and greenlets,
    whose concurrent lookups of single keys leave together, as one request.

    Each call takes at most the client's ``timeout``. It raises Unavailable if nothing can be said now of a key that was
    asked for, InvalidAnswer for what no router would answer, and RequestRefused for what the router refuses.
    """

    __iter__: ClassVar[None] = None
    """Not iterable: a router does not list its keys."""

    def __init__(self, link: RouterLink, generation: str | None) -> None:
        self._link = link
        self._generation = generation
        self._renderer = RequestRenderer(link.core.settings.address, generation)

    def __repr__(self) -> str:
        which = f" at {self._generation}" if self._generation is not None else ""
        return f"<lookupdb {type(self).__name__} of {self._link.core.settings.address.url}{which}>"

    def __reduce__(self) -> NoReturn:
        refuse_copy(self)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of ``key``, or ``default`` if no record has it."""
        answer = self._find(key)
        return answer.value if answer.is_found else default

    def __getitem__(self, key: str) -> Any:
        answer = self._find(key)
        if not answer.is_found:
            raise KeyError(key)
        return answer.value

    def __contains__(self, key: object) -> bool:
        return self.has(check_key(key))

    def has(self, key: str) -> bool:
        """Whether a record has ``key``."""
        return self._find(key).is_found

    def lookup(self, key: str) -> Lookup:
        """What was found of ``key``, and the generation that has it, or has it not."""
        deadline = time.monotonic() + self._link.core.settings.timeout
        answer = self._find(key := check_key(key))
        if answer.generation is None:  # of a batch that several have answered: alone, its shard's answers
            answer = self._ask_key(key, deadline)
        return Lookup(answer.value if answer.is_found else None, answer.is_found, answer.generation)

    def get_many(self, keys: Iterable[str], *, partial: bool = False) -> LookupResults:
        """What was found of ``keys``, each once, out of one generation, in as many requests as it takes.

        ``partial``: if some keys are unavailable, tell which, rather than raise Unavailable; that is still raised if
        nothing can be said of any. While the dataset is rolled out shard by shard, keys may be of several generations.
        """
        link = self._link
        link.check_process()
        deadline = time.monotonic() + link.core.settings.timeout
        many = link.core.begin_many(keys, self._generation, partial=partial)
        outcome: Outcome = None
        plan = many.plan()
        try:
            if many.fits_one_part:
                outcome = self._take_step(Part(many.keys, None), deadline, partial=partial)
                if isinstance(outcome, KeysAnswer):
                    return outcome.to_results()
                next(plan)  # the same part
            while True:
                outcome = self._take_step(plan.send(outcome), deadline, partial=partial)
        except StopIteration as end:
            results: LookupResults = end.value
            return results
        except UnknownGeneration as error:
            raise self._name(error) from error

    def dataset(self) -> DatasetDescription:
        """The dataset that the router serves, and its active generation, also of a client that asks another one."""
        self._link.check_process()
        deadline = time.monotonic() + self._link.core.settings.timeout
        return read_dataset(self._link.ask(self._renderer.dataset, (), deadline))

    def at(self, generation: str) -> Lookups:
        """Lookups in ``generation``, such as a candidate, and in no other: they raise UnknownGeneration once the router
        does not serve it any more. They are of this client, and end with it. Nothing of them is cached."""
        if generation is None:
            raise TypeError("a generation's name is text like 'g12', found None; leave at() out to ask the active one")
        return Lookups(self._link, generation)

    def _find(self, key: str) -> KeyAnswer:
        key = check_key(key)
        link = self._link
        link.check_process()
        known = link.core.find_cached(key, self._generation)
        if known is not None:
            return known
        combiner = link.combiners.get(self._generation)
        if combiner is None:
            combiner = self._add_combiner()
        try:
            return combiner.find(key)
        except UnknownGeneration as error:
            raise self._name(error) from error

    def _add_combiner(self) -> Combiner:
        core = self._link.core
        combiner = Combiner(self._ask_key, self._ask_batch, lambda: core.max_keys, core.settings.timeout)
        return _set_bounded(self._link.combiners, self._generation, combiner)

    def _ask_key(self, key: str, deadline: float, answer_by: float | None = None) -> KeyAnswer:
        if len(key) > MAX_TARGET_CHARACTERS:
            answers = self._ask_part(self._renderer, (key,), deadline, answer_by, partial=False)
            return answers.to_key_answer(key)
        sent_at = time.monotonic()
        response = self._link.ask(lambda fields: self._renderer.lookup(key, fields), (key,), deadline, answer_by)
        answer = read_key_answer(response, key, self._generation)
        if self._generation is None:
            self._link.core.learn_key(key, answer, sent_at)
        return answer

    def _ask_batch(self, keys: Sequence[str], deadline: float, answer_by: float) -> SharedAnswer:
        plan = plan_requests(keys)
        part = next(plan)
        while True:
            piece: Piece
            try:
                if len(part) == 1:
                    piece = self._ask_key(part[0], deadline, answer_by)
                else:
                    piece = self._ask_part(self._renderer, part, deadline, answer_by, partial=True)
            except LookupFailed as error:
                self._link.core.learn_limit(error)
                piece = error
            try:
                part = plan.send(piece)
            except StopIteration as end:
                shared: SharedAnswer = end.value
                return shared

    def _ask_part(
        self,
        renderer: RequestRenderer,
        keys: Sequence[str],
        deadline: float,
        answer_by: float | None = None,
        *,
        partial: bool,
    ) -> KeysAnswer:
        sent_at = time.monotonic()
        response = self._link.ask(
            lambda fields: renderer.batch(keys, fields, partial=partial), keys, deadline, answer_by
        )
        answer = read_batch_answer(response, keys, renderer.generation, partial=partial)
        if renderer.generation is None:
            self._link.core.learn_batch(answer, sent_at)
        return answer

    def _take_step(self, step: Part | Pause, deadline: float, *, partial: bool) -> Outcome:
        if isinstance(step, Pause):
            time.sleep(max(0.0, min(step.seconds, deadline - time.monotonic())))
            return None
        renderer = self._renderer
        if step.generation is not None and step.generation != self._generation:
            renderer = RequestRenderer(self._link.core.settings.address, step.generation)
        try:
            return self._ask_part(renderer, step.keys, deadline, partial=partial)
        except LookupFailed as error:
            self._link.core.learn_limit(error)
            return error

    def _name(self, error: UnknownGeneration) -> UnknownGeneration:
        return UnknownGeneration(error.message, generation=self._generation or "", active=error.active)


class Client(Lookups):
    """A client of the router at ``url``, for threads and greenlets. It is cheap to make, and connects when it is first
    asked. A context manager: it is closed at its end.

    ``timeout``            seconds that a call may take, whatever it does
    ``connect_timeout``    seconds that connecting to one address may take
    ``read_timeout``       seconds without a byte of an answer after which another connection is tried
    ``token, token_file``  what the router is shown; a file is read again when it changes
    ``ca_file``            whom to trust instead of the system's authorities, as PEM
    ``cert_file, key_file``  the certificate to show, for a router that asks for one
    ``max_connections``    at most so many at a time
    ``retries``            how often a request is sent again on another connection, when one failed
    ``traceparent``        a function that returns the field of that name for a request, or None
    ``cache_bytes``        how much is kept of what was looked up; 0: nothing
    ``cache_seconds``      how long that is trusted after the generation was last seen to be the active one
    ``max_keys``           keys in one request; less if the router says so

    Raises UsageError for arguments that cannot be used, TypeError for those of another type.
    """

    def __init__(self, url: str, **options: Unpack[ClientOptions]) -> None:
        super().__init__(RouterLink(check_settings(url, options)), None)

    def close(self) -> None:
        """Close all connections. Calls that are under way end as they do; further ones raise RuntimeError."""
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()


MAX_KEPT: Final = 64


def _set_bounded(values: dict[str | None, T], name: str | None, value: T) -> T:
    """Keep ``value`` under ``name``, if there is none yet, and no more than MAX_KEPT; return what is kept."""
    with process_lock():
        if len(values) >= MAX_KEPT and name not in values:
            values.pop(next(iter(values)))
        return values.setdefault(name, value)
