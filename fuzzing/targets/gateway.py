"""The gateway: requests of its clients, and its answers."""

from __future__ import annotations

import posixpath
from typing import Final

from fuzzing.target import Target, in_pieces
from lookupdb.account_tokens import InvalidToken, find_key_id
from lookupdb.store import gateway
from lookupdb.store.gateway import BrokenListing
from lookupdb.store.objects import parse_problem
from lookupdb_operator.gateway.request import Operation, RequestProblem, owns_folder, owns_object, parse_target
from lookupdb_operator.gateway.transfers import parse_mode, parse_paths

_CLUSTER, _NAMESPACE, _FOLDER = "cluster", "team-a", "cluster/team-a"


def check_target(data: bytes) -> None:
    """An accepted path lies in the caller's folder, however it is resolved."""
    method, _, target = data.decode("latin-1").partition(" ")
    try:
        asked = parse_target(method, target)
    except RequestProblem as problem:
        assert 400 <= problem.status < 500
        return
    owns = owns_folder if asked.operation is Operation.LIST else owns_object
    if owns(asked.path, _CLUSTER, _NAMESPACE):
        assert posixpath.normpath(asked.path) == asked.path
        assert asked.path == _FOLDER or asked.path.startswith(f"{_FOLDER}/")


def check_deletion(data: bytes) -> None:
    """A list of paths is a list of texts, or rejected."""
    try:
        paths = parse_paths(data)
    except RequestProblem as problem:
        assert 400 <= problem.status < 500
        return
    assert all(type(path) is str for path in paths)


def check_mode(data: bytes) -> None:
    """A condition of a put suits the store's client, or is rejected."""
    try:
        mode = parse_mode(data.decode("latin-1"))
    except RequestProblem as problem:
        assert 400 <= problem.status < 500
        return
    if isinstance(mode, dict):
        assert all(value is None or value.isprintable() for value in mode.values())


def check_key_id(data: bytes) -> None:
    """A token's header names a key, or the token is rejected."""
    try:
        key_id = find_key_id(data.decode("latin-1"))
    except InvalidToken:
        return
    assert 0 < len(key_id) <= 256


def check_listing(data: bytes) -> None:
    """A listing is the same in any pieces, and half of one is none. It lists the folder or what is in it."""
    for read in (gateway.read_objects, gateway.read_folders):
        whole = _list(read, [data])
        assert whole == _list(read, in_pieces(data))
        if isinstance(whole, list) and read is gateway.read_objects:
            assert all(f"{entry['path']}/".startswith(f"{_FOLDER}/") for entry in whole)
            assert all(posixpath.normpath(entry["path"]) == entry["path"] for entry in whole)


def _list(read: object, pieces: list[bytes]) -> object:
    try:
        return read(pieces, _FOLDER)  # type: ignore[operator]
    except (BrokenListing, ValueError, KeyError, TypeError):
        return None


def check_problem(data: bytes) -> None:
    """A failed request becomes an error with a sentence of one line."""
    kind, _, body = data.partition(b"\n")
    for status in (401, 404, 503):
        problem = parse_problem(status, kind.decode("latin-1"), body, kind.decode("latin-1"))
        error = problem.error("cannot read x")
        assert error.message.startswith("cannot read x")
        assert not {"\n", "\r", "\0"} & set(error.message) and 0 <= problem.pause <= 10


_HEADER: Final = b"eyJhbGciOiJSUzI1NiIsImtpZCI6ImsifQ"
TARGETS: Final = (
    Target(
        "gateway-targets",
        check_target,
        (
            b"GET /v1/object/cluster/team-a/airports-8d3f6b1a/g1/manifest.json",
            b"PUT /v1/object/cluster/team-a/a%2Db",
            b"GET /v1/list?prefix=cluster/team-a&delimiter=1",
            b"POST /v1/delete",
        ),
        tuple(b".. / // %2e%2e %2f %252e %00 cluster/team-b/ team-a- &prefix= ; \xef\xbc\x8e".split()),
    ),
    Target(
        "gateway-deletions",
        check_deletion,
        (b'["cluster/team-a/x"]', b'{"paths":["cluster/team-a/x","cluster/team-a/y"]}'),
        (b"[", b"]", b"null", b"{}", b'"\\ud800"', b'""', b"1"),
    ),
    Target(
        "gateway-modes",
        check_mode,
        (b"create", b'{"e_tag":"x","version":"1"}'),
        (b'"e_tag"', b"\\u0000", b"\\r\\n", b"null", b"{}", b"1"),
    ),
    Target("gateway-token-headers", check_key_id, (_HEADER + b".e30.c2ln",), (b".", b"eyJ", b"=", b"bnVsbA", b"W10")),
    Target(
        "gateway-listings",
        check_listing,
        (
            b'{"path":"cluster/team-a/x","size":1,"last_modified":"2026-01-01T00:00:00+00:00","e_tag":"a"}\n{"end":true}\n',
            b'{"path":"cluster/team-a","size":0,"last_modified":"2026-01-01T00:00:00+00:00"}\n{"end":true}\n',
            b'{"prefix":"cluster/team-a/airports-8d3f6b1a/"}\n{"end":true}\n',
        ),
        (b"\n", b'{"end":true}\n', b'"../x"', b"null", b"-1", b"1e99", b'"cluster/team-a/../x"', b'"9999-99-99"'),
    ),
    Target(
        "gateway-problems",
        check_problem,
        (b'application/problem+json\n{"kind":"busy","detail":"no room","status":503}', b"5\n<html>"),
        (b'"kind"', b'"detail"', b"null", b"[]", b"\\u0000", b"\\n", b"999999"),
    ),
)
