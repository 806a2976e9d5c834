"""`lookupdb status`, `pin` and the others on a laptop: by the port of a `lookupdb up`, or by its files."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete
from operator_support.local_up import api, folder, get_dataset, load, running
from operator_support.plugin_program import Ended, run_lookupdb
from plugin_samples import body, condition

from lookupdb import cli, store
from lookupdb.builder import build
from lookupdb.builder.options import BuildOptions, SilentProgress
from lookupdb.dataset.spec import LOCAL, parse_resource
from lookupdb.up.run_state import DATA_DIRECTORY, RunFolder, list_build_logs, note_build_end, renew_build_log
from lookupdb.wording import format_command
from lookupdb_operator import names
from lookupdb_operator.local.api import LocalApi, localize_advice, parse_local
from lookupdb_operator.local.up import LocalDataset, keep_pin
from lookupdb_operator.model import format_moment
from lookupdb_operator.plan import reasons
from lookupdb_operator.plugin.cli import cli as kubectl_cli

__all__ = ["api", "folder", "running"]

MANIFEST = """\
apiVersion: lookupdb.dev/v1alpha1
kind: LookupDataset
metadata: {name: airports, namespace: shop}
spec: {source: {url: airports.csv}, key: {columns: [id]}, shards: 1}
"""


async def lookupdb(folder: RunFolder, *words: str) -> Ended:
    return await run_lookupdb(*words, "--data", str(folder.path.parents[1]))


async def test_a_rollback_reaches_the_up_that_runs(running: LocalApi, folder: RunFolder) -> None:
    ended = await lookupdb(folder, "rollback", "shop/airports")
    assert (ended.code, ended.out) == (0, "shop/airports: g11 is requested, and is pinned\n"), ended.err
    assert get_dataset(running)["spec"]["generation"] == "g11"
    again = await lookupdb(folder, "rollback", "airports", "-n", "shop")
    assert (again.code, "pinned to g11 already" in again.err) == (1, True)
    options = f"--data-dir {folder.path.parents[1]}"
    assert f"lookupdb unpin {options} shop/airports removes the pin" in again.err
    assert (await lookupdb(folder, "unpin", "shop/airports")).code == 0
    assert "generation" not in get_dataset(running)["spec"]


async def test_status_and_top_ask_the_up_that_runs(running: LocalApi, folder: RunFolder) -> None:
    ended = await lookupdb(folder, "status", "shop/airports")
    assert ended.out.startswith("shop/airports: Ready, serves g12"), ended.err
    assert "0/1 ready, routing table 7" in ended.out
    assert ".svc" not in ended.out, "an address of a cluster"
    top = json.loads((await lookupdb(folder, "top", "shop/airports", "--interval", "0.1", "--json")).out)
    assert [(router["pod"], router["requests"]) for router in top["routers"]] == [("airports-router-0", 0.0)]


async def test_addresses_and_advice_are_those_of_a_laptop(running: LocalApi, folder: RunFolder) -> None:
    folder.write_state({"url": "http://127.0.0.1:8080"})
    annotate = "kubectl annotate lds airports -n shop --overwrite lookupdb.dev/promote=g13"
    message = f"It serves after {annotate}, and ends after lookupdb.dev/reject=g13, or so."
    waits = condition("RolledOut", "False", "CandidateWaiting", message)
    healthy = condition("Degraded", "False", "Healthy", "Nothing is wrong.")
    candidate = {"generation": "g13", "rollout": "r2", "since": "2026-01-02T10:00:00Z"}
    running.put_status(get_dataset(running), body(conditions=[waits, healthy], candidate=candidate)["status"])
    out = (await lookupdb(folder, "status", "shop/airports")).out
    assert "\n  http://127.0.0.1:8080\n" in out
    target = f"--data-dir {folder.path.parents[1]} shop/airports g13"
    assert f"after lookupdb promote {target}, and ends after lookupdb reject {target}, or" in out
    assert "kubectl" not in out
    assert "NotRebuilt" not in out
    since = format_moment(datetime.now(UTC) - timedelta(seconds=90))
    folder.write_state({"url": "http://127.0.0.1:8080", "problem": "airports.yaml is not YAML", "problemSince": since})
    out = (await lookupdb(folder, "status", "shop/airports")).out
    assert out.startswith("shop/airports: Degraded, serves g12")
    assert re.search("Degraded +True +NotRebuilt +1 min.* airports.yaml is not YAML", out)


def test_advice_names_the_program_as_it_was_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/venv/bin/lookupdb"])
    promote = "/venv/bin/lookupdb promote shop/airports g13"
    assert parse_local(body(), "", DATA_DIRECTORY).command("promote", "g13") == promote


@pytest.mark.parametrize(
    ("advice", "told"),
    [
        (
            "after kubectl annotate lds airports -n shop --overwrite lookupdb.dev/promote=g13, and",
            "after {promote} g13, and",
        ),
        ("; lookupdb.dev/reject=g13 gives it up.", "; {reject} g13 gives it up."),
        (
            "set the annotation lookupdb.dev/override-gates to g13 to override the gate",
            "run {override-gates} g13 to override the gate",
        ),
        (reasons.REMEDIES[reasons.CORRUPT_FILE].rpartition(". ")[2], "To build at once, run {refresh}."),
        ("name another generation, or remove spec.generation", "name another generation, or run {unpin}"),
        ("to serve it anyway, set spec.generation to g13.", "to serve it anyway, run {pin} g13."),
    ],
)
def test_advice_is_a_command_instead_of_an_annotation(advice: str, told: str) -> None:
    verbs = ("promote", "reject", "override-gates", "refresh", "pin", "unpin")
    expected = told.format_map({verb: format_command(verb, "shop/airports") for verb in verbs})
    assert localize_advice(advice, "shop", "airports", DATA_DIRECTORY) == expected


async def test_without_an_up_the_files_say_what_was_and_take_a_change(api: LocalApi, folder: RunFolder) -> None:
    listed = await lookupdb(folder, "ls", "-A")
    assert listed.out.splitlines()[1].split()[:4] == ["shop", "airports", "False", "Stopped"], listed.err
    status = (await lookupdb(folder, "status", "shop/airports")).out
    assert status.startswith("shop/airports: Stopped, served g12")
    (ready,) = (line for line in status.splitlines() if line.startswith("  Ready "))
    assert ready.split()[:4] == ["Ready", "False", "Stopped", "No"], "the age of the last Ready=True is not shown"
    ended = await lookupdb(folder, "pin", "shop/airports", "g11")
    assert ended.out == "shop/airports: g11 is requested, and is pinned; it takes effect at the next `lookupdb up`\n"
    kept = get_dataset(load(folder))
    assert (kept["spec"]["generation"], kept["status"]) == ("g11", body()["status"])


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("refresh shop/airports --wait", "no `lookupdb up` runs for shop/airports"),
        ("top shop/airports", "no `lookupdb up` runs for shop/airports"),
        ("pin cities g1", "no `lookupdb up` has served default/cities from"),
    ],
)
async def test_what_needs_an_up_fails_at_once_and_changes_nothing(
    api: LocalApi, folder: RunFolder, words: str, problem: str
) -> None:
    ended = await lookupdb(folder, *words.split())
    assert (ended.code, problem in ended.err) == (1, True)
    assert get_dataset(load(folder)) == get_dataset(api)
    assert [path.name for path in folder.path.parent.iterdir()] == ["shop.airports"]


async def test_the_log_is_that_of_the_newest_build(api: LocalApi, folder: RunFolder) -> None:
    assert "no build of shop/airports has begun" in (await lookupdb(folder, "logs", "shop/airports")).err
    for number in (9, 10, 11):
        path = renew_build_log(folder.path, f"g{number}")
        path.write_text("read\n")
    (folder.path / "build-g10-kept.log").write_text("a user's copy\n")
    note_build_end(path, '{"message": "no file"}')
    note_build_end(path, "no report")
    note_build_end(Path("/dev/full"), '{"message": "no file"}')
    assert (await lookupdb(folder, "logs", "shop/airports")).out == "read\nno file\n"
    log = json.loads((await lookupdb(folder, "logs", "shop/airports", "--tail", "1", "--json")).out)
    about = {"namespace": "shop", "name": "airports", "pod": "build-g11", "generation": "g11"}
    assert log == {**about, "lines": ["no file"]}
    assert [found for found, _ in list_build_logs(folder.path)] == ["g10", "g11"]


async def test_history_has_builds_and_generations_without_one(api: LocalApi, folder: RunFolder) -> None:
    build = {"generation": "g12", "outcome": "built", "reason": "Built", "seconds": 3, "records": 28_298, "count": 1}
    failed = {"generation": "g13", "outcome": "failed", "reason": "BadSource", "message": "no file", "count": 2}
    times = {"finishedAt": "2026-01-02T10:00:00Z"}
    lost, idle = (
        build | {"generation": "g9"},
        {**body()["status"]["generations"][0], "generation": "g10", "servedBy": 0},
    )
    status = body(builds=[lost | times, build | times, failed | times])["status"]
    api.put_status(get_dataset(api), status | {"generations": [idle, *status["generations"]]})
    lines = (await lookupdb(folder, "history", "shop/airports")).out.splitlines()
    assert [line.split()[0] for line in lines] == ["GENERATION", "g13", "g12", "g11", "g10", "g9"]
    assert (lines[1].split()[1:4], lines[1].endswith("BadSource: no file")) == (["failed", "×", "2"], True)
    assert ("active" in lines[2], "3 s" in lines[2], "has served" in lines[3]) == (True, True, True)
    assert ("in the store" in lines[4], "removed" in lines[5]) == (True, True)
    told = json.loads((await lookupdb(folder, "history", "shop/airports", "--json")).out)
    assert [found["state"] for found in told["generations"]] == [[], ["has served"], ["active"]]
    assert [found["outcome"] for found in told["builds"]] == ["built", "built", "failed"]


async def test_shells_complete_datasets_and_generations(api: LocalApi, folder: RunFolder) -> None:
    data = ["--data", str(folder.path.parents[1]), "-n", "shop"]

    def complete(*words: str) -> list[str]:
        *arguments, begin = words
        found = ShellComplete(cli.cli, {}, "lookupdb", "_X").get_completions(arguments, begin)
        return [item.value for item in found]

    assert await asyncio.to_thread(complete, "status", *data, "air") == ["airports"]
    assert await asyncio.to_thread(complete, "pin", *data, "airports", "g") == ["g12", "g11"]
    assert await asyncio.to_thread(complete, "pin", *data, "nothing", "g") == []
    for verb in ("get", "load", "diff", "prune"):
        assert complete(verb, *data[:2], "shop/") == ["shop/airports"]
    assert complete("diff", *data[:2], "shop/airports", "g12", "g") == ["g12", "g11"]


def test_a_command_about_a_laptop_loads_no_client_of_clusters(api: LocalApi, folder: RunFolder) -> None:
    code = "import sys; from lookupdb.cli import cli; cli(sys.argv[1:], standalone_mode=False); print(*sys.modules)"
    words = ["ls", "-A", "--data", str(folder.path.parents[1])]
    ended = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert "airports" in ended.stdout
    assert not {"aiohttp", "kubernetes", "kopf", "duckdb", "lmdb"} & set(ended.stdout.split())


@pytest.mark.parametrize(
    ("spec", "noted", "manifest", "kept"),
    [
        ({}, "", {}, None),
        ({"generation": "g2"}, "", {}, "g2"),
        ({"generation": "g2"}, "", {"generation": "g3"}, "g3"),
        ({"generation": "g2"}, "g3", {"generation": "g3"}, "g3"),
        ({"generation": "g3"}, "g3", {}, None),
    ],
    ids=["no pin", "a command's stays", "the manifest's wins", "so it did before", "the manifest's went"],
)
def test_an_edit_of_the_manifest_keeps_a_commands_pin(
    spec: dict[str, str], noted: str, manifest: dict[str, str], kept: str | None
) -> None:
    note = f"{names.GROUP}/pinned-by-manifest"
    annotations = {note: noted}
    applied = keep_pin({"spec": dict(manifest)}, {"spec": spec}, annotations)
    assert applied["spec"].get("generation") == kept
    assert annotations[note] == manifest.get("generation", "")


def local_dataset(folder: RunFolder, data: Path, resource: dict[str, Any]) -> LocalDataset:
    """Return the dataset of a manifest in ``data``, and its place in the store there."""
    opened = store.open_store(str(data / "store"), cluster=LOCAL)
    spec = replace(parse_resource(resource, data), uid=LOCAL)
    return LocalDataset(data / "airports.yaml", spec, resource, folder, opened.dataset(spec), opened.inbox(spec))


def test_up_follows_the_spec_that_kubectl_has_applied(folder: RunFolder, tmp_path: Path) -> None:
    resource = body()
    found = local_dataset(folder, tmp_path, resource)
    found.follow({**resource, "spec": resource["spec"] | {"keepGenerations": 8}})
    assert found.spec.keep_generations == 8
    found.follow({**resource, "metadata": {"namespace": "shop", "name": "others"}})
    assert found.spec.keep_generations == 8


def test_up_knows_the_key_columns_of_what_a_build_has_left(folder: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("country,id,name\nDE,1,a\n")
    spec = {"source": {"url": "people.csv"}, "key": {"columns": ["country", "id"], "separator": "|"}}
    found = local_dataset(folder, tmp_path, {**body(), "spec": spec})
    place = store.open_store(str(tmp_path / "store"), cluster=LOCAL)
    build.build_generation(found.spec, place, BuildOptions(scratch=tmp_path / "scratch"), SilentProgress())
    status = found.find_stored_status()
    assert status is not None
    assert (status.generations[0].key_columns, status.generations[0].separator) == (("country", "id"), "|")


VERBS = "ls status history refresh promote reject override-gates rollback pin unpin diff logs top prune"


@pytest.mark.parametrize("verb", VERBS.split())
def test_both_programs_have_the_command_in_one_shape(verb: str) -> None:
    context = click.Context(cli.cli)
    for group in (cli.cli, kubectl_cli):
        command = group.get_command(context, verb)
        assert command is not None
        flags = {option: parameter for parameter in command.params for option in parameter.opts}
        assert getattr(flags["--json"], "is_flag", False)
        arguments = [parameter for parameter in command.params if isinstance(parameter, click.Argument)]
        assert verb == "ls" or (arguments[0].metavar or "").startswith("DATASET")
