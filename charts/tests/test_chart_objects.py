"""Contracts of the chart's objects in every variant: names, rights, safety, and kept data."""

from __future__ import annotations

import json
import re
from typing import Any

import click
import pytest
import yaml
from docs_tools import reference

from chart_support import (
    CHART,
    CRD,
    EXTERNAL,
    NAMESPACE,
    NO_GATEWAY,
    Rendered,
    Values,
    find_rules,
    parse_arguments,
    render,
    run_template,
)
from lookupdb.cli import cli as verbs
from lookupdb_operator import names
from lookupdb_operator.command import command as operator
from lookupdb_operator.metrics import Metrics


@pytest.fixture(scope="module")
def defaults() -> Rendered:
    return render()


def test_the_crd_is_the_repositorys() -> None:
    copied = (CHART / "files" / "crd.yaml").read_text(encoding="utf-8")
    assert copied == CRD.read_text(encoding="utf-8"), "run `make crd`"


def test_the_crd_is_rendered_whole(defaults: Rendered) -> None:
    (crd,) = defaults.find_all("CustomResourceDefinition")
    source = yaml.safe_load(CRD.read_text(encoding="utf-8"))
    assert crd["spec"] == source["spec"]
    assert crd["metadata"]["name"] == source["metadata"]["name"]
    assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    (goes,) = render({"crds": {"keep": False}}).find_all("CustomResourceDefinition")
    assert "annotations" not in goes["metadata"]
    assert render({"crds": {"enabled": False}}).find_all("CustomResourceDefinition") == []


def test_data_are_kept(defaults: Rendered) -> None:
    claim = defaults.get_object("PersistentVolumeClaim", "lookupdb-store")
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert not defaults.find_all("Secret"), "the operator makes the credentials, so that an upgrade cannot change them"


def test_an_upgrade_changes_nothing_by_itself(defaults: Rendered) -> None:
    assert run_template({}).stdout == defaults.text
    for path in (CHART / "templates").rglob("*"):
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        assert not any(word in text for word in ('lookup "', "rand", "genCA", "pre-install", "post-install")), path


@pytest.mark.parametrize("values", [{}, EXTERNAL], ids=["embedded", "external"])
def test_every_pod_is_restricted(values: Values) -> None:
    for name, template in render(values).pod_templates():
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"], name
        assert spec["securityContext"]["runAsUser"] >= 10000, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        is_somebody = name in ("lookupdb", "lookupdb-gateway")
        assert spec["automountServiceAccountToken"] is is_somebody, f"{name}: to the API server it is nobody"
        accounts = {
            "lookupdb": "lookupdb",
            "lookupdb-gateway": "lookupdb-gateway",
            "lookupdb-sweep": "lookupdb-gateway",
        }
        assert spec.get("serviceAccountName") == accounts.get(name), name
        assert not any("hostPath" in volume for volume in spec.get("volumes", ())), name
        for container in [*spec.get("initContainers", ()), *spec["containers"]]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False, name
            assert security["readOnlyRootFilesystem"], name
            assert security["capabilities"] == {"drop": ["ALL"]}, name
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}, name
            assert "memory" in container["resources"]["limits"], name


def _users(rendered: Rendered) -> dict[str, dict[str, int]]:
    """Return the user of each pod."""
    numbers = ("runAsUser", "runAsGroup", "fsGroup")
    security = {name: template["spec"]["securityContext"] for name, template in rendered.pod_templates()}
    return {name: {key: value for key, value in given.items() if key in numbers} for name, given in security.items()}


def test_pods_run_as_the_images_user_unless_a_cluster_chooses(defaults: Rendered) -> None:
    own = {"runAsUser": 10001, "runAsGroup": 10001}
    users = _users(defaults)
    assert users.pop("lookupdb-store") == own | {"fsGroup": 10001}
    assert list(users.values()) == [own] * len(users)
    openshift = render({"podSecurity": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}})
    assert set(map(str, _users(openshift).values())) == {"{}"}
    assert all(template["spec"]["securityContext"]["runAsNonRoot"] for _, template in openshift.pod_templates())
    mine = render({"podSecurity": {"runAsUser": 1000650000, "runAsGroup": None}})
    assert _users(mine)["lookupdb-store"] == {"runAsUser": 1000650000, "fsGroup": 10001}


