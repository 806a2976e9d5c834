"""Read a router's answer. Anything but a complete, consistent answer is an error. No I/O.

A ``Response`` of ``wire.py`` becomes a ``KeyAnswer`` or ``KeysAnswer``, in which each requested key is found, missing
or unavailable, with the generations that answered. Any other answer becomes an error, by its problem details or its
status (``refusal``). Callers get ``Lookup``, ``LookupResults`` and ``DatasetDescription``.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from lookupdb import batch_frames, exact_json
from lookupdb.batch_frames import InvalidFrames
from lookupdb.client.wire import Response
from lookupdb.errors import InvalidAnswer, LookupFailed, RequestRefused, Unavailable, UnknownGeneration
from lookupdb.key_columns import Key, UnusableColumn, join_key

GENERATION: Final = b"lookupdb-generation"
_VALUE_FORMAT: Final = b"lookupdb-value-format"
_GENERATIONS: Final = re.compile(rb"g[1-9][0-9]{0,8}(?:, g[1-9][0-9]{0,8})*")
_JSON: Final = b"application/json"
_OCTETS: Final = b"application/octet-stream"
_FRAMES: Final = batch_frames.MEDIA_TYPE.encode()
_TYPE_PREFIX: Final = "https://lookupdb.dev/problems/"
_MAX_PROBLEM_BYTES: Final = 1 << 16
_MAX_CHARACTERS: Final = 1000
_PARTIAL_OF_HTTP: Final = 'with "partial": true'
"""Part of a router's advice for a batch with unavailable keys, which does not fit callers of this client."""
_HINTS: Final = {
    "unauthenticated": "give the client a valid token, by token= or token_file=",
    "forbidden": "let spec.router.auth of the dataset name this service account",
    "no-such-resource": "check that the URL is the router's, without /v1, and has its public port",
    "answer-too-large": "request fewer keys at once, or a large value alone",
}


class _Missing:
    """The value of a missing key."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()


class Lookup(NamedTuple):
    """The result of a lookup of one key."""

    value: Any
    """None if the key is missing; but None may also be a value: see ``is_found``."""
    is_found: bool
    generation: str | None
    """The generation that answered. None for a key that no record can have, while the dataset is rolled out shard by
    shard."""


class LookupResults(NamedTuple):
    """The result of a lookup of many keys. Each requested key is in exactly one of ``found``, ``missing`` and
    ``unavailable``, once, in the order of the request."""

    found: dict[Any, Any]
    """Key, as requested → value."""
    missing: list[Any]
    """Keys that no record has."""
    unavailable: list[Any]
    """Keys that cannot be looked up now. Empty without ``partial``."""
    generation: str | None
    """The generation that answered; None if several did, while the dataset is rolled out shard by shard."""
    generations: tuple[str, ...]
    """The generations that answered, in the order of their numbers."""

    def of_columns(self, texts: Mapping[Key, str]) -> LookupResults:
        """Return these results for the keys that are joined to ``texts``."""
        missing, unavailable = {*self.missing}, {*self.unavailable}
        return self._replace(
            found={key: self.found[text] for key, text in texts.items() if text in self.found},
            missing=[key for key, text in texts.items() if text in missing],
            unavailable=[key for key, text in texts.items() if text in unavailable],
        )

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, str):
            raise TypeError(f"results have three parts, and no keys of their own: write results.found[{place!r:.60}]")
        return tuple.__getitem__(self, place)


class KeyColumns(NamedTuple):
    """The columns of a key, and what joins them."""

    columns: tuple[str, ...]
    separator: str

    def join(self, key: Key) -> str:
        """Return the text of ``key``; an empty text, which no record has, for a key that no record can have."""
        if not isinstance(key, tuple):
            return key
        try:
            return join_key(self.columns, key, self.separator)
        except UnusableColumn:
            return ""


class DatasetDescription(NamedTuple):
    """The dataset that a router serves."""

    namespace: str
    name: str
    generation: str
    """The active generation; during a rollout shard by shard, the new one."""
    records: int
    """Number of records of ``generation``."""
    shards: int
    built_at: str
    """Time when it was built, ISO 8601, UTC; of several serving generations, the oldest."""
    age_seconds: float
    """Seconds since ``built_at``."""
    candidates: tuple[str, ...]
    """Other generations for ``at``."""
    shard_generations: Mapping[str, int]
    """During a rollout shard by shard: generation → number of shards that it serves. Else empty."""
    keys: Mapping[str, KeyColumns] = {}
    """For each generation whose keys have several columns, these."""


def decode_json(text: bytes | bytearray) -> Any:
    """Parse JSON as ``exact_json`` does. Raises InvalidAnswer."""
    try:
        return exact_json.decode(text)
    except (ValueError, RecursionError) as error:
        raise InvalidAnswer(f"the answer is not the JSON that it should be: {error}") from error


class ProblemDetails(NamedTuple):
    """A router's problem details (RFC 9457); empty if the answer has none."""

    name: str = ""
    detail: str = ""
    members: Mapping[str, Any] = {}


