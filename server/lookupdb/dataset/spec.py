"""A LookupDataset as frozen dataclasses, made from a manifest that the schema has completed.

Names follow the CRD's fields. Nothing here reads a source, a store or a cluster.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Self

import orjson
import yaml

from lookupdb.dataset import schema
from lookupdb.dataset.schema import ManifestProblem, from_members
from lookupdb.errors import InvalidManifest
from lookupdb.keys import effective_steps
from lookupdb.wording import check_path, format_count, parse_quantity

# Fields of a spec that only a cluster uses, and what a laptop does instead. They are checked everywhere, so that one
# manifest serves both.


CLUSTER_FIELDS: Final = {
    "store": "its credentials are in a Secret; here, --data-dir (of `up`) or --store says where generations are kept",
    "adopt": "here, each dataset has the uid local, and is built from its source; `lookupdb build --adopt` adopts a "
    "generation in a store",
    "sync": "it needs nodes; here, `lookupdb sync DIR --dataset NAME` keeps a folder beside `up`",
    "router.tls": "its certificate is in a Secret; here, `up` answers plain HTTP, and only this machine "
    "(`lookupdb route --tls-cert` supports TLS)",
    "router.auth": "it names a Secret, or service accounts; here, `up` requires no token, and answers only this "
    "machine (`lookupdb route --auth-tokens` requires one)",
}
"""Path of a field in the spec → why it needs a cluster, and what is done without one."""


def describe_left_out(paths: Iterable[str]) -> Iterator[str]:
    """Yield a line for each of ``paths``: why it is ignored, and what is done instead."""
    return (f"spec.{path} applies only in a cluster: {CLUSTER_FIELDS[path]}" for path in paths)


def _has(spec: Mapping[str, Any], path: str) -> bool:
    parent, _, field = path.rpartition(".")
    return field in (spec.get(parent, {}) if parent else spec)


# The networks in ``spec.router.clients``, which a schema cannot check. The operator lets them in.


_HINT = "give the first address of a network, / and how many of its bits count, such as 10.1.0.0/16 or 2001:db8::/32"

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def _check_block(block: Mapping[str, Any], field: str) -> None:
    network = _parse_network(block["cidr"], f"{field}.cidr")
    for number, text in enumerate(block.get("except", ())):
        left_out = _parse_network(text, f"{field}.except[{number}]")
        is_part = left_out.version == network.version and left_out.prefixlen > network.prefixlen
        if not is_part or not left_out.subnet_of(network):  # type: ignore[arg-type]
            raise InvalidManifest(
                f"{field}.except[{number}]: expected a smaller network within {block['cidr']}, found {text}",
                hint="leave out a part of ipBlock.cidr",
            )


def _parse_network(text: str, field: str) -> _Network:
    try:
        network = ipaddress.ip_network(text)
    except ValueError as error:
        raise InvalidManifest(f"{field} is not a network, found {text!r}: {error}", hint=_HINT) from error
    is_mapped = isinstance(network, ipaddress.IPv6Network) and network.network_address.ipv4_mapped is not None
    if is_mapped or re.search("/0[0-9]", text):
        why = "it is an IPv4 network in IPv6 form" if is_mapped else "the number of bits begins with 0"
        raise InvalidManifest(f"{field} is not a network, found {text!r}: {why}", hint=_HINT)
    return network


# ``spec.refresh`` as a dataclass, and the place of its success file.


_WILDCARD: Final = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Refresh:
    """When to check the source, and when it may be read."""

    schedule: str | None
    time_zone: str
    suspend: bool
    starting_deadline_seconds: int | None
    success_file: str | None
    """The url of the file that says that the source is complete; relative like the source's urls."""
    stale_after_seconds: int | None


PUSHES_SCHEDULE: Final = "*/5 * * * *"
"""Default schedule of checks for pushes."""


def parse_refresh(spec: Mapping[str, Any]) -> Refresh:
    """Parse ``spec.refresh`` of a ``spec`` that the schema has completed. Raises InvalidManifest."""
    source = spec["source"]
    members = {**({"schedule": PUSHES_SCHEDULE} if source.get("pushed") else {}), **spec["refresh"]}
    if (schedule := members.get("schedule")) is not None:
        from lookupdb.dataset.schedule import Schedule

        Schedule.parse(schedule, members["timeZone"])
    if (success_file := members.get("successFile")) is not None:
        members["successFile"] = _locate_success_file(success_file, _list_urls(source))
    return from_members(Refresh, members)


