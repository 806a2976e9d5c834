"""Manifests are validated and defaulted against the CRD itself, so that laptop and cluster agree."""

import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lookupdb import keys, wording
from lookupdb.builder import files, listing
from lookupdb.dataset import schema, spec
from lookupdb.errors import InvalidManifest

REPOSITORY = Path(__file__).parents[2]


def resource(**changes: Any) -> dict[str, Any]:
    """A small valid LookupDataset; ``changes`` replace members of its spec."""
    return {
        "apiVersion": "lookupdb.dev/v1alpha1",
        "kind": "LookupDataset",
        "metadata": {"name": "people"},
        "spec": {"source": {"url": "people.csv"}, "key": {"columns": ["email"]}, **changes},
    }


def test_every_example_is_valid() -> None:
    for path in sorted((REPOSITORY / "examples").glob("*.yaml")):
        assert spec.read_manifest(path).name, path.name


def _expected(path: Path) -> str:
    """Return the laptop's message for an invalid example: the API server's, unless a comment names another."""
    said: dict[str, str] = dict(re.findall(r"^# (expect|laptop): (.*)$", path.read_text(), re.MULTILINE))
    return said.get("laptop") or said["expect"]


def _refusal(path: Path) -> str:
    try:
        return f"valid: {spec.read_manifest(path).name}"
    except InvalidManifest as error:
        return str(error)


def test_every_invalid_example_is_refused_for_its_reason() -> None:
    paths = sorted((REPOSITORY / "examples" / "invalid").glob("*.yaml"))
    assert len(paths) > 50
    for path in paths:
        said, expected = _refusal(path), _expected(path)
        assert expected in said, path.stem
        assert said.count("; ") == expected.count("; "), f"{path.stem} must be invalid for one reason only"


def _list_patterns(node: dict[str, Any], path: str) -> Iterator[str]:
    if "pattern" in node:
        yield path
    for name, child in node.get("properties", {}).items():
        yield from _list_patterns(child, f"{path}.{name}")
    for member in ("items", "additionalProperties"):
        if isinstance(node.get(member), dict):
            yield from _list_patterns(node[member], f"{path}[]")


def test_the_form_of_a_field_is_told_in_words() -> None:
    """For a pattern an API server prints only the regular expression; rules have messages."""
    assert list(_list_patterns(schema.resource_schema()["properties"]["spec"], "spec")) == []


def test_what_is_no_quantity_is_refused_wherever_it_stands() -> None:
    for quantity in ("4GB", "-1", -1, "1.5.2", "", "1e", "two"):
        limits = {"limits": {"memory": quantity, "cpu": 1}, "requests": {"memory": "1Gi"}}
        for changes in ({"build": {"resources": limits}}, {"router": {"resources": limits}}):
            with pytest.raises(InvalidManifest, match=r"limits\.memory: a quantity is a number and a suffix or none"):
                spec.parse_resource(resource(**changes))
        with pytest.raises(InvalidManifest, match=r"spec\.build\.scratchSize: a quantity is a number"):
            spec.parse_resource(resource(build={"scratchSize": quantity}))


def test_an_expected_value_that_is_not_json_is_refused_where_no_api_server_can(tmp_path: Path) -> None:
    """An API server cannot check this; in a cluster, a condition reports it."""
    manifest = tmp_path / "people.yaml"
    gates = {"expectedValues": [{"key": "jfk@example.org", "value": "Kennedy"}]}
    manifest.write_text(json.dumps(resource(gates=gates)))
    with pytest.raises(InvalidManifest, match=r"spec\.gates\.expectedValues\[0\]\.value is not JSON, found 'Kennedy'"):
        spec.read_manifest(manifest)


def test_every_scheme_a_source_is_read_from_is_valid() -> None:
    for scheme in (*listing.SCHEMES, "volume"):
        source = {"url": f"{scheme}://data/people.csv", "volume": {"claimName": "data"}}
        assert schema.complete_resource(resource(source=source))["spec"]["source"]["url"] == source["url"]


def test_quantities_are_numbers_or_text() -> None:
    resources = {"requests": {"cpu": 2, "nvidia.com/gpu": 1}, "limits": {"memory": "4.5Gi", "cpu": "2000m"}}
    completed = schema.complete_resource(resource(build={"resources": resources}, serving={"resources": resources}))
    assert completed["spec"]["build"]["resources"] == resources
    assert completed["spec"]["build"]["scratchSize"] == "10Gi"