def read_problem(response: Response) -> ProblemDetails:
    """Return the answer's problem details."""
    if _media_type(response) != b"application/problem+json" or len(response.body) > _MAX_PROBLEM_BYTES:
        return ProblemDetails()
    try:
        members = decode_json(response.body)
    except InvalidAnswer:
        return ProblemDetails()
    if not isinstance(members, dict):
        return ProblemDetails()
    name = _printable(members.get("type"))
    is_ours = name.startswith(_TYPE_PREFIX)
    return ProblemDetails(name[len(_TYPE_PREFIX) :] if is_ours else "", _printable(members.get("detail")), members)


def is_of_the_connection(response: Response) -> bool:
    """Return whether the answer concerns only this connection: the request may be sent over another one."""
    if response.status == 503:
        return read_problem(response).name == "too-many-connections"
    return response.status == 408


def refusal(response: Response, keys: tuple[str, ...], expected: str | None = None) -> LookupFailed:
    """Return the error for an answer other than 200. ``expected`` is the generation that was requested by name."""
    status, problem = response.status, read_problem(response)
    if status >= 500:  # from a router or a proxy: whatever the cause, the keys are unavailable
        camel_case = "".join(map(str.capitalize, problem.name.split("-")))
        reason = _printable(problem.members.get("reason")) or camel_case or f"Status{status}"
        detail = problem.detail.replace(_PARTIAL_OF_HTTP, "with partial=True")
        shard = problem.members.get("shard")
        detail = detail or f"the answer was {status}, not from a router"
        return make_unavailable(keys, reason, detail, shard if isinstance(shard, int) else None)
    answered = f"the router answered {status}"
    if not problem.name:
        if status in (404, 405) or status < 400:  # 405: an admin port, for a batch
            return InvalidAnswer(f"{answered}, not as a router does", hint=_HINTS["no-such-resource"])
        return RequestRefused(f"{answered} without saying why", status=status)
    text = f"{answered} {problem.name}: {problem.detail}"
    if status == 412:
        active = problem.members.get("active")
        names = tuple(map(_printable, active)) if isinstance(active, list) else ()
        named = f"; active is {', '.join(names)}" if names else ""
        text = text.partition("; leave Lookupdb-Generation")[0]
        return UnknownGeneration(f"{text}{named}", generation=expected or "", active=names)
    limit = problem.members.get("limit")
    limit = limit if isinstance(limit, int) and limit > 0 else None
    return RequestRefused(text, hint=_HINTS.get(problem.name), status=status, problem=problem.name, limit=limit)


