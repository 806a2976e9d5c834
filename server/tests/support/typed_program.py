"""A user's program, and a wrong one, for ``make check`` alone: mypy reads them by its strict rules. Nothing runs them.

Types are what one expects: an error that is expected is ignored by its code, and mypy reports what it ignores in vain.
"""

from __future__ import annotations

from pathlib import Path

import lookupdb
from lookupdb.client import AsyncClient, Client, DatasetDescription, Lookup, LookupResults
from lookupdb.mapped import MappedDataset
from lookupdb.testing import Serve, ServedDataset, serve


class Frame: ...


def look_up(url: str, frame: Frame) -> tuple[LookupResults, str | None, DatasetDescription, Frame]:
    with Client(url, timeout=1.0) as people:
        name: object = people["ada"]["name"]
        name, people["DE", 1], people.get(("DE", "1"), None), people.has("ada"), ("DE", "1") in people
        lookup: Lookup = people.lookup(("DE", "1"))
        results: LookupResults = people.get_many([lookup.value, "ada", ("DE", 1)], partial=True)
        generation: str | None = results.generation
        dataset: DatasetDescription = people.dataset()
        enriched: Frame = people.lookup_frame(frame, on=["country", "id"], columns=["name"], missing="error")
    return results, generation, dataset, enriched


async def look_up_by_coroutine(url: str, frame: Frame) -> Frame:
    async with AsyncClient(url) as people:
        await people["DE", "1"]
        (await people.get_many([("DE", 1)])).found[("DE", 1)]
        return await people.at("g2").lookup_frame(frame, "code", prefix="x")


def map_it(path: Path, frame: Frame) -> Frame:
    people: MappedDataset = lookupdb.open(path)
    people["DE", "1"], people.get(("DE", 1)), people.get("ada", 7), people.raw("ada")
    by_columns: dict[tuple[str, int], object] = people.get_many([("DE", 1)])
    for key in (*people, *by_columns):
        key.upper() if isinstance(key, str) else key[0].upper()
    return people.lookup_frame(frame, "code", "name")


def use_the_fixture(lookupdb_serve: Serve) -> None:
    served: ServedDataset = lookupdb_serve({"ada": 1}, shards=2)
    served.client.get("ada")
    with serve({("DE", 1): b"1"}, normalize=["strip"]) as other:
        print(other.url, other.path.name)


def use_it_wrongly() -> int:
    client = Client("http://router", time_out=1.0)  # type: ignore[call-arg]
    client.get(1)  # type: ignore[arg-type]
    client.get_many([("DE", 1.5)])  # type: ignore[list-item]
    client.lookup_frame(object(), "code", missing="drop")  # type: ignore[arg-type]
    number: int = client.lookup_frame("frame", "code")  # type: ignore[assignment]
    return number
