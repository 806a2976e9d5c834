"""What an HTTP answer says of the keys that were asked for; anything but a router's whole word is an error."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import filterfalse
from typing import Any, Final, NamedTuple

from lookupdb import batch_frames
from lookupdb.batch_frames import InvalidFrames
from lookupdb.client.json_values import decode_base64, decode_json
from lookupdb.client.refusals import read_problem, refusal
from lookupdb.client.response_reader import Response
from lookupdb.client.results import MISSING, DatasetDescription, LookupResults
from lookupdb.errors import InvalidAnswer

GENERATION: Final = b"lookupdb-generation"
_VALUE_FORMAT: Final = b"lookupdb-value-format"
_GENERATIONS: Final = re.compile(rb"g[1-9][0-9]{0,8}(?:, g[1-9][0-9]{0,8})*")
_JSON: Final = b"application/json"
_OCTETS: Final = b"application/octet-stream"
_FRAMES: Final = batch_frames.MEDIA_TYPE.encode()


class KeyAnswer(NamedTuple):
    """Of one key."""

    value: Any
    """MISSING if no record has it."""
    generation: str | None
    """None if several have answered: the batch that the key was in, or a key that no record can have."""

    @property
    def is_found(self) -> bool:
        """Whether a record has the key."""
        return self.value is not MISSING


class KeysAnswer(NamedTuple):
    """Of many keys, each of which stands in one of the three, in the order in which they were asked."""

    found: dict[str, Any]
    missing: dict[str, None]
    unavailable: dict[str, None]
    generations: tuple[str, ...]
    size: int
    """Bytes of the body."""

    @property
    def generation(self) -> str | None:
        """The one that all are out of, or None."""
        return self.generations[0] if len(self.generations) == 1 else None

    def to_key_answer(self, key: str) -> KeyAnswer:
        """Of one that is found or missing."""
        return KeyAnswer(self.found.get(key, MISSING), self.generation)

    def to_results(self) -> LookupResults:
        """As the result of a call."""
        generation = self.generation
        return LookupResults(self.found, [*self.missing], [*self.unavailable], generation, self.generations)


def read_key_answer(response: Response, key: str, expected: str | None) -> KeyAnswer:
    """What the answer to ``RequestRenderer.lookup`` says, out of the generation ``expected`` if one was asked by name.
    Raises LookupFailed."""
    if response.status == 200:
        generation = _read_only_generation(response, expected)
        kind = _media_type(response)
        if kind == _JSON:
            return KeyAnswer(decode_json(response.body), generation)
        if kind == _OCTETS:
            return KeyAnswer(bytes(response.body), generation)
        raise InvalidAnswer(f"a value is JSON or octets, found the Content-Type {kind[:60]!r}")
    if response.status == 404 and GENERATION in response.fields and read_problem(response).name == "missing":
        return KeyAnswer(MISSING, _read_only_generation(response, expected))
    raise refusal(response, (key,))


def read_batch_answer(response: Response, keys: Sequence[str], expected: str | None, *, partial: bool) -> KeysAnswer:
    """The same of ``RequestRenderer.batch`` and ``keys``, which are distinct. Without ``partial`` it speaks of all."""
    if response.status != 200:
        raise refusal(response, tuple(keys))
    media_type = _media_type(response)
    if media_type == _FRAMES:
        return _read_frames(response, keys, expected, partial=partial)
    document = decode_json(response.body) if media_type == _JSON else None
    if not isinstance(document, dict):
        raise InvalidAnswer(f"the answer to a batch is a JSON object or frames, found {media_type[:60]!r}")
    found, missing = document.get("found"), document.get("missing")
    unavailable = document.get("unavailable", [])
    if not (isinstance(found, dict) and isinstance(missing, list) and isinstance(unavailable, list)):
        raise InvalidAnswer("the answer to a batch says neither what was found nor what is missing")
    _check_partial(unavailable, partial=partial)
    found, absent, unknown = _arrange(found, missing, unavailable, keys)
    if _has_raw_values(response):
        found = {key: decode_base64(text) for key, text in found.items()}
    generations = _read_generations(response, expected)
    told = [document.get("generation")] if len(generations) == 1 else document.get("generations")
    if told != list(generations):
        raise InvalidAnswer(
            f"the answer's head says that it is of {', '.join(generations)}, and its body of {told!r:.60}"
        )
    return KeysAnswer(found, absent, unknown, generations, len(response.body))


def _read_frames(response: Response, keys: Sequence[str], expected: str | None, *, partial: bool) -> KeysAnswer:
    try:
        found, missing, unavailable = batch_frames.decode(response.body, keys)
    except InvalidFrames as error:
        raise InvalidAnswer(f"the answer to a batch is not as it should be: {error}") from error
    _check_partial(unavailable, partial=partial)
    values: dict[str, Any] = found
    if not _has_raw_values(response):
        values = {key: decode_json(value) for key, value in found.items()}
    generations = _read_generations(response, expected)
    return KeysAnswer(values, dict.fromkeys(missing), dict.fromkeys(unavailable), generations, len(response.body))


def _check_partial(unavailable: list[Any], *, partial: bool) -> None:
    if unavailable and not partial:
        raise InvalidAnswer("the answer to a batch leaves keys unanswered, for which nobody asked")


def _has_raw_values(response: Response) -> bool:
    value_format = response.fields.get(_VALUE_FORMAT)
    if value_format not in (b"json", b"raw"):
        raise InvalidAnswer(
            "the answer does not say by Lookupdb-Value-Format whether its values are JSON or raw",
            hint="is the router older than this client, or does a proxy take header fields away?",
        )
    return value_format == b"raw"


def _arrange(
    found: dict[str, Any], missing: list[Any], unavailable: list[Any], keys: Sequence[str]
) -> tuple[dict[str, Any], dict[str, None], dict[str, None]]:
    """The three in the order of ``keys``. Raises InvalidAnswer unless each key is in one: one that is not spoken of is
    not missing."""
    if not (missing or unavailable) and [*found] == [*keys]:  # routers keep their order
        return found, {}, {}
    present = [*filter(found.__contains__, keys)]
    absent = [*filterfalse(found.__contains__, keys)]
    try:
        is_whole = len(missing) + len(unavailable) == len(absent) and {*missing, *unavailable} == {*absent}
    except TypeError:  # what is no text
        is_whole = False
    if not is_whole or len(found) != len(present):
        raise InvalidAnswer("the answer to a batch does not speak of each of its keys once, and of no others")
    if [*found] != present:
        found = {key: found[key] for key in present}
    unknown = {*unavailable}
    return (
        found,
        dict.fromkeys([key for key in absent if key not in unknown] if unknown else absent),
        dict.fromkeys([key for key in absent if key in unknown] if unknown else ()),
    )


def read_dataset(response: Response) -> DatasetDescription:
    """What the answer to ``RequestRenderer.dataset`` says. Raises LookupFailed."""
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
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidAnswer(f"the answer does not describe a dataset as a router does: {error!r}") from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {value!r:.60}")
    return value


def _media_type(response: Response) -> bytes:
    return response.fields.get(b"content-type", b"").partition(b";")[0].strip().lower()


def _read_only_generation(response: Response, expected: str | None) -> str | None:
    generations = _read_generations(response, expected)
    return generations[0] if len(generations) == 1 else None


def _read_generations(response: Response, expected: str | None) -> tuple[str, ...]:
    field = response.fields.get(GENERATION, b"")
    if not _GENERATIONS.fullmatch(field):
        raise InvalidAnswer(
            f"an answer names its generation by Lookupdb-Generation, found {field[:60]!r}",
            hint="is there a lookupdb router, and is this its public port?",
        )
    if expected is not None and field != expected.encode():
        raise InvalidAnswer(
            f"generation {expected} was asked, and {field.decode()} answered",
            hint="does a proxy take the header field Lookupdb-Generation away?",
        )
    return tuple(field.decode().split(", "))
