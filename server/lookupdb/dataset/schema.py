"""The CRD's schema: validate and complete a LookupDataset with it, as a cluster's API server would. Also make
dataclasses of JSON."""

from __future__ import annotations

import copy
import difflib
import importlib
import importlib.util
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from importlib import resources
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType, UnionType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from lookupdb.credentials import NAMESPACE
from lookupdb.errors import InvalidManifest
from lookupdb.wording import format_count, join_clauses, parse_quantity, shorten

if TYPE_CHECKING:
    from cel import Program
    from jsonschema import ValidationError


# The schema, its defaults and its CEL rules are in the CRD file in crds/; this module only applies them.


CRD_FILE: Final = "lookupdatasets.lookupdb.dev.yaml"

_EVERY_FIELD: Final = (
    f"{Path(__file__).resolve().parents[1] / 'data' / CRD_FILE} describes every field. In a cluster, so does "
    "`kubectl explain lookupdataset.spec --recursive`"
)

_NEARLY: Final = 0.8
"""Two names this similar suggest a typo."""
_SUGGESTED_PLACES: Final = 3
_SHOWN_CHARACTERS: Final = 80
_SHOWN_PROBLEMS: Final = 20
_MOST_PROBLEMS: Final = 100
"""The most problems to describe."""
_PROBLEM_CHARACTERS: Final = 500
_LONGEST_TYPO: Final = 80
"""The longest name to compare with names of fields, which are all shorter: comparing takes time."""
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_TYPES: Final = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping of fields",
}
"""The schema's types, in words for users."""

Json = Any
"""Any JSON or YAML document."""
T = TypeVar("T")


