"""The gateway: access to it and to the store behind it, its settings, and its availability."""

from __future__ import annotations

from typing import Any

import pytest

from chart_support import EXTERNAL, NAMESPACE, NO_GATEWAY, Rendered, Values, parse_arguments, render
from lookupdb_operator import names
from lookupdb_operator.command import command as operator
from lookupdb_operator.gateway.service import command

GATEWAY = "lookupdb-gateway"


@pytest.fixture(scope="module")
def defaults() -> Rendered:
    return render()


def pod(rendered: Rendered) -> dict[str, Any]:
    spec: dict[str, Any] = dict(rendered.pod_templates())[GATEWAY]["spec"]
    return spec


def arguments(rendered: Rendered) -> dict[str, str]:
    """Return the gateway's flags."""
    (container,) = pod(rendered)["containers"]
    verb, *flags = container["args"]
    assert verb == "gateway"
    return dict(flag.split("=", 1) for flag in flags)


def test_the_operator_sends_pods_to_its_address(defaults: Rendered) -> None:
    (port,) = defaults.get_object("Service", GATEWAY)["spec"]["ports"]
    parsed = parse_arguments(operator, defaults.operator_arguments()[1:])
    assert parsed["gateway"] == f"http://{GATEWAY}.{NAMESPACE}.svc:{port['port']}"
    selector = defaults.get_object("Service", GATEWAY)["spec"]["selector"]
    assert selector.items() <= dict(defaults.pod_templates())[GATEWAY]["metadata"]["labels"].items()
    assert port["targetPort"] in {each["name"] for each in pod(defaults)["containers"][0]["ports"]}
    assert arguments(defaults)["--port"] == str(port["port"])


