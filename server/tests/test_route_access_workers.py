"""`lookupdb route` with clients that have to show a token: workers, files that change under them, and /status."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.fleets import fleet, fleet_entry
from support.launching import stop
from support.ports import free_port
from support.routers import Router, routing
from support.routing import table_file
from support.shards import write_generation
from support.signers import claims_of, ec_signer, jwks
from support.waiting import until

from lookupdb.cli.route import command
from lookupdb.router.access import hash_token
from support import launching

AUDIENCE = "lookupdb:airports"
TOKEN, NEXT = "the-first-token-of-the-web-client", "the-second-token-of-the-web-client"
ACCOUNTS = "--auth-audience", AUDIENCE, "--auth-subject", "team/*"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("store")
    generation = write_generation(home, {"k1": b"v1"}, shards=1)
    with fleet(generation) as shards:
        (home / "table.json").write_bytes(table_file(fleet_entry(generation, shards)))
        yield home / "table.json"


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    folder = tmp_path / "tokens"
    folder.mkdir()
    (folder / "web").write_text(hash_token(TOKEN.encode()))
    return folder


def replace(file: Path, *lines: str) -> None:
    file.with_suffix(".tmp").write_text("\n".join(lines))
    file.with_suffix(".tmp").rename(file)


class Asking:
    """One open connection."""

    def __init__(self, router: Router) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", router.port, timeout=60)
        self._http.connect()
        self.socket = self._http.sock

    def __call__(self, token: str = "") -> int:
        self._http.request("GET", "/v1/lookup/k1", headers={"Authorization": f"Bearer {token}"} if token else {})
        response = self._http.getresponse()
        response.read()
        assert self._http.sock is self.socket, "the connection stays"
        return response.status

    def close(self) -> None:
        self._http.close()


def test_a_token_is_replaced_in_all_workers_while_their_connections_stay_open(table: Path, tokens: Path) -> None:
    with routing(table, "--auth-tokens", str(tokens), workers=2) as router:
        connections = [Asking(router) for _ in range(16)]
        assert {ask() for ask in connections} == {401}
        assert {ask(TOKEN) for ask in connections} == {200}
        assert {ask(NEXT) for ask in connections} == {401}
        replace(tokens / "web", hash_token(TOKEN.encode()), hash_token(NEXT.encode()))
        until(lambda: {ask(NEXT) for ask in connections} == {200}, "the second token is accepted", 15)
        assert {ask(TOKEN) for ask in connections} == {200}
        replace(tokens / "web", hash_token(NEXT.encode()))
        until(lambda: {ask(TOKEN) for ask in connections} == {401}, "the first one is not any more", 15)
        assert {ask(NEXT) for ask in connections} == {200}
        until(lambda: [access["tokens"] for access in router.reports("access")] == [1, 1], "/status tells of both")
        for ask in connections:
            ask.close()


def test_a_plain_token_is_refused_and_not_shown(table: Path, tokens: Path) -> None:
    (tokens / "plain").write_text(NEXT)
    with routing(table, "--auth-tokens", str(tokens)) as router:
        ask = Asking(router)
        assert (ask(TOKEN), ask(NEXT)) == (200, 401)
        status = router.get("/status", admin=True)[1].decode()
        assert "plain: line 1 is not the hash of a token" in status
        assert NEXT not in status
        ask.close()


def test_who_can_let_nobody_in_is_not_ready_and_says_why(table: Path, tmp_path: Path) -> None:
    tokens, keys = tmp_path / "tokens", tmp_path / "keys" / "jwks.json"
    admin = free_port()
    words = ["--table", str(table), "--port", "0", "--admin-port", str(admin), "--auth-tokens", str(tokens)]
    process = launching.start("route", [*words, "--auth-keys", str(keys), *ACCOUNTS, "--drain-seconds", "0"])
    try:
        router = Router(process, 0, admin)

        def explained() -> str:
            try:
                return router.get("/readyz", admin=True)[1].decode()
            except OSError:
                return ""

        until(lambda: f"no file with one in {tokens}" in (said := explained()) and "keys" in said, "it says why")
        keys.parent.mkdir()
        keys.write_text(json.dumps(jwks(ec_signer())))
        until(lambda: explained() == "ready\n", "one of both suffices to be ready", 30)
        assert f"no file with one in {tokens}" in str(router.reports("access"))
    finally:
        assert stop(process) == 0


def test_a_service_account_looks_up_until_its_token_expires(table: Path, tmp_path: Path) -> None:
    keys = tmp_path / "jwks.json"
    keys.write_text(json.dumps(jwks(ec_signer())))

    def sign(**changes: Any) -> str:
        return ec_signer().sign({**claims_of("team"), "aud": [AUDIENCE], **changes})

    with routing(table, "--auth-keys", str(keys), *ACCOUNTS) as router:
        ask = Asking(router)
        assert ask(sign()) == 200
        assert ask(sign(sub="system:serviceaccount:other:x", **{"kubernetes.io": {"namespace": "other"}})) == 403
        brief = sign(exp=int(time.time()) - 6)  # clocks may differ by ten seconds
        assert ask(brief) == 200
        until(lambda: ask(brief) == 401, "it has expired", 30)
        metrics = router.metrics()
        assert "lookupdb_router_requests_forbidden_total 1.0" in metrics
        replace(keys, json.dumps(jwks(ec_signer("ec-2"))))
        until(lambda: ask(sign()) == 401, "the key is gone", 15)
        ask.close()


def test_only_a_worker_that_judges_service_accounts_imports_what_verifies_them() -> None:
    """Sixteen MB in each worker."""
    program = (
        "from lookupdb.process import leave_out_tls; leave_out_tls(); import lookupdb.router.worker, sys; "
        "from lookupdb.router.access import _make_accounts; "
        "from lookupdb.router.access import AccessSettings; "
        "_make_accounts(AccessSettings(tokens='x')); print('jwt' in sys.modules, 'cryptography' in sys.modules); "
        "_make_accounts(AccessSettings(keys='x', audience='y', subjects=('a/b',))); print('jwt' in sys.modules); "
        "print('_ssl' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False", "True", "False"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--auth-keys", "jwks.json"), "only some are given"),
        (("--auth-audience", AUDIENCE), "only some are given"),
        (("--auth-subject", "a/b", "--auth-keys", "jwks.json"), "only some are given"),
        (("--auth-keys", "k", "--auth-audience", "a", "--auth-subject", "a"), "names a service account, found 'a'"),
        (
            (
                "--auth-keys",
                "k",
                "--auth-audience",
                "a",
                *(w for n in range(65) for w in ("--auth-subject", f"a/n{n}")),
            ),
            "at most 64",
        ),
    ],
)
def test_service_accounts_need_all_three_options(options: tuple[str, ...], expected: str) -> None:
    done = CliRunner().invoke(command, ["--table", "table.json", *options])
    assert done.exit_code != 0
    assert expected in str(done.exception)
