"""Which generations stay in a folder to go back to: the newest of the dataset, whatever befell numbers and clocks."""

from __future__ import annotations

import datetime
import random
import re
from dataclasses import dataclass, field, replace

from support.generations import manifest

from lookupdb.manifest import ShardFile, Totals
from lookupdb.sync.folder import FoundGeneration, find_superseded

START = datetime.datetime(2026, 11, 21, tzinfo=datetime.UTC)
DAY = 24 * 3600
_WORD = re.compile(r"(?P<uid>\w+:)?(?P<name>g\d+)(?P<built>@-?\d+)?(?P<damaged>!)?")
_ONE_FILE = (ShardFile("shard-00000-of-00001.lmdb", 1, 1, "aa"),)


def moment(day: int) -> datetime.datetime:
    return START + datetime.timedelta(days=day)


def found(generation: str, built: int, arrived: int, uid: str = "local") -> FoundGeneration:
    """One that was built on such a day, and has arrived at noon of another."""
    made = manifest(generation, _ONE_FILE, Totals(1, 1, 1, 1, 1))
    built_at = moment(built).strftime("%Y-%m-%dT%H:%M:%SZ")
    return FoundGeneration(
        replace(made, uid=uid, built_at=built_at), int(moment(arrived).timestamp() + DAY / 2) * 10**9
    )


def arrivals(history: str) -> dict[str, FoundGeneration]:
    """The generations present after ``history``: one a day, built on that day, or on day ``@`` by its builder's clock.
    ``uid:`` marks another dataset's, and ``!`` one without a manifest.
    """
    there: dict[str, FoundGeneration] = {}
    for day, word in enumerate(history.split(), 11):
        match = _WORD.fullmatch(word)
        assert match is not None, word
        built = int(match["built"][1:]) if match["built"] else day
        one = found(match["name"], built, day, (match["uid"] or "local:")[:-1])
        there[match["name"]] = replace(one, manifest=None) if match["damaged"] else one
    return there


# The generations in the order of their arrival, the current one, the number to keep, and those removed, in order.
CASES = {
    "the newest stay": ("g1 g2 g10", "g10", 2, "g1"),
    "of one moment": ("g1@10 g2@10 g10@10", "g10", 2, "g1"),
    "one is kept": ("g1 g2 g10", "g10", 1, "g1 g2"),
    "to make room": ("g1 g2", "g2", 0, "g1"),
    "after a rollback": ("g1 g2 g3 g4", "g1", 2, "g2"),
    "after a rollback to what was fetched again": ("g6 g7 g8 g9 g5@9", "g5", 3, "g6"),
    "after a rollback, and the next": ("g7 g8 g9 g5@9 g10", "g10", 3, "g5 g7"),
    "damaged ones go": ("g1 g2!", "g1", 2, "g2"),
    "nothing is known of what is current": ("g1 g2!", "g2", 1, ""),
    "nothing is there": ("", "g1", 2, ""),
    "another dataset's go": ("a:g49 a:g50 b:g1", "g1", 2, "g49 g50"),
    "another dataset's go first": ("g1 g2 a:g9 g3", "g3", 1, "g9 g1 g2"),
    "numbers have restarted": ("g49 g50 g1 g2", "g2", 2, "g49 g50"),
    "numbers have restarted, and nothing else is there to go back to": ("g49 g50 g1", "g1", 2, "g49"),
    "numbers have restarted twice": ("g49 g50 g20 g21 g1", "g1", 2, "g49 g50 g20"),
    "numbers have restarted, and those before were not seen": ("g1 g2 g3 g2", "g2", 2, "g1"),
    "numbers have restarted, and reached those of before": ("g1 g2 g3 g1 g2 g3 g4", "g4", 3, "g1"),
    "numbers have restarted, then a rollback": ("g49 g50 g1 g2 g3", "g1", 2, "g49 g50"),
    "numbers have restarted, then a rollback to what was fetched again": ("g49 g2 g3 g1@11", "g1", 3, "g49"),
    "one clock was ahead": ("g4 g5@90 g6 g7", "g7", 2, "g4 g5"),
    "one clock was ahead, and the next is newest": ("g4 g5@90 g6", "g6", 2, "g4"),
    "one clock was ahead, and a rollback to that": ("g1 g2 g3 g4 g5@90 g6 g7 g8 g9", "g5", 3, "g1 g2 g3 g4 g6"),
    "one clock was ahead, and that was fetched again": ("g6 g7 g8 g9 g5@90", "g5", 3, "g6"),
    "clocks were ahead, then right, and a rollback": ("g3@93 g4@94 g5@95 g6 g7 g8 g9", "g5", 3, "g3 g4 g6"),
    "a clock was ahead before numbers restarted": ("g7 g8@90 g1 g2 g3", "g3", 3, "g7 g8"),
    "the only one of before had a clock that was ahead": ("g8@90 g1 g2", "g2", 2, "g8"),
    "a clock was ahead, of one of those whose numbers restarted": ("g7 g8 g1 g2@90 g3", "g3", 2, "g7 g8 g1"),
    "one clock was behind": ("g4 g5@-90 g6", "g6", 2, "g4"),
    "one clock was behind, and a rollback to that": ("g4 g5@-90 g6 g7", "g5", 2, "g4"),
    "one clock was behind, and another was fetched again": ("g6 g7@-90 g8 g5@9", "g5", 2, "g6"),
    "clocks were right, then behind": ("g4 g5 g6@-92 g7@-91", "g7", 2, "g4 g5"),
    "clocks were right, then behind, and a rollback": ("g4 g5 g6@-92 g7@-91", "g5", 2, "g4"),
    "a clock was behind before numbers restarted": ("g7 g8@-90 g1", "g1", 2, "g7"),
    "a copy, whose time is that of what it is a copy of": ("g3 g4 g5 g6@9", "g6", 2, "g3 g4"),
}