def _locate_success_file(name: str, urls: Iterable[str]) -> str:
    """Return the url of the success file ``name``: ``name`` if it has a folder, else in the folder of ``urls``."""
    if "://" in name or name.startswith("/"):
        return name
    folders = sorted({_source_folder(url) for url in urls})
    if len(folders) != 1 or folders[0].startswith("example://"):
        found = (
            f"{len(folders)} folders ({', '.join(folders[:3])})"
            if len(folders) > 1
            else "an example, which has no folder"
            if folders
            else "a catalog, which has no folder"
        )
        raise InvalidManifest(
            f"refresh.successFile: {name!r} without a folder means a file beside the source, but the source is in"
            f" {found}: give the success file's whole url"
        )
    return folders[0] + name


def _source_folder(url: str) -> str:
    """Return the folder of ``url``, with a final slash, up to the first wildcard and without a query. Empty for the
    manifest's own."""
    scheme, separator, rest = url.rpartition("://")
    path = rest.partition("?")[0] if scheme in ("http", "https") else rest
    fixed = path[: match.start()] if (match := _WILDCARD.search(path)) else path
    folder, slash, _ = fixed.rpartition("/")
    return f"{scheme}{separator}{folder}{slash}"


LOCAL: Final = "local"
"""The uid of a dataset and the id of a cluster if there is no cluster."""


@dataclass(frozen=True, slots=True)
class CsvColumn:
    """A CSV column that the manifest names or types."""

    name: str
    type: Literal["text", "integer", "number", "boolean", "json"] = "text"
    empty: Literal["text", "null"] = "text"


@dataclass(frozen=True, slots=True)
class Csv:
    """Options for CSV. If ``delimiter`` is None, the file's name decides."""

    delimiter: str | None = None
    quote: str = '"'
    header: bool = True
    columns: tuple[CsvColumn, ...] = ()
    escape: str | None = None
    """If empty, backslashes are text. None means the same, but a file that may have escapes is rejected."""
    null_values: tuple[str, ...] = ()
    """The texts that mean null in unquoted fields."""


@dataclass(frozen=True, slots=True)
class ParquetColumn:
    """The form of a binary column of Parquet in JSON values."""

    name: str
    type: Literal["text", "base64"]


@dataclass(frozen=True, slots=True)
class Parquet:
    """Options for Parquet."""

    columns: tuple[ParquetColumn, ...] = ()


@dataclass(frozen=True, slots=True)
class Catalog:
    """An Iceberg catalog. Its credentials are in the environment."""

    name: str
    properties: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Table:
    """The table that is the source, and its state: by default the newest."""

    catalog: Catalog | None = None
    name: str | None = None
    snapshot: int | None = None
    """The snapshot's id, for Delta the version."""
    as_of: str | None = None
    """ISO 8601, with a time zone."""


@dataclass(frozen=True, slots=True)
class Source:
    """The source of records. If ``format`` or ``compression`` is None, the files' names decide."""

    urls: tuple[str, ...]
    """Empty for a table of a catalog."""
    format: Literal["csv", "json", "jsonl", "parquet", "avro", "iceberg", "delta"] | None
    compression: Literal["none", "gzip", "zstd", "bzip2", "xz"] | None
    csv: Csv
    volume: dict[str, str] | None
    parquet: Parquet = Parquet()
    table: Table = Table()
    pushed: bool = False
    """True if generations are pushed: only ``build.push_generation`` then sets ``urls``, to the files with rows."""

    @property
    def takes_pushes(self) -> bool:
        """Return whether a build takes the newest push, and reads no rows itself."""
        return self.pushed and not self.urls


@dataclass(frozen=True, slots=True)
class Key:
    """The key of a record."""

    columns: tuple[str, ...]
    """Empty with ``member_names``."""
    separator: str
    normalize: tuple[str, ...]
    """The effective steps (``keys.effective_steps``)."""
    member_names: bool = False
    """The source is one JSON object, whose members' names are the keys."""


@dataclass(frozen=True, slots=True)
class Value:
    """The value that a lookup returns. At most one of ``columns``, ``column`` and ``field`` is set; if none is, it has
    all columns but the key's."""

    columns: tuple[str, ...] | None
    column: str | None
    field: str | None
    format: Literal["json", "raw"]
    compression: Literal["zstd", "none"]
    max_bytes: int