@pytest.mark.parametrize(("release", "namespace"), [("lookupdb", NAMESPACE), ("second", "data")])
def test_it_takes_the_tokens_that_its_own_operator_has_made(release: str, namespace: str) -> None:
    rendered = render(release=release, namespace=namespace)
    templates = [template for name, template in rendered.pod_templates() if name.endswith("-gateway")]
    (audience,) = [
        word.partition("=")[2] for word in templates[0]["spec"]["containers"][0]["args"] if "--audience" in word
    ]
    (deployment,) = [item for item in rendered.find_all("Deployment") if _component(item) == "operator"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    identity = parse_arguments(operator, container["args"][1:])["identity"]
    assert audience == names.store_audience(identity)


def _component(item: dict[str, Any]) -> str:
    component: str = item["metadata"]["labels"]["app.kubernetes.io/component"]
    return component


class TestCredentials:
    @pytest.mark.parametrize(
        ("values", "secret"), [({}, "lookupdb-store"), (EXTERNAL, "bucket-credentials")], ids=["embedded", "bucket"]
    )
    def test_are_files_of_the_stores_secret(self, values: Values, secret: str) -> None:
        rendered = render(values)
        spec = pod(rendered)
        volume = next(volume for volume in spec["volumes"] if volume["name"] == "credentials")
        assert volume["secret"] == {"secretName": secret, "optional": False}, "without it, the pod waits"
        mount = next(mount for mount in spec["containers"][0]["volumeMounts"] if mount["name"] == "credentials")
        assert (mount["mountPath"], mount["readOnly"]) == (arguments(rendered)["--credentials"], True)

    def test_are_none_where_there_is_no_secret(self) -> None:
        rendered = render({"store": {"url": "gs://bucket", "embedded": {"enabled": False}}})
        assert "--credentials" not in arguments(rendered)
        assert [volume["name"] for volume in pod(rendered)["volumes"]] == ["tmp"]

    def test_go_to_the_gateway_and_the_sweep_and_the_store_and_nowhere_else(self, defaults: Rendered) -> None:
        holders = {
            name for name, template in defaults.pod_templates() if "lookupdb-store" in str(_references(template))
        }
        assert holders == {GATEWAY, "lookupdb-sweep", "lookupdb-store"}


def _references(template: dict[str, Any]) -> list[Any]:
    """Return the sources of a pod's environment and files."""
    spec = template["spec"]
    containers = [*spec.get("initContainers", ()), *spec["containers"]]
    variables = [variable.get("valueFrom") for container in containers for variable in container.get("env", ())]
    sources = [source for container in containers for source in container.get("envFrom", ())]
    return [*variables, *sources, *(volume.get("secret") for volume in spec.get("volumes", ()))]


@pytest.mark.parametrize("values", [{}, EXTERNAL, {"clusterId": "c1", "listenAddress": "::"}])
def test_it_takes_its_arguments(values: Values) -> None:
    (container,) = pod(render(values))["containers"]
    parsed = parse_arguments(command, container["args"][1:])
    assert parsed["audiences"] == (names.store_audience(f"{NAMESPACE}/lookupdb"),)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert (parsed["port"], parsed["admin_port"]) == (ports["store"], ports["admin"])
    assert parsed["host"] == values.get("listenAddress", "0.0.0.0")


def test_the_stores_settings_are_its_environment(defaults: Rendered) -> None:
    variables = {variable["name"]: variable["value"] for variable in pod(defaults)["containers"][0]["env"]}
    assert variables["AWS_ENDPOINT_URL"] == f"http://lookupdb-store.{NAMESPACE}.svc:7070"
    assert arguments(defaults)["--store"] == "s3://lookupdb"


def test_files_come_through_it_unless_pods_can_reach_the_bucket(defaults: Rendered) -> None:
    assert arguments(defaults)["--reads"] == "stream"
    assert arguments(render(EXTERNAL))["--reads"] == "redirect"
    assert arguments(render({**EXTERNAL, "gateway": {"reads": "stream"}}))["--reads"] == "stream"


def test_its_part_of_the_store_is_the_operators(defaults: Rendered) -> None:
    assert "--cluster-id" not in arguments(defaults)
    role = defaults.get_object("RoleBinding", f"{NAMESPACE}-lookupdb-cluster-id")
    assert {subject["name"] for subject in role["subjects"]} == {"lookupdb", GATEWAY}, "both ask the API server for it"
    given = render({"clusterId": "c1"})
    assert arguments(given)["--cluster-id"] == "c1"
    assert not any(GATEWAY in str(binding["subjects"]) for binding in given.find_all("RoleBinding")), "no right at all"
    assert not any(GATEWAY in str(binding["subjects"]) for binding in given.find_all("ClusterRoleBinding"))


class TestThereIsAlwaysOne:
    def test_while_it_is_replaced(self, defaults: Rendered) -> None:
        spec = defaults.get_object("Deployment", GATEWAY)["spec"]
        assert spec["replicas"] == 2
        assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
        (container,) = spec["template"]["spec"]["containers"]
        assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "admin"}

    def test_while_nodes_are_drained(self, defaults: Rendered) -> None:
        budget = defaults.get_object("PodDisruptionBudget", GATEWAY)["spec"]
        assert budget["maxUnavailable"] == 1
        labels = dict(defaults.pod_templates())[GATEWAY]["metadata"]["labels"]
        assert budget["selector"]["matchLabels"].items() <= labels.items()
        assert render({"gateway": {"replicas": 1}}).find_all("PodDisruptionBudget") == [], "it would keep the node"


def test_without_it_all_is_as_it_was() -> None:
    rendered = render(NO_GATEWAY)
    assert GATEWAY not in rendered.text
    parsed = parse_arguments(operator, rendered.operator_arguments()[1:])
    assert (parsed["gateway"], parsed["store_secret"]) == ("", "lookupdb-store")
    assert f"AWS_ENDPOINT_URL=http://lookupdb-store.{NAMESPACE}.svc:7070" in parsed["store_env"]


def test_the_operator_announces_and_nobody_else_may() -> None:
    rendered = render({})
    container = dict(rendered.pod_templates())[GATEWAY]["spec"]["containers"][0]
    template = dict(rendered.pod_templates())["lookupdb"]["spec"]
    assert f"--announcer={NAMESPACE}/{template['serviceAccountName']}" in container["args"]
    (volume,) = [volume for volume in template["volumes"] if volume["name"] == "store-token"]
    (source,) = volume["projected"]["sources"]
    audience = next(word for word in container["args"] if word.startswith("--audience="))
    assert source["serviceAccountToken"]["audience"] == audience.removeprefix("--audience=")
    (mount,) = [m for m in template["containers"][0]["volumeMounts"] if m["name"] == volume["name"]]
    parsed = parse_arguments(operator, rendered.operator_arguments()[1:])
    assert str(parsed["gateway_token"]) == f"{mount['mountPath']}/{source['serviceAccountToken']['path']}"
    assert "store-token" not in render(NO_GATEWAY).text
