"""Secrets that are planted in every process show nowhere: not in logs, answers, /status, /metrics, files or process
listings, whatever goes wrong. Nor do they show in the operator's writes, except in their own Secret."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from manifest_samples import CONFIG, GOLDEN, airports, everything, rendered
from operator_support import planted
from operator_support.kube import serving as serving_kube
from operator_support.running import until as eventually
from support.buckets import s3_server
from support.ports import free_port
from support.process_table import descendants
from support.routing import entry, table_file
from support.shards import write_generation
from support.signers import AUDIENCE, claims_of, ec_signer, jwks, rsa_signer
from support.waiting import until

from lookupdb.router.access import hash_token
from lookupdb_operator import manifests
from lookupdb_operator.store import make_access, merge_secret

pytestmark = pytest.mark.long

ACCESS_KEY, SECRET_KEY, SESSION = "AKIAPLANTEDACCESSKEY", "planted/secret+key-of-the-store-xyz", "planted-session-token"
SOURCE_PASSWORD = "planted-password-of-the-source"
PASSWORD, WRONG_PASSWORD = "planted-password-of-the-shards", "planted-wrong-password"
TOKEN, WRONG_TOKEN = "planted-token-of-the-web-client-0123", "planted-token-that-is-not-accepted-0"
PLAIN_TOKEN = "planted-token-that-nobody-hashed-012"
LOOKUPS = "lookupdb:people"
FOR_LOOKUPS = {"aud": [LOOKUPS], "exp": int(time.time()) + 86_400}
"""Longer than all tests take on a busy machine: these tokens are made at collection."""
ACCOUNT_TOKEN = ec_signer().sign({**claims_of("team"), **FOR_LOOKUPS})
FORBIDDEN_TOKEN = ec_signer().sign({**claims_of("other"), **FOR_LOOKUPS, "sub": "system:serviceaccount:other:default"})
PLANTED = {
    "the access key": ACCESS_KEY,
    "the secret key": SECRET_KEY,
    "the session": SESSION,
    "the source's password": SOURCE_PASSWORD,
    "the shards' password": PASSWORD,
    "a wrong password": WRONG_PASSWORD,
    "a token": TOKEN,
    "a wrong token": WRONG_TOKEN,
    "a plain token": PLAIN_TOKEN,
    "a token's hash": hash_token(TOKEN.encode()).removeprefix("sha256:"),
    "an account's token": ACCOUNT_TOKEN,
    "a forbidden account's token": FORBIDDEN_TOKEN,
    "a signature": ACCOUNT_TOKEN.rpartition(".")[2],
}
CREDENTIALS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_SESSION_TOKEN": SESSION}


def find_planted(text: str) -> list[str]:
    """Return the secrets in ``text``."""
    return planted.find_planted(text, PLANTED)


@dataclass
class Evidence:
    """The output of all processes."""

    seen: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, text: str | bytes) -> None:
        self.seen[name] = self.seen.get(name, "") + (text if isinstance(text, str) else text.decode(errors="replace"))

    def judge(self, *nonempty: str) -> None:
        assert {name: found for name, text in self.seen.items() if (found := find_planted(text))} == {}
        for name in nonempty:
            assert self.seen[name], f"nothing was seen of {name}"


@contextlib.contextmanager
def running(
    evidence: Evidence, folder: Path, name: str, *words: str, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process of the command line; its log, its listing and its children's are evidence."""
    log = folder / f"{name}.log"
    command = [sys.executable, "-m", "lookupdb", *words]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command, env={**os.environ, "LOOKUPDB_LOG_FORMAT": "json", **environment}, stdout=stream, stderr=stream
        )
    try:
        yield process
        for pid in (process.pid, *descendants(process.pid)):
            for file in ("cmdline", "comm", "status"):  # anyone who may run ps reads these, and not environ
                evidence.add(f"{name} {file}", Path(f"/proc/{pid}/{file}").read_bytes())
    finally:
        process.terminate()
        process.wait(60)
        evidence.add(f"{name} log", log.read_bytes())


