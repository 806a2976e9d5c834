"""lookupdb.client asks for many keys: in parts, of one generation, and of several while shards change one by one."""

from __future__ import annotations

import socket

import pytest
from support.clients import Kind, blocking
from support.faulty_router import Action, Asked, batch, found_all, problem, scripted

from lookupdb.client import InvalidAnswer, RequestRefused, Unavailable, UnknownGeneration
from lookupdb.client.core import ManyKeys
from lookupdb.client.wire import KeysAnswer

pytest_plugins = ["support.client_fixtures"]


def test_keys_of_which_nothing_can_be_said_are_reported_if_a_part_will_do(kind: Kind) -> None:
    told = batch({"a": 1}, ["b"], ["c"])
    down = problem("503 Service Unavailable", "unavailable", "all down", reason="Unreachable", shard=0)
    with scripted(told, down, down) as router, blocking(kind, router.url) as client:
        results = client.get_many(["a", "b", "c"], partial=True)
        assert (results.found, results.missing, results.unavailable) == ({"a": 1}, ["b"], ["c"])
        assert b'"partial":true' in router.asked[0].body
        with pytest.raises(Unavailable, match="all down") as unavailable:
            client.get_many(["a", "b"], partial=True)
        assert unavailable.value.keys == ("a", "b")
        with pytest.raises(Unavailable):
            client.get_many(["a", "b"])
        assert b"partial" not in router.asked[-1].body


def test_of_several_parts_one_may_be_unavailable(kind: Kind) -> None:
    down = problem("503 Service Unavailable", "unavailable", reason="Overloaded")
    keys = ["a", "b", "c", "d", "e"]
    with scripted(found_all, down) as router, blocking(kind, router.url, max_keys=2) as client:
        results = client.get_many(keys, partial=True)
        assert (list(results.found), results.unavailable) == (["a", "b", "e"], ["c", "d"])
    with scripted(found_all, down) as router, blocking(kind, router.url, max_keys=2) as client:
        with pytest.raises(Unavailable) as unavailable:
            client.get_many(keys)
        assert unavailable.value.keys == tuple(keys), "no result for any key"


def test_of_several_parts_one_may_meet_a_certificate_that_does_not_fit() -> None:
    """Another router may have it while certificates are replaced. Known results are returned. Nothing else
    refuses a part."""
    refused = RequestRefused("the certificate is not trusted")
    known = KeysAnswer({"a": 1}, {"b": None}, {}, ("g1",))
    plan = ManyKeys(["a", "b", "c"], 3, max_keys=2, partial=True).plan()
    next(plan)
    plan.send(known)
    with pytest.raises(StopIteration) as end:
        plan.send(refused)
    results = end.value.value
    assert (results.found, results.missing, results.unavailable) == ({"a": 1}, ["b"], ["c"])
    plan = ManyKeys(["a", "b"], 2, max_keys=2, partial=True, cached=({"a": 1}, "g1")).plan()
    next(plan)
    with pytest.raises(StopIteration) as end:
        plan.send(refused)
    assert (end.value.value.found, end.value.value.unavailable) == ({"a": 1}, ["b"]), "which was known before"
    for partial, answers, error in (
        (False, [known], refused),
        (True, [], refused),
        (True, [KeysAnswer({}, {}, {"a": None, "b": None}, ("g1",))], refused),
        (True, [known], RequestRefused("no such path", status=404)),
    ):
        plan = ManyKeys(["a", "b", "c"], 3, max_keys=2, partial=partial).plan()
        next(plan)
        for answer in answers:
            plan.send(answer)
        with pytest.raises(RequestRefused):
            plan.send(error)


@pytest.mark.parametrize("max_keys", [1000, 7])
def test_each_of_the_three_is_in_the_order_in_which_it_was_asked(kind: Kind, max_keys: int) -> None:
    keys = [f"{letter}{number}" for number in range(20) for letter in ("found", "missing", "unavailable")]
    asked = [*keys, *reversed(keys)]

    def shuffle(_: socket.socket, asked: Asked) -> bytes:
        three = {name: sorted(key for key in asked.keys if key.startswith(name)) for name in ("found", "missing", "un")}
        return batch(dict.fromkeys(three["found"], 1), three["missing"], three["un"])

    with scripted(otherwise=shuffle) as router, blocking(kind, router.url, max_keys=max_keys) as client:
        results = client.get_many(asked, partial=True)
        assert ([*results.found], results.missing, results.unavailable) == (keys[::3], keys[1::3], keys[2::3])
        assert [*client.get_many(keys[::3]).found] == keys[::3]


