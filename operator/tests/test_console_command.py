"""``lookupdb console``: its options, and a process of it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from operator_support.consoles import dataset
from operator_support.kube import serving
from operator_support.running import until
from support.ports import free_port
from support.signers import jwks, rsa_signer

from lookupdb.errors import UsageError
from lookupdb_operator.console.service import ConsoleOptions, command, options


def parse(*arguments: str) -> ConsoleOptions:
    return options(**command.make_context("console", [*arguments]).params)


def test_tokens_are_the_default() -> None:
    found = parse("--subjects=ops/*, shop/web", "--namespaces=shop,search")
    assert (found.access, found.audience, found.host) == ("token", "lookupdb:console", "127.0.0.1")
    assert (found.subjects, found.namespaces) == (("ops/*", "shop/web"), ("shop", "search"))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--subjects=ops"], "not a service account"),
        (["--subjects=*/*"], "not a service account"),
        (["--audience="], "--audience is empty"),
        (["--access=proxy"], "needs --password-file"),
    ],
)
def test_what_would_admit_others_is_refused(arguments: list[str], told: str) -> None:
    with pytest.raises(UsageError, match=told.replace("*", r"\*")):
        parse(*arguments)


async def test_the_process_serves_until_sigterm(tmp_path: Path) -> None:
    port, admin_port = free_port(), free_port()
    flags = ("--port", str(port), "--admin-port", str(admin_port), "--log-format", "json")
    async with serving(tmp_path) as kube, aiohttp.ClientSession() as session:
        kube.jwks = jwks(rsa_signer())
        kube.put(dataset())
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "lookupdb", "console", *flags),
            env={**os.environ, "KUBECONFIG": str(tmp_path / "kubeconfig")},
            stderr=asyncio.subprocess.PIPE,
        )
        try:

            async def ask(port: int, path: str, **headers: Any) -> tuple[int, str]:
                try:
                    async with session.get(f"http://127.0.0.1:{port}{path}", headers=headers) as response:
                        return response.status, await response.text()
                except (aiohttp.ClientError, OSError) as error:
                    assert process.returncode is None
                    return 0, str(error)

            async def is_ready() -> bool:
                return await ask(admin_port, "/readyz") == (200, "ready\n")

            await until(is_ready, "a console that is ready", every=0.1)
            assert (await ask(port, "/live.json"))[0] == 401
            token = rsa_signer().token("shop", aud=["lookupdb:console"])
            status, text = await ask(port, "/live.json", Authorization=f"Bearer {token}")
            assert (status, '"name":"airports"' in text) == (200, True)
            process.send_signal(signal.SIGTERM)
            _, log = await process.communicate()
            assert process.returncode == 0, log
            assert token.encode() not in log
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
