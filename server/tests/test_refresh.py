"""spec.refresh: what an API server refuses, what only lookupdb sees, and where the success file is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from support.command_line import run_here

from lookupdb.dataset import spec
from lookupdb.errors import InvalidManifest


def resource(source: dict[str, Any], **refresh: Any) -> dict[str, Any]:
    return {
        "apiVersion": "lookupdb.dev/v1alpha1",
        "kind": "LookupDataset",
        "metadata": {"name": "people"},
        "spec": {"source": source, "key": {"columns": ["email"]}, "refresh": refresh},
    }


def parsed(source: dict[str, Any] | None = None, **refresh: Any) -> spec.DatasetSpec:
    return spec.parse_resource(resource(source or {"url": "s3://data/people.csv"}, **refresh))


def test_without_any_of_it_nothing_is_scheduled_and_nothing_grows_old() -> None:
    refresh = parsed().refresh
    assert (refresh.schedule, refresh.time_zone, refresh.suspend) == (None, "UTC", False)
    assert (refresh.success_file, refresh.starting_deadline_seconds, refresh.stale_after_seconds) == (None, None, None)


def test_it_changes_no_file() -> None:
    refreshed = parsed(schedule="0 2 * * *", timeZone="Europe/Berlin", successFile="_SUCCESS", staleAfterSeconds=90000)
    assert refreshed.content_hash() == parsed().content_hash()


def test_it_survives_the_way_to_another_process() -> None:
    dataset = parsed(schedule="0 2 * * *", successFile="_SUCCESS", startingDeadlineSeconds=600)
    assert spec.DatasetSpec.from_json(dataset.to_json()) == dataset


def test_what_an_api_server_refuses() -> None:
    for refresh, message in (
        ({"schedule": "@daily at two"}, "a schedule has five fields"),
        ({"schedule": "0 2 * * * *"}, "a schedule has five fields"),
        ({"schedule": "0 two * * *"}, "a field of a schedule is a number"),
        ({"schedule": "75 2 * * *"}, "a number of a schedule is too large"),
        ({"schedule": "0 2 * * *", "timeZone": "Local"}, "by its name in the IANA database"),
        ({"schedule": "0 2 * * *", "timeZone": "+02:00"}, "by its name in the IANA database"),
        ({"startingDeadlineSeconds": 60}, "startingDeadlineSeconds needs schedule"),
        ({"schedule": "0 2 * * *", "startingDeadlineSeconds": 1}, "refresh.startingDeadlineSeconds"),
        ({"successFile": "ftp://data/_SUCCESS"}, "successFile is a name in the source's folder, or a url"),
        ({"successFile": "part-*"}, "it has no wildcards"),
        ({"staleAfterSeconds": 1}, "refresh.staleAfterSeconds"),
    ):
        with pytest.raises(InvalidManifest) as caught:
            parsed(**refresh)
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("refresh", "message"),
    [
        ({"schedule": "0 25 * * *"}, "refresh.schedule: expected five cron fields"),
        ({"schedule": "0 2 * * *", "timeZone": "Europe/Berlim"}, "did you mean Europe/Berlin?"),
    ],
)
def test_what_only_lookupdb_sees(refresh: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidManifest) as caught:
        parsed(**refresh)
    assert message in str(caught.value)


@pytest.mark.parametrize("verb", ["build", "up"])
def test_a_bad_schedule_ends_each_verb_with_2(verb: str, tmp_path: Path) -> None:
    path = tmp_path / "people.yaml"
    path.write_text(yaml.safe_dump(resource({"url": "people.csv"}, schedule="0 25 * * *")))
    ended = run_here(verb, "-f", str(path))
    assert ended.returncode == 2
    assert b"refresh.schedule: expected five cron fields" in ended.stderr


@pytest.mark.parametrize(
    "schedule",
    [
        "0 2 * * *",
        "*/10 * * * *",
        "0 2 * * mon-fri",
        "5,35 0-12/2 1,15 JAN,jul *",
        "0 0 L * *",
        "0 0 LW * *",
        "0 3 * * SUN#2",
    ],
)
def test_schedules_that_are_taken(schedule: str) -> None:
    assert parsed(schedule=schedule).refresh.schedule == schedule


def test_a_success_file_is_in_the_folder_of_the_source() -> None:
    for url, expected in (
        ("s3://data/2026/people.csv", "s3://data/2026/_SUCCESS"),
        ("s3://data/2026/part-*.csv", "s3://data/2026/_SUCCESS"),
        ("s3://data/2026/**/part-*.csv", "s3://data/2026/_SUCCESS"),
        ("https://example.com/data/people.csv?sig=a/b", "https://example.com/data/_SUCCESS"),
        ("volume://people.csv", "volume://_SUCCESS"),
        ("volume://new/people.csv", "volume://new/_SUCCESS"),
        ("file:///data/people.csv", "file:///data/_SUCCESS"),
        ("people.csv", "_SUCCESS"),
        ("data/people-[0-9].csv", "data/_SUCCESS"),
        ("/data/people.csv", "/data/_SUCCESS"),
    ):
        source = {"url": url, "volume": {"claimName": "data"}}
        assert parsed(source, successFile="_SUCCESS").refresh.success_file == expected


def test_several_urls_of_one_folder_have_one_success_file() -> None:
    source = {"urls": ["s3://data/a.csv", "s3://data/b.csv"]}
    assert parsed(source, successFile="_SUCCESS").refresh.success_file == "s3://data/_SUCCESS"


def test_a_success_file_may_be_anywhere() -> None:
    source = {"urls": ["s3://data/a/a.csv", "s3://data/b/b.csv"]}
    refresh = parsed(source, successFile="https://example.com/done").refresh
    assert refresh.success_file == "https://example.com/done"


def test_of_several_folders_it_must_be_said_which() -> None:
    told = r"is in 2 folders \(s3://data/a/, s3://data/b/\): give the success file's whole url"
    with pytest.raises(InvalidManifest, match=told):
        parsed({"urls": ["s3://data/a/a.csv", "s3://data/b/b.csv"]}, successFile="_SUCCESS")


def test_an_example_has_no_folder() -> None:
    with pytest.raises(InvalidManifest, match="an example, which has no folder"):
        parsed({"url": "example://airports.csv"}, successFile="_SUCCESS")