def test_a_cached_value_is_in_its_place(kind: Kind) -> None:
    def answer(_: socket.socket, asked: Asked) -> bytes:
        return batch({key: 1 for key in asked.keys if key < "m"}, [key for key in asked.keys if key >= "m"])

    with (
        scripted(otherwise=answer) as router,
        blocking(kind, router.url, cache_bytes=1 << 20, cache_seconds=99) as client,
    ):
        client.get_many(["b", "d", "n", "p"])
        results = client.get_many(["m", "a", "n", "b", "o", "c", "p", "d"])
        assert ([*results.found], results.missing) == (["a", "b", "c", "d"], ["m", "n", "o", "p"])
        assert router.asked[-1].keys == ["m", "a", "o", "c"]


def test_parts_are_of_one_generation(kind: Kind) -> None:
    """The first answer's generation is asked for by name; if it has gone meanwhile, all is asked for again."""
    gone = problem("412 Precondition Failed", "unknown-generation", active=["g2"])
    second = [batch({"a": 2}, generation="g2"), batch({"b": 2}, generation="g2")]
    with scripted(batch({"a": 1}), gone, *second) as router, blocking(kind, router.url, max_keys=1) as client:
        results = client.get_many(["a", "b"])
        assert (results.found, results.generation) == ({"a": 2, "b": 2}, "g2")
        names = [asked.fields.get("lookupdb-generation") for asked in router.asked]
        assert names == [None, "g1", None, "g2"]


def test_a_generation_that_goes_again_and_again_is_given_up(kind: Kind) -> None:
    gone = problem("412 Precondition Failed", "unknown-generation", active=["g2"])

    def flutter(_: socket.socket, asked: Asked) -> bytes:
        return gone if "lookupdb-generation" in asked.fields else batch(dict.fromkeys(asked.keys))

    with scripted(otherwise=flutter) as router, blocking(kind, router.url, max_keys=1) as client:
        with pytest.raises(Unavailable) as unavailable:
            client.get_many(["a", "b"])
        assert unavailable.value.reason == "GenerationChanged"
        assert len(router.asked) == 12


def test_another_generation_than_was_asked_for_is_an_error(kind: Kind) -> None:
    """A proxy that takes the field away must not make an old generation of a candidate."""
    with scripted(otherwise=found_all) as router, blocking(kind, router.url, max_keys=1) as client:
        with pytest.raises(InvalidAnswer, match="generation g7 was requested, but g1 answered"):
            client.at("g7").get_many(["a"])
        with pytest.raises(InvalidAnswer, match="generation g7 was requested, but g1 answered"):
            client.at("g7").get("a")


def test_keys_of_several_generations_while_shards_change_one_by_one(kind: Kind) -> None:
    gone = problem("412 Precondition Failed", "unknown-generation", active=["g12", "g13"])
    both = batch({"a": 1}, ["b"], generation="g12, g13")
    with scripted(both) as router, blocking(kind, router.url) as client:
        results = client.get_many(["a", "b"])
        assert (results.found, results.missing) == ({"a": 1}, ["b"])
        assert (results.generation, results.generations) == (None, ("g12", "g13"))
        router.actions.append(gone)
        with pytest.raises(UnknownGeneration) as told:
            client.at("g12").get("a")
        assert told.value.active == ("g12", "g13")
    parts: list[Action] = [batch({"a": 1}, generation="g13"), gone]
    parts += [batch({"a": 1}, generation="g13"), batch({"b": 2}, generation="g12"), batch({"c": 3}, generation="g13")]
    with scripted(*parts) as router, blocking(kind, router.url, max_keys=1) as client:
        results = client.get_many(["a", "b", "c"])
        assert (results.found, results.generations) == ({"a": 1, "b": 2, "c": 3}, ("g12", "g13"))
        assert not any("lookupdb-generation" in asked.fields for asked in router.asked[2:])


def test_too_many_keys_teach_the_limit(kind: Kind) -> None:
    refused = problem("413 Content Too Large", "too-many-keys", limit=2)
    with scripted(refused) as router, blocking(kind, router.url) as client:
        assert list(client.get_many(["a", "b", "c", "d", "e"]).found) == ["a", "b", "c", "d", "e"]
        client.get_many(["a", "b", "c"])
        assert [len(asked.keys) for asked in router.asked] == [5, 2, 2, 1, 2, 1]


def test_an_answer_too_large_is_asked_for_in_halves(kind: Kind) -> None:
    def bounded(_: socket.socket, asked: Asked) -> bytes:
        if asked.method == "POST" and len(asked.keys) > 1 and "large" in asked.keys:
            return problem("413 Content Too Large", "answer-too-large")
        return found_all(_, asked)

    keys = ["a", "b", "c", "large", "d", "e", "f", "g"]
    with scripted(otherwise=bounded) as router, blocking(kind, router.url) as client:
        assert sorted(client.get_many(keys).found) == sorted(keys)
        assert len(router.asked) < 20


def test_keys_may_be_answered_in_another_order(kind: Kind) -> None:
    with scripted(batch({"b": 2, "a": 1})) as router, blocking(kind, router.url) as client:
        assert client.get_many(["a", "b"]).found == {"a": 1, "b": 2}
