"""One home for what a dataset says of its router: the flags are the command's own, and none is forgotten."""

from __future__ import annotations

import dataclasses

from lookupdb import schema
from lookupdb.cli.route import command
from lookupdb.route.flags import FLAGS, render_flags
from lookupdb.spec import Router, parse_resource

RESOURCE = {
    "apiVersion": schema.api_version(),
    "kind": "LookupDataset",
    "metadata": {"name": "airports"},
    "spec": {"source": {"url": "s3://b/f.csv"}, "key": {"columns": ["id"]}},
}


def test_every_field_has_a_flag_of_the_command() -> None:
    assert list(FLAGS) == [field.name for field in dataclasses.fields(Router)]
    assert set(FLAGS.values()) <= {flag for parameter in command.params for flag in parameter.opts}


def test_the_commands_defaults_are_the_datasets() -> None:
    defaults = {parameter.opts[0]: parameter.default for parameter in command.params}
    assert render_flags(parse_resource(RESOURCE).router) == {flag: defaults[flag] for flag in FLAGS.values()}