def test_a_quantity_stands_for_a_number() -> None:
    for text, number in (("2", 2), ("500m", 0.5), ("4Gi", 4 << 30), ("1.5k", 1500), ("1e3", 1000), ("10u", 1e-5)):
        assert wording.parse_quantity(text) == pytest.approx(number)


def test_what_is_no_quantity() -> None:
    for text in ("", "Gi", "4GB", "4 Gi", "one"):
        with pytest.raises(ValueError, match=r"quantity|float"):
            wording.parse_quantity(text)


def test_what_a_cluster_says_of_a_dataset_is_a_manifest_too() -> None:
    """`kubectl get lds people -o yaml` can be given to a laptop: its status is left aside."""
    metadata = {
        "name": "people",
        "namespace": "team",
        "uid": "3f2b9c1e-77aa",
        "managedFields": [],
        "labels": {"a": "b"},
    }
    dataset = spec.parse_resource({**resource(), "metadata": metadata, "status": {"anything": True}})
    assert (dataset.namespace, dataset.uid) == ("team", "3f2b9c1e-77aa")


def test_what_only_pods_are_made_from_is_accepted_and_changes_no_file() -> None:
    scheduling = {"nodeSelector": {"disk": "nvme"}, "tolerations": [{"operator": "Exists"}], "priorityClassName": "low"}
    pod = {"serviceAccountName": "reader", "labels": {"team": "a"}, "extraEnv": [{"name": "HTTPS_PROXY", "value": "p"}]}
    router = {"replicas": 3, "autoscaling": {"maxReplicas": 9}, "pod": pod, "service": {"type": "LoadBalancer"}}
    serving = {"pod": pod, "storageClassName": "local-nvme"}
    dataset = spec.parse_resource(
        resource(
            scheduling=scheduling,
            router=router,
            serving=serving,
            build={"pod": pod},
            image="lookupdb:1",
            imagePullSecrets=[{"name": "registry"}],
        )
    )
    assert dataset.content_hash() == spec.parse_resource(resource()).content_hash()
    assert dataset.router == spec.parse_resource(resource()).router


def test_the_crd_shipped_in_the_package_is_the_one_in_crds() -> None:
    assert schema.crd() == yaml.safe_load((REPOSITORY / "crds" / schema.CRD_FILE).read_text())


def test_absent_fields_take_the_defaults_of_the_crd() -> None:
    dataset = spec.parse_resource(resource())
    assert (dataset.namespace, dataset.name, dataset.uid) == ("default", "people", "local")
    assert (dataset.shards, dataset.replicas, dataset.duplicates) == (1, 1, "fail")
    assert (dataset.key.separator, dataset.key.normalize) == (":", ())
    assert (dataset.value.format, dataset.value.compression, dataset.value.max_bytes) == (
        "json",
        "zstd",
        64 << 20,
    )
    assert (dataset.gates.min_records, dataset.gates.max_rejected_rows) == (1, 0)
    assert dataset.router.deadline_milliseconds == 1000


def test_defaults_reach_into_lists() -> None:
    source = {"url": "a.csv", "csv": {"columns": [{"name": "age", "type": "integer"}]}}
    assert spec.parse_resource(resource(source=source)).source.csv.columns[0].empty == "text"


def test_the_resource_given_is_not_changed() -> None:
    given = resource()
    schema.complete_resource(given)
    assert given == resource()


