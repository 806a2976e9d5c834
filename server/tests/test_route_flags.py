"""One home for what a dataset says of its router: the flags are the command's own, and none is forgotten."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lookupdb.cli.route import DIRECTIVES, command
from lookupdb.dataset import schema
from lookupdb.dataset.spec import ROUTER_FLAGS, Router, parse_resource, render_router_flags
from lookupdb.errors import InvalidManifest, UsageError

RESOURCE: dict[str, Any] = {
    "apiVersion": schema.api_version(),
    "kind": "LookupDataset",
    "metadata": {"name": "airports"},
    "spec": {"source": {"url": "s3://b/f.csv"}, "key": {"columns": ["id"]}},
}


def test_every_field_has_a_flag_of_the_command() -> None:
    assert list(ROUTER_FLAGS) == [field.name for field in dataclasses.fields(Router)]
    assert set(ROUTER_FLAGS.values()) <= {flag for parameter in command.params for flag in parameter.opts}


def test_directives_for_caches_are_those_of_the_crd_and_none_ends_the_field() -> None:
    rule = schema.resource_schema()["properties"]["spec"]["properties"]["router"]["properties"]["cacheControl"]
    assert f"^{DIRECTIVES.pattern}$" in rule["x-kubernetes-validations"][0]["rule"]
    for field in ("public, max-age=60", "no-store", "private,max-age=0, stale-while-revalidate=30"):
        spec = {**RESOURCE["spec"], "router": {"cacheControl": field}}
        router = parse_resource({**RESOURCE, "spec": spec}).router
        assert render_router_flags(router)["--cache-control"] == router.cache_control == field
    for field in ("", "max-age=60\n", "a\r\nX: y", "max-age = 60", "public,", "x" * 201, "maß=1"):
        spec = {**RESOURCE["spec"], "router": {"cacheControl": field}}
        with pytest.raises(InvalidManifest):
            parse_resource({**RESOURCE, "spec": spec})
        refused = CliRunner().invoke(command, ["--table", "t", "--cache-control", field])
        assert (refused.exit_code, "expected directives in lower case" in refused.output) == (2, True), field


def test_what_a_cache_may_share_is_refused_where_tokens_are_asked_for(tmp_path: Path) -> None:
    options = ["--table", "t", "--cache-control", "s-maxage=9", "--auth-tokens", str(tmp_path)]
    refused = CliRunner().invoke(command, options)
    assert isinstance(refused.exception, UsageError)
    assert "caches answer clients that show no token" in str(refused.exception)


def test_the_commands_defaults_are_the_datasets() -> None:
    defaults = {parameter.opts[0]: parameter.default for parameter in command.params}
    assert render_router_flags(parse_resource(RESOURCE).router) == {
        flag: defaults[flag] for flag in ROUTER_FLAGS.values() if flag != "--cache-control"
    }, "which has none"