@dataclass(frozen=True, slots=True)
class ExpectedValue:
    """A key that must be found, and the value that it must have."""

    key: str
    value: str
    """JSON, or with ``value.format: raw`` the text itself."""


@dataclass(frozen=True, slots=True)
class Gates:
    """The checks that a new generation must pass before it may serve. None disables a check, and so does each default
    here but that of ``max_rejected_rows``."""

    min_records: int = 0
    max_shrink_percent: int | None = None
    max_growth_percent: int | None = None
    max_changed_percent: int | None = None
    max_value_bytes: int | None = None
    max_rejected_rows: int = 0
    required_keys: tuple[str, ...] = ()
    expected_values: tuple[ExpectedValue, ...] = ()

    def content_hash(self) -> str:
        """Return 32 hex digits that change with any gate."""
        return hashlib.sha256(orjson.dumps(asdict(self), option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Router:
    """The router's workers and limits. Fields that only the manifests of its pods need are not here."""

    workers: int
    deadline_milliseconds: int
    hedge_milliseconds: int
    max_keys: int
    max_body_bytes: int
    max_connections: int
    max_queued_keys: int
    header_timeout_seconds: int
    idle_timeout_seconds: int
    write_timeout_seconds: int
    drain_seconds: int
    cache_control: str | None = None
    """The ``Cache-Control`` header; None sends none."""


@dataclass(frozen=True, slots=True)
class Spark:
    """The Spark application of a build. Fields that only the manifests of its pods need are not here."""

    master: str | None = None
    """None for the cluster of the builder's pod, or all cores of this machine."""
    executors: int = 2
    executor_cores: int = 1
    executor_memory: int = 2 << 30
    """Bytes of an executor, for its JVM and Python together."""
    conf: tuple[tuple[str, str], ...] = ()
    """Further properties of Spark, which override those of a build."""


@dataclass(frozen=True, slots=True)
class DatasetSpec:
    """One LookupDataset, validated and with its defaults."""

    namespace: str
    name: str
    uid: str
    base: Path | None
    """The manifest's own folder, to which relative urls refer; None in a cluster."""
    source: Source
    key: Key
    value: Value
    duplicates: Literal["fail", "first", "last"]
    shards: int
    replicas: int
    keep_generations: int
    pinned: str | None
    """The generation that ``spec.generation`` pins."""
    suspend: bool
    gates: Gates
    refresh: Refresh
    serving_workers: int
    router: Router
    engine: Literal["Local", "Spark"] = "Local"
    """The engine that builds a generation. All engines write the same bytes."""
    spark: Spark = Spark()
    cluster_fields: tuple[str, ...] = ()
    """The fields of the manifest that only a cluster uses (``CLUSTER_FIELDS``)."""

    def to_json(self) -> bytes:
        """Return JSON for another process of the same version."""
        return orjson.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: bytes | str) -> Self:
        """Parse the spec that ``to_json`` wrote."""
        return from_members(cls, orjson.loads(text))

    def content_hash(self) -> str:
        """Return 32 hex digits that depend on all fields that decide what shard files a source gives."""
        key, source = asdict(self.key), {**asdict(self.source), "secret_name": None}
        # Omit defaults of newer fields: the hash of generations that were built before them stays the same.
        if not self.key.member_names:
            del key["member_names"]
        for name in ("escape", "null_values"):
            if not source["csv"][name]:
                del source["csv"][name]
        for name, default in (("parquet", Parquet()), ("table", Table())):
            if getattr(self.source, name) == default:
                del source[name]
        if self.source.pushed:  # the source of a push does not matter
            source |= {"urls": (), "format": None, "compression": None, "volume": None}
        else:
            del source["pushed"]
        content = {
            "source": source,
            "key": key,
            "value": asdict(self.value),
            "duplicates": self.duplicates,
            "shards": self.shards,
        }
        return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


class _RepeatedField(yaml.constructor.ConstructorError):
    """A mapping has two members of one name."""


class _Loader(yaml.SafeLoader):
    """YAML's safe loader, but a duplicate key in a mapping is an error, and times are text, as in a cluster."""

    def construct_time(self, node: yaml.ScalarNode) -> str:
        """Return a time as its text. Raises ValueError for one that does not exist."""
        self.construct_yaml_timestamp(node)
        return str(node.value)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key is text, not a list or a mapping", key.start_mark
                )
            if key.value in keys and key.tag != "tag:yaml.org,2002:merge":
                raise _RepeatedField(None, None, f"{key.value} occurs twice", key.start_mark)
            keys.add(str(key.value))
        return super().construct_mapping(node, deep)