def ask_admin(evidence: Evidence, name: str, port: int) -> None:
    for path in ("/status", "/metrics", "/readyz", "/nowhere"):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            connection.request("GET", path, headers={"Authorization": f"Bearer {WRONG_TOKEN}"})
            evidence.add(f"{name} {path}", connection.getresponse().read())


def read_ready(file: Path, process: subprocess.Popen[bytes], log: Path) -> dict[str, int]:
    until(lambda: file.exists() or process.poll() is not None, "it is ready", 90)
    assert process.poll() is None, log.read_text()
    members: dict[str, int] = orjson.loads(file.read_bytes())
    return members


def converse(port: int, *pieces: bytes) -> bytes:
    """Return the answer to bytes until its end, or after a moment."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as raw:
        for piece in pieces:
            raw.sendall(piece)
        raw.shutdown(socket.SHUT_WR)
        answered = b""
        while data := raw.recv(65536):
            answered += data
    return answered


BAD_REQUESTS = [
    f"GET /v1/lookup/k1 HTTP/1.1\r\nHost: r\r\nAuthorization: Bearer {token}\r\n{more}\r\n".encode()
    for token in (TOKEN, WRONG_TOKEN, PLAIN_TOKEN, ACCOUNT_TOKEN, FORBIDDEN_TOKEN, ACCOUNT_TOKEN + "x", TOKEN[:15])
    for more in (
        "",
        f"Authorization: Bearer {TOKEN}\r\n",
        "Content-Length: 9999999\r\n",
        "Transfer-Encoding: gzip\r\n",
        "Expect: more\r\n",
        f"X: {'y' * 40_000}\r\n",
        "broken\r\n",
    )
] + [
    f"GET /v1/lookup/k1 HTTP/3.9\r\nAuthorization: Basic {TOKEN}\r\n\r\n".encode(),
    f"Authorization: Bearer {TOKEN}\r\n\r\n".encode(),
    f"GET /v1/lookup/k1 HTTP/1.1\r\nHost: r\r\nAuthorization: Bearer {TOKEN}".encode(),
]


def test_shard_servers_and_routers_show_nothing(tmp_path: Path) -> None:
    evidence = Evidence()
    generation = write_generation(tmp_path, {"k1": b"v1"})
    (tmp_path / "password").write_text(PASSWORD + "\n")
    (tmp_path / "wrong").write_text(WRONG_PASSWORD)
    tokens = tmp_path / "tokens"
    tokens.mkdir()
    (tokens / "web").write_text(hash_token(TOKEN.encode()))
    (tokens / "plain").write_text(PLAIN_TOKEN)
    (tokens / "both").write_text(hash_token(TOKEN.encode()) + "\n" + PLAIN_TOKEN)
    (tmp_path / "jwks.json").write_text(json.dumps(jwks(ec_signer())))
    shard_port, shard_admin = free_port(), free_port()
    words = ["--port", str(shard_port), "--admin-port", str(shard_admin), "--ready-file", str(tmp_path / "shard.json")]
    with running(
        evidence,
        tmp_path,
        "shard",
        "serve",
        str(generation),
        *words,
        "--drain-seconds",
        "0",
        LOOKUPDB_PASSWORD=PASSWORD,
    ) as shard:
        told = read_ready(tmp_path / "shard.json", shard, tmp_path / "shard.log")
        evidence.add("shard ready file", json.dumps(told))
        texts = (f"AUTH {WRONG_PASSWORD}", f"AUTH {PASSWORD}", f"AUTH a {PASSWORD} c", f"NONSENSE {PASSWORD}", "GET k")
        for line in texts:
            evidence.add("shard answers", converse(shard_port, line.encode() + b"\r\n"))
        frame = f"*2\r\n$4\r\nAUTH\r\n${len(PASSWORD)}\r\n{PASSWORD}\r\n*9x\r\n".encode()
        evidence.add("shard answers", converse(shard_port, frame))
        ask_admin(evidence, "shard", shard_admin)
        table = tmp_path / "table.json"
        table.write_bytes(table_file(entry([[f"127.0.0.1:{shard_port}"]], "g1", valueFormat="raw", normalize=[])))
        for name, password in (("router", "password"), ("stranger", "wrong")):
            admin, port, ready = free_port(), free_port(), tmp_path / f"{name}.json"
            options = ["--table", str(table), "--port", str(port), "--admin-port", str(admin), "--drain-seconds", "0"]
            options += ["--ready-file", str(ready), "--password-file", str(tmp_path / password), "--deadline-ms", "500"]
            options += ["--auth-tokens", str(tokens), "--auth-keys", str(tmp_path / "jwks.json")]
            options += ["--auth-audience", LOOKUPS, "--auth-subject", "team/*"]
            with running(evidence, tmp_path, name, "route", *options) as router:
                if password == "password":
                    evidence.add("router ready file", json.dumps(read_ready(ready, router, tmp_path / f"{name}.log")))
                    for request in BAD_REQUESTS:
                        evidence.add("router answers", converse(port, request))
                    table.with_suffix(".old").write_bytes(table.read_bytes())
                    table.write_text("{")
                else:
                    until(lambda: "password" in _status(admin).lower(), "the report of a wrong password", 60)  # noqa: B023
                ask_admin(evidence, name, admin)
            table.write_bytes(table.with_suffix(".old").read_bytes())
    assert "HTTP/1.1 200" in evidence.seen["router answers"]
    assert "HTTP/1.1 401" in evidence.seen["router answers"]
    assert "HTTP/1.1 403" in evidence.seen["router answers"]
    assert "plain: line 1 is not the hash of a token" in evidence.seen["router /status"]
    evidence.judge("shard log", "shard cmdline", "router log", "router cmdline", "stranger log", "shard /status")


def _status(port: int) -> str:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        try:
            connection.request("GET", "/status")
            return connection.getresponse().read().decode()
        except OSError:
            return ""


MANIFEST = """
apiVersion: lookupdb.dev/v1alpha1
kind: LookupDataset
metadata: {{name: people}}
spec:
  source: {{url: "{url}", format: CSV}}
  key: {{columns: [email]}}
