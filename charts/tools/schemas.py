"""Makes strict JSON schemas of Kubernetes' own kinds, one file a kind, from the OpenAPI document in its Go module.

kubeconform's own schemas come from a host that not every machine reaches; the Go module proxy has the same document.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Final

MODULE: Final = "k8s.io/kubernetes"
VERSION: Final = "v1.34.4"
FILE: Final = f"{MODULE}@{VERSION}/api/openapi-spec/swagger.json"
SHA256: Final = "d3b0cdc2fda15c753206d25ab459dc7c12df64e2fd652b6809687471ea751c37"

INT_OR_STRING: Final = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"
QUANTITY: Final = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_REF: Final = "#/definitions/"

Json = Any


def main(out: Path) -> None:
    """Write the schemas of every kind that has a group and version into ``out``."""
    definitions = _definitions(json.loads(_document()))
    out.mkdir(parents=True, exist_ok=True)
    written = 0
    for name, definition in definitions.items():
        for kind in definition.get("x-kubernetes-group-version-kind", ()):
            path = out / file_name(kind["group"], kind["version"], kind["kind"])
            path.write_text(json.dumps(schema_of(name, kind, definitions)), encoding="utf-8")
            written += 1
    print(f"{written} kinds of Kubernetes {VERSION}")


def file_name(group: str, version: str, kind: str) -> str:
    """As kubeconform calls it by ``{{.ResourceKind}}{{.KindSuffix}}.json``."""
    middle = f"{group.split('.')[0]}-" if group else ""
    return f"{kind.lower()}-{middle}{version}.json"


def schema_of(name: str, kind: dict[str, str], definitions: dict[str, Json]) -> Json:
    """The schema of one kind, with those that it refers to."""
    needed: dict[str, Json] = {}
    pending = [name]
    while pending:
        if (one := pending.pop()) not in needed:
            needed[one] = definitions[one]
            pending.extend(_references(definitions[one]))
    top = json.loads(json.dumps(needed[name]))
    api_version = f"{kind['group']}/{kind['version']}" if kind["group"] else kind["version"]
    top["properties"]["apiVersion"] = {"const": api_version}
    top["properties"]["kind"] = {"const": kind["kind"]}
    top["required"] = sorted({*top.get("required", ()), "apiVersion", "kind"})
    return {"$schema": "http://json-schema.org/draft-07/schema#", **top, "definitions": needed}


def _definitions(document: Json) -> dict[str, Json]:
    definitions: dict[str, Json] = document["definitions"]
    for definition in definitions.values():
        if "properties" in definition:
            definition["additionalProperties"] = False
    definitions[INT_OR_STRING] = {"type": ["string", "integer"]}
    definitions[QUANTITY] = {"type": ["string", "number"]}
    return definitions


def _references(schema: Json) -> list[str]:
    if isinstance(schema, list):
        return [name for item in schema for name in _references(item)]
    if not isinstance(schema, dict):
        return []
    found = [name for key, item in schema.items() if key != "$ref" for name in _references(item)]
    reference = schema.get("$ref")
    return [*found, reference.removeprefix(_REF)] if isinstance(reference, str) else found


def _document() -> bytes:
    """The OpenAPI document, as it was when its checksum was written down here."""
    with zipfile.ZipFile(_download()) as archive:
        content = archive.read(FILE)
    if (found := hashlib.sha256(content).hexdigest()) != SHA256:
        raise SystemExit(f"{FILE} should have the SHA-256 {SHA256}, has {found}")
    return content


def _download() -> Path:
    """The module's archive in Go's cache. Its checksum is ours, so that Go needs no checksum database for it."""
    environment = os.environ | {"GONOSUMDB": MODULE, "GOFLAGS": "", "GOWORK": "off"}
    command = ["go", "mod", "download", "-json", f"{MODULE}@{VERSION}"]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    answer = json.loads(done.stdout or "{}")
    if done.returncode or "Zip" not in answer:
        raise SystemExit(f"go mod download {MODULE}@{VERSION} failed: {answer.get('Error', 'see above')}")
    return Path(answer["Zip"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
