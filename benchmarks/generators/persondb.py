"""A person database: invented employees of 300 tenants, by e-mail address in any case.

Skewed like real tables: a few tenants have most persons, few titles and departments are common, and one manager is in
many rows. Addresses end in `.example`, which nobody can own.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from benchmarks.generators.names import DEPARTMENTS, FIRST_NAMES, SURNAMES, TENANTS, TITLES, ascii_of

HEADER: Final = b"email,name,title,department,manager,tenant\n"
_CHUNK: Final = 10_000
_TEAM: Final = 9
"""Persons for each manager, on average."""


def generate(rows: int, seed: int) -> Iterator[bytes]:
    """CSV with a header; e-mail addresses are unique, also when their case is ignored."""
    rng = random.Random(seed)
    people = [(first, ascii_of(first)) for first in FIRST_NAMES], [(last, ascii_of(last)) for last in SURNAMES]
    managers = [""] * len(TENANTS)
    yield HEADER
    for start in range(0, rows, _CHUNK):
        yield _chunk(rng, people, managers, start, min(_CHUNK, rows - start))


def _chunk(
    rng: random.Random,
    people: tuple[list[tuple[str, str]], list[tuple[str, str]]],
    managers: list[str],
    start: int,
    size: int,
) -> bytes:
    columns = zip(
        rng.choices(people[0], k=size),
        rng.choices(people[1], k=size),
        rng.choices(range(len(TENANTS)), cum_weights=_TENANT_WEIGHTS, k=size),
        rng.choices(_TITLES, cum_weights=_TITLE_WEIGHTS, k=size),
        rng.choices(_DEPARTMENTS, cum_weights=_DEPARTMENT_WEIGHTS, k=size),
        rng.choices(_STYLES, k=size),
        rng.choices(_PROMOTIONS, k=size),
        strict=True,
    )
    lines = []
    for number, (first, last, tenant, title, department, style, promoted) in enumerate(columns, start):
        email = style(f"{first[1]}.{last[1]}{number}@{_DOMAINS[tenant]}")
        lines.append(f"{email},{first[0]} {last[0]},{title},{department},{managers[tenant]},{TENANTS[tenant]}\n")
        if promoted:
            managers[tenant] = email
    return "".join(lines).encode()


def _quoted(text: str) -> str:
    return f'"{text}"' if "," in text else text


_DOMAINS: Final = [f"{tenant}.example" for tenant in TENANTS]
_TENANT_WEIGHTS: Final = list(accumulate(1 / rank for rank in range(1, len(TENANTS) + 1)))
_TITLES: Final = list(TITLES)
_TITLE_WEIGHTS: Final = list(accumulate(TITLES.values()))
_DEPARTMENTS: Final = [_quoted(department) for department in DEPARTMENTS]
_DEPARTMENT_WEIGHTS: Final = list(accumulate(DEPARTMENTS.values()))
_STYLES: Final = [str] * 11 + [str.lower] * 7 + [str.upper] * 2
"""The spellings of addresses, drawn at random: as typed (Ada.Belansen7@acornworks.example), lower case, upper case."""
_PROMOTIONS: Final = [True] + [False] * (_TEAM - 1)
