"""`lookupdb up` on several datasets: one router serves them all, and one that fails leaves the others alone."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest
import urllib3
from support.command_line import run_here
from support.up_stack import MANIFEST, Stack, Start, eventually, people, swap

from lookupdb.client import Client
from lookupdb.up.run_state import state_file

pytestmark = pytest.mark.long

__all__ = ["people"]

COUNT = 20


def write(directory: Path, name: str, title: str) -> None:
    manifest = MANIFEST.replace("name: people", f"name: {name}").replace("people.csv", f"{name}.csv")
    (directory / f"{name}.yaml").write_text(manifest)
    swap(directory / f"{name}.csv", f"email,title\nada@example.com,{title}\n")


def find(stack: Stack, name: str) -> tuple[int, str]:
    url = f"{stack.state['url'].removesuffix('/people')}/{name}"
    answer = urllib3.request("GET", f"{url}/lookup/ada@example.com", timeout=30, retries=False)
    return answer.status, answer.json().get("title", "")


def await_title(stack: Stack, name: str, title: str) -> None:
    eventually(lambda: find(stack, name) == (200, title), f"{title} of {name}")


def test_twenty_datasets_have_one_router_and_a_bad_one_leaves_the_others_alone(people: Start, tmp_path: Path) -> None:
    folder = tmp_path / "more"
    folder.mkdir()
    names = [f"people-{number}" for number in range(1, COUNT)]
    for name in names:
        write(folder, name, f"of {name}")
    (folder / "broken.yaml").write_text("spec: [")
    swap(folder / "people-1.csv", "email,title\n")
    stack = people("-f", str(folder), "--watch", "--watch-seconds", "0.5")
    stack.says("broken.yaml is left out: ")
    for name in names[1:]:
        await_title(stack, name, f"of {name}")
    await_title(stack, "people", "Countess")
    assert find(stack, "people-1")[0] == 503
    states = [state_file(stack.data, "default", name) for name in names[1:]]
    eventually(lambda: all(map(Path.exists, states)), "their up.json")
    assert {orjson.loads(state.read_bytes())["router"] for state in states} == {stack.state["router"]}, "one router"
    stack.says("error: people-1: ")
    said = re.findall("^people-1: (?!The |[a-z]+, done).*", stack.output, re.MULTILINE)
    assert said == [], "the error is not printed again, and the source has not changed"
    swap(folder / "people-1.csv", "email,title\nada@example.com,mended\n")
    await_title(stack, "people-1", "mended")
    swap(folder / "people-2.csv", "email,title\nada@example.com,new\n")
    await_title(stack, "people-2", "new")
    assert find(stack, "people-3") == (200, "of people-3")


def test_requests_name_a_dataset_and_clients_take_its_url(people: Start, tmp_path: Path) -> None:
    write(tmp_path, "others", "Other")
    stack = people("-f", str(tmp_path / "others.yaml"))
    base = str(stack.state["url"]).removesuffix("/v1/datasets/people")
    await_title(stack, "others", "Other")
    with urllib3.connection_from_url(base, timeout=30, retries=False) as connection:
        check_requests(connection)
        check_console(connection)
    assert b"Other" in run_here("get", f"{base}/v1/datasets/others", "ada@example.com").stdout
    with Client(f"{base}/v1/datasets/others") as others:
        assert others["ada@example.com"] == {"title": "Other"}
        assert others.get_many(["ada@example.com", "nobody"]).missing == ["nobody"]
        assert others.dataset().name == "others"


def check_requests(connection: urllib3.HTTPConnectionPool) -> None:
    unnamed = connection.request("GET", "/v1/lookup/ada@example.com")
    assert unnamed.status == 404
    assert "/v1/datasets/{name}/lookup/{key}" in unnamed.json()["detail"]
    assert "others, people" in connection.request("GET", "/v1/datasets/nobody/lookup/x").json()["detail"]
    assert connection.request("GET", "/v1/datasets/others").json()["name"] == "others"
    for _ in range(3):  # also what a connection repeats
        for name, title in (("people", "Countess"), ("others", "Other")):
            lookup = f"/v1/datasets/{name}/lookup"
            batch = connection.request("POST", lookup, json={"keys": ["ada@example.com", "nobody"]})
            assert batch.json()["found"] == {"ada@example.com": {"title": title}}
            assert connection.request("HEAD", f"{lookup}?key=ada@example.com").status == 200
    assert connection.request("GET", "/readyz").status == 200


def check_console(connection: urllib3.HTTPConnectionPool) -> None:
    """The same port serves the console, but only under this machine's own names."""
    page = connection.request("GET", "/").data.decode()
    assert all(f'href="/datasets/default/{name}"' in page for name in ("people", "others"))
    key = {"key": "ada@example.com"}
    found = connection.request("POST", "/datasets/default/others/lookup", fields=key, encode_multipart=False)
    assert "Other" in found.data.decode()
    assert connection.request("GET", "/", headers={"Host": "evil.example"}).status == 421
