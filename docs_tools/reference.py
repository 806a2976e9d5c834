"""The pages of the reference, each generated from where its facts are defined."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any, Final

import click

from docs_tools import product


@cache
def page(path: str) -> str:
    """Return the Markdown of the generated page ``path``, which is below docs/."""
    return _MAKERS[path]()


def pages() -> Mapping[str, str]:
    """Return every generated page: its path below docs/, and its Markdown."""
    return {path: page(path) for path in _MAKERS}


_undescribed: list[str] = []


def find_undescribed() -> list[str]:
    """Return all fields, options, values, metrics, reasons and commands without a description."""
    _undescribed.clear()
    page.cache_clear()
    pages()
    return list(_undescribed)


def _describe(what: str, text: str | None) -> str:
    if not (text or "").strip():
        _undescribed.append(what)
    return text or ""


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in cells) + " |" for cells in lines)


def _cell(text: str) -> str:
    """Put ``text`` on one line. Within code a bar separates no cells."""
    parts = " ".join(text.split()).split("`")
    return "`".join(part if number % 2 else part.replace("|", "\\|") for number, part in enumerate(parts))


def _prose(text: str) -> str:
    """Escape angle brackets in ``text``."""
    return re.sub(r"<(?=[\w/ ])", "&lt;", text)


def _code(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"`{text}`" if text else '`""`'


def make_dataset_page() -> str:
    """Fields of a LookupDataset."""
    schema = product.load_yaml(product.CRD)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    parts = [
        "# LookupDataset",
        "Every field of the resource, as the CRD has it. `kubectl explain lookupdataset.spec` shows the same.",
    ]
    for top in ("spec", "status"):
        node = schema["properties"][top]
        parts += [f"## {top}", _prose(_describe(top, node.get("description")))]
        plain = {name: child for name, child in node["properties"].items() if not list(_fields("", child))}
        parts.append(_field_table(f"{top}.", plain, node.get("required", ())))
        for name, child in node["properties"].items():
            if name not in plain:
                parts += [f"### {top}.{name}", _prose(_describe(f"{top}.{name}", child.get("description")))]
                parts += _rules(child)
                inner, mark = _unwrap(child)
                parts.append(_field_table(f"{name}{mark}.", inner.get("properties", {}), inner.get("required", ())))
        parts += [f"### Rules of {top}", *_rules(node)] if _rules(node) else []
    return "\n\n".join(parts) + "\n"


def _unwrap(node: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """Return the schema with the members, and how the path shows a list or a map."""
    if isinstance(node.get("items"), dict):
        return node["items"], "[]"
    if isinstance(node.get("additionalProperties"), dict) and not node.get("properties"):
        return node["additionalProperties"], "{}"
    return node, ""


def _fields(prefix: str, node: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    inner, _ = _unwrap(node)
    for name, child in inner.get("properties", {}).items():
        yield f"{prefix}{name}", child, name in inner.get("required", ())
        _, mark = _unwrap(child)
        yield from _fields(f"{prefix}{name}{mark}.", child)


def _field_table(prefix: str, properties: Mapping[str, Any], required: Sequence[str]) -> str:
    rows = []
    for path, node, is_required in _fields("", {"properties": properties, "required": required}):
        kind = [_type(node), *(["**required**"] if is_required else []), *_bounds(node)]
        rules = " ".join(_prose(rule["message"].rstrip(".") + ".") for rule in node.get("x-kubernetes-validations", ()))
        text = _prose(_describe(f"{prefix}{path}", node.get("description")))
        rows.append((f"`{path}`", ", ".join(kind), f"{text} {rules}" if rules else text))
    return _table(("field", "type and bounds", "description"), rows)


def _type(node: Mapping[str, Any]) -> str:
    if node.get("x-kubernetes-int-or-string"):
        return "integer or string"
    if node.get("type") == "array":
        return f"list of {_type(node['items'])}"
    return str(node.get("type", "any value"))


def _bounds(node: Mapping[str, Any]) -> Iterator[str]:
    if "default" in node:
        yield f"default {_code(node['default'])}"
    if "enum" in node:
        yield "one of " + ", ".join(_code(value) for value in node["enum"])
    for name, word in (("minimum", "at least"), ("maximum", "at most")):
        if name in node:
            yield f"{word} {node[name]}"
    for name, word in (("maxLength", "characters"), ("maxItems", "items"), ("maxProperties", "members")):
        if name in node:
            yield f"at most {node[name]} {word}"


def _rules(node: Mapping[str, Any]) -> list[str]:
    messages = [rule["message"] for rule in node.get("x-kubernetes-validations", ())]
    return ["\n".join(f"- {_prose(message)}" for message in messages)] if messages else []


def make_commands_page() -> str:
    """Commands of ``lookupdb``."""
    parts = ["# lookupdb", _help_text("lookupdb", product.cli)]
    for name, command in product.verbs().items():
        if command is product.kubectl_cli.commands.get(name):
            link = f"[kubectl lookupdb {name}](kubectl-commands.md#kubectl-lookupdb-{name})"
            parts += [f"## lookupdb {name}", f"{link}, for the datasets of `lookupdb up`."]
        else:
            parts += _command(f"lookupdb {name}", command, "##")
    return "\n\n".join(parts) + "\n"


def make_kubectl_page() -> str:
    """Commands of the kubectl plugin."""
    parts = ["# kubectl lookupdb", _help_text("kubectl lookupdb", product.kubectl_cli)]
    for name, command in product.kubectl_cli.commands.items():
        parts += _command(f"kubectl lookupdb {name}", command, "##")
    return "\n\n".join(parts) + "\n"


def _command(path: str, command: click.Command, mark: str) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    yield f"{mark} {path}"
    yield _help_text(path, command)
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from _command(f"{path} {name}", child, f"{mark}#")
        return
    usage = command.get_usage(context).removeprefix("Usage: ")
    yield f"```console\n$ {' '.join(usage.split())}\n```"
    records = [
        (parameter, parameter.get_help_record(context))
        for parameter in command.get_params(context)
        if isinstance(parameter, click.Option) and not parameter.hidden
    ]
    rows = [(f"`{record[0]}`", _prose(_describe(f"{path} {record[0]}", record[1]))) for _, record in records if record]
    if rows:
        yield _table(("option", "description"), rows)


def _help_text(path: str, command: click.Command) -> str:
    text = inspect.cleandoc(_describe(path, command.help)).partition("\f")[0]
    blocks = [block.strip("\n") for block in text.split("\n\n")]
    return "\n\n".join(
        "```text\n" + textwrap.dedent(block.partition("\n")[2]) + "\n```"
        if block.startswith("\b")
        else _prose(" ".join(block.split()))
        for block in blocks
    )


def make_chart_page() -> str:
    """Values of the Helm chart."""
    schema = json.loads(product.VALUES_SCHEMA.read_text(encoding="utf-8"))
    parts = ["# Chart values", "Every value of the Helm chart with its default. An unknown value is refused."]
    sections: dict[str, list[tuple[str, str, str, str]]] = {}
    intros: dict[str, str] = {}
    for path, comment, value in _values():
        top, _, rest = path.partition(".")
        kind = _value_type(schema, path)
        if isinstance(value, dict) and value and not rest:
            intros[top] = comment
            sections.setdefault(top, [])
            _describe(f"chart value {path}", comment)
        else:
            is_map = isinstance(value, dict) and bool(value)
            shown = "" if is_map else _code(value)
            row = (f"`{path}`", kind, shown, _prose(_describe(f"chart value {path}", comment)))
            sections.setdefault(top if rest else "General", []).append(row)
    for name in sorted(sections, key=lambda section: section != "General"):
        parts += [f"## {name}", _prose(intros.get(name, "Values of the whole release."))]
        parts.append(_table(("value", "type", "default", "description"), sections[name]))
    return "\n\n".join(parts) + "\n"


def _values() -> Iterator[tuple[str, str, Any]]:
    """Yield the path of each value, the comment above it, and its default. A map on one line is one value."""
    document = product.load_yaml(product.VALUES)
    comment: list[str] = []
    parents: list[tuple[int, str]] = []
    for line in product.VALUES.read_text(encoding="utf-8").splitlines():
        indent = len(line) - len(line.lstrip())
        if line.lstrip().startswith("#"):
            comment.append(line.strip()[1:].strip())
            continue
        found = re.match(r"\s*([\w.-]+):(?:\s|$)", line)
        if found:
            while parents and parents[-1][0] >= indent:
                parents.pop()
            path = [*(name for _, name in parents), found[1]]
            value = document
            for name in path:
                value = value[name]
            parents.append((indent, found[1]))
            yield ".".join(path), " ".join(comment), value
        comment = []


def _value_type(schema: Mapping[str, Any], path: str) -> str:
    node: Mapping[str, Any] = schema
    for name in path.split("."):
        node = node.get("properties", {}).get(name, {})
        while "$ref" in node:
            node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    kind = node.get("type", "")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def make_metrics_page() -> str:
    """Metrics and alerts."""
    parts = ["# Metrics", "[Monitoring](../operations/monitoring.md) says what to look at first and what to alert on."]
    for program, families in product.metric_families().items():
        rows = [
            (f"`{name}`", kind, _prose(_describe(name, text)))
            for family, kind, text in families
            for name in _series(family, kind)
        ]
        parts += [f"## {program}", _table(("metric", "kind", "description"), rows)]
    parts += ["## Alerts", "`prometheusRule.enabled` of the chart makes these.", _alerts()]
    return "\n\n".join(parts) + "\n"


def _series(family: str, kind: str) -> list[str]:
    return [f"{family}{ending}" for ending in ("_bucket", "_count", "_sum")] if kind == "histogram" else [family]


def _alerts() -> str:
    found = re.findall(r"- alert: (\w+)\n.*?severity: (\w+)", product.ALERTS.read_text(encoding="utf-8"), re.DOTALL)
    rows = []
    for name, severity in found:
        paragraph = (product.RUNBOOKS / f"{name}.md").read_text(encoding="utf-8").split("\n\n")[1]
        meaning = paragraph.replace("](", "](../runbooks/")
        rows.append((f"`{name}`", severity, f"{_prose(_describe(name, meaning))} [Runbook](../runbooks/{name}.md)"))
    return _table(("alert", "severity", "means"), rows)


def make_conditions_page() -> str:
    """Conditions, reasons and phases."""
    schema = product.load_yaml(product.CRD)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    conditions = schema["properties"]["status"]["properties"]["conditions"]["description"]
    parts = ["# Conditions", _prose(_describe("conditions", conditions)), _CONDITIONS, "## Reasons", _REASONS]
    advice = tomllib.loads(product.REASON_ADVICE.read_text(encoding="utf-8"))
    groups: dict[str, list[tuple[str, str, str]]] = {}
    for reason, (group, sentence) in product.reason_sentences().items():
        remedy = product.reasons.REMEDIES.get(reason, "")
        row = (f"`{reason}`", _prose(_describe(f"reason {reason}", sentence)), remedy or advice.pop(reason, ""))
        groups.setdefault(group, []).append(row)
    _undescribed.extend(f"{reason} of reason_advice.toml is no reason, or has a remedy" for reason in advice)
    for group, rows in groups.items():
        parts += [f"### {group}", _table(("reason", "means", "do"), rows)]
    phases = [(name, _describe(f"phase {name}", means)) for name, means in product.planner.PHASES.items()]
    parts += ["## In one word", _PHASES, _table(("phase", "means"), phases)]
    return "\n\n".join(parts) + "\n"


_CONDITIONS: Final = """\
| condition | `True` means |
| --- | --- |
| **Ready** | Routers answer lookups: there is a routing table, a ready router, and a ready server for every shard. |
| **Built** | The store holds a generation of the current spec that answers the last refresh. |
| **RolledOut** | All routers serve a generation of the current spec, or the one that `spec.generation` pins. |
| **Degraded** | Something is wrong, even if lookups are answered. The message says what. |

