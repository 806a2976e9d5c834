"""Heads of answers: encoded once a second for each generation, and kept for no more generations than a worker has."""

from __future__ import annotations

from lookupdb.keys import make_key_encoder
from lookupdb.router.http.problems import MAX_GENERATIONS, Answers
from lookupdb.router.lookups import ServedGeneration


def _generation(number: int) -> ServedGeneration:
    return ServedGeneration((f"g{number}",), "json", make_key_encoder(()), ())


def test_heads_of_a_generation_are_encoded_once_and_name_it() -> None:
    answers, generation = Answers(), _generation(7)
    heads = answers.heads(generation)
    assert answers.heads(generation) is heads
    assert b"Lookupdb-Generation: g7\r\n" in heads.found


def test_those_of_so_many_generations_are_kept_within_a_second() -> None:
    """A mixed table has as many combinations of generations as batches ask for."""
    answers = Answers()
    for number in range(3 * MAX_GENERATIONS):
        assert b"Lookupdb-Generation: g%d\r\n" % number in answers.heads(_generation(number)).missing
        assert len(answers.known_heads) <= MAX_GENERATIONS
