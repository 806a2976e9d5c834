"""Render the chart with helm and check it with kubeconform, both in .tools, where `make chart` installs them."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
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
"""Kinds of the Prometheus operator, for which Kubernetes has no schema."""

Json = Any
Values = Mapping[str, Json]

EXTERNAL: Final[Values] = {
    "store": {"url": "s3://bucket/prefix", "secretName": "bucket-credentials", "embedded": {"enabled": False}}
}
NO_GATEWAY: Final[Values] = {"gateway": {"enabled": False}}
"""Then every namespace with a dataset has the store's credentials."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """The objects of one rendering."""

    objects: tuple[Json, ...]
    text: str

    def find_all(self, kind: str) -> list[Json]:
        """Return all objects of a kind."""
        return [item for item in self.objects if item["kind"] == kind]

    def get_object(self, kind: str, name: str) -> Json:
        """Return the one object of a kind with this name."""
        (found,) = [item for item in self.find_all(kind) if item["metadata"]["name"] == name]
        return found

    def names(self, kind: str) -> set[str]:
        """Return the names of all objects of a kind."""
        return {item["metadata"]["name"] for item in self.find_all(kind)}

    def operator_arguments(self) -> list[str]:
        """Return the arguments of the operator's container."""
        arguments: list[str] = self.get_object("Deployment", "lookupdb")["spec"]["template"]["spec"]["containers"][0][
            "args"
        ]
        return arguments

    def pod_templates(self) -> Iterator[tuple[str, Json]]:
        """Yield every pod template, with the name of its object."""
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
    """Render the chart with ``values``, once for each set of arguments: nobody changes the objects. Fails with helm's
    message."""
    return _render(json.dumps(values or {}, sort_keys=True), release, namespace)


@functools.cache
def _render(values: str, release: str, namespace: str) -> Rendered:
    done = run_template(json.loads(values), release=release, namespace=namespace)
    assert done.returncode == 0, done.stderr
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, and the CRD is long
    return Rendered(tuple(item for item in yaml.load_all(done.stdout, loader) if item), done.stdout)


def render_refused(values: Values) -> str:
    """Return helm's message when it refuses ``values``."""
    done = run_template(values)
    assert done.returncode != 0, f"{values} were accepted"
    return done.stderr


def run_template(
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
        return _run(command)


def parse_arguments(verb: click.Command, arguments: list[str]) -> dict[str, Any]:
    """Return the parameters that ``verb`` parses from ``arguments``. Raises click's UsageError."""
    return verb.make_context("verb", list(arguments)).params


def find_schema_errors(rendered: Iterable[Rendered]) -> str:
    """Return the errors of Kubernetes' own schemas in all renderings; empty if there are none."""
    documents = {document for each in rendered for document in each.text.split("\n---\n")}
    location = _TOOLS / "schemas" / "{{ .ResourceKind }}{{ .KindSuffix }}.json"
    command = [_tool("kubeconform"), "-strict", "-skip", _OTHERS, "-schema-location", str(location)]
    done = _run(command, "\n---\n".join(sorted(documents)))
    return done.stdout + done.stderr


def _run(command: list[str], text: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program in Go, in half of the time that it takes with threads and a garbage collector."""
    environment = {**os.environ, "GOMAXPROCS": "1", "GOGC": "off"}
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False, env=environment)


def promtool(*arguments: str, text: str = "") -> str:
    """Return what promtool finds, given ``text``; empty if it finds nothing."""
    done = _run([_tool("promtool"), *arguments], text)
    output = done.stdout + done.stderr
    return f"exit code {done.returncode}: {output}" if done.returncode else ""


def schema_of(item: Json) -> Json:
    """Return Kubernetes' own schema of an object's kind, with its definitions."""
    group, _, version = item["apiVersion"].rpartition("/")
    parts = [item["kind"], *([group.partition(".")[0]] if group else []), version]
    return json.loads((_TOOLS / "schemas" / f"{'-'.join(parts).lower()}.json").read_text(encoding="utf-8"))


def find_rule_groups(values: Values) -> list[Json]:
    """Return the groups of the chart's PrometheusRule."""
    (rule,) = render({"prometheusRule": {"enabled": True}, **values}).find_all("PrometheusRule")
    return [*rule["spec"]["groups"]]


def find_rules(values: Values) -> list[Json]:
    """Return all rules of the chart's PrometheusRule: recordings and alerts."""
    return [rule for group in find_rule_groups(values) for rule in group["rules"]]


def notes(values: Values) -> str:
    """Return the notes that helm prints after an installation, rendered by a template, once for each ``values``."""
    return _render_notes(json.dumps(values, sort_keys=True))


@functools.cache
def _render_notes(values: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        chart = Path(folder) / "lookupdb"
        shutil.copytree(CHART, chart)
        text = (chart / "templates" / "NOTES.txt").read_text(encoding="utf-8")
        lines = f'{{{{- define "notes" }}}}{text}{{{{- end }}}}\nnotes: {{{{ include "notes" . | toJson }}}}\n'
        (chart / "templates" / "notes.yaml").write_text(lines, encoding="utf-8")
        done = run_template(json.loads(values), "--show-only", "templates/notes.yaml", chart=chart)
    assert done.returncode == 0, done.stderr
    rendered: str = yaml.safe_load(done.stdout)["notes"]
    return rendered


def _tool(name: str) -> str:
    path = _TOOLS / "bin" / name
    assert path.exists(), f"{path} is missing: run `make chart`"
    return str(path)