def test_what_does_not_fit_is_named_with_its_path() -> None:
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"shardz": 3}, "spec.shardz is not a field; did you mean shards?"),
        ({"shards": 0}, "spec.shards: 0 is less than the minimum of 1"),
        ({"shards": "4"}, "spec.shards: expected a whole number, found '4': write it without quotes"),
        ({"suspend": "true"}, "spec.suspend: expected true or false, found 'true': write it"),
        ({"suspend": "no"}, "spec.suspend: expected true or false, found 'no' ("),
        ({"key": {"columns": [4]}}, "spec.key.columns[0]: expected text, found 4: write it in quotes"),
        ({"key": "id"}, "spec.key: expected a mapping of fields, found 'id'"),
        (
            {"source": {"url": "a", "csv": {"delimiter": "||"}}},
            "spec.source.csv.delimiter: expected at most 1 character, found '||'",
        ),
        (
            {"source": {"url": "a.csv", "colums": []}},
            "did you mean spec.source.csv.columns or spec.source.parquet.columns?",
        ),
        ({"normalize": []}, "spec.normalize is not a field; did you mean spec.key.normalize?"),
        ({"format": "csv"}, "did you mean spec.source.format or spec.value.format?"),
        ({"key": {"delimiter": "x"}}, "did you mean spec.source.csv.delimiter?"),
        ({"key": {"column": "a"}}, "did you mean columns or spec.value.column?"),
        ({"refresh": {"schedule": "0 25 * * *"}}, ": spec.refresh.schedule: expected five cron fields"),
        (
            {"rollout": {"keepPrevious": "30"}},
            "spec.rollout.keepPrevious: a duration is a whole number with its unit, such as 90s, 30m or 12h",
        ),
        ({"duplicates": "newest"}, "spec.duplicates: 'newest' is not one of"),
        ({"key": {"columns": ["k"], "normalize": ["lower"]}}, ", did you mean lowercase?"),
        ({"source": {"url": None}}, "spec.source.url: expected text, found nothing"),
        ({"source": {}}, "spec.source: set url or urls, but not both"),
        ({"source": {"url": "a", "urls": ["b"]}}, "set url or urls, but not both"),
        ({"source": {"url": "volume://a.csv"}}, "needs volume"),
        ({"source": {"url": "a", "csv": {"header": False}}}, "csv.columns"),
        ({"value": {"format": "raw"}}, "format raw needs column"),
        ({"value": {"column": "a", "field": "b"}}, "at most one of columns"),
        ({"key": {}}, "give either columns or memberNames: true"),
        ({"key": {"columns": ["a"], "memberNames": True}}, "give either columns or"),
        ({"key": {"memberNames": False}}, "give either columns or"),
        ({"key": {"columns": []}}, "spec.key.columns"),
    )
    for changes, said in cases:
        with pytest.raises(InvalidManifest) as caught:
            spec.parse_resource(resource(**changes))
        assert said in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {f"shardz{number}": 1 for number in range(1000)},
            "spec.shardz19 is not a field; did you mean shards? and 980 more",
        ),
        ({"x" * 1_000_000: 1}, f"spec.{'x' * 80}… is not a field"),
        (
            {"gates": {"requiredKeys": ["k"] * 5000}},
            "spec.gates.requiredKeys: expected at most 100 in the list, found 5,000",
        ),
        ({"key": {"columns": []}}, "spec.key.columns: expected at least 1 in the list, found 0"),
        ({"source": {"url": "a", "format": "csv" * 300_000}}, "csvcsvc… is not one of ['csv', "),
        ({"serving": {"resources": {"requests": {"cpu": "x" * 1_000_000}}}}, "xxx… is not a quantity"),
        ({"shards": 10**5000}, "a number in it has more digits than Python writes"),
    ],
    ids=["fields", "long field", "long list", "empty list", "long value", "long quantity", "long number"],
)
def test_a_message_is_of_bounded_length(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidManifest) as caught:
        spec.parse_resource(resource(**changes))
    assert said in caught.value.message
    assert len(caught.value.message) < 2000


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"gates": {"requiredKeys": ["a", "b\ud800"]}}, r"spec\.gates\.requiredKeys\[1\]: 'b\\ud800'"),
        ({"source": {"url": "\ud83d\ude00.csv"}}, r"spec\.source\.url: '\\ud83d\\ude00\.csv'"),
        ({"serving": {"resources": {"requests": {"\udfff": "1"}}}}, r"spec\.serving\.resources\.requests: '\\udfff'"),
    ],
    ids=["half", "escaped as of JSON", "a name"],
)
def test_text_that_is_no_utf_8_is_refused(changes: dict[str, Any], where: str) -> None:
    """YAML's escapes make such, also of two halves."""
    with pytest.raises(InvalidManifest, match=f"{where} has half of a surrogate pair: write the character itself"):
        spec.parse_resource(resource(**changes))