@cache
def crd() -> dict[str, Any]:
    """Return the CustomResourceDefinition, parsed."""
    text = resources.files("lookupdb").joinpath("data", CRD_FILE).read_text(encoding="utf-8")
    # Use libyaml if PyYAML has it: each router reads this file at startup, in 7 ms instead of 60.
    parsed: dict[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - safe
    return parsed


@cache
def resource_schema() -> dict[str, Any]:
    """Return the JSON schema of one LookupDataset."""
    version = crd()["spec"]["versions"][0]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return schema


def api_version() -> str:
    """Return the ``group/version`` that a manifest must name."""
    spec = crd()["spec"]
    return f"{spec['group']}/{spec['versions'][0]['name']}"


class ManifestProblem(NamedTuple):
    """A problem of a manifest, and its field."""

    path: str
    describe: Callable[[], str]
    """Returns the problem with its field. Comparing names takes time, so only the first problems are described."""
    hint: str | None = None


def complete_resource(resource: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of ``resource`` with every default filled in and without its status, which users do not set.

    Raises InvalidManifest, which names the first 20 invalid fields, with expected and found values.
    """
    completed, problems = check_resource(resource)
    if problems:
        raise make_error(completed, problems)
    return completed


def check_resource(resource: dict[str, Any]) -> tuple[dict[str, Any], list[ManifestProblem]]:
    """Return ``resource`` as ``complete_resource`` does, and all of its problems.

    Raises InvalidManifest if it cannot be checked.
    """
    try:
        resource = copy.deepcopy({name: value for name, value in resource.items() if name != "status"})
        return resource, list(_find_problems(resource))
    except RecursionError:
        problem = "it is nested too deeply"
    except ValueError as error:
        if "digits" not in str(error):
            raise
        problem = "a number in it has more digits than Python writes"
    raise InvalidManifest(f"{_find_name(resource)}: {problem}", hint=_EVERY_FIELD)


def make_error(resource: dict[str, Any], problems: Sequence[ManifestProblem]) -> InvalidManifest:
    """Return the error for the ``problems`` of ``resource``, at least one."""
    described = [shorten(problem.describe(), _PROBLEM_CHARACTERS) for problem in problems[:_MOST_PROBLEMS]]
    shown = described[:_SHOWN_PROBLEMS]
    return InvalidManifest(
        f"{_find_name(resource)}: {join_clauses(*shown, *_count_more(len(problems) - len(shown)))}",
        hint=(problems[0].hint if len(problems) == 1 else None) or _EVERY_FIELD,
        problems=(
            *(f"{text}\n  {hint}" if hint else text for text, (_, _, hint) in zip(described, problems, strict=False)),
            *_count_more(len(problems) - len(described)),
        ),
    )


def _count_more(number: int) -> list[str]:
    return [f"and {number:,} more"] if number else []


def _find_problems(resource: dict[str, Any]) -> Iterator[ManifestProblem]:
    """Yield the problems of ``resource``, and fill in its defaults. A problem that only follows from another one is not
    reported."""
    from jsonschema import Draft202012Validator  # imported here, because a router validates nothing

    schema = resource_schema()
    header = list(_header_problems(resource))
    yield from header
    if any(problem.path == "kind" for problem in header):
        return
    unknown = list(_unknown_fields(resource, schema, ""))
    yield from unknown
    misspelled = {_find_owner(problem.path) for problem in unknown}
    invalid = {*misspelled, *(problem.path for problem in header)}
    _fill_defaults(resource, schema)
    errors = Draft202012Validator(schema).iter_errors(resource)
    for error in sorted(errors, key=lambda error: list(map(str, error.path))):
        path, owner = _error_path(error), _find_owner(_error_path(error))
        is_missing = error.validator == "required"
        is_reported = path in invalid or path.startswith(tuple(problem.path for problem in header))
        if not is_reported and not (is_missing and owner in misspelled):
            yield ManifestProblem(path, partial(_describe_error, error))
        invalid |= {path, owner} if is_missing else {path}
    surrogates = [*_surrogates(resource, "")]
    yield from surrogates
    if not surrogates:
        yield from _broken_rules(resource, schema, "", invalid)


def _find_name(resource: dict[str, Any]) -> str:
    metadata = resource.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return shorten(name, _SHOWN_CHARACTERS) if isinstance(name, str) else "manifest"


def _header_problems(resource: dict[str, Any]) -> Iterator[ManifestProblem]:
    expected = {"apiVersion": api_version(), "kind": crd()["spec"]["names"]["kind"]}
    for field, text in expected.items():
        if resource.get(field) != text:
            yield ManifestProblem(field, partial(str, f"{field} must be {text}, found {_shorten(resource.get(field))}"))
    found = resource.get("metadata")
    metadata = found if isinstance(found, dict) else {}
    if metadata.get("name") is None:
        yield ManifestProblem("metadata", partial(str, "metadata.name must be given, as text"))
    for field in ("name", "namespace", "uid"):
        text = metadata.get(field, "")
        if not isinstance(text, str) and (field, text) != ("name", None):
            message = f"metadata.{field} must be text, found {_shorten(text)}: write it in quotes"
            yield ManifestProblem("metadata", partial(str, message))
    namespace = metadata.get("namespace")
    if namespace and isinstance(namespace, str) and not NAMESPACE.fullmatch(namespace):
        message = (
            f"metadata.namespace: expected 1 to 63 of a-z, 0-9 and -, no - first or last, found {_shorten(namespace)}"
        )
        yield ManifestProblem("metadata", partial(str, message))
    for field in ("annotations", "labels"):
        texts = metadata.get(field) or {}
        if not isinstance(texts, dict) or not all(isinstance(text, str) for pair in texts.items() for text in pair):
            message = f"metadata.{field} must be a mapping of text to text, found {_shorten(texts)}: write it in quotes"
            yield ManifestProblem(f"metadata.{field}", partial(str, message))


def _unknown_fields(value: Json, schema: dict[str, Any], path: str) -> Iterator[ManifestProblem]:
    """Yield fields that the schema does not have. A cluster drops them with a warning; rejecting them catches typos."""
    properties = schema.get("properties")
    if path == "metadata":
        return  # every resource has these fields; the CRD bounds only some
    if isinstance(value, dict) and properties:
        for name, child in value.items():
            where = f"{path}.{name}".lstrip(".")
            if name in properties:
                yield from _unknown_fields(child, properties[name], where)
            else:
                yield ManifestProblem(where, partial(_describe_unknown_field, path, str(name), properties))
    elif isinstance(value, list) and "items" in schema:
        for number, item in enumerate(value):
            yield from _unknown_fields(item, schema["items"], f"{path}[{number}]")


def _describe_unknown_field(path: str, name: str, properties: dict[str, Any]) -> str:
    """Suggest a sibling field with nearly this name and fields of this name elsewhere; else fields elsewhere with
    nearly this name; else a sibling with a similar name; else nothing."""
    message = f"{path}.{shorten(name, _SHOWN_CHARACTERS)}".lstrip(".") + " is not a field"
    if len(name) > _LONGEST_TYPO:
        return message
    near = difflib.get_close_matches(name, properties, n=1, cutoff=_NEARLY)
    suggested = [*near, *_find_places(name, path)]
    if not suggested and (similar := difflib.get_close_matches(name, _field_paths(), n=1, cutoff=_NEARLY)):
        suggested = _find_places(similar[0], path)
    suggested = suggested or difflib.get_close_matches(name, properties, n=1)
    return f"{message}; did you mean {' or '.join(suggested)}?" if suggested else message


def _find_places(name: str, path: str) -> list[str]:
    """Return the paths of the fields called ``name``, within ``path`` if some are there; none if there are many."""
    places = _field_paths().get(name, [])
    places = [place for place in places if place.startswith(f"{path}.")] or places
    return places if len(places) <= _SUGGESTED_PLACES else []


@cache
def _field_paths() -> dict[str, list[str]]:
    """Return the paths of the fields in ``spec``, by name."""
    found: dict[str, list[str]] = {}

    def collect(schema: dict[str, Any], path: str) -> None:
        for name, child in schema.get("properties", {}).items():
            found.setdefault(name, []).append(f"{path}.{name}")
            collect(child, f"{path}.{name}")
            collect(child.get("items", {}), f"{path}.{name}[]")

    collect(resource_schema()["properties"]["spec"], "spec")
    return found


def _fill_defaults(value: Json, schema: dict[str, Any]) -> None:
    """Fill in defaults: a missing field takes its default, then the fields within it are filled."""
    if isinstance(value, dict):
        for name, child in schema.get("properties", {}).items():
            if value.get(name) is None and "default" in child:
                value[name] = copy.deepcopy(child["default"])
            if name in value:
                _fill_defaults(value[name], child)
    elif isinstance(value, list):
        for item in value:
            _fill_defaults(item, schema.get("items", {}))


def _find_owner(path: str) -> str:
    return path.rpartition(".")[0]


def _error_path(error: ValidationError) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
    if error.validator == "required":
        path += "." + error.message.split("'")[1]
    return path.lstrip(".")


def _describe_error(error: ValidationError) -> str:
    where = _error_path(error)
    message = error.message.replace(repr(error.instance), _shorten(error.instance), 1)
    if isinstance(error.schema, dict) and error.schema.get("x-kubernetes-int-or-string"):
        message = f"{_shorten(error.instance)} is not a quantity, such as 2, 500m or 4Gi"
    elif error.validator == "required":
        message = "it is required, but missing"
    elif isinstance(error.schema, dict) and error.validator == "type":
        message = _describe_type_error(error.instance, str(error.validator_value))
        # A type does not explain the field; the first sentence of its description does, often with an example.
        description = error.schema.get("description", "")
        message += f" ({re.split(r'[.;] |[.]$', description)[0]})" if description else ""
    elif error.validator == "enum" and isinstance(error.instance, str) and isinstance(error.validator_value, list):
        values, found = {str(value).lower(): value for value in error.validator_value}, error.instance.lower()
        begun = [value for value in values if found and value.startswith(found)]
        similar = begun or (len(found) <= _LONGEST_TYPO and difflib.get_close_matches(found, values, 1, _NEARLY))
        message += f", did you mean {values[similar[0]]}?" if similar else ""
    elif error.validator in ("minLength", "maxLength"):
        bound = "at least" if error.validator == "minLength" else "at most"
        characters = format_count(int(str(error.validator_value)), "character")
        message = f"expected {bound} {characters}, found {_shorten(error.instance)}"
    elif error.validator in ("minItems", "maxItems") and isinstance(error.instance, list):
        bound = "at least" if error.validator == "minItems" else "at most"
        message = f"expected {bound} {int(str(error.validator_value)):,} in the list, found {len(error.instance):,}"
    return f"{where or 'the manifest'}: {message}"


def _describe_type_error(found: Json, expected: str) -> str:
    message = f"expected {_TYPES.get(expected, expected)}, found {'nothing' if found is None else _shorten(found)}"
    if expected == "string" and isinstance(found, bool | int | float):
        return f"{message}: write it in quotes"
    if isinstance(found, str) and (
        (expected == "boolean" and found in ("true", "false"))
        or (expected == "integer" and re.fullmatch(r"-?[0-9]+", found))
    ):
        return f"{message}: write it without quotes"
    return message


def _shorten(found: Json) -> str:
    return shorten(repr(found), _SHOWN_CHARACTERS)


def _make_context(value: Json) -> Any:
    context = load_cel().Context({"self": value})
    context.add_function("isQuantity", _is_quantity)
    context.add_function("quantity", parse_quantity)
    context.add_function("compareTo", lambda one, other: (one > other) - (one < other))
    return context


@cache
def _compile_rule(rule: str) -> Program:
    """Compile ``rule`` once: the CRD has a few, and an operator checks them for every dataset."""
    program: Program = load_cel().compile(rule)
    return program


@cache
def load_cel() -> ModuleType:
    """Load the extension of the package cel, and only that, when the first rule is checked.

    The package also imports its command line, which took a third of the processor time of a small build, and 11 MB.
    """
    package = importlib.util.find_spec("cel")
    spec = PathFinder.find_spec("cel.cel", package.submodule_search_locations) if package else None
    if spec is None or spec.loader is None:
        return importlib.import_module("cel")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _is_quantity(text: str) -> bool:
    try:
        parse_quantity(text)
    except ValueError:
        return False
    return True


def _surrogates(value: Json, path: str) -> Iterator[ManifestProblem]:
    """Yield a problem for text that is not valid Unicode, from an escape of YAML."""
    if isinstance(value, str) and _SURROGATE.search(value):
        message = f"{path}: {_shorten(value)} has half of a surrogate pair: write the character itself"
        yield ManifestProblem(path, partial(str, message))
    elif isinstance(value, dict):
        for name, child in value.items():
            yield from _surrogates(name, path)
            yield from _surrogates(child, f"{path}.{name}".lstrip("."))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _surrogates(item, f"{path}[{number}]")


def _broken_rules(
    value: Json, schema: dict[str, Any], path: str, invalid: Collection[str]
) -> Iterator[ManifestProblem]:
    """Yield the broken rules of ``value`` and what is in it, except those of the fields ``invalid``."""
    if path not in invalid:
        try:
            messages = list(_list_broken(value, schema, path))
        except Exception:
            if not invalid:
                raise
            messages = []  # the rule needs a field that is missing, or of another type
        yield from (ManifestProblem(path, partial(str, message)) for message in messages)
    if isinstance(value, dict):
        fields, others = schema.get("properties", {}), schema.get("additionalProperties", {})
        for name, child in fields.items():
            if name in value:
                yield from _broken_rules(value[name], child, f"{path}.{name}".lstrip("."), invalid)
        if others:
            for name in value.keys() - fields.keys():
                yield from _broken_rules(value[name], others, f"{path}.{name}", invalid)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _broken_rules(item, schema.get("items", {}), f"{path}[{number}]", invalid)


def _list_broken(value: Json, schema: dict[str, Any], path: str) -> Iterator[str]:
    context = None
    for rule in schema.get("x-kubernetes-validations", ()):
        if "oldSelf" in rule["rule"]:
            continue  # it compares with the previous value, which only an API server knows
        context = context or _make_context(value)
        if not _compile_rule(rule["rule"]).execute(context):
            yield f"{path}: {rule['message']}" if path else rule["message"]
    if schema.get("x-kubernetes-list-type") in ("set", "map"):
        names = schema.get("x-kubernetes-list-map-keys")
        entries = [tuple(item.get(name) for name in names) if names else item for item in value]
        for number, entry in enumerate(entries):
            if entry in entries[:number]:
                yield f"{path}[{number}]: {', '.join(map(str, entry)) if names else entry} occurs twice"


def to_camel_case(name: str) -> str:
    """Convert ``snake_case`` to ``camelCase``."""
    return re.sub("_([a-z])", lambda match: match[1].upper(), name)


def from_members(kind: Callable[..., T], members: Mapping[str, Any]) -> T:
    """Return the dataclass ``kind`` from ``members``: JSON of what ``asdict`` returned, or a valid part of a manifest.
    Unknown members are ignored; a missing one is the field's default, or None."""
    return kind(
        **{
            name: _convert(hint, members.get(name, members.get(json_name)))
            for name, json_name, hint, has_default in _list_fields(kind)
            if not has_default or name in members or json_name in members
        }
    )


@cache
def _list_fields(kind: Any) -> list[tuple[str, str, Any, bool]]:
    """Return the fields of a dataclass: name, name in JSON, type, and whether it has a default. Evaluating types takes
    long."""
    hints = get_type_hints(kind)
    defaults = {found.name: (found.default, found.default_factory) for found in fields(kind)}
    return [
        (name, to_camel_case(name), hints[name], default != (MISSING, MISSING)) for name, default in defaults.items()
    ]


def _convert(hint: Any, value: Json) -> Any:
    if value is None:
        return None
    if get_origin(hint) in (Union, UnionType):
        hint = get_args(hint)[0]
    if get_origin(hint) in (tuple, list, Sequence):
        item, *others = get_args(hint)
        hints = [item, *others] if others and others != [...] else [item] * len(value)
        return tuple(map(_convert, hints, value))
    if isinstance(hint, type) and is_dataclass(hint):
        return from_members(hint, value)
    return Path(value) if hint is Path else value