`Ready` stays `True` through every failure that leaves the old generation serving. Alert on `Degraded` too."""
_REASONS: Final = """\
The same reason follows a fault from the pod to the condition. `Degraded` lists up to three faults in this order:
servers and routers that are not ready, objects that cannot be written, the build, the rollout, the age of the data.
Active data keeps serving in all of them. Each transition is one Kubernetes Event. The operator retries a failed build
after 30 s, doubling up to 30 minutes, and at once when you change the spec."""
_PHASES: Final = """\
`status.phase` is what `kubectl get lds` shows: the first of these that applies. It is for people. Programs should read
conditions."""


def make_lifecycle_page() -> str:
    """Return the transitions of generations and rollouts."""
    rows = "\n".join(lifecycle_row(transition) for transition in product.lifecycle.TRANSITIONS)
    return f"{_LIFECYCLE}\n{rows}\n"


_LIFECYCLE: Final = """\
# Transitions

Each reconcile pass goes through these transitions in this order. The operator executes this table. It reads a phase
from the status, and writes the status before it does anything else. It deletes a rollout only in phase *gone*, and a
rollout is never *gone* while a routing table that some router may use refers to it.
[Rollouts](../concepts/rollouts.md) explains the steps.

| transition | of a rollout | of a generation | when | written first | may be deleted from then on |
| --- | --- | --- | --- | --- | --- |"""


def lifecycle_row(transition: product.Transition) -> str:
    """One line of the table."""
    cells = (
        f"**{_describe('transition', transition.name)}**",
        _edges(transition.edges, product.RolloutPhase),
        _edges(transition.edges, product.GenerationPhase),
        _describe(f"{transition.name}: when", transition.when),
        _describe(f"{transition.name}: written first", transition.written_first),
        _describe(f"{transition.name}: may be deleted", transition.may_be_deleted),
    )
    return f"| {' | '.join(cells)} |"


def _edges(edges: tuple[tuple[product.Phase, product.Phase], ...], kind: type[Enum]) -> str:
    """``claimed, draining → referenced``: join transitions with the same result."""
    after_before: dict[str, list[str]] = {}
    for before, after in edges:
        if isinstance(before, kind):
            after_before.setdefault(after.value, []).append(before.value)
    everything = len(kind) - 1
    return "; ".join(
        f"{'any' if len(befores) >= everything else ', '.join(befores)} → {after}"
        for after, befores in after_before.items()
    )


def make_http_page() -> str:
    """Requests, parameters, answers and schemas of the HTTP API."""
    api = product.load_yaml(product.OPENAPI)
    parts = ["# HTTP requests", _HTTP]
    for path, methods in api["paths"].items():
        shared = methods.get("parameters", ())
        for method, operation in methods.items():
            if method == "parameters":
                continue
            what = f"{method.upper()} {path}"
            text = operation.get("description") or operation.get("summary")
            parts += [f"## {what}", _prose(_describe(what, text))]
            parameters = [_follow(api, parameter) for parameter in [*shared, *operation.get("parameters", ())]]
            rows = [
                (f"`{one['name']}`", one["in"], _prose(_describe(f"{what} {one['name']}", one.get("description"))))
                for one in parameters
            ]
            parts += [_table(("parameter", "in", "description"), rows)] if rows else []
            answers = {status: _follow(api, answer) for status, answer in operation["responses"].items()}
            rows = [
                (
                    status,
                    ", ".join(f"`{kind}`" for kind in answer.get("content", ())),
                    _prose(_describe(f"{what} {status}", answer.get("description"))),
                )
                for status, answer in answers.items()
            ]
            parts.append(_table(("status", "body", "description"), rows))
    parts.append("## Schemas")
    for name, schema in api["components"]["schemas"].items():
        parts += [f"### {name}", _prose(_describe(f"schema {name}", schema.get("description") or schema.get("title")))]
        rows = [
            (
                f"`{member}`",
                _schema_type(child),
                _prose(_describe(f"{name}.{member}", _follow(api, child).get("description"))),
            )
            for member, child in schema.get("properties", {}).items()
        ]
        parts += [_table(("member", "type", "description"), rows)] if rows else []
    return "\n\n".join(parts) + "\n"


_HTTP: Final = """\
All requests, parameters and answers. The same for machines: [openapi.yaml](openapi.yaml). [The HTTP API](http-api.md)
explains keys, generations, errors and limits."""


def _follow(api: Mapping[str, Any], node: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" not in node:
        return node
    found: Mapping[str, Any] = api
    for name in node["$ref"].removeprefix("#/").split("/"):
        found = found[name]
    return {**found, **{key: value for key, value in node.items() if key != "$ref"}}


def _schema_type(node: Mapping[str, Any]) -> str:
    if "$ref" in node:
        return str(node["$ref"].rpartition("/")[2])
    kind = node.get("type", "any value")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def make_resp_page() -> str:
    """Commands of the Redis protocol."""
    texts = tomllib.loads(product.RESP_TEXTS.read_text(encoding="utf-8"))
    names = {name.decode() for name in [*product.ROUTER_COMMANDS, *product.SHARD_COMMANDS]}
    _undescribed.extend(f"{name} of resp_commands.toml is no command" for name in texts.keys() - names)
    _undescribed.extend(f"command {name}" for name in sorted(names - texts.keys()))
    rows = []
    for name, text in texts.items():
        known = {"router": product.ROUTER_COMMANDS, "shard": product.SHARD_COMMANDS}
        servers = [server for server, commands in known.items() if name.encode() in commands]
        reply = _describe(f"command {name}", text["reply"])
        rows.append((f"`{text['syntax']}`", "both" if len(servers) > 1 else "".join(servers), reply))
    return f"{_RESP}\n\n{_table(('command', 'answered by', 'reply'), rows)}\n"


_RESP: Final = """\
# Redis commands