def test_a_manifest_within_itself_is_refused() -> None:
    within: list[Any] = []
    within.append(within)
    with pytest.raises(InvalidManifest, match="nested too deeply"):
        spec.parse_resource(resource(source={"url": "a", "csv": {"columns": within}}))


def test_another_kind_is_refused() -> None:
    for member in ("apiVersion", "kind"):
        with pytest.raises(InvalidManifest, match=f"{member} must be"):
            spec.parse_resource({**resource(), member: "v1"})


def test_names_are_those_of_services_because_they_become_paths_and_host_names() -> None:
    for name in ("", "Upper", "a" * 41, "a/b", "..", "-a", "1a", "a.b", None):
        with pytest.raises(InvalidManifest, match=r"metadata\.name"):
            spec.parse_resource({**resource(), "metadata": {"name": name}})


def test_a_name_that_is_none_is_told_once_and_in_words() -> None:
    for name, said in (
        (123, "manifest: metadata.name must be text, found 123: write it in quotes"),
        (None, "manifest: metadata.name must be given, as text"),
        ("", ": metadata.name"),
        ("My_Data", "My_Data: metadata.name"),
    ):
        with pytest.raises(InvalidManifest) as caught:
            spec.parse_resource({**resource(), "metadata": {"name": name}})
        assert caught.value.message.startswith(said)


@pytest.mark.parametrize("field", ["namespace", "uid"])
@pytest.mark.parametrize("found", [5, None, {"a": "b"}])
def test_a_namespace_and_a_uid_are_text(field: str, found: Any) -> None:
    with pytest.raises(InvalidManifest, match=f"metadata.{field} must be text"):
        spec.parse_resource({**resource(), "metadata": {"name": "people", field: found}})


@pytest.mark.parametrize("found", ["Team A", "team_a", "../team", "-team", "t" * 64])
def test_a_namespace_is_one_that_a_cluster_can_have(found: str) -> None:
    with pytest.raises(InvalidManifest, match=r"metadata\.namespace: expected 1 to 63 of a-z, 0-9 and -"):
        spec.parse_resource({**resource(), "metadata": {"name": "people", "namespace": found}})
    assert spec.parse_resource({**resource(), "metadata": {"name": "people", "namespace": "t" * 63}}).namespace


@pytest.mark.parametrize("field", ["annotations", "labels"])
@pytest.mark.parametrize("found", [5, ["a"], {"a": 5}, {"a": None}, {1: "a"}])
def test_annotations_and_labels_are_texts_as_in_a_cluster(field: str, found: Any) -> None:
    with pytest.raises(InvalidManifest, match=f"metadata.{field} must be a mapping of text to text"):
        spec.parse_resource({**resource(), "metadata": {"name": "people", field: found}})


def test_what_is_required_is_named_with_its_path() -> None:
    with pytest.raises(InvalidManifest, match=r": spec\.key: it is required, but missing"):
        spec.parse_resource({**resource(), "spec": {"source": {"url": "a.csv"}}})


