"""A router sends shard servers the password that their routing table entry names, and no other. The second half runs
real servers and routers."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from click.testing import CliRunner
from support.fleets import Shards, fleet, fleet_entry
from support.routers import Clients, Router, routing, starting
from support.routing import entry, mixed, table, table_file
from support.shards import Running, write_generation
from support.waiting import soon, until

from lookupdb import credentials
from lookupdb.cli import serve
from lookupdb.errors import UsageError
from lookupdb.router.link import MOST_KEYS, PasswordRef, Passwords, UnknownKey
from lookupdb.router.routing_table import InvalidTable

pytestmark = pytest.mark.long

KEY, NEWER_KEY = (credentials.derive_dataset_key(bytes(32), uid) for uid in ("one", "another"))
MARK, NEWER_MARK = map(credentials.fingerprint_key, (KEY, NEWER_KEY))
KEYS = {f"k{number}": b"v%d" % number for number in range(20)}


def content(*keys: bytes) -> dict[Path, bytes | None]:
    return {Path("/keys", credentials.fingerprint_key(key)): key for key in keys}


class TestPasswords:
    def test_of_servers_without_a_key_are_the_common_one(self) -> None:
        assert Passwords().find(None, 0) is None
        assert Passwords("open sesame").find(None, 0) == "open sesame"

    def test_are_derived_from_the_key_and_the_rollout(self) -> None:
        passwords = Passwords("open sesame")
        passwords.take_files(content(KEY, NEWER_KEY))
        for key in (KEY, NEWER_KEY):
            ref = PasswordRef("r3", credentials.fingerprint_key(key))
            for shard in (0, 7):
                assert passwords.find(ref, shard) == credentials.derive_password(key, "r3", shard)

    def test_without_their_key_are_not_guessed(self) -> None:
        passwords = Passwords("open sesame")
        passwords.take_files(content(NEWER_KEY))
        with pytest.raises(UnknownKey, match=rf"rollout r3 \(key {MARK}\): the file of that key is not there"):
            passwords.find(PasswordRef("r3", MARK), 0)
        assert passwords.list_missing([PasswordRef("r3", MARK), PasswordRef("r4", NEWER_MARK)]) == [MARK]

    @pytest.mark.parametrize("found", [None, b"", KEY[:31], KEY + b"\n", NEWER_KEY])
    def test_of_a_file_that_holds_something_else_are_not_made(self, found: bytes | None) -> None:
        passwords = Passwords()
        passwords.take_files({Path("/keys", MARK): found})
        with pytest.raises(UnknownKey, match="holds another key or none") as error:
            passwords.find(PasswordRef("r3", MARK), 0)
        assert KEY.hex() not in str(error.value)
        assert passwords.list_missing([PasswordRef("r3", MARK)]) == [MARK]

    def test_are_known_when_the_file_is_gone_and_it_is_said_that_it_is(self) -> None:
        passwords = Passwords()
        passwords.take_files(content(KEY))
        assert passwords.list_missing([PasswordRef("r3", MARK)]) == []
        passwords.take_files({})
        assert passwords.find(PasswordRef("r3", MARK), 2) == credentials.derive_password(KEY, "r3", 2)
        assert passwords.list_missing([PasswordRef("r3", MARK)]) == [MARK]

    def test_are_of_so_many_keys_at_most(self) -> None:
        keys = [credentials.derive_dataset_key(bytes(32), str(number)) for number in range(MOST_KEYS + 1)]
        passwords = Passwords()
        for key in keys:
            passwords.take_files(content(key))
        with pytest.raises(UnknownKey):
            passwords.find(PasswordRef("r1", credentials.fingerprint_key(keys[0])), 0)
        assert passwords.find(PasswordRef("r1", credentials.fingerprint_key(keys[1])), 0)


class TestARoutingTable:
    def test_names_no_password_where_there_is_none(self) -> None:
        assert [shard.password for shard in table(entry([["a:1"], ["b:1"]])).active_entry.shards] == [None, None]

    def test_names_the_key_of_all_servers_of_a_rollout(self) -> None:
        (shard,) = table(entry([["a:1"]], "g2", passwordKey=MARK)).active_entry.shards
        assert shard.password == PasswordRef("r2", MARK)

    @pytest.mark.parametrize(
        ("members", "expected"),
        [
            ({"rollout": "r1", "passwordKey": NEWER_MARK}, PasswordRef("r1", NEWER_MARK)),
            ({"rollout": "r1"}, None),
            ({}, PasswordRef("r2", MARK)),
        ],
    )
    def test_names_the_password_of_a_shard_of_another_rollout(
        self, members: dict[str, Any], expected: PasswordRef | None
    ) -> None:
        of_one = entry([["a:1"], ["b:1"]], "g2", passwordKey=MARK)
        of_one["shards"][1].update(members)
        assert [shard.password for shard in table(of_one).active_entry.shards] == [PasswordRef("r2", MARK), expected]
        of_several = mixed(entry([["a:1"], ["b:1"]], "g2", passwordKey=MARK), entry([["a:1"], ["b:1"]], "g1"), {1})
        of_several["shards"][1].update(members)
        shards = table(of_several).active_entry.shards
        assert [(shard.generation, shard.password) for shard in shards] == [
            ("g2", PasswordRef("r2", MARK)),
            ("g1", expected),
        ]

    @pytest.mark.parametrize("key", ["", "8D3F6B1A", "8d3f6b1", "8d3f6b1a0", "../../etc", 12, None])
    def test_with_a_fingerprint_that_is_none_is_refused(self, key: object) -> None:
        with pytest.raises(InvalidTable, match="passwordKey"):
            table(entry([["a:1"]], passwordKey=key))

    def test_whose_shard_names_a_key_and_no_rollout_is_refused(self) -> None:
        document = entry([["a:1"]])
        document["shards"][0]["passwordKey"] = MARK
        with pytest.raises(InvalidTable, match="must name the rollout of its passwordKey"):
            table(document)


@pytest.fixture(scope="module")
def generation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_generation(tmp_path_factory.mktemp("store"), KEYS, shards=2)


def hash_of(key: bytes, rollout: str, shard: int) -> str:
    return credentials.hash_password(credentials.derive_password(key, rollout, shard).encode())


def asking(key: bytes, rollout: str) -> Callable[[int], list[str]]:
    """The options of a shard's servers that ask for their password."""
    return lambda shard: ["--password-sha256", hash_of(key, rollout, shard)]