Routers and shard servers answer these. A command that writes is answered `-READONLY`, and any other, such as `SCAN` or
`KEYS`, `-ERR unknown command`. An unavailable key is an error, never nil. [Redis clients](../how-to/redis.md) explains
fields, transactions and tokens."""


def make_screens_page() -> str:
    """The output of ``kubectl lookupdb status`` in each phase."""
    parts = [_SCREENS]
    for heading, show in product.load_screens().items():
        parts += [f"## {heading}", f"```text\n{show()}\n```"]
    return "\n\n".join(parts) + "\n"


_SCREENS: Final = """\
# Status screens

What `kubectl lookupdb status NAME` prints in the phases that ask somebody to look or to decide. The operator's own code
made these screens. *Waits for* says what differs from the spec, for how long, and what to do.
[Conditions](conditions.md#in-one-word) lists all phases."""


_MAKERS: Final[Mapping[str, Callable[[], str]]] = {
    "reference/dataset.md": make_dataset_page,
    "reference/commands.md": make_commands_page,
    "reference/kubectl-commands.md": make_kubectl_page,
    "reference/chart.md": make_chart_page,
    "reference/metrics.md": make_metrics_page,
    "reference/conditions.md": make_conditions_page,
    "reference/lifecycle.md": make_lifecycle_page,
    "reference/http.md": make_http_page,
    "reference/resp.md": make_resp_page,
    "reference/status-screens.md": make_screens_page,
}