def test_a_file_must_hold_one_manifest(tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    path.write_text("a: 1\n---\nb: 2\n")
    with pytest.raises(InvalidManifest, match="holds 2 documents\n  give each LookupDataset a file of its own"):
        spec.read_manifest(path)
    path.write_text("# nothing yet\n")
    with pytest.raises(InvalidManifest, match=r"holds nothing\n  a manifest begins with apiVersion: lookupdb\.dev/"):
        spec.read_manifest(path)


def test_a_message_names_a_file_that_is_here_and_describes_every_field() -> None:
    with pytest.raises(InvalidManifest) as caught:
        spec.parse_resource({**resource(), "spec": {}})
    assert caught.value.hint
    described = Path(caught.value.hint.split(" describes every field")[0])
    assert yaml.safe_load(described.read_text())["kind"] == "CustomResourceDefinition"


def test_a_syntax_error_says_where_and_what_to_look_for(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("a: 1\n\tb: 2\n")
    with pytest.raises(InvalidManifest, match=r"is not YAML \(line 2\): .*\n  look there .* never tabs"):
        spec.read_manifest(path)


def test_what_is_no_manifest_is_said_so(tmp_path: Path) -> None:
    for text in ("a: [", "\x00", "just text", "\tkind: x", "- a"):
        path = tmp_path / "bad.yaml"
        path.write_text(text)
        with pytest.raises(InvalidManifest):
            spec.read_manifest(path)


def test_a_key_that_stands_twice_is_refused_where_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "twice.yaml"
    path.write_text("kind: LookupDataset\nspec: {}\nspec: {shards: 2}\n")
    with pytest.raises(InvalidManifest, match=r"\(line 3\): spec occurs twice\n  remove all but one"):
        spec.read_manifest(path)


def test_the_content_hash_follows_what_the_files_depend_on_and_nothing_else() -> None:
    def content(**changes: Any) -> str:
        return spec.parse_resource(resource(**changes)).content_hash()

    assert content() == content(replicas=3, gates={"minRecords": 5}, serving={"workers": 2}, keepGenerations=9)
    assert len({content(), content(shards=2), content(duplicates="last"), content(value={"compression": "none"})}) == 4
    escapes, nulls = ({"url": "people.csv", "csv": csv} for csv in ({"escape": "\\"}, {"nullValues": [""]}))
    assert len({content(), content(source=escapes), content(source=nulls)}) == 3
    assert content() == content(source={"url": "people.csv", "csv": {"escape": "", "nullValues": []}})


def test_how_csv_is_read_comes_through_to_another_process() -> None:
    source = {"url": "people.csv", "csv": {"escape": "\\", "nullValues": ["\\N", ""]}}
    dataset = spec.parse_resource(resource(source=source))
    assert dataset.source.csv == spec.Csv(escape="\\", null_values=("\\N", ""))
    assert spec.DatasetSpec.from_json(dataset.to_json()) == dataset


@pytest.mark.parametrize(
    ("steps", "content"),
    [
        pytest.param(["lowercase", "nfc"], "a43b686cf86c50e9e0aa8265abaf3612", id="as before"),
        pytest.param(
            ["nfc", "strip"], "8aa1a0c8a4a72aa1b03c020a7059c4fd", id="as before: strip leaves nothing to compose"
        ),
        pytest.param(["nfc", "lowercase"], "2300105e0017929c992494d625be892e", id="built again: nfc is applied twice"),
    ],
)
def test_the_content_hash_follows_the_steps_that_are_applied(steps: list[str], content: str) -> None:
    """A changed hash causes a rebuild, so steps whose meaning has not changed must keep their hash."""
    parsed = spec.parse_resource(resource(key={"columns": ["email"], "normalize": steps}))
    assert parsed.content_hash() == content
    assert spec.DatasetSpec.from_json(parsed.to_json()).key == parsed.key


def test_a_status_takes_the_longest_list_of_steps() -> None:
    longest = max(len(keys.effective_steps(order)) for order in itertools.permutations(keys.NORMALIZATIONS))
    status = schema.resource_schema()["properties"]["status"]["properties"]
    assert status["generations"]["items"]["properties"]["normalize"]["maxItems"] == longest
    assert status["refused"]["properties"]["normalize"]["maxItems"] == longest


def test_normalisation_steps_are_those_of_the_code() -> None:
    properties = schema.resource_schema()["properties"]["spec"]["properties"]
    assert tuple(properties["key"]["properties"]["normalize"]["items"]["enum"]) == keys.NORMALIZATIONS


def test_compressions_are_those_of_the_code() -> None:
    properties = schema.resource_schema()["properties"]["spec"]["properties"]
    assert properties["source"]["properties"]["compression"]["enum"] == ["none", *files.ENDINGS]


def _nodes(node: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from _nodes(child, f"{path}.{name}")
    if "items" in node:
        yield from _nodes(node["items"], f"{path}[]")
    if "additionalProperties" in node:
        yield from _nodes(node["additionalProperties"], f"{path}[]")


def test_every_field_is_described_and_every_list_map_and_text_is_bounded() -> None:
    for member in ("spec", "status"):
        for path, node in _nodes(schema.resource_schema()["properties"][member], member):
            assert "description" in node or path.endswith("[]"), f"{path} has no description"
            if node.get("type", "string") == "string":
                assert "maxLength" in node or "enum" in node or node.get("format") == "date-time", (
                    f"{path} is not bounded"
                )
            if node.get("type") == "array":
                assert "maxItems" in node, f"{path} is not bounded"
            if "additionalProperties" in node:
                assert "maxProperties" in node, f"{path} is not bounded"
            assert "type" in node or node["x-kubernetes-int-or-string"], f"{path} has no type"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("a: " + "[" * 1000 + "]" * 1000, "is nested too deeply", id="deep"),
        pytest.param("a: 2001-99-99", "is not YAML", id="a date that is none"),
        pytest.param("a: " + "9" * 5000, "is not YAML", id="a number too long"),
        pytest.param("? [a, b]\n: c", "a key is text, not a list or a mapping", id="a list for a key"),
        pytest.param(
            "path,html\n/a,b", "expected a mapping with apiVersion, kind, metadata and spec, found 'path,", id="CSV"
        ),
        pytest.param("&a [*a]", "is not a manifest: expected a mapping", id="a list that holds itself"),
        pytest.param(
            "apiVersion: lookupdb.dev/v1alpha1\nkind: LookupDataset\nmetadata: {name: a}\nspec: &a {source: *a}",
            "",
            id="a mapping that holds itself",
        ),
    ],
)
def test_a_manifest_that_cannot_be_read_is_told_in_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "m.yaml").write_text(text)
    with pytest.raises(InvalidManifest) as caught:
        spec.read_manifest(tmp_path / "m.yaml")
    assert said in str(caught.value)


