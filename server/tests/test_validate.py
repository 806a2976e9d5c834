"""`lookupdb validate`: everything that is wrong with manifests, at once and offline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.command_line import run_here

REPOSITORY = Path(__file__).parents[2]
SPEC: dict[str, Any] = {"source": {"url": "people.csv"}, "key": {"columns": ["email"]}}


def write(path: Path, **spec: Any) -> Path:
    resource = {"apiVersion": "lookupdb.dev/v1alpha1", "kind": "LookupDataset", "metadata": {"name": "people"}}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**resource, "spec": {**SPEC, **spec}}, indent=1))
    return path


def validate(*paths: Path | str) -> tuple[int, list[str], str]:
    """Return the exit code, the lines of the problems, and the rest."""
    run = run_here("validate", *map(str, paths))
    return run.returncode, run.stdout.decode().splitlines(), run.stderr.decode()


def test_a_manifest_without_problems_is_fine(tmp_path: Path) -> None:
    assert validate(write(tmp_path / "a.yaml")) == (0, [], "1 file, 0 problems\n")


def test_all_examples_are_fine() -> None:
    code, problems, _ = validate(*sorted((REPOSITORY / "examples").glob("*.yaml")))
    assert (code, problems) == (0, [])


def test_every_problem_is_printed_with_its_file_and_field(tmp_path: Path) -> None:
    """Problems that the schema finds, that its rules find, and that only the code can find."""
    file = write(
        tmp_path / "a.yaml",
        sorce={"url": "x"},
        source={"url": "a", "format": "CVS", "csv": {"delimter": ";", "columns": [{"name": "a", "type": "bool"}] * 2}},
        key={"columns": ["id"], "normalize": ["lower"]},
        shards="4",
        refresh={"successFile": "x", "timeZone": "Europe/Nowhere", "schedule": "0 0 31 2 *"},
        value={"column": "a", "field": "b"},
        gates={"expectedValues": [{"key": "a", "value": "Kennedy"}]},
        router={"clients": [{"ipBlock": {"cidr": "10.1.0.1/16"}}]},
    )
    code, lines, rest = validate(file)
    problems = "\n".join(lines)
    for said in (
        "spec.sorce is not a field; did you mean source?",
        "spec.source.csv.delimter is not a field; did you mean delimiter?",
        "spec.source.format: 'CVS' is not one of",
        "spec.source.csv.columns[0].type: 'bool' is not one of ['text', 'integer', 'number', 'boolean', 'json'], "
        "did you mean boolean?",
        "spec.source.csv.columns[1].type: 'bool' is not one of",
        "spec.source.csv.columns[1]: a occurs twice",
        "spec.key.normalize[0]: 'lower' is not one of",
        "spec.shards: expected a whole number, found '4'",
        "spec.refresh.timeZone",
        "spec.value: give at most one of columns, column and field",
        "spec.gates.expectedValues[0].value is not JSON, found 'Kennedy'",
        "spec.router.clients[0].ipBlock.cidr is not a network",
    ):
        assert problems.count(f"{file}: {said}") == 1, (said, problems)
    assert (code, rest) == (1, "1 file, 12 problems\n")


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"key": {"colums": ["a"]}}, "spec.key.colums is not a field; did you mean columns?"),
        ({"source": {"ulr": "a"}}, "spec.source.ulr is not a field; did you mean url?"),
        ({"source": None}, "spec.source: expected a mapping of fields, found nothing"),
        ({"duplicates": True}, "spec.duplicates: expected text, found True: write it in quotes"),
        (
            {"router": {"auth": {"serviceAccounts": {"subjects": ["a/b"]}}}},
            "spec.router.auth.serviceAccounts.audience: it is required",
        ),
    ],
)
def test_what_follows_from_a_problem_is_not_another(tmp_path: Path, spec: dict[str, Any], problem: str) -> None:
    code, lines, _ = validate(write(tmp_path / "a.yaml", **spec))
    assert (code, len(lines)) == (1, 1), lines
    assert problem in lines[0]


def test_all_missing_fields_are_named(tmp_path: Path) -> None:
    file = write(tmp_path / "a.yaml")
    file.write_text(json.dumps({**json.loads(file.read_text()), "spec": {}}))
    _, lines, _ = validate(file)
    assert [line.partition(": ")[2] for line in lines] == [
        "spec.source: it is required, but missing",
        "spec.key: it is required, but missing",
    ]


def test_a_problem_of_the_name_hides_no_other(tmp_path: Path) -> None:
    file = write(tmp_path / "a.yaml", shards=0)
    for name in ('"My_People"', "5", "null"):
        file.write_text(file.read_text().replace('"people"', name))
        _, lines, _ = validate(file)
        assert [("metadata.name" in line, "spec.shards: 0 is" in line) for line in lines].count((True, False)) == 1
        assert len(lines) == 2, lines
        file.write_text(file.read_text().replace(name, '"people"'))


def test_what_is_no_manifest_is_one_problem(tmp_path: Path) -> None:
    files = {
        "text": "just text",
        "yaml": "a: [",
        "kind": "kind: Deployment\nspec: {replicas: 3}\n",
        "none": "# nothing\n",
    }
    for name, text in files.items():
        (tmp_path / f"{name}.yaml").write_text(text)
        code, lines, rest = validate(tmp_path / f"{name}.yaml")
        assert code == 1
        assert lines[0].startswith(f"{tmp_path}/{name}.yaml: "), lines
        if name != "kind":
            assert rest == "1 file, 1 problem\n"


def test_a_misspelt_kind_is_a_problem_after_a_dataset_and_in_a_folder(tmp_path: Path) -> None:
    both = write(tmp_path / "a.yaml")
    good = both.read_text().replace("\n", "")
    misspelt = good.replace("LookupDataset", "LookupDatset")
    both.write_text(f"{good}\n---\n{misspelt}\n")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "json.json").write_text(misspelt)
    (tmp_path / "deep" / "plain.yaml").write_text("apiVersion: 'lookupdb.dev/v1'\nkind: LookupDataset2\n")
    code, lines, rest = validate("-R", tmp_path)
    kind = "kind must be LookupDataset, found 'LookupDatset'"
    assert lines[0] == f"{both}: dataset 2: {kind}"
    assert f"{tmp_path}/deep/json.json: {kind}" in lines
    assert any("plain.yaml" in line and "found 'LookupDataset2'" in line for line in lines)
    assert (code, rest.startswith("3 files, ")) == (1, True)


def test_a_folder_is_searched_for_datasets(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml")
    write(tmp_path / "deep" / "b.yml", shards=0)
    both = (tmp_path / "a.yaml").read_text().replace("\n", "")
    (tmp_path / "deep" / "c.yaml").write_text(f"kind: Namespace\n---\n{both}\n---\n{both.replace('people.csv', '')}\n")
    (tmp_path / "other.yaml").write_text("kind: Deployment\nmetadata: {name: a}\n")
    write(tmp_path / ".lookupdb" / "run" / "c.yaml", shards=0)
    (tmp_path / "crd.yaml").write_text("kind: CustomResourceDefinition\nspec:\n  names:\n    kind: LookupDataset\n")
    assert validate(tmp_path) == (0, [], "1 file, 0 problems\n"), "subfolders are left out, as by `up -f FOLDER`"
    code, lines, rest = validate("-R", tmp_path)
    assert (code, rest) == (1, "3 files, 2 problems\n")
    assert lines[0].startswith(f"{tmp_path}/deep/b.yml: spec.shards: 0 is less")
    assert lines[1].startswith(f"{tmp_path}/deep/c.yaml: dataset 2: spec.source.url: expected at least 1 character")


@pytest.mark.parametrize("path", ["missing.yaml", ""])
def test_a_path_without_a_manifest_is_a_usage_error(tmp_path: Path, path: str) -> None:
    code, lines, said = validate(tmp_path / path)
    assert (code, lines) == (2, [])
    assert "does not exist" in said or "no file in" in said


def test_no_more_than_a_hundred_problems_are_described(tmp_path: Path) -> None:
    _, lines, _ = validate(write(tmp_path / "a.yaml", **{f"shardz{number}": 1 for number in range(500)}))
    assert len(lines) == 101
    assert lines[-1].endswith(": and 400 more")
