"""The console: its rights, which only read, and its arguments."""

from __future__ import annotations

from typing import Any

import pytest

from chart_support import NAMESPACE, Rendered, Values, notes, parse_arguments, render
from lookupdb_operator.command import command as operator
from lookupdb_operator.console.service import command, options

CONSOLE = "lookupdb-console"
ENABLED: Values = {"console": {"enabled": True}}
BEHIND_A_PROXY: Values = {
    "console": {
        "enabled": True,
        "access": "Proxy",
        "proxy": {"secretName": "proxy-password"},
        "ca": {"configMapName": "authorities"},
    }
}


def pod(rendered: Rendered) -> dict[str, Any]:
    spec: dict[str, Any] = dict(rendered.pod_templates())[CONSOLE]["spec"]
    return spec


def parsed(rendered: Rendered) -> Any:
    (container,) = pod(rendered)["containers"]
    verb, *flags = container["args"]
    assert verb == "console"
    return options(**parse_arguments(command, flags))


def rules(rendered: Rendered) -> list[dict[str, Any]]:
    """Return the rules of every role that is bound to the console's ServiceAccount."""
    found = []
    for kind in ("Role", "ClusterRole"):
        for binding in rendered.find_all(f"{kind}Binding"):
            if any(subject["name"] == CONSOLE for subject in binding["subjects"]):
                assert binding["roleRef"]["kind"] == kind
                assert {subject["namespace"] for subject in binding["subjects"]} == {NAMESPACE}
                named = [
                    each for each in rendered.find_all(kind) if each["metadata"]["name"] == binding["roleRef"]["name"]
                ]
                namespace = binding["metadata"].get("namespace")
                found += [
                    rule for role in named if role["metadata"].get("namespace") == namespace for rule in role["rules"]
                ]
    return found


def test_there_is_none_by_default() -> None:
    assert "console" not in render().text


@pytest.mark.parametrize("values", [ENABLED, {**ENABLED, "watchNamespaces": ["one", "two"]}])
def test_it_may_list_datasets_and_pods_and_nothing_else(values: Values) -> None:
    rendered = render(values)
    read = [
        {"apiGroups": ["lookupdb.dev"], "resources": ["lookupdatasets"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    ]
    assert rules(rendered) == read * len(values.get("watchNamespaces", ["everywhere"]))
    own = [
        role["metadata"].get("namespace") for role in rendered.find_all("Role") if "console" in role["metadata"]["name"]
    ]
    assert own == values.get("watchNamespaces", [])
    assert parsed(rendered).namespaces == tuple(values.get("watchNamespaces", ()))


def test_without_rbac_it_has_an_account_and_no_rights() -> None:
    rendered = render({**ENABLED, "rbac": {"create": False}})
    assert CONSOLE in rendered.names("ServiceAccount")
    assert rules(rendered) == []


def test_its_account_is_its_own_and_mounted_there_alone() -> None:
    rendered = render(ENABLED)
    assert pod(rendered)["serviceAccountName"] == CONSOLE
    assert pod(rendered)["automountServiceAccountToken"] is True
    assert rendered.get_object("ServiceAccount", CONSOLE)["automountServiceAccountToken"] is False
    users = [
        name for name, template in rendered.pod_templates() if template["spec"].get("serviceAccountName") == CONSOLE
    ]
    assert users == [CONSOLE]


def test_its_pod_is_restricted_and_has_no_secret() -> None:
    spec = pod(render(ENABLED))
    (container,) = spec["containers"]
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 10001,
        "runAsGroup": 10001,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert [volume["name"] for volume in spec["volumes"]] == ["tmp"]
    assert "env" not in container


def test_it_takes_tokens_unless_another_way_is_chosen() -> None:
    default = parsed(render(ENABLED))
    assert (default.access, default.audience, default.subjects) == ("token", "lookupdb:console", ())
    chosen = parsed(
        render({"console": {"enabled": True, "token": {"audience": "lookupdb:p", "subjects": ["a/b", "c/*"]}}})
    )
    assert (chosen.audience, chosen.subjects) == ("lookupdb:p", ("a/b", "c/*"))
    assert parsed(render({"console": {"enabled": True, "access": "Anyone"}})).access == "anyone"


def test_behind_a_proxy_it_has_the_password_and_the_authorities_as_files() -> None:
    rendered = render(BEHIND_A_PROXY)
    spec, found = pod(rendered), parsed(rendered)
    mounts = {mount["name"]: mount for mount in spec["containers"][0]["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["proxy"]["secret"] == {
        "secretName": "proxy-password",
        "items": [{"key": "password", "path": "password"}],
    }
    assert (found.access, str(found.password_file)) == ("proxy", f"{mounts['proxy']['mountPath']}/password")
    assert volumes["ca"]["configMap"]["name"] == "authorities"
    assert found.ca_file == f"{mounts['ca']['mountPath']}/ca.crt"


def test_its_service_leads_to_its_pages() -> None:
    rendered = render({**ENABLED, "listenAddress": "::"})
    (port,) = rendered.get_object("Service", CONSOLE)["spec"]["ports"]
    ports = {each["name"]: each["containerPort"] for each in pod(rendered)["containers"][0]["ports"]}
    assert (parsed(rendered).port, parsed(rendered).admin_port, parsed(rendered).host) == (*ports.values(), "::")
    assert port["targetPort"] == "http"
    selector = rendered.get_object("Service", CONSOLE)["spec"]["selector"]
    assert selector.items() <= dict(rendered.pod_templates())[CONSOLE]["metadata"]["labels"].items()


def test_the_operator_admits_it_to_admin_ports() -> None:
    def readers(values: Values) -> list[str]:
        peers = parse_arguments(operator, render(values).operator_arguments()[1:])["admin_clients"]
        return [peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for peer in peers]

    assert readers({}) == ["operator"]
    assert readers(ENABLED) == ["operator", "console"]


def test_the_notes_say_how_to_see_it() -> None:
    told = notes(ENABLED)
    assert f"service/{CONSOLE} 7074:80" in told
    assert "kubectl create token default -n default --audience lookupdb:console" in told
    assert "create token" not in notes(BEHIND_A_PROXY)
    assert CONSOLE not in notes({})