def test_the_operator_knows_who_datasets_pods_run_as_and_where_they_listen(defaults: Rendered) -> None:
    def told(rendered: Rendered) -> tuple[Any, ...]:
        config = parse_arguments(operator, rendered.operator_arguments()[1:])
        return config["pod_security"], config["pod_host"], config["host"]

    assert told(defaults) == ({"runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 10001}, "0.0.0.0", "0.0.0.0")
    nobody = {"runAsUser": None, "runAsGroup": None, "fsGroup": None}
    assert told(render({"podSecurity": nobody, "listenAddress": "::"})) == ({}, "::", "::")


def test_no_right_is_to_everything(defaults: Rendered) -> None:
    assert "*" not in json.dumps(
        [role["rules"] for kind in ("Role", "ClusterRole") for role in defaults.find_all(kind)]
    )


def test_rights_in_listed_namespaces(defaults: Rendered) -> None:
    rendered = render({"watchNamespaces": ["one", "two"]})
    roles = [role for role in rendered.find_all("Role") if role["metadata"]["namespace"] in ("one", "two")]
    everywhere = defaults.get_object("ClusterRole", f"{NAMESPACE}-lookupdb")["rules"]
    assert [role["rules"] for role in roles] == [everywhere, everywhere]
    assert rendered.names("ClusterRole") == {f"{NAMESPACE}-lookupdb-view", f"{NAMESPACE}-lookupdb-edit"}
    assert rendered.find_all("ClusterRoleBinding") == []
    assert "--namespaces=one,two" in rendered.operator_arguments()


def test_rights_in_its_own_namespace(defaults: Rendered) -> None:
    own = defaults.get_object("Role", "lookupdb")
    assert own["metadata"]["namespace"] == NAMESPACE
    reads = [rule for rule in own["rules"] if rule["resources"] == ["secrets"] and "get" in rule["verbs"]]
    assert sorted(rule["resourceNames"] for rule in reads) == [["lookupdb-shard-key"], ["lookupdb-store"]]
    bucket = render(EXTERNAL).get_object("Role", "lookupdb")["rules"]
    of_key = [
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["lookupdb-shard-key"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
    ]
    assert [rule for rule in bucket if "secrets" in rule["resources"]] == of_key, "the gateway has the bucket's"
    external = render({**EXTERNAL, **NO_GATEWAY}).get_object("Role", "lookupdb")
    secrets = [rule for rule in external["rules"] if rule["resources"] == ["secrets"]]
    assert secrets == [
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["bucket-credentials"], "verbs": ["get"]},
        *of_key,
    ]
    without = render({**EXTERNAL, "shardPasswords": {"enabled": False}})
    assert not any("secrets" in rule["resources"] for rule in without.get_object("Role", "lookupdb")["rules"])
    assert not any("shard-key" in argument for argument in without.operator_arguments())
    assert "--shard-key-secret=lookupdb-shard-key" in defaults.operator_arguments()


def test_the_clusters_id_is_read_only_when_it_is_not_given(defaults: Rendered) -> None:
    def there(rendered: Rendered) -> list[str]:
        return [
            role["metadata"]["name"]
            for role in rendered.find_all("Role")
            if role["metadata"]["namespace"] == "kube-system"
        ]

    assert there(defaults) == [f"{NAMESPACE}-lookupdb-cluster-id"]
    given = render({"clusterId": "c1"})
    assert there(given) == []
    assert "--cluster-id=c1" in given.operator_arguments()


def test_two_releases_share_no_name_in_the_cluster(defaults: Rendered) -> None:
    other = render({"crds": {"enabled": False}}, namespace="elsewhere")
    for kind in ("ClusterRole", "ClusterRoleBinding"):
        assert not defaults.names(kind) & other.names(kind)


def test_the_operator_takes_its_arguments(defaults: Rendered) -> None:
    parsed = parse_arguments(operator, defaults.operator_arguments()[1:])
    assert parsed["namespace"] == NAMESPACE
    assert parsed["store"] == "s3://lookupdb"
    assert parsed["create_store_secret"] is True
    assert parsed["store_env"] == (), "the gateway has it"
    (peer,) = parsed["admin_clients"]
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": NAMESPACE}
    pod = dict(defaults.pod_templates())["lookupdb"]["metadata"]["labels"]
    assert peer["podSelector"]["matchLabels"].items() <= pod.items()


def test_the_operator_takes_all_of_its_arguments() -> None:
    client = {"namespaceSelector": {"matchLabels": {"team": "web"}}}
    values = {
        **EXTERNAL,
        **NO_GATEWAY,
        "watchNamespaces": ["one"],
        "clusterId": "c1",
        "imagePullSecrets": [{"name": "a"}, {"name": "b"}],
        "datasetPodLabels": {"owner": "data"},
        "networkPolicies": {"routerClients": [client], "monitoring": [client]},
    }
    parsed = parse_arguments(operator, render(values).operator_arguments()[1:])
    assert parsed["store_secret"] == "bucket-credentials"
    assert parsed["create_store_secret"] is False
    assert parsed["image_pull_secrets"] == ("a", "b")
    assert parsed["pod_labels"] == {"owner": "data"}
    assert parsed["router_clients"] == (client,)
    assert parsed["admin_clients"][1:] == (client,)
    assert parsed["router_resp"] is True
    off_values = {"networkPolicies": {"enabled": False}, "router": {"resp": {"enabled": False}}}
    off = parse_arguments(operator, render(off_values).operator_arguments()[1:])
    assert off["network_policies"] is False
    assert off["router_resp"] is False


def test_traces_are_exported_by_the_operator_and_the_pods_of_datasets(defaults: Rendered) -> None:
    assert not any(argument.startswith("--tracing-env") for argument in defaults.operator_arguments())
    tracing = {
        "endpoint": "http://collector:4318",
        "sampler": "traceidratio",
        "samplerArg": "0.5",
        "headersSecret": "s",
    }
    rendered = render({"tracing": tracing, "operator": {"extraEnv": [{"name": "A", "value": "b"}]}})
    headers = {"secretKeyRef": {"name": "s", "key": "headers", "optional": True}}
    variables = [
        {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector:4318"},
        {"name": "OTEL_EXPORTER_OTLP_HEADERS", "valueFrom": headers},
    ]
    (container,) = dict(rendered.pod_templates())["lookupdb"]["spec"]["containers"]
    assert container["env"] == [*variables, {"name": "A", "value": "b"}], "the sampler is for requests"
    sampler = [
        {"name": "OTEL_TRACES_SAMPLER", "value": "traceidratio"},
        {"name": "OTEL_TRACES_SAMPLER_ARG", "value": "0.5"},
    ]
    assert parse_arguments(operator, rendered.operator_arguments()[1:])["tracing_env"] == (*variables, *sampler)


def test_the_sweep_takes_its_arguments() -> None:
    (container,) = dict(render().pod_templates())["lookupdb-sweep"]["spec"]["containers"]
    verb = verbs.get_command(click.Context(verbs), "sweep")
    assert verb is not None
    parsed = parse_arguments(verb, container["args"][1:])
    assert str(parsed["living_list"]) == "/etc/lookupdb/living/living.json"
    assert container["envFrom"] == [{"secretRef": {"name": "lookupdb-store"}}]


def test_the_store_waits_for_its_credentials(defaults: Rendered) -> None:
    (container,) = dict(defaults.pod_templates())["lookupdb-store"]["spec"]["containers"]
    references = [variable["valueFrom"]["secretKeyRef"] for variable in container["env"]]
    assert references == [
        {"name": "lookupdb-store", "key": "AWS_ACCESS_KEY_ID"},
        {"name": "lookupdb-store", "key": "AWS_SECRET_ACCESS_KEY"},
    ]


def test_an_external_store_brings_nothing_along() -> None:
    rendered = render(EXTERNAL)
    assert "store" not in {item["metadata"]["labels"]["app.kubernetes.io/component"] for item in rendered.objects}
    assert "--store=s3://bucket/prefix" in rendered.operator_arguments()
    assert "--create-store-secret" not in rendered.operator_arguments()


def test_selectors_never_change_with_the_version(defaults: Rendered) -> None:
    pods = dict(defaults.pod_templates())
    for deployment in defaults.find_all("Deployment"):
        selector = deployment["spec"]["selector"]["matchLabels"]
        assert selector.keys() == {f"app.kubernetes.io/{name}" for name in ("name", "instance", "component")}
        assert selector.items() <= pods[deployment["metadata"]["name"]]["metadata"]["labels"].items()
        if deployment["metadata"]["name"] != "lookupdb-gateway":
            assert deployment["spec"]["replicas"] == 1
            assert deployment["spec"]["strategy"] == {"type": "Recreate"}


def test_a_users_label_cannot_break_a_selector() -> None:
    pods = dict(render({"operator": {"podLabels": {"app.kubernetes.io/component": "x", "team": "a"}}}).pod_templates())
    labels = pods["lookupdb"]["metadata"]["labels"]
    assert (labels["app.kubernetes.io/component"], labels["team"]) == ("operator", "a")


def test_monitoring_finds_the_pods() -> None:
    rendered = render({"podMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}})
    datasets = rendered.get_object("PodMonitor", "lookupdb-datasets")["spec"]
    assert datasets["selector"]["matchLabels"] == {names.MANAGED_BY: names.FIELD_MANAGER}
    assert datasets["selector"]["matchExpressions"][0]["values"] == [names.SHARDS, names.ROUTER, names.SYNC]
    assert set(datasets["podTargetLabels"]) == {names.DATASET, names.ROLLOUT, names.SHARD}
    (operator_endpoint,) = rendered.get_object("PodMonitor", "lookupdb")["spec"]["podMetricsEndpoints"]
    (gateway_endpoint,) = rendered.get_object("PodMonitor", "lookupdb-gateway")["spec"]["podMetricsEndpoints"]
    for name, endpoint in (("lookupdb", operator_endpoint), ("lookupdb-gateway", gateway_endpoint)):
        ports = dict(rendered.pod_templates())[name]["spec"]["containers"][0]["ports"]
        assert endpoint["port"] in {port["name"] for port in ports}
    assert rendered.find_all("PrometheusRule")


def test_nothing_of_the_prometheus_operator_by_default(defaults: Rendered) -> None:
    assert not defaults.find_all("PodMonitor")
    assert not defaults.find_all("PrometheusRule")


def alerts(values: Values) -> dict[str, Any]:
    return {rule["alert"]: rule for rule in find_rules(values) if "alert" in rule}


def test_every_alert_is_documented_and_names_a_metric_that_exists() -> None:
    documented = reference.pages()["reference/metrics.md"]
    recorded = [rule["record"] for rule in find_rules({}) if "record" in rule]
    known = Metrics().render().decode() + documented + " ".join(recorded)
    for rule in find_rules({}):
        metrics = re.findall(r"(?:dataset:)?lookupdb_[\w:]+", rule["expr"])
        assert metrics, rule
        assert [metric for metric in metrics if metric not in known] == [], rule
        if "alert" in rule:
            assert f"| `{rule['alert']}` | {rule['labels']['severity']} |" in documented


def test_a_dataset_counts_as_unattended_when_its_operator_has_no_metrics() -> None:
    expression = alerts({})["LookupDatasetUnattended"]["expr"]
    assert expression == "lookupdb_dataset_unattended == 1 unless on (operator) lookupdb_operator_info"


def test_an_operator_that_is_gone_is_reported() -> None:
    """Its datasets' alerts end with it. The operator has this metric from startup, without any dataset."""
    gone = alerts({})["LookupdbOperatorGone"]["expr"]
    assert gone == "absent(lookupdb_operator_last_success_timestamp_seconds)"
    assert "\nlookupdb_operator_last_success_timestamp_seconds " in Metrics().render().decode()
    of_this_release = alerts({"podMonitor": {"enabled": True}})["LookupdbOperatorGone"]["expr"]
    assert of_this_release == f'absent(lookupdb_operator_last_success_timestamp_seconds{{job="{NAMESPACE}/lookupdb"}})'


def test_what_clients_do_not_wait_for_wakes_nobody_and_is_reported_all_the_same() -> None:
    found = alerts({})
    assert found["LookupdbKeysUnavailable"]["expr"] == "rate(lookupdb_router_keys_unavailable_total[5m]) > 0"
    told = found["LookupdbClientDeadlines"]
    assert told["labels"] == {"severity": "warning"}
    late, *others = re.findall(r"rate\(lookupdb_router_(\w+)_total\[5m\]\)", told["expr"])
    assert late == "client_deadline_keys_unavailable"
    assert others == [late, "keys_found", "keys_missing"], "of all keys, also if none of them is answered"


def test_what_is_degraded_is_not_said_to_serve() -> None:
    assert "serves" not in alerts({})["LookupDatasetDegraded"]["annotations"]["summary"]