"""


def echo_credentials(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    """Refuse, and repeat the credentials, as S3 does with the id of a key."""
    shown = environ.get("HTTP_AUTHORIZATION", ""), environ.get("HTTP_X_AMZ_SECURITY_TOKEN", "")
    start_response("403 Forbidden", [("Content-Type", "application/xml")])
    text = f"<Error><Code>InvalidAccessKeyId</Code><AWSAccessKeyId>{shown}</AWSAccessKeyId></Error>"
    return [text.encode()]


@pytest.mark.parametrize("source", ["s3://people/people.csv", "s3://people/*.csv"])
def test_a_store_that_repeats_credentials_is_not_repeated(tmp_path: Path, source: str) -> None:
    evidence = Evidence()
    (tmp_path / "people.yaml").write_text(MANIFEST.format(url=source))
    message = tmp_path / "termination"
    with s3_server(echo_credentials) as url:
        environment = {**CREDENTIALS, "AWS_ENDPOINT_URL": url, "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}
        words = ["build", "-f", str(tmp_path / "people.yaml"), "--store", str(tmp_path / "store")]
        done = subprocess.run(
            [sys.executable, "-m", "lookupdb", *words, "--termination-log", str(message)],
            env={**os.environ, **environment},
            capture_output=True,
            check=False,
        )
    assert done.returncode != 0
    evidence.add("build output", done.stdout + done.stderr)
    evidence.add("termination message", message.read_bytes())
    evidence.judge("build output", "termination message")


@pytest.mark.parametrize(
    "source", ["s3://people/people.csv", "http://127.0.0.1:{port}/people.csv", "s3://people/*.csv"]
)
@pytest.mark.parametrize("store", ["folder", "s3://store/x"])
def test_a_build_that_fails_shows_nothing(tmp_path: Path, source: str, store: str) -> None:
    evidence, refuser = Evidence(), free_port()
    (tmp_path / "people.yaml").write_text(MANIFEST.format(url=source.format(port=refuser)))
    where = str(tmp_path / "store") if store == "folder" else store
    message = tmp_path / "termination"
    environment = {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{refuser}", "AWS_REGION": "us-east-1"}
    environment |= {f"LOOKUPDB_STORE_{name}": value for name, value in environment.items()}
    environment |= {"HTTP_PROXY": f"http://user:{SOURCE_PASSWORD}@127.0.0.1:{refuser}", "LOOKUPDB_LOG_FORMAT": "json"}
    words = ["build", "-f", str(tmp_path / "people.yaml"), "--store", where, "--termination-log", str(message)]
    done = subprocess.run(
        [sys.executable, "-m", "lookupdb", *words], env={**os.environ, **environment}, capture_output=True, check=False
    )
    assert done.returncode != 0
    evidence.add("build output", done.stdout + done.stderr)
    if message.exists():
        evidence.add("termination message", message.read_bytes())
    evidence.judge("build output")


async def test_the_gateway_shows_nothing(tmp_path: Path) -> None:
    evidence = Evidence()
    port, admin, refuser = free_port(), free_port(), free_port()
    words = ["--store", "s3://store/x", "--audience", AUDIENCE, "--port", str(port), "--admin-port", str(admin)]
    environment = {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{refuser}", "AWS_REGION": "us-east-1"}
    good = rsa_signer().token()
    async with serving_kube(tmp_path) as kube, gateway_of(evidence, tmp_path, words, environment) as session:
        kube.jwks = jwks(rsa_signer())

        async def ready() -> bool:
            return (await _try(session, f"http://127.0.0.1:{admin}/readyz"))[0] == 200

        await eventually(ready, "a gateway that is ready", (tmp_path / "gateway.log").read_text)
        shown = [good, WRONG_TOKEN, ACCOUNT_TOKEN, good[:-3] + "abc", "x" * 20_000]
        for path in ("/v1/object/cluster-uid/team/people-1a2b3c4d/x", "/v1/list?prefix=x", "/v1/object/../../x"):
            for token in shown:
                headers = {"Authorization": f"Bearer {token}"}
                _, text = await _try(session, f"http://127.0.0.1:{port}{path}", headers)
                evidence.add("gateway answers", text)
        for path in ("/status", "/metrics", "/readyz"):
            evidence.add(f"gateway {path}", (await _try(session, f"http://127.0.0.1:{admin}{path}"))[1])
    for text in evidence.seen.values():
        assert good not in text
    evidence.judge("gateway log", "gateway cmdline", "gateway answers", "gateway /status")


@contextlib.asynccontextmanager
async def gateway_of(
    evidence: Evidence, folder: Path, words: list[str], environment: dict[str, str]
) -> AsyncIterator[aiohttp.ClientSession]:
    kubeconfig = {"KUBECONFIG": str(folder / "kubeconfig")}
    block = running(evidence, folder, "gateway", "gateway", *words, **environment, **kubeconfig)
    await asyncio.to_thread(block.__enter__)
    try:
        async with aiohttp.ClientSession() as session:
            yield session
    finally:
        await asyncio.to_thread(block.__exit__, None, None, None)


async def _try(session: aiohttp.ClientSession, url: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
    try:
        async with session.get(url, headers=headers, allow_redirects=False) as response:
            return response.status, await response.text()
    except aiohttp.ClientError:
        return 0, ""


def test_the_operator_writes_credentials_into_their_secret_alone() -> None:
    access = make_access(CREDENTIALS, "salt")
    secret = json.dumps(manifests.render_store_secret(airports(), access))
    assert set(find_planted(secret)) == {"the access key", "the secret key", "the session"}
    assert find_planted(access.digest) == []
    for dataset in (airports(), everything()):
        for part, objects in rendered(dataset, CONFIG).items():
            if part != "store-secret":
                assert find_planted(json.dumps(objects)) == [], part
    for path in GOLDEN.glob("*/*.yaml"):
        assert find_planted(path.read_text()) == [], path


@pytest.mark.parametrize(
    "data", [{f"{SECRET_KEY}": "eA=="}, {"AWS_SECRET_ACCESS_KEY": SECRET_KEY}, {"AWS_SECRET_ACCESS_KEY": "/w=="}]
)
def test_a_secret_that_cannot_be_read_is_reported_without_its_values(data: dict[str, str]) -> None:
    values = {name: value for name, value in data.items() if name != SECRET_KEY}
    problem = merge_secret({}, data, "Secret store", "salt").problem
    assert problem is not None
    assert not values or find_planted(problem) == []