@pytest.fixture(scope="module")
def shards(generation: Path) -> Iterator[Shards]:
    """The servers of r1, by the older key."""
    with fleet(generation, of_shard=asking(KEY, "r1")) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of keys, as a kubelet mounts it, with the older key."""
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / MARK).write_bytes(KEY)
    return keys


def failures(router: Router) -> list[str]:
    return [why for endpoint in router.reports("endpoints")[0] or () if (why := endpoint["why"])]


def rewrite(path: Path, content: bytes) -> None:
    unfinished = path.with_suffix(".tmp")
    unfinished.write_bytes(content)
    unfinished.rename(path)


class TestAShardServer:
    def test_takes_the_password_whose_hash_it_was_given_and_no_other(self, shards: Shards) -> None:
        right = credentials.derive_password(KEY, "r1", 0)
        (port,) = shards[0][0].ports
        assert redis.Redis(port=port, password=right).ping()
        wrong = [
            credentials.derive_password(KEY, "r2", 0),
            credentials.derive_password(KEY, "r1", 1),
            credentials.derive_password(NEWER_KEY, "r1", 0),
            hash_of(KEY, "r1", 0),
            right[:-1],
        ]
        for password in wrong:
            with pytest.raises(redis.AuthenticationError):
                redis.Redis(port=port, password=password).ping()
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(port=port).ping()

    def test_has_nothing_of_the_password_in_its_process(self, shards: Shards) -> None:
        server: Running = shards[0][0]
        line = Path(f"/proc/{server.process.pid}/cmdline").read_text()
        assert hash_of(KEY, "r1", 0) in line
        assert credentials.derive_password(KEY, "r1", 0) not in line


class TestARouter:
    def test_shows_each_rollout_its_password(self, generation: Path, shards: Shards, folder: Path) -> None:
        path = folder.parent / "table.json"
        path.write_bytes(table_file(entry_of(generation, shards, MARK)))
        with routing(path, "--password-key-dir", str(folder)) as router:
            assert router.get("/v1/lookup/k1") == (200, b"v1")
            assert router.reports("missingKeys") == [[]]
            said = router.get("/status", admin=True)[1] + router.get("/metrics", admin=True)[1]
            line = Path(f"/proc/{router.process.pid}/cmdline").read_bytes()
            for secret in (KEY.hex(), credentials.derive_password(KEY, "r1", 0)):
                assert secret.encode() not in said + line

    def test_shows_who_listens_at_an_address_the_password_of_that_shard_alone(
        self, generation: Path, shards: Shards, folder: Path
    ) -> None:
        document = entry_of(generation, shards, MARK)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(60)
            document["shards"][1]["endpoints"].append(f"127.0.0.1:{listener.getsockname()[1]}")
            path = folder.parent / "table.json"
            path.write_bytes(table_file(document))
            with starting(path, "--password-key-dir", str(folder)), listener.accept()[0] as connection:
                shown = connection.recv(1 << 12).split(b"\r\n")[4].decode()
        assert shown == credentials.derive_password(KEY, "r1", 1)
        assert redis.Redis(port=shards[1][0].ports[0], password=shown).ping()
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(port=shards[0][0].ports[0], password=shown).ping()

    def test_that_is_told_no_key_is_refused_and_says_so(self, generation: Path, shards: Shards, folder: Path) -> None:
        path = folder.parent / "table.json"
        path.write_bytes(table_file(entry_of(generation, shards, None)))
        with starting(path, "--password-key-dir", str(folder)) as router:
            (why, *_) = until(lambda: failures(router), "endpoints refuse")
            assert "requires a password, but the routing table names none: NOAUTH" in why

    def test_with_another_key_is_refused_and_says_so(self, generation: Path, shards: Shards, folder: Path) -> None:
        (folder / NEWER_MARK).write_bytes(NEWER_KEY)
        path = folder.parent / "table.json"
        path.write_bytes(table_file(entry_of(generation, shards, NEWER_MARK)))
        with starting(path, "--password-key-dir", str(folder)) as router:
            (why, *_) = until(lambda: failures(router), "endpoints refuse")
            assert f"does not accept the password of rollout r1 (key {NEWER_MARK}): WRONGPASS" in why
            assert router.get("/v1/lookup/k1")[0] == 503

    def test_without_the_key_waits_for_it(self, generation: Path, shards: Shards, folder: Path) -> None:
        (folder / MARK).unlink()
        path = folder.parent / "table.json"
        path.write_bytes(table_file(entry_of(generation, shards, MARK)))
        with starting(path, "--password-key-dir", str(folder)) as router:
            until(lambda: router.reports("missingKeys") == [[MARK]], "it says which key it lacks")
            assert f"(key {MARK}): the file of that key is not there" in until(lambda: failures(router), "and why")[0]
            (folder / MARK).write_bytes(KEY)
            until(lambda: router.get("/v1/lookup/k1") == (200, b"v1"), "it answers")
            until(lambda: router.reports("missingKeys") == [[]], "it lacks none")

    async def test_answers_from_the_old_table_until_it_has_the_key_of_the_new_one(
        self, generation: Path, shards: Shards, folder: Path
    ) -> None:
        path = folder.parent / "table.json"
        path.write_bytes(table_file(entry_of(generation, shards, MARK)))
        newer = write_generation(folder.parent / "newer", KEYS, shards=2, generation="g2")
        with (
            fleet(newer, of_shard=asking(NEWER_KEY, "r2")) as later,
            routing(path, "--password-key-dir", str(folder)) as router,
        ):
            async with Clients(router.port, KEYS) as clients:
                rewrite(path, table_file(entry_of(newer, later, NEWER_MARK), version=2))
                await soon(lambda: router.reports("missingKeys") == [[NEWER_MARK]], "the key is not there")
                assert router.reports("tableVersion") == [1]
                (problem,) = router.reports("error")
                assert "version 2 waits for an endpoint to be verified for shard 0, 1: 127.0.0.1:" in problem
                assert f"password of rollout r2 (key {NEWER_MARK})" in problem
                (folder / NEWER_MARK).write_bytes(NEWER_KEY)
                await soon(lambda: router.reports("tableVersion") == [2], "the new table is in effect")
                (folder / MARK).unlink()
                answered = clients.answered
                await soon(lambda: clients.answered > answered + 100, "it goes on")
            assert (clients.failures, clients.refused) == ([], 0)


def entry_of(generation: Path, shards: Shards, mark: str | None) -> dict[str, Any]:
    """``generation`` as a routing table names it, with the key ``mark``."""
    return fleet_entry(generation, shards) | ({} if mark is None else {"passwordKey": mark})


class TestTheCommandLine:
    @pytest.mark.parametrize(
        ("words", "variables", "sentence"),
        [
            (["--password-sha256", "ABC"], {}, "must be 64 lowercase hexadecimal digits, found 'ABC'"),
            (["--password-sha256", "g" * 64], {}, "must be 64 lowercase hexadecimal digits"),
            (["--password-sha256", "a" * 64], {"LOOKUPDB_PASSWORD": "s3cret"}, "a password and the hash of one"),
        ],
    )
    def test_takes_a_hash_or_a_password(self, words: list[str], variables: dict[str, str], sentence: str) -> None:
        run = CliRunner().invoke(serve.command, ["somewhere", *words], env=variables)
        assert isinstance(run.exception, UsageError)
        assert sentence in str(run.exception)
        assert "s3cret" not in str(run.exception) + run.output
