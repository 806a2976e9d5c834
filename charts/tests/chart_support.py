"""Renders the chart with the helm and checks it with the kubeconform of .tools, as `make chart` provides them."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import yaml

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "charts" / "lookupdb"
CRD: Final = ROOT / "crds" / "lookupdatasets.lookupdb.dev.yaml"
NAMESPACE: Final = "somewhere"
RELEASE: Final = "lookupdb"

_TOOLS: Final = ROOT / ".tools"
_OTHERS: Final = "PodMonitor,PrometheusRule"
"""Kinds of the Prometheus operator: Kubernetes has no schema of them."""

Json = Any
Values = Mapping[str, Json]

EXTERNAL: Final[Values] = {
    "store": {"url": "s3://bucket/prefix", "secretName": "bucket-credentials", "embedded": {"enabled": False}}
}
NO_GATEWAY: Final[Values] = {"gateway": {"enabled": False}}
"""Every namespace with a dataset has the store's credentials then."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """The objects of one rendering."""

    objects: tuple[Json, ...]
    text: str

    def find_all(self, kind: str) -> list[Json]:
        """All objects of a kind."""
        return [item for item in self.objects if item["kind"] == kind]

    def get_object(self, kind: str, name: str) -> Json:
        """The one object of a kind; fails unless there is exactly one."""
        (found,) = [item for item in self.find_all(kind) if item["metadata"]["name"] == name]
        return found

    def names(self, kind: str) -> set[str]:
        """The names of all objects of a kind."""
        return {item["metadata"]["name"] for item in self.find_all(kind)}

    def operator_arguments(self) -> list[str]:
        """The arguments of the operator's container."""
        arguments: list[str] = self.get_object("Deployment", "lookupdb")["spec"]["template"]["spec"]["containers"][0][
            "args"
        ]
        return arguments

    def pod_templates(self) -> Iterator[tuple[str, Json]]:
        """Every pod template, by the name of the object that holds it."""
        for item in self.objects:
            spec = item.get("spec", {})
            if item["kind"] == "Pod":
                yield item["metadata"]["name"], item
            elif item["kind"] == "CronJob":
                yield item["metadata"]["name"], spec["jobTemplate"]["spec"]["template"]
            elif item["kind"] == "Deployment":
                yield item["metadata"]["name"], spec["template"]
            else:
                assert "template" not in spec, f"the pods of a {item['kind']} are not looked at"


def render(values: Values | None = None, *, release: str = RELEASE, namespace: str = NAMESPACE) -> Rendered:
    """The chart with ``values`` over its defaults. Fails as helm does, with its message."""
    done = template(values, release=release, namespace=namespace)
    assert done.returncode == 0, done.stderr
    objects = tuple(item for item in yaml.safe_load_all(done.stdout) if item)
    return Rendered(objects, done.stdout)


def render_refused(values: Values) -> str:
    """The message with which helm refuses ``values``."""
    done = template(values)
    assert done.returncode != 0, f"{values} were parse_arguments"
    return done.stderr


def template(
    values: Values | None, *flags: str, release: str = RELEASE, namespace: str = NAMESPACE, chart: Path = CHART
) -> subprocess.CompletedProcess[str]:
    """Run `helm template`."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(dict(values or {}), file)
        file.flush()
        command = [
            _tool("helm"),
            "template",
            release,
            str(chart),
            "--namespace",
            namespace,
            "--values",
            file.name,
            *flags,
        ]
        return subprocess.run(command, capture_output=True, text=True, check=False)


def parse_arguments(verb: click.Command, arguments: list[str]) -> dict[str, Any]:
    """The parameters that ``verb`` parses from ``arguments``. Raises click's UsageError."""
    return verb.make_context("verb", list(arguments)).params


def find_schema_errors(rendered: Rendered) -> str:
    """The objections of Kubernetes' own schemas; empty when there are none."""
    location = _TOOLS / "schemas" / "{{ .ResourceKind }}{{ .KindSuffix }}.json"
    command = [_tool("kubeconform"), "-strict", "-skip", _OTHERS, "-schema-location", str(location)]
    done = subprocess.run(command, input=rendered.text, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def schema_of(item: Json) -> Json:
    """Kubernetes' own schema of an object's kind, with what it refers to as its definitions."""
    group, _, version = item["apiVersion"].rpartition("/")
    parts = [item["kind"], *([group.partition(".")[0]] if group else []), version]
    return json.loads((_TOOLS / "schemas" / f"{'-'.join(parts).lower()}.json").read_text(encoding="utf-8"))


def notes(values: Values) -> str:
    """The notes that helm prints after an installation. Only an installation renders them, so here a template does."""
    with tempfile.TemporaryDirectory() as folder:
        chart = Path(folder) / "lookupdb"
        shutil.copytree(CHART, chart)
        text = (chart / "templates" / "NOTES.txt").read_text(encoding="utf-8")
        told = f'{{{{- define "notes" }}}}{text}{{{{- end }}}}\nnotes: {{{{ include "notes" . | toJson }}}}\n'
        (chart / "templates" / "notes.yaml").write_text(told, encoding="utf-8")
        done = template(values, "--show-only", "templates/notes.yaml", chart=chart)
    assert done.returncode == 0, done.stderr
    rendered: str = yaml.safe_load(done.stdout)["notes"]
    return rendered


def _tool(name: str) -> str:
    path = _TOOLS / "bin" / name
    assert path.exists(), f"{path} is missing: run charts/tools/install, or `make chart`"
    return str(path)
