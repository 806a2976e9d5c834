"""The client's own cache holds values of one generation, for a limited time and up to a limited size."""

from __future__ import annotations

import time
from typing import Any

import pytest
from support.clients import Kind, blocking
from support.faulty_router import answer, batch, found_all, problem, scripted

from lookupdb.client import Unavailable
from lookupdb.client.core import GenerationCache
from lookupdb.client.wire import MISSING, decode_json


def test_it_keeps_found_and_missing_keys_of_one_generation() -> None:
    cache = GenerationCache(10_000, 1.0)
    cache.learn("g1", {"a": {"x": [1]}, "raw": b"\xff", "long": 10**30}, ["b"], sent_at=10.0)
    assert cache.find("a", 10.5) == ({"x": [1]}, "g1")
    assert cache.find("raw", 10.5) == (b"\xff", "g1")
    assert cache.find("b", 10.5) == (MISSING, "g1")
    assert cache.find("c", 10.5) is None
    assert cache.find("long", 10.5) == (10**30, "g1")
    assert cache.find_many(["a", "b", "c"], 10.5) == ({"a": {"x": [1]}, "b": MISSING}, "g1")
    assert cache.find_many(["c"], 10.5) is None


def test_values_stay_what_they_are() -> None:
    cache = GenerationCache(10_000, 1.0)
    texts = [
        b"1e400",
        b'{"x":[null,-1e400]}',
        b"null",
        b'{"x":[null,{"y":1.5}]}',
        b"-0.0",
        b"1" * 40,
        b'"\\ud800"',
        b"true",
    ]
    values = {str(number): decode_json(text) for number, text in enumerate(texts)}
    cache.learn("g1", values, [], sent_at=10.0)
    found = cache.find_many(values, 10.5)
    assert found is not None
    assert repr(found[0]) == repr(values)


def test_no_caller_can_change_what_another_one_gets() -> None:
    cache = GenerationCache(10_000, 1.0)
    value: dict[str, Any] = {"x": [1]}
    cache.learn("g1", {"a": value}, [], sent_at=10.0)
    value["x"].append(2)
    found = cache.find("a", 10.0)
    assert found == ({"x": [1]}, "g1")
    found[0]["x"].append(3)
    assert cache.find("a", 10.0) == ({"x": [1]}, "g1")


def test_it_says_nothing_once_the_generation_was_not_confirmed_for_long() -> None:
    cache = GenerationCache(10_000, 1.0)
    cache.learn("g1", {"a": 1}, [], sent_at=10.0)
    assert cache.find("a", 11.0) == (1, "g1")
    assert cache.find("a", 11.01) is None
    cache.learn("g1", {}, ["b"], sent_at=12.0)
    assert cache.find("a", 13.0) == (1, "g1"), "any answer of the generation confirms it"
    assert cache.find_many(["a"], 13.01) is None


def test_it_is_emptied_by_any_answer_of_another_generation() -> None:
    cache = GenerationCache(10_000, 1.0)
    cache.learn("g1", {"a": 1}, [], sent_at=10.0)
    cache.learn("g2", {"b": 2}, [], sent_at=10.1)
    assert cache.find("a", 10.2) is None
    assert cache.find("b", 10.2) == (2, "g2")
    cache.learn("g1", {"a": 1}, [], sent_at=10.2)
    assert (cache.find("a", 10.3), cache.find("b", 10.3)) == ((1, "g1"), None), (
        "a rollback is a generation like any other"
    )
    cache.learn(None, {"c": 3}, [], sent_at=10.4)
    assert cache.find("a", 10.4) is cache.find("c", 10.4) is None, "answers of several generations are not kept"


def test_an_answer_that_comes_late_is_older_news() -> None:
    cache = GenerationCache(10_000, 1.0)
    cache.learn("g1", {"a": 1}, [], sent_at=10.0)
    cache.learn("g2", {"a": 2}, [], sent_at=10.5)
    cache.learn("g1", {"a": 1}, [], sent_at=10.4)
    assert cache.find("a", 10.6) == (2, "g2")


