"""`lookupdb up` on several datasets: one router serves them all, and one that fails leaves the others alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
import urllib3
from click.testing import CliRunner
from support.up_stack import MANIFEST, Stack, eventually, people

from lookupdb.cli.get import command as get
from lookupdb.client import Client
from lookupdb.up.run_state import state_file
from lookupdb_operator.local.up import command as up

pytestmark = pytest.mark.long

__all__ = ["people"]

COUNT = 20


def write(directory: Path, name: str, title: str) -> None:
    manifest = MANIFEST.replace("name: people", f"name: {name}").replace("people.csv", f"{name}.csv")
    (directory / f"{name}.yaml").write_text(manifest)
    rewrite(directory, name, f"email,title\nada@example.com,{title}\n")


def rewrite(directory: Path, name: str, rows: str) -> None:
    (directory / "new").write_text(rows)
    (directory / "new").replace(directory / f"{name}.csv")


def find(stack: Stack, name: str) -> tuple[int, str]:
    url = f"{stack.state['url'].removesuffix('/people')}/{name}"
    answer = urllib3.request("GET", f"{url}/lookup/ada@example.com", timeout=30, retries=False)
    return answer.status, answer.json().get("title", "")


def test_twenty_datasets_have_one_router_and_a_bad_one_leaves_the_others_alone(
    people: Callable[..., Stack], tmp_path: Path
) -> None:
    folder = tmp_path / "more"
    folder.mkdir()
    names = [f"people-{number}" for number in range(1, COUNT)]
    for name in names:
        write(folder, name, f"of {name}")
    (folder / "broken.yaml").write_text("spec: [")
    rewrite(folder, "people-1", "email,title\n")
    stack = people("-f", str(folder), "--watch", "--watch-seconds", "0.5")
    stack.says("broken.yaml is left out: ")
    for name in names[1:]:
        eventually(lambda: find(stack, name) == (200, f"of {name}"), name)  # noqa: B023 - called here
    eventually(lambda: find(stack, "people") == (200, "Countess"), "people")
    assert find(stack, "people-1")[0] == 503
    states = [state_file(stack.data, "default", name) for name in names[1:]]
    eventually(lambda: all(map(Path.exists, states)), "their up.json")
    assert {get_router(state) for state in states} == {stack.state["router"]}, "one router"
    rewrite(folder, "people-1", "email,title\nada@example.com,mended\n")
    eventually(lambda: find(stack, "people-1") == (200, "mended"), "what is mended")
    rewrite(folder, "people-2", "email,title\nada@example.com,new\n")
    eventually(lambda: find(stack, "people-2") == (200, "new"), "what has changed")
    assert find(stack, "people-3") == (200, "of people-3")


def check_console(connection: urllib3.HTTPConnectionPool) -> None:
    """The same port serves the console, but only under this machine's own names."""
    page = connection.request("GET", "/").data.decode()
    assert all(f'href="/datasets/default/{name}"' in page for name in ("people", "others"))
    found = connection.request(
        "POST", "/datasets/default/others/lookup", fields={"key": "ada@example.com"}, encode_multipart=False
    )
    assert "Other" in found.data.decode()
    assert connection.request("GET", "/", headers={"Host": "evil.example"}).status == 421


def get_router(state: Path) -> int:
    return int(orjson.loads(state.read_bytes())["router"])


def test_requests_name_a_dataset_and_clients_take_its_url(people: Callable[..., Stack], tmp_path: Path) -> None:
    write(tmp_path, "others", "Other")
    stack = people("-f", str(tmp_path / "others.yaml"))
    base = str(stack.state["url"]).removesuffix("/v1/datasets/people")
    eventually(lambda: find(stack, "others") == (200, "Other"), "others")
    with urllib3.connection_from_url(base, timeout=30, retries=False) as connection:
        check_requests(connection)
        check_console(connection)
    got = CliRunner().invoke(get, [f"{base}/v1/datasets/others", "ada@example.com"])
    assert "Other" in got.stdout
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
            batch = connection.request(
                "POST", f"/v1/datasets/{name}/lookup", json={"keys": ["ada@example.com", "nobody"]}
            )
            assert batch.json()["found"] == {"ada@example.com": {"title": title}}
            assert connection.request("HEAD", f"/v1/datasets/{name}/lookup?key=ada@example.com").status == 200
    assert connection.request("GET", "/readyz").status == 200


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--resp-port", "0"], "--resp-port serves one dataset"),
        (["--override-gates", "g2"], "--override-gates is for one dataset"),
        (["--max-servers", "1"], "people, others need 2 shard servers"),
        (["-f", "again.yaml"], "both describe a dataset people"),
    ],
)
def test_what_several_cannot_have_is_a_usage_error(tmp_path: Path, flags: list[str], problem: str) -> None:
    for name in ("people", "others"):
        write(tmp_path, name, "Any")
    (tmp_path / "again.yaml").write_text((tmp_path / "people.yaml").read_text())
    flags = [str(tmp_path / flag) if flag.endswith("yaml") else flag for flag in flags]
    words = [
        "-f",
        str(tmp_path / "people.yaml"),
        "-f",
        str(tmp_path / "others.yaml"),
        "--data-dir",
        str(tmp_path / "d"),
    ]
    result = CliRunner().invoke(up, [*words, "--port", "0", *flags])
    assert problem in f"{result.output}{result.exception}"
