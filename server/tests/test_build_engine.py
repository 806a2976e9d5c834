"""``spec.build.engine`` and ``spec.build.spark``: what a manifest may say, and that the engine changes no content."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.command_line import run_here

from lookupdb.dataset.spec import DatasetSpec, Spark, parse_resource
from lookupdb.errors import InvalidManifest


def resource(**build: Any) -> dict[str, Any]:
    return {
        "apiVersion": "lookupdb.dev/v1alpha1",
        "kind": "LookupDataset",
        "metadata": {"name": "people"},
        "spec": {
            "source": {"url": "people.csv"},
            "key": {"columns": ["id"]},
            "shards": 2,
            **({"build": build} if build else {}),
        },
    }


def test_engine_is_local_by_default() -> None:
    spec = parse_resource(resource())
    assert (spec.engine, spec.spark) == ("Local", Spark())


def test_spark_settings_reach_another_process() -> None:
    settings = {
        "master": "spark://host:7077",
        "executors": 20,
        "executorCores": 4,
        "executorMemory": "8Gi",
        "conf": {"spark.local.dir": "/disk", "spark.speculation": "true"},
    }
    spec = parse_resource(resource(engine="Spark", spark=settings))
    conf = (("spark.local.dir", "/disk"), ("spark.speculation", "true"))
    assert spec.engine == "Spark"
    assert spec.spark == Spark("spark://host:7077", 20, 4, 8 << 30, conf)
    assert DatasetSpec.from_json(spec.to_json()) == spec


def test_engine_is_not_part_of_the_content() -> None:
    local, spark = parse_resource(resource()), parse_resource(resource(engine="Spark", spark={"executors": 9}))
    assert local.content_hash() == spark.content_hash()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        ({"engine": "spark"}, "spec.build.engine: 'spark' is not one of"),
        ({"spark": {"executors": 0}}, "spec.build.spark.executors: 0 is less than the minimum of 1"),
        ({"spark": {"executorMemory": "2 GB"}}, "a quantity is a number and a suffix"),
        ({"spark": {"master": "mesos://host"}}, "a master is local[4]"),
        ({"spark": {"conf": {"hadoop.x": "1"}}}, "the name of a property begins with spark."),
        ({"spark": {"memory": "2Gi"}}, "spec.build.spark.memory is not a field"),
    ],
)
def test_wrong_settings_are_named(build: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidManifest) as error:
        parse_resource(resource(**build))
    assert message in error.value.message


@pytest.mark.parametrize("options", [("--engine", "Spark"), ("--engine", "Spark", "--spark-master", "local[2]")])
def test_missing_libraries_are_named_before_anything_is_claimed(
    options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyspark" else find_spec(name))
    (tmp_path / "people.csv").write_text("id,name\n1,Ada\n")
    (tmp_path / "people.yaml").write_text(yaml.safe_dump(resource()))
    store = tmp_path / "store"
    ended = run_here("build", "-f", str(tmp_path / "people.yaml"), "--store", str(store), "--json", *options)
    assert ended.returncode == 2
    assert b"spec.build.engine is Spark, but pyspark" in ended.stderr
    assert b"pip install 'lookupdb[spark]'" in ended.stderr
    assert not store.exists()


def test_properties_on_the_command_line_are_checked(tmp_path: Path) -> None:
    (tmp_path / "people.yaml").write_text(yaml.safe_dump(resource(engine="Spark")))
    ended = run_here("build", "-f", str(tmp_path / "people.yaml"), "--spark-conf", "local.dir")
    assert ended.returncode == 2
    assert b"--spark-conf takes the name and value of a property" in ended.stderr
