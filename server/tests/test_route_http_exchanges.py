"""HTTP of the router for well-behaved clients: resources, methods, keys, media types, batches."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.http import Client, ScriptedLookups, Server, generation, serving

from lookupdb.records import FRAMES, decode_frames
from lookupdb.router.counters import REQUESTS

KENNEDY = b'{"name": "John F Kennedy International Airport", "elevation": 13}'
ODD_KEYS = {
    "a/b": b'"slash"',
    "100%": b'"percent"',
    "%2F": b'"an escape that is not one"',
    "c++": b'"plus"',
    "a b": b'"space"',
    "what?": b'"question"',
    "#1": b'"hash"',
    "a&b=c": b'"ampersand"',
    "Žluťoučký kůň 🐎": b'"any text"',
    "..": b'"dots"',
    "\x00": b'"null"',
    "a\nb": b'"newline"',
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    lookups = ScriptedLookups(
        values={"KJFK": KENNEDY, "big": b'"' + b"x" * 1_000_000 + b'"', **ODD_KEYS},
        unavailable={"lost", "gone"},
        candidates=(generation("g2"), generation("g3", value_format="raw")),
    )
    with serving(lookups) as server:
        yield server


@pytest.fixture(scope="module")
def mixed_server() -> Iterator[Server]:
    old, new = generation("g9"), generation("g12")
    values = {"old": b"1", "new": b"2", "big": b'"' + b"x" * 1_000_000 + b'"'}
    of_key = {"old": old, "new": new, "gone": old}
    with serving(ScriptedLookups(values=values, active=generation("g9", "g12"), of_key=of_key)) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with server.connect() as client:
        yield client


def problem(body: bytes) -> str:
    document = json.loads(body)
    assert {"type", "title", "status", "detail"} <= document.keys()
    return str(document["type"].removeprefix("https://lookupdb.dev/problems/"))


class TestOneKey:
    def test_a_value_comes_as_it_was_built(self, client: Client) -> None:
        response = client.get("/v1/lookup/KJFK")
        assert (response.status, response.body) == (200, KENNEDY)
        assert response.fields["content-type"] == "application/json"
        assert response.fields["lookupdb-generation"] == "g1"
        assert response.fields["vary"] == "Lookupdb-Generation"
        assert response.fields["date"].endswith("GMT")
        assert "connection" not in response.fields

    def test_a_missing_key_is_404_and_says_in_which_generation(self, client: Client) -> None:
        response = client.get("/v1/lookup/XXXX")
        assert (response.status, problem(response.body)) == (404, "missing")
        assert response.fields["content-type"] == "application/problem+json"
        assert response.fields["lookupdb-generation"] == "g1"

    def test_an_unreachable_shard_is_503_and_never_404(self, client: Client) -> None:
        response = client.get("/v1/lookup/lost")
        assert (response.status, problem(response.body)) == (503, "unavailable")
        assert response.fields["retry-after"] == "1"
        document = json.loads(response.body)
        assert (document["reason"], document["shard"]) == ("Unreachable", 1)

    def test_a_client_says_for_how_long_it_waits(self, server: Server, client: Client) -> None:
        """An invalid number is ignored."""
        for field, told in (
            ("400", 400),
            (" 1 ", 1),
            ("999", 999),
            ("1000", None),  # the router's own
            ("600000", None),
            *((odd, None) for odd in ("0", "-1", "0400", "4e2", "400.5", "400ms", "400, 300", "", "9" * 4000, "\xb2")),
        ):
            line = f"Lookupdb-Deadline-Ms: {field}"
            assert client.get("/v1/lookup/KJFK", line).body == KENNEDY
            assert client.get("/v1/lookup/KJFK", line, method="HEAD").status == 200
            assert client.post(b'{"keys":["KJFK"]}', line).status == 200
            assert server.lookups.deadlines[-3:] == [told] * 3

    def test_two_deadlines_are_none(self, server: Server, client: Client) -> None:
        """A proxy may add its own. No lookup is refused for a hint."""
        lines = ("Lookupdb-Deadline-Ms: 400", "Lookupdb-Deadline-Ms: 300")
        assert client.get("/v1/lookup/KJFK", *lines).body == KENNEDY
        assert server.lookups.deadlines[-1] is None

    @pytest.mark.parametrize("key", ["KJFK", "XXXX", "lost", "x" * 600])
    def test_head_answers_as_get_without_the_body(self, client: Client, key: str) -> None:
        get = client.get(f"/v1/lookup/{key}")
        head = client.get(f"/v1/lookup/{key}", method="HEAD")
        assert (head.status, head.body) == (get.status, b"")
        assert head.fields | {"date": ""} == get.fields | {"date": ""}

    def test_a_large_value_comes_whole(self, client: Client) -> None:
        assert len(client.get("/v1/lookup/big").body) == 1_000_002

    @pytest.mark.parametrize(
        ("target", "why"),
        [
            ("/v1/lookup/", "the key is empty"),
            ("/v1/lookup/%20", "the key is empty after normalisation"),
            ("/v1/lookup/" + "x" * 512, "the key is 512 bytes long, the limit is 511 bytes"),
            ("/v1/lookup?key=", "the key is empty"),
        ],
    )
    def test_a_key_that_no_record_can_have_is_missing(self, client: Client, target: str, why: str) -> None:
        response = client.get(target)
        assert (response.status, problem(response.body)) == (404, "missing")
        assert json.loads(response.body)["detail"] == f"no record can have this key: {why}"
        assert response.fields["lookupdb-generation"] == "g1"


class TestKeysInTargets:
    def test_percent_encoding_is_undone_exactly_once(self, client: Client) -> None:
        for key in ODD_KEYS:
            escaped = "".join(f"%{byte:02x}" for byte in key.encode())
            assert client.get(f"/v1/lookup/{escaped}").body == ODD_KEYS[key]
            assert client.get(f"/v1/lookup?key={escaped}").body == ODD_KEYS[key]

    def test_what_stands_for_itself(self, client: Client) -> None:
        for target, key in (
            ("/v1/lookup/a/b", "a/b"),
            ("/v1/lookup/a%2Fb", "a/b"),
            ("/v1/lookup/c++", "c++"),
            ("/v1/lookup?key=a/b", "a/b"),
            ("/v1/lookup?key=a+b", "a b"),
            ("/v1/lookup?key=c%2B%2b", "c++"),
            ("/v1/lookup/a&b=c", "a&b=c"),
            ("/v1/lookup?key=a%26b=c", "a&b=c"),
            ("/v1/lookup?key=what?", "what?"),
            ("/v1/lookup/..", ".."),
            ("http://router:8080/v1/lookup/a%2Fb", "a/b"),
            ("HTTPS://user@[::1]/v1/lookup?key=a+b", "a b"),
            ("/v1/lookup/a%2Fb?x=1", "a/b"),
            ("/v1/lookup/c++?utm_source=mail&utm_medium=", "c++"),
            ("/v1/lookup/what%3F?x=%zz", "what?"),
            ("/v1/lookup/a&b=c?Key=other", "a&b=c"),
            ("/v1/lookup/a/b?x=a;b=c", "a/b"),
            ("/v1/lookup?x=1&key=a+b&y=", "a b"),
            ("/v1/lookup?KEY=other&key=a%2Fb", "a/b"),
            ("/v1/lookup?k%65y=a/b", "a/b"),
            ("http://router:8080/v1/lookup/a%2Fb?x=1", "a/b"),
        ):
            assert client.get(target).body == ODD_KEYS[key]

    def test_what_could_be_read_two_ways_is_refused(self, client: Client) -> None:
        for target in (
            "/v1/lookup/a%",
            "/v1/lookup/a%2",
            "/v1/lookup/%zz",
            "/v1/lookup/%C3",
            "/v1/lookup/%ED%A0%80",
            "/v1/lookup/%FF%FE",
            "/v1/lookup/what?",
            "/v1/lookup/KJFK?key=EGLL",
            "/v1/lookup/a#b",
            "/v1/lookup?key=%",
            "/v1/lookup?key=%C3",
            "/v1/lookup?key=a&key=b",
            "/v1/lookup?key=AT&T",
            "/v1/lookup?key=a&",
            "/v1/lookup?key",
            "/v1/lookup?",
            "/v1/lookup",
            "/v1/lookup?Key=a",
            "/v1/lookup?key=a#b",
            "/v1/dataset?key=a",
        ):
            response = client.get(target)
            assert (response.status, problem(response.body)) == (400, "invalid-target")
            assert client.get("/v1/lookup/KJFK").status == 200, "and the connection stays"

    def test_the_answer_names_the_trouble(self, client: Client) -> None:
        for target, why in (
            ("/v1/lookup/KJFK?key=EGLL", "the path holds a key and the query another one"),
            ("/v1/lookup/KJFK?x=1&k%65y=", "the path holds a key and the query another one"),
            ("/v1/lookup/KJFK?", "found an empty one; if the key holds ? or &, write it as %3F or %26"),
            ("/v1/lookup/KJFK?x=1&", "found an empty one"),
            ("/v1/lookup/really?not+so", "found 'not so'; if the key holds ?"),
            ("/v1/lookup/KJFK?=1", "found an empty one"),
            ("/v1/lookup/KJFK?x=1;key=EGLL", "another key behind a semicolon; write ; as %3B"),
            ("/v1/lookup/KJFK?x=1#y", "the target holds #"),
            ("/v1/lookup?key=a&x=1&key=b", "the query holds 2 keys, expected one"),
            ("/v1/lookup?key=a&k%65y=b", "the query holds 2 keys, expected one"),
            ("/v1/lookup?key=a;key=b", "another key behind a semicolon"),
            ("/v1/lookup?key=AT&T", "found 'T'; if the key holds &, write it as %26"),
            ("/v1/lookup?key", "found 'key'"),
            ("/v1/lookup?KEY=a&x=1", "expected the parameter key, as /v1/lookup?key=…, found 'KEY', 'x'"),
            ("/v1/lookup?x=1&key=%zz", "% at byte 0 of the key is not followed by two hexadecimal digits"),
            ("/v1/lookup", "the target holds none"),
            ("/v1/dataset?x=1&key=a", "the query holds a key, and /v1/dataset is about all of them"),
            ("/v1/dataset?x=1#y", "the target holds #"),
        ):
            response = client.get(target)
            assert (response.status, problem(response.body)) == (400, "invalid-target")
            document = json.loads(response.body)
            assert why in document["detail"]
            assert document["title"] == "The request target is not as expected"

    @pytest.mark.parametrize("query", ["", "x=1", "utm_source=mail&flag&", "x=%zz", "Key=a"])
    def test_any_other_query_is_ignored_where_there_is_no_key(self, client: Client, query: str) -> None:
        assert client.get(f"/v1/dataset?{query}").status == 200
        assert client.post(b'{"keys":["KJFK"]}', target=f"/v1/lookup?{query}").status == 200
        refused = client.post(b'{"keys":["KJFK"]}', target=f"/v1/lookup?{query}&key=EGLL")
        assert "POST takes its keys in the body" in json.loads(refused.body)["detail"]


@pytest.fixture(scope="module")
def tagged_server() -> Iterator[Server]:
    values = {"a": b"1", "b": b"2", "c": b"3"}
    active, other = replace(generation("g1"), etag=TestCaches.TAG), replace(generation("g2"), etag='"g2-0"')
    lookups = ScriptedLookups(
        values=values, active=active, candidates=(other,), of_key={"c": other}, unavailable={"lost"}
    )
    with serving(lookups, cache_control="max-age=60") as server:
        yield server


class TestCaches:
    """Conditional requests, and what answers say to caches."""

    TAG = '"g1-0123456789abcdef"'

    @pytest.fixture
    def tagged(self, tagged_server: Server) -> Iterator[Client]:
        with tagged_server.connect() as client:
            yield client

    def test_a_value_has_the_tag_of_its_generation(self, tagged: Client) -> None:
        assert {tagged.get(f"/v1/lookup/{key}").fields["etag"] for key in "ab"} == {self.TAG}
        assert tagged.get("/v1/lookup/a", method="HEAD").fields["etag"] == self.TAG
        assert tagged.get("/v1/lookup/a", "Lookupdb-Generation: g2").fields["etag"] == '"g2-0"'
        assert tagged.get("/v1/lookup/c").fields["etag"] == '"g2-0"', "that of the key's shard"

    @pytest.mark.parametrize("method", ["GET", "HEAD"])
    @pytest.mark.parametrize(
        "condition", [TAG, f"W/{TAG}", f'"x", {TAG}', f'"x,y",W/{TAG},"z"', "*", " * ", f'"x"\r\nIf-None-Match: {TAG}']
    )
    def test_a_client_that_has_the_value_is_answered_304(self, tagged: Client, condition: str, method: str) -> None:
        response = tagged.get("/v1/lookup/a", f"If-None-Match: {condition}", method=method)
        assert (response.status, response.body) == (304, b"")
        assert {
            name: response.fields.get(name) for name in ("etag", "vary", "cache-control", "lookupdb-generation")
        } == {
            "etag": self.TAG,
            "vary": "Lookupdb-Generation",
            "cache-control": "max-age=60",
            "lookupdb-generation": "g1",
        }
        assert "content-length" not in response.fields
        assert tagged.get("/v1/lookup/b").body == b"2", "and the connection stays in step"

    @pytest.mark.parametrize("condition", ['"g2-0"', '"g1-0123456789abcde"', "g1-0123456789abcdef", '"*"', ""])
    def test_one_that_has_another_is_answered_the_value(self, tagged: Client, condition: str) -> None:
        assert tagged.get("/v1/lookup/a", f"If-None-Match: {condition}").body == b"1"

    @pytest.mark.parametrize("condition", [TAG, "*"])
    def test_a_key_that_is_not_found_is_never_304(self, tagged: Client, condition: str) -> None:
        for target, status in {"nowhere": 404, "": 404, "lost": 503, "%zz": 400}.items():
            assert tagged.get(f"/v1/lookup/{target}", f"If-None-Match: {condition}").status == status
        assert tagged.get("/v1/lookup/a", f"If-None-Match: {condition}", "Accept: text/html").status == 406
        assert tagged.get("/v1/lookup/a", f"If-None-Match: {condition}", "Lookupdb-Generation: g9").status == 412

    def test_the_field_for_caches_stands_in_what_a_lookup_of_one_key_comes_to(self, tagged: Client) -> None:
        for target in ("a", "nowhere", ""):
            response = tagged.get(f"/v1/lookup/{target}")
            assert response.fields["cache-control"] == "max-age=60"
            assert ("etag" in response.fields) == (response.status == 200)
        others = [tagged.get("/v1/dataset"), tagged.get("/v1/lookup/lost"), tagged.get("/v1/lookup/%zz")]
        others += [tagged.post(b'{"keys":["a"]}', f"If-None-Match: {self.TAG}"), tagged.get("/v1/nowhere")]
        assert [response.status for response in others] == [200, 503, 400, 200, 404]
        assert all(not {"cache-control", "etag"} & response.fields.keys() for response in others)

    def test_without_one_no_answer_has_it(self, client: Client) -> None:
        assert "cache-control" not in client.get("/v1/lookup/KJFK").fields


class TestProbes:
    def test_they_are_answered_beside_lookups_and_not_counted(self, server: Server, client: Client) -> None:
        before = [server.count(name) for name in REQUESTS]
        for target, text in {"/healthz": b"ok\n", "/readyz": b"ready\n", "/readyz?x=1": b"ready\n"}.items():
            response = client.get(target)
            assert (response.status, response.body) == (200, text)
            assert response.fields["cache-control"] == "no-store"
            head = client.get(target, method="HEAD")
            assert (head.status, head.fields["content-length"]) == (200, str(len(text)))
        assert [server.count(name) for name in REQUESTS] == before
        assert client.post(b"", target="/healthz").status == 405
        assert client.get("/healthz/").status == 404
        answer = client.send(b"GET /readyz HTTP/1.0\r\n\r\n").response()
        assert (answer.status, answer.body) == (200, b"ready\n"), "as some load balancers ask"

    def test_readiness_is_that_of_the_worker_and_ends_with_the_drain(self) -> None:
        with serving() as server:
            server.service.is_ready = lambda: False
            with server.connect() as client:
                response = client.get("/readyz")
                assert (response.status, response.body) == (503, b"not ready\n")
                assert client.get("/healthz").status == 200
            server.service.is_ready = lambda: True
            with server.connect() as client:
                assert client.get("/readyz").status == 200
                server.call(server.front.drain)
                response = client.get("/readyz")
                assert (response.status, response.body) == (503, b"draining\n")
                assert client.ended()
            with server.connect() as client:
                assert client.get("/healthz").status == 200


class TestResources:
    def test_the_dataset(self, client: Client) -> None:
        response = client.get("/v1/dataset")
        assert json.loads(response.body) == {
            "namespace": "default",
            "name": "airports",
            "generation": "g1",
            "records": 3,
            "shards": 4,
            "builtAt": "2026-11-21T00:00:00Z",
            "ageSeconds": 12.346,
            "candidates": ["g2", "g3"],
        }
        assert response.fields["lookupdb-generation"] == "g1"
        assert client.get("/v1/dataset", method="HEAD").fields["content-length"] == str(len(response.body))

    @pytest.mark.parametrize(
        "target", ["/", "/v1", "/v1/", "/v2/lookup/a", "/v1/lookups", "/v1/%6Cookup/a", "/V1/dataset"]
    )
    def test_other_paths_are_404_of_another_type_than_a_missing_key(self, client: Client, target: str) -> None:
        response = client.get(target)
        assert (response.status, problem(response.body)) == (404, "no-such-resource")

    @pytest.mark.parametrize(
        ("target", "method", "allowed"),
        [
            ("/v1/lookup/KJFK", "POST", "GET, HEAD, OPTIONS"),
            ("/v1/lookup/KJFK", "DELETE", "GET, HEAD, OPTIONS"),
            ("/v1/lookup/KJFK", "TRACE", "GET, HEAD, OPTIONS"),
            ("/v1/lookup", "PUT", "GET, HEAD, OPTIONS, POST"),
            ("/v1/dataset", "PATCH", "GET, HEAD, OPTIONS"),
            ("/v1/dataset", "QUERY", "GET, HEAD, OPTIONS"),
        ],
    )
    def test_other_methods_are_405(self, client: Client, target: str, method: str, allowed: str) -> None:
        response = client.get(target, method=method)
        assert (response.status, problem(response.body)) == (405, "method-not-allowed")
        assert response.fields["allow"] == allowed
        options = client.get(target, method="OPTIONS")
        assert (options.status, options.fields["allow"], options.body) == (204, allowed, b"")
        assert "content-length" not in options.fields

    def test_options_of_the_whole_server(self, client: Client) -> None:
        assert client.get("*", method="OPTIONS").status == 204
        assert client.get("*").status == 405


class TestGenerations:
    def test_a_candidate_is_asked_by_name(self, client: Client) -> None:
        assert client.get("/v1/lookup/KJFK", "lookupdb-generation: g2").fields["lookupdb-generation"] == "g2"
        batch = client.post(b'{"keys": ["KJFK"]}', "Lookupdb-Generation:  g2 ")
        assert (batch.fields["lookupdb-generation"], json.loads(batch.body)["generation"]) == ("g2", "g2")

    @pytest.mark.parametrize("name", ["g9", "", "x" * 3000, "g\xe4"], ids=["unknown", "empty", "long", "latin"])
    def test_one_that_is_not_served_is_412_and_never_404(self, client: Client, name: str) -> None:
        response = client.get("/v1/lookup/KJFK", f"Lookupdb-Generation: {name}")
        assert (response.status, problem(response.body)) == (412, "unknown-generation")
        assert client.post(b'{"keys": ["KJFK"]}', f"Lookupdb-Generation: {name}").status == 412

    def test_raw_values_are_octets_and_base64_in_batches(self, client: Client) -> None:
        response = client.get("/v1/lookup/KJFK", "Lookupdb-Generation: g3")
        assert (response.fields["content-type"], response.body) == ("application/octet-stream", KENNEDY)
        batch = json.loads(client.post(b'{"keys": ["KJFK"]}', "Lookupdb-Generation: g3").body)
        assert base64.b64decode(batch["found"]["KJFK"]) == KENNEDY


class TestMixed:
    """While the routing table is mixed."""

    @pytest.fixture
    def client(self, mixed_server: Server) -> Iterator[Client]:
        with mixed_server.connect() as client:
            yield client

    def test_each_answer_names_its_own_generation_also_to_repeats_on_one_connection(self, client: Client) -> None:
        for _ in range(3):
            for key, name in (("old", "g9"), ("new", "g12")):
                response = client.get(f"/v1/lookup/{key}")
                assert (response.status, response.fields["lookupdb-generation"]) == (200, name)
            missing = client.get("/v1/lookup/gone")
            assert (missing.status, missing.fields["lookupdb-generation"]) == (404, "g9")
            assert json.loads(missing.body)["detail"] == "generation g9 holds no record with this key"

    def test_a_key_that_no_record_can_have_is_missing_in_all(self, client: Client) -> None:
        response = client.get("/v1/lookup/" + "x" * 600)
        assert (response.status, response.fields["lookupdb-generation"]) == (404, "g9, g12")
        assert "no record can have this key" in json.loads(response.body)["detail"]

    def test_a_batch_names_all_that_it_comes_from(self, client: Client) -> None:
        response = client.post(b'{"keys": ["old", "new", "gone"]}')
        assert response.fields["lookupdb-generation"] == "g9, g12"
        assert response.body == (
            b'{"generation":null,"generations":["g9","g12"],"found":{"old":1,"new":2},"missing":["gone"]}'
        )

    def test_so_does_one_that_is_sent_in_pieces(self, client: Client) -> None:
        response = client.post(b'{"keys": ["big", "gone"], "partial": true}')
        assert response.body.startswith(b'{"generation":null,"generations":["g9","g12"],"found":{"big":"xxx')
        assert response.body.endswith(b'},"missing":["gone"],"unavailable":[]}')
        assert int(response.fields["content-length"]) == len(response.body)

    @pytest.mark.parametrize("name", ["g9", "g12", "g9, g12", "g99", ""])
    def test_no_generation_can_be_asked_for_by_name(self, client: Client, name: str) -> None:
        for response in (
            client.get("/v1/lookup/old", f"Lookupdb-Generation: {name}"),
            client.post(b'{"keys": ["old"]}', f"Lookupdb-Generation: {name}"),
        ):
            assert (response.status, problem(response.body)) == (412, "unknown-generation")
            assert json.loads(response.body)["detail"] == (
                "the dataset is being rolled out shard by shard, and no generation is whole: its shards answer from "
                "g9, g12; leave Lookupdb-Generation out to ask them"
            )

    def test_the_dataset_says_how_many_shards_are_whose(self, client: Client) -> None:
        response = client.get("/v1/dataset")
        document = json.loads(response.body)
        assert (document["generation"], document["shardGenerations"]) == ("g12", {"g9": 2, "g12": 2})
        assert response.fields["lookupdb-generation"] == "g9, g12"


class TestMediaTypes:
    @pytest.mark.parametrize(
        "accept",
        [
            "*/*",
            "application/json",
            "APPLICATION/JSON",
            "application/*;q=0.1",
            "text/html, */*;q=0.8",
            "",
            "text/html;q=x, */*",
        ],
    )
    def test_what_takes_json(self, client: Client, accept: str) -> None:
        assert client.get("/v1/lookup/KJFK", f"Accept: {accept}").status == 200

    @pytest.mark.parametrize(
        "accept",
        ["text/html", "application/json;q=0", "application/json;q=0.0, */*", "application/octet-stream", "image/*"],
    )
    def test_what_does_not(self, client: Client, accept: str) -> None:
        response = client.get("/v1/lookup/KJFK", f"Accept: {accept}")
        assert (response.status, problem(response.body)) == (406, "not-acceptable")
        assert client.post(b'{"keys": []}', f"Accept: {accept}").status == 406

    @pytest.mark.parametrize(
        ("accept", "generation", "framed"),
        [
            (FRAMES, "g3", True),
            (f"application/json, {FRAMES}", "g3", True),
            (f"*/*, {FRAMES};q=0.1", "g3", True),
            (f"application/json, {FRAMES}", "g2", False),
            (FRAMES, "g2", True),
            (f"application/json, {FRAMES};q=0", "g3", False),
            ("*/*", "g3", False),
            ("application/*", "g3", False),
        ],
    )
    def test_a_batch_of_raw_values_comes_as_frames_to_who_names_them(
        self, client: Client, accept: str, generation: str, framed: bool
    ) -> None:
        """JSON values do where JSON is ruled out."""
        fields = (f"Accept: {accept}", f"Lookupdb-Generation: {generation}")
        response = client.post(b'{"keys": ["KJFK", "none"]}', *fields)
        assert response.status == 200
        assert response.fields["content-type"] == (FRAMES if framed else "application/json")
        assert response.fields["lookupdb-value-format"] == ("raw" if generation == "g3" else "json")
        assert response.fields["lookupdb-generation"] == generation
        assert response.fields["vary"] == "Lookupdb-Generation, Accept"
        if framed:
            told = decode_frames(response.body, ["KJFK", "none"])
            assert (told.found, told.missing) == ({"KJFK": client.get("/v1/lookup/KJFK", fields[1]).body}, ["none"])

    def test_several_fields_are_one_list(self, client: Client) -> None:
        assert client.get("/v1/lookup/KJFK", "Accept: text/html", "Accept: application/json").status == 200
        for fields in (("Accept: */*", "Accept: text/html"), ("Accept: text/html", "Accept: */*")):
            assert client.get("/v1/lookup/KJFK", *fields).status == 200

    def test_raw_values_are_octets(self, client: Client) -> None:
        asked = ("Lookupdb-Generation: g3", "Accept: application/octet-stream")
        assert client.get("/v1/lookup/KJFK", *asked).status == 200
        assert client.get("/v1/lookup/KJFK", asked[0], "Accept: application/json").status == 406

    @pytest.mark.parametrize(
        "field",
        [
            "application/json",
            "Application/JSON; charset=UTF-8",
            'application/json; charset="utf-8"',
            pytest.param("application/x-www-form-urlencoded", id="what curl -d says of anything"),
        ],
    )
    def test_a_batch_is_json(self, client: Client, field: str) -> None:
        assert client.post(b'{"keys": []}', f"Content-Type: {field}").status == 200

    @pytest.mark.parametrize(
        "field",
        [
            "Content-Type: text/plain",
            "Content-Type: application/json; charset=utf-16",
            "Content-Type: ",
            "Content-Encoding: gzip",
        ],
    )
    def test_and_nothing_else(self, client: Client, field: str) -> None:
        response = client.post(b'{"keys": []}', field)
        assert (response.status, problem(response.body)) == (415, "unsupported-media-type")


class TestBatches:
    def test_each_key_is_answered_once_as_it_was_asked(self, client: Client) -> None:
        response = client.post(json.dumps({"keys": ["KJFK", "zz", "a/b", "KJFK", "zz", " KJFK"]}).encode())
        assert response.status == 200
        assert (
            response.body == b'{"generation":"g1","found":{"KJFK":%b,"a/b":"slash"},"missing":["zz"," KJFK"]}' % KENNEDY
        )

    @pytest.mark.parametrize("key", ['"', "\\", "\x00", "🐎", "\u2028"], ids=ascii)
    def test_keys_are_escaped(self, server: Server, client: Client, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(server.lookups.values, key, b"1")
        assert json.loads(client.post(json.dumps({"keys": [key]}).encode()).body)["found"] == {key: 1}

    def test_a_key_that_no_record_can_have_spoils_nothing(self, client: Client) -> None:
        response = json.loads(client.post(json.dumps({"keys": ["", "KJFK", "x" * 600]}).encode()).body)
        assert (list(response["found"]), response["missing"]) == (["KJFK"], ["", "x" * 600])

    def test_no_keys_no_values(self, client: Client) -> None:
        assert client.post(b'{"keys":[]}').body == b'{"generation":"g1","found":{},"missing":[]}'

    def test_an_unreachable_shard_is_503(self, client: Client) -> None:
        response = client.post(b'{"keys": ["KJFK", "lost"]}')
        assert (response.status, problem(response.body)) == (503, "unavailable")
        assert "1 of 2 keys" in json.loads(response.body)["detail"]
        assert response.fields["retry-after"] == "1"

    def test_unless_a_partial_answer_will_do(self, client: Client) -> None:
        response = json.loads(client.post(b'{"keys": ["KJFK", "lost", "zz"], "partial": true}').body)
        assert list(response["found"]) == ["KJFK"]
        assert (response["missing"], response["unavailable"]) == (["zz"], ["lost"])

    def test_nothing_at_all_is_503_even_so(self, client: Client) -> None:
        assert client.post(b'{"keys": ["lost", "gone"], "partial": true}').status == 503

    def test_a_body_that_is_no_batch_is_400(self, client: Client) -> None:
        for body, found in (
            (b"", "not JSON"),
            (b"{", "not JSON"),
            (b'{"keys": ["\xff"]}', "not JSON"),
            (b'{"keys": ["\\ud800"]}', "not JSON"),
            (b"[" * 5000, "not JSON"),
            (b"null", "expected an object"),
            (b'["KJFK"]', "expected an object"),
            (b"{}", "expected an object"),
            (b'{"keys": "KJFK"}', "found a string"),
            (b'{"keys": {}}', "found an object"),
            (b'{"keys": ["a", 1]}', "keys[1] is a number"),
            (b'{"keys": [null]}', "keys[0] is null"),
            (b'{"keys": [], "partial": 1}', "found a number"),
            (b'{"keys": [], "partail": true}', "found 'partail'"),
            (b'{"key": ["KJFK"]}', "found 'key'"),
        ):
            response = client.post(body)
            assert (response.status, problem(response.body)) == (400, "invalid-body")
            assert found in json.loads(response.body)["detail"]
            assert client.get("/v1/lookup/KJFK").status == 200, "and the connection stays"