def make_unavailable(keys: tuple[str, ...], reason: str, detail: str, shard: int | None = None) -> Unavailable:
    """Return the error for ``keys``, at least one of which cannot be looked up now."""
    shown = ", ".join(repr(key[:60]) for key in keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
    what = f"unavailable now: {shown}" if keys else "unavailable now"
    return Unavailable(f"{what} ({reason}): {detail}", keys=keys, reason=reason, detail=detail, shard=shard)


def _printable(value: object) -> str:
    """Return ``value``, if it is text, as one line without control characters."""
    if not isinstance(value, str):
        return ""
    return "".join(character if character.isprintable() else " " for character in value[:_MAX_CHARACTERS])


class KeyAnswer(NamedTuple):
    """The answer for one key."""

    value: Any  # the value, or MISSING
    generation: str | None  # None if several generations answered: the key's batch, or a key that no record can have

    @property
    def is_found(self) -> bool:
        """True if a record has the key."""
        return self.value is not MISSING


class KeysAnswer(NamedTuple):
    """The answer for many keys. Each key is in one of the three, in the requested order."""

    found: dict[str, Any]
    missing: dict[str, Any]
    unavailable: dict[str, Any]
    generations: tuple[str, ...]

    @property
    def generation(self) -> str | None:
        """The only generation that answered, or None."""
        return self.generations[0] if len(self.generations) == 1 else None

    def to_results(self) -> LookupResults:
        """Return the result of a call."""
        generation = self.generation
        return LookupResults(self.found, [*self.missing], [*self.unavailable], generation, self.generations)


def read_key_answer(response: Response, key: str, expected: str | None) -> KeyAnswer:
    """Read the answer to ``RequestRenderer.lookup``, from the generation ``expected`` if one was requested. Raises
    LookupFailed."""
    is_missing = response.status == 404 and GENERATION in response.fields and read_problem(response).name == "missing"
    if response.status != 200 and not is_missing:
        raise refusal(response, (key,), expected)
    generations = _read_generations(response, expected)
    generation = generations[0] if len(generations) == 1 else None
    if is_missing:
        return KeyAnswer(MISSING, generation)
    kind = _media_type(response)
    if kind not in (_JSON, _OCTETS):
        raise InvalidAnswer(f"a value is JSON or octets, found the Content-Type {kind[:60]!r}")
    return KeyAnswer(decode_json(response.body) if kind == _JSON else bytes(response.body), generation)


def read_batch_answer(response: Response, keys: Sequence[str], expected: str | None, *, partial: bool) -> KeysAnswer:
    """Read the answer to ``RequestRenderer.batch`` for ``keys``, which are distinct; without ``partial`` it must cover
    all of them. Raises LookupFailed."""
    if response.status != 200:
        raise refusal(response, tuple(keys), expected)
    media_type, value_format = _media_type(response), response.fields.get(_VALUE_FORMAT)
    document = decode_json(response.body) if media_type == _JSON else None
    if media_type != _FRAMES and not isinstance(document, dict):
        raise InvalidAnswer(f"the answer to a batch is a JSON object or frames, found {media_type[:60]!r}")
    if value_format not in (b"json", b"raw"):
        raise InvalidAnswer(
            "the answer does not say by Lookupdb-Value-Format whether its values are JSON or raw",
            hint="is the router older than this client, or does a proxy take header fields away?",
        )
    found: dict[str, Any]
    if document is None:
        try:
            frames, missing, unavailable = batch_frames.decode(response.body, keys)
        except InvalidFrames as error:
            raise InvalidAnswer(f"the answer to a batch is malformed: {error}") from error
        found = frames if value_format == b"raw" else {key: decode_json(value) for key, value in frames.items()}
        absent, unknown = dict.fromkeys(missing), dict.fromkeys(unavailable)
    else:
        members = document.get("found"), document.get("missing"), document.get("unavailable", [])
        if [*map(type, members)] != [dict, list, list]:
            raise InvalidAnswer("the answer to a batch says neither what was found nor what is missing")
        found, absent, unknown = _arrange(*members, keys)
        if value_format == b"raw":
            try:
                found = {key: binascii.a2b_base64(text, strict_mode=True) for key, text in found.items()}
            except (ValueError, TypeError) as error:
                raise InvalidAnswer(f"a raw value of the answer is not base64: {error}") from error
    if unknown and not partial:
        raise InvalidAnswer("the answer to a batch leaves keys unanswered, although the request did not allow that")
    generations = _read_generations(response, expected)
    if document is not None:
        told = [document.get("generation")] if len(generations) == 1 else document.get("generations")
        if told != list(generations):
            raise InvalidAnswer(f"the answer's head names {', '.join(generations)}, its body {told!r:.60}")
    return KeysAnswer(found, absent, unknown, generations)


def _arrange(
    found: dict[str, Any], missing: list[Any], unavailable: list[Any], keys: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the three in the order of ``keys``. Raises InvalidAnswer unless each key is in one: an omitted key is not
    a missing key."""
    if not (missing or unavailable) and [*found] == [*keys]:  # routers keep their order
        return found, {}, {}
    try:
        is_whole = {*found, *missing, *unavailable} == {*keys}
    except TypeError:  # not text
        is_whole = False
    if not is_whole or len(found) + len(missing) + len(unavailable) != len(keys):
        raise InvalidAnswer("the answer to a batch does not list exactly the requested keys, each once")
    parts = found, dict.fromkeys(missing), dict.fromkeys(unavailable)
    found, absent, unknown = ({key: part[key] for key in keys if key in part} if part else {} for part in parts)
    return found, absent, unknown


def read_dataset(response: Response) -> DatasetDescription:
    """Read the answer to ``RequestRenderer.dataset``. Raises LookupFailed."""
    if response.status != 200:
        raise refusal(response, ())
    document = decode_json(response.body)
    try:
        return DatasetDescription(
            namespace=_text(document["namespace"]),
            name=_text(document["name"]),
            generation=_text(document["generation"]),
            records=int(document["records"]),
            shards=int(document["shards"]),
            built_at=_text(document["builtAt"]),
            age_seconds=float(document["ageSeconds"]),
            candidates=tuple(map(_text, document["candidates"])),
            shard_generations={_text(name): int(count) for name, count in document.get("shardGenerations", {}).items()},
            keys={
                _text(name): KeyColumns(tuple(map(_text, key["columns"])), _text(key["separator"]))
                for name, key in document.get("keys", {}).items()
            },
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidAnswer(f"the answer does not describe a dataset as a router does: {error!r}") from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {value!r:.60}")
    return value


def _media_type(response: Response) -> bytes:
    return response.fields.get(b"content-type", b"").partition(b";")[0].strip().lower()


def _read_generations(response: Response, expected: str | None) -> tuple[str, ...]:
    field = response.fields.get(GENERATION, b"")
    if not _GENERATIONS.fullmatch(field):
        raise InvalidAnswer(
            f"an answer names its generation by Lookupdb-Generation, found {field[:60]!r}",
            hint="check that a lookupdb router listens there, on its public port",
        )
    if expected is not None and field != expected.encode():
        raise InvalidAnswer(
            f"generation {expected} was requested, and {field.decode()} answered",
            hint="does a proxy take the header field Lookupdb-Generation away?",
        )
    return tuple(field.decode().split(", "))
