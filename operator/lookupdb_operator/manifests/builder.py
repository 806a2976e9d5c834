"""A build: its Job, and the ConfigMap with the dataset for the builder."""

from __future__ import annotations

from typing import Any, Final

import orjson

from lookupdb_operator import names
from lookupdb_operator.config import Config
from lookupdb_operator.manifests import access, pods
from lookupdb_operator.manifests.objects import digest_of_all, drop_empty, render_metadata, stamp
from lookupdb_operator.model import Manifest, ObservedDataset
from lookupdb_operator.replacing import replace
from lookupdb_operator.status import BuildStatus

CONTENT: Final = ("source", "key", "value", "duplicates", "shards", "gates")
"""The members of the spec that a builder reads, besides the success file's name."""
TERMINATION_LOG: Final = "/dev/termination-log"
_GRACE_SECONDS: Final = 30
_ANY: Final = BuildStatus(generation="g1", content="", refresh="", digest="", started_at="")


def render_builder(dataset: ObservedDataset, build: BuildStatus, config: Config) -> tuple[Manifest, ...]:
    """Return a build's ConfigMap and Job, in the order of application."""
    return _render_dataset_file(dataset, build), _render_job(dataset, build, config)


def build_digest(dataset: ObservedDataset, config: Config) -> str:
    """Digest everything that builds are made from, except what differs for each build: generation, active generation,
    fingerprint. A stuck build is superseded by one with another digest."""
    return digest_of_all(render_builder(dataset, replace(_ANY, adopt=adopted_address(dataset)), config))


def adopted_address(dataset: ObservedDataset) -> str:
    """Return what to adopt, as a builder's argument: ``uid`` or ``uid/gN``; empty for nothing."""
    adopt = dataset.spec.get("adopt")
    if not adopt:
        return ""
    generation = adopt.get("generation")
    return f"{adopt['uid']}/{generation}" if generation else str(adopt["uid"])


def _render_dataset_file(dataset: ObservedDataset, build: BuildStatus) -> Manifest:
    spec = {member: dataset.spec[member] for member in CONTENT}
    if success_file := dataset.spec["refresh"].get("successFile"):
        spec["refresh"] = {"successFile": success_file}
    resource = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"namespace": dataset.namespace, "name": dataset.name, "uid": dataset.uid},
        "spec": spec,
    }
    # JSON is YAML. Members are sorted, because the API server's order means nothing.
    text = orjson.dumps(resource, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2).decode()
    return stamp(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": _render_metadata(dataset, build),
            "data": {names.DATASET_FILE: text + "\n"},
        }
    )


def _render_job(dataset: ObservedDataset, build: BuildStatus, config: Config) -> Manifest:
    """The pod is not retried by the Job: the operator judges the failure and times the next attempt."""
    return stamp(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": _render_metadata(dataset, build),
            "spec": {
                "backoffLimit": 0,
                "activeDeadlineSeconds": dataset.spec["build"]["deadlineSeconds"],
                "template": _render_template(dataset, build, config),
            },
        }
    )


def _render_metadata(dataset: ObservedDataset, build: BuildStatus) -> dict[str, Any]:
    labels = {names.GENERATION: build.generation}
    return render_metadata(dataset, names.build(dataset.name, build.generation), names.BUILDER, labels)


def _render_template(dataset: ObservedDataset, build: BuildStatus, config: Config) -> dict[str, Any]:
    source, amounts = dataset.spec["source"], pods.builder(dataset.spec)
    volumes: list[dict[str, Any]] = [
        {"name": "dataset", "configMap": {"name": names.build(dataset.name, build.generation)}},
        {"name": "scratch", "emptyDir": {"sizeLimit": str(dataset.spec["build"]["scratchSize"])}},
    ]
    mounts: list[dict[str, Any]] = [
        {"name": "dataset", "mountPath": names.DATASET_PATH, "readOnly": True},
        {"name": "scratch", "mountPath": names.SCRATCH_PATH},
    ]
    if volume := _source_volume(dataset, build):
        volumes.append({"name": "source", **volume})
        mounts.append({"name": "source", "mountPath": names.SOURCE_PATH, "readOnly": True})
    optional = {"optional": True} if build.adopt else {}
    secrets = [{"secretRef": {"name": source["secretName"], **optional}}] if source.get("secretName") else []
    arguments = _arguments(dataset, build, config, amounts)
    container = pods.render_container(
        dataset, config, names.BUILDER, "build", arguments, amounts, mounts, **drop_empty(envFrom=secrets)
    )
    labels = names.labels(dataset.name, dataset.uid, names.BUILDER) | {names.GENERATION: build.generation}
    return pods.render_template(
        dataset,
        config,
        names.BUILDER,
        names.selector(dataset.name, dataset.uid, names.BUILDER),
        labels,
        {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": _GRACE_SECONDS,
            "containers": [access.grant(container, dataset, config)],
        },
        [*volumes, *access.render_volumes(dataset, config)],
        spreads=False,
        takes_volumes=not source.get("volume"),
    )


def _source_volume(dataset: ObservedDataset, build: BuildStatus) -> dict[str, Any] | None:
    """Return the volume with the source's files, if any. A builder that adopts gets none: the source may be gone, and
    no
    claim can be optional."""
    volume = dataset.spec["source"].get("volume")
    if not volume:
        return None
    if claim := volume.get("claimName"):
        return None if build.adopt else {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
    optional = {"optional": True} if build.adopt else {}
    return {"configMap": {"name": volume["configMapName"], **optional}}


def _arguments(dataset: ObservedDataset, build: BuildStatus, config: Config, amounts: pods.Resources) -> list[str]:
    flags = {
        "--file": f"{names.DATASET_PATH}/{names.DATASET_FILE}",
        "--store": access.find_url(dataset, config),
        "--cluster-id": config.cluster,
        "--generation": build.generation,
        "--build-id": build.started_at or None,
        "--active": build.active or None,
        "--active-records": build.active_records or None,
        "--unless-fingerprint": build.unless_fingerprint or None,
        "--unless-success-file": build.unless_success_file or None,
        "--unless-refused": build.unless_refused or None,
        "--adopt": build.adopt or None,
        "--memory-limit": pods.builder_memory(amounts),
        "--threads": pods.builder_threads(amounts),
        "--scratch": names.SCRATCH_PATH,
        "--volume": names.SOURCE_PATH if _source_volume(dataset, build) else None,
        "--progress": "plain",
        "--log-format": "json",
        "--termination-log": TERMINATION_LOG,
    }
    words = [str(word) for pair in flags.items() if pair[1] is not None for word in pair]
    return ["build", *words, *_removal_flags(dataset, build), "--no-local-files"]


def _removal_flags(dataset: ObservedDataset, build: BuildStatus) -> list[str]:
    """Return what the builder removes of earlier generations: nothing, unless no sweep knows the store."""
    if dataset.own_store is None:
        return []
    protected = (word for generation in build.protect for word in ("--protect", generation))
    return ["--keep", str(dataset.spec["keepGenerations"]), *protected]