def test_what_is_no_manifest_is_told_with_its_file_and_what_to_give_instead(tmp_path: Path) -> None:
    (tmp_path / "pages.csv").write_text("path,html\n/a,b\n")
    with pytest.raises(InvalidManifest) as caught:
        spec.read_manifest(tmp_path / "pages.csv")
    assert caught.value.message.startswith(f"{tmp_path}/pages.csv is not a manifest: expected a mapping")
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("give the YAML that begins with apiVersion: lookupdb.dev/v1alpha1 and kind:")


def test_every_default_is_accepted_by_the_rules_beside_it() -> None:
    """A default is checked without the defaults of its members: an API server would otherwise refuse the whole CRD."""
    checked = [
        (path, rule["rule"], schema._compile_rule(rule["rule"]).execute(schema._make_context(node["default"])))
        for path, node in _nodes(schema.resource_schema()["properties"]["spec"], "spec")
        if "default" in node
        for rule in node.get("x-kubernetes-validations", [])
    ]
    assert checked
    assert [(path, rule) for path, rule, satisfied in checked if not satisfied] == []


def test_rules_are_compiled_once_for_all_datasets() -> None:
    schema.complete_resource(resource())
    compiled = schema._compile_rule.cache_info().misses
    schema.complete_resource(resource())
    assert schema._compile_rule.cache_info().misses == compiled > 0


def test_rules_are_checked_without_the_command_line_that_their_package_brings() -> None:
    program = "import sys; from pathlib import Path; from lookupdb.dataset import spec; "
    program += "spec.read_manifest(Path(sys.argv[1])); print(*sys.modules)"
    command = [sys.executable, "-c", program, str(REPOSITORY / "examples" / "airports.yaml")]
    loaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert {"jsonschema", "yaml"} <= set(loaded)
    assert {"cel.cli", "prompt_toolkit", "typer"} & set(loaded) == set()


def test_data_in_place_of_a_manifest_are_not_read_through(tmp_path: Path) -> None:
    data = tmp_path / "people.csv"
    data.write_bytes(b"id,name\n")
    os.truncate(data, 1 << 40)  # it has holes, and would not fit into memory
    with pytest.raises(InvalidManifest, match="is not a manifest: it has more than 1 MiB") as caught:
        spec.read_manifest(data)
    assert caught.value.hint is not None
    assert "spec.source names the data" in caught.value.hint


def test_a_manifest_of_the_most_bytes_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec, "MAX_MANIFEST_BYTES", 1000)
    manifest = tmp_path / "m.yaml"
    manifest.write_bytes(b"#".ljust(spec.MAX_MANIFEST_BYTES - 1, b" ") + b"\n")
    with pytest.raises(InvalidManifest, match="must hold one LookupDataset, it holds nothing"):
        spec.read_manifest(manifest)