def test_what_is_superseded() -> None:
    for case in CASES:
        history, current, keep, superseded = CASES[case]
        assert find_superseded(arrivals(history), current, keep) == tuple(superseded.split())


def test_a_moment_that_cannot_be_read_says_nothing() -> None:
    there = arrivals("g2 g3 g1")
    made = there["g1"].manifest
    assert made is not None
    there["g1"] = replace(there["g1"], manifest=replace(made, built_at="yesterday"))
    assert find_superseded(there, "g1", 2) == ()


@dataclass(slots=True)
class World:
    """A store, its builders, and a folder beside it: it knows how old each generation really is."""

    random: random.Random
    are_clocks_wrong: bool
    day: int = 1
    life: int = 0
    """The number of times that numbers have restarted."""
    built: dict[int, int] = field(default_factory=dict)
    """The store: the day on which each number was built, by its builder's clock."""
    there: dict[str, FoundGeneration] = field(default_factory=dict)
    ages: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The folder: for each name, the life of the store in which it was built, and its number."""
    current: str = ""

    def step(self) -> None:
        self.day += 1
        event = self.random.random()
        # The first of a life takes the name of the one before: what that has shown must be needed no more.
        is_told = not self.are_clocks_wrong or len({life for life, _ in self.ages.values()}) == 1
        if event < 0.08 and self.current and is_told:
            self.life, self.built = self.life + 1, {}
        if event < 0.8 or not self.built:
            number, is_first = max(self.built, default=0) + 1, not self.built
            # Only its time shows that a generation is the first of a new life: that time must be right.
            is_wrong = self.are_clocks_wrong and not is_first and self.random.random() < 0.3
            self.built[number] = self.day + (self.random.randrange(-400, 400) if is_wrong else 0)
        else:
            number = self.random.choice([*self.built])
            is_there = self.ages.get(f"g{number}") == (self.life, number)
            if self.are_clocks_wrong and not is_there:
                return  # a generation built by a fast clock would look like the first of a new life
        self._serve(number)

    def _serve(self, number: int) -> None:
        self.current = name = f"g{number}"
        if self.ages.get(name) != (self.life, number):
            self.ages[name] = self.life, number
            self.there[name] = found(name, self.built[number], self.day)

    def find_superseded(self, keep: int) -> list[str]:
        """Return the generations that really are superseded."""
        oldest_first = sorted(self.ages, key=self.ages.__getitem__)
        newest = oldest_first[len(oldest_first) - keep :] if keep < len(oldest_first) else oldest_first
        return [name for name in oldest_first if name not in (self.current, *newest)]

    def remove(self, superseded: list[str]) -> None:
        """Remove each, unless a reader has mapped it. That may leave a generation of an earlier life, whose end the
        first generation of the next life no longer shows."""
        for name in superseded:
            if self.are_clocks_wrong or self.random.random() < 0.7:
                del self.ages[name], self.there[name]


def test_what_is_superseded_is_what_really_is_older() -> None:
    for seed in range(20):
        for are_clocks_wrong in (False, True):
            world = World(random.Random(seed), are_clocks_wrong)
            for _ in range(200):
                world.step()
                keep = world.random.randrange(5)
                superseded = world.find_superseded(keep)
                assert list(find_superseded(world.there, world.current, keep)) == superseded, world
                world.remove(superseded)
            assert world.life > 3