def test_it_is_bounded_in_bytes_and_drops_what_was_used_longest_ago() -> None:
    cache = GenerationCache(100_000, 1.0)
    for number in range(1000):
        cache.learn("g1", {f"key-{number}": "x" * 1000}, [f"missing-{number}"], sent_at=10.0)
        cache.find("key-0", 10.0)
        assert cache.size <= 100_000
    assert cache.find("key-0", 10.0) is not None
    assert cache.find("key-1", 10.0) is None
    assert cache.find("key-999", 10.0) is not None
    cache.learn("g1", {"huge": "x" * 200_000}, [], sent_at=10.0)
    assert cache.size == 0
    cache.learn("g1", {"a": 1}, [], sent_at=10.0)
    size = cache.size
    cache.learn("g1", {"a": 1}, [], sent_at=10.0)
    assert cache.size == size


pytest_plugins = ["support.client_fixtures"]


def test_what_was_looked_up_is_not_asked_for_again(kind: Kind) -> None:
    with scripted() as router, blocking(kind, router.url, cache_bytes=100_000, cache_seconds=60) as client:
        for _ in range(3):
            assert client.get("a") == "a"
            assert client.lookup("a") == ("a", True, "g1")
            results = client.get_many(["a", "b"])
            assert (sorted(results.found), results.generation) == (["a", "b"], "g1")
        assert [asked.method for asked in router.asked] == ["GET", "POST"]
        assert router.asked[1].keys == ["b"]


def test_without_one_everything_is_asked_for(kind: Kind) -> None:
    with scripted() as router, blocking(kind, router.url) as client:
        assert [client.get("a"), client.get("a")] == ["a", "a"]
        assert len(router.asked) == 2


def test_missing_keys_are_kept_and_unavailable_ones_never(kind: Kind) -> None:
    missing = problem("404 Not Found", "missing", generation="g1")
    down = problem("503 Service Unavailable", "unavailable", reason="Unreachable")
    with (
        scripted(missing, down, down) as router,
        blocking(kind, router.url, cache_bytes=1000, cache_seconds=60) as client,
    ):
        assert [client.get("a"), client.get("a")] == [None, None]
        for _ in range(2):
            with pytest.raises(Unavailable):
                client.get("b")
        assert client.get("b") == "b"
        assert len(router.asked) == 4


def test_it_is_trusted_for_so_long(kind: Kind) -> None:
    with scripted() as router, blocking(kind, router.url, cache_bytes=1000, cache_seconds=0.2) as client:
        client.get("a")
        time.sleep(0.25)
        client.get("a")
        assert len(router.asked) == 2


def test_a_cutover_empties_it(kind: Kind) -> None:
    with (
        scripted(
            answer("old", generation="g1"), answer("x", generation="g2"), answer("new", generation="g2")
        ) as router,
        blocking(kind, router.url, cache_bytes=1000, cache_seconds=60) as client,
    ):
        assert client.get("a") == "old"
        client.get("b")
        assert client.get("a") == "new"
        assert len(router.asked) == 3


def test_many_keys_do_not_mix_what_is_kept_with_another_generation(kind: Kind) -> None:
    with (
        scripted(
            batch({"a": 1, "b": 1}),
            batch({"c": 2}, generation="g2"),
            batch({"a": 2, "b": 2}, generation="g2"),
        ) as router,
        blocking(kind, router.url, cache_bytes=10_000, cache_seconds=60) as client,
    ):
        client.get_many(["a", "b"])
        results = client.get_many(["a", "b", "c"])
        assert (results.found, results.generation) == ({"a": 2, "b": 2, "c": 2}, "g2")
        assert router.asked[2].fields["lookupdb-generation"] == "g2"
        assert client.get_many(["c"]).generation == "g2"
        assert len(router.asked) == 3


def test_a_generation_by_name_is_neither_kept_nor_answered_from_it(kind: Kind) -> None:
    candidate = answer("candidate", generation="g2")
    with (
        scripted(found_all, candidate, candidate) as router,
        blocking(kind, router.url, cache_bytes=1000, cache_seconds=60) as client,
    ):
        assert client.get("a") == "a"
        assert [client.at("g2").get("a"), client.at("g2").get("a")] == ["candidate", "candidate"]
        assert client.get("a") == "a"
        assert len(router.asked) == 3