_Loader.add_constructor("tag:yaml.org,2002:timestamp", _Loader.construct_time)

_MAPPING: Final = "mapping with apiVersion, kind, metadata and spec"
MAX_MANIFEST_BYTES: Final = 1 << 20
"""Approximately the limit of an API server."""
_YAML: Final = (
    "look there and in the line before: levels are indented by spaces, never tabs, brackets and quotes are closed, and "
    "text that holds ': ' or ' #', or begins with one of @ ` % & * ! | > [ {, is in quotes"
)


def read_documents(path: Path) -> list[Any]:
    """Return the documents of the YAML file at ``path`` that are not empty. Raises InvalidManifest."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_MANIFEST_BYTES + 1)  # read no more: this may be the data file
        if len(content) > MAX_MANIFEST_BYTES:
            raise InvalidManifest(
                f"{path} is not a manifest: it has more than {MAX_MANIFEST_BYTES >> 20} MiB, which is the limit",
                hint=_manifest_hint(),
            )
        text = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidManifest(f"{path} cannot be read: {reason}") from error
    try:
        return [document for document in yaml.load_all(text, _Loader) if document is not None]
    except yaml.MarkedYAMLError as error:
        place = f" (line {error.problem_mark.line + 1})" if error.problem_mark else ""
        if isinstance(error, _RepeatedField):
            raise InvalidManifest(f"{path}{place}: {error.problem}", hint="remove all but one of them") from error
        raise InvalidManifest(f"{path} is not YAML{place}: {error.problem or error.context}", hint=_YAML) from error
    except (yaml.YAMLError, ValueError, TypeError) as error:  # ValueError: an invalid date or number
        raise InvalidManifest(f"{path} is not YAML: {error}", hint=_YAML) from error
    except RecursionError as error:
        raise InvalidManifest(f"{path} is nested too deeply") from error


def read_manifest(path: Path, base: Path | None = None) -> DatasetSpec:
    """Return the dataset that the YAML file at ``path`` describes; its local files are relative to ``base``, the file's
    own folder by default. Raises InvalidManifest."""
    base = path.resolve().parent if base is None else base.resolve()
    check_path(base, InvalidManifest)
    return parse_resource(read_resource(path), base=base)


def read_resource(path: Path) -> dict[str, Any]:
    """Return the LookupDataset in the YAML file at ``path``, not validated. Raises InvalidManifest."""
    documents = read_documents(path)
    if len(documents) != 1:
        count = format_count(len(documents), "document") if documents else "nothing"
        raise InvalidManifest(
            f"{path} must hold one LookupDataset, it holds {count}",
            hint="give each LookupDataset a file of its own; a line --- begins another document"
            if documents
            else f"a manifest begins with apiVersion: {schema.api_version()} and kind: LookupDataset",
        )
    if not isinstance(documents[0], dict):
        raise InvalidManifest(
            f"{path} is not a manifest: expected a {_MAPPING}, found {str(documents[0])[:40]!r}", hint=_manifest_hint()
        )
    return dict(documents[0])


def _manifest_hint() -> str:
    return (
        f"give the YAML that begins with apiVersion: {schema.api_version()} and kind: LookupDataset; its spec.source"
        " names the data; `lookupdb init` writes it for a file of data"
    )


def parse_resource(resource: Any, base: Path | None = None) -> DatasetSpec:
    """Return the dataset that a LookupDataset resource describes. Raises InvalidManifest."""
    if not isinstance(resource, dict):
        raise InvalidManifest(f"a manifest must be a {_MAPPING}, found {str(resource)[:40]!r}")
    try:
        completed, problems = schema.check_resource(resource)
    except RecursionError as error:
        raise InvalidManifest("the manifest is nested too deeply, or holds itself") from error
    return parse_completed_resource(completed, base, problems)


def parse_completed_resource(
    resource: dict[str, Any], base: Path | None = None, problems: Sequence[ManifestProblem] = ()
) -> DatasetSpec:
    """Return the dataset of a resource that ``schema.check_resource`` returned with ``problems``; does not check them
    again. Raises InvalidManifest."""
    if problems := [*problems, *_find_problems(resource.get("spec"), tuple(problem.path for problem in problems))]:
        raise schema.make_error(resource, problems)
    return _parse_dataset(resource["spec"], resource["metadata"], base)


def _find_problems(spec: Any, invalid: tuple[str, ...]) -> Iterator[ManifestProblem]:
    """Yield problems that a schema cannot express. ``invalid`` are paths of fields that have problems already."""
    checks: tuple[tuple[str, Callable[[], object]], ...] = (
        ("spec.refresh", lambda: parse_refresh(spec)),
        ("spec.gates", lambda: _check_values(spec["gates"]["expectedValues"], spec["value"]["format"])),
        ("spec.source.table", lambda: _check_time(spec["source"].get("table", {}).get("asOf"))),
        ("spec.router", lambda: _check_clients(spec["router"].get("clients", ()))),
    )
    for path, check in checks:
        try:
            if not any(problem.startswith(path) for problem in invalid):
                check()
        except InvalidManifest as error:
            yield ManifestProblem(path, partial(str, f"spec.{error.message}"), error.hint)
        except (KeyError, TypeError, AttributeError):
            if not invalid:
                raise  # else a field that ``check`` needs is missing, or of another type


def _parse_dataset(spec: dict[str, Any], metadata: dict[str, Any], base: Path | None) -> DatasetSpec:
    source, key, spark = spec["source"], spec["key"], spec["build"]["spark"]
    memory = int(parse_quantity(str(spark["executorMemory"])))
    return DatasetSpec(
        namespace=metadata.get("namespace", "default"),
        name=metadata["name"],
        uid=metadata.get("uid", LOCAL),
        base=base,
        source=from_members(Source, {**source, "urls": _list_urls(source)}),
        key=from_members(Key, {"columns": (), **key, "normalize": effective_steps(key["normalize"])}),
        value=from_members(Value, spec["value"]),
        duplicates=spec["duplicates"],
        shards=spec["shards"],
        replicas=spec["replicas"],
        keep_generations=spec["keepGenerations"],
        pinned=spec.get("generation"),
        suspend=spec["suspend"],
        gates=from_members(Gates, spec["gates"]),
        refresh=parse_refresh(spec),
        serving_workers=spec["serving"]["workers"],
        router=from_members(Router, spec["router"]),
        engine=spec["build"]["engine"],
        spark=from_members(Spark, {**spark, "executorMemory": memory, "conf": sorted(spark.get("conf", {}).items())}),
        cluster_fields=tuple(path for path in CLUSTER_FIELDS if _has(spec, path)),
    )


def _list_urls(source: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(source["urls"]) if "urls" in source else (source["url"],) if "url" in source else ()


def _check_values(expected_values: Sequence[Mapping[str, Any]], value_format: str) -> None:
    for number, expected in enumerate(expected_values if value_format == "json" else ()):
        try:
            orjson.loads(expected["value"])
        except ValueError as error:
            raise InvalidManifest(
                f"gates.expectedValues[{number}].value is not JSON, found {expected['value'][:40]!r}: {error}",
                hint="""quote text twice, as value: '"JFK"', or set value.format: raw""",
            ) from error


def _check_time(as_of: str | None) -> None:
    if as_of is None:
        return
    with suppress(ValueError):
        if datetime.fromisoformat(as_of).tzinfo is not None:
            return
    raise InvalidManifest(
        f"source.table.asOf: expected a time with its time zone, found {as_of!r}",
        hint="write it as 2026-11-28T18:00:00Z",
    )


def _check_clients(clients: Sequence[Mapping[str, Any]]) -> None:
    # A block that the cluster rejects would silently leave the old policy in force.
    for number, client in enumerate(clients):
        if "ipBlock" in client:
            _check_block(client["ipBlock"], f"router.clients[{number}].ipBlock")


ROUTER_FLAGS: Final = {
    "workers": "--workers",
    "deadline_milliseconds": "--deadline-ms",
    "hedge_milliseconds": "--hedge-ms",
    "max_keys": "--max-keys",
    "max_body_bytes": "--max-body-bytes",
    "max_connections": "--max-connections",
    "max_queued_keys": "--max-queued-keys",
    "header_timeout_seconds": "--header-timeout",
    "idle_timeout_seconds": "--idle-timeout",
    "write_timeout_seconds": "--write-timeout",
    "drain_seconds": "--drain-seconds",
    "cache_control": "--cache-control",
}
"""The flags of `lookupdb route`, by field of a dataset's ``spec.router``."""


def render_router_flags(router: Router) -> dict[str, int | str]:
    """Return flag and value of each field that is set."""
    return {flag: value for field, flag in ROUTER_FLAGS.items() if (value := getattr(router, field)) is not None}
