"""INFO: sections of fields in Redis' form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

ServerT = TypeVar("ServerT")

InfoFields = dict[str, Any]


def render_sections(
    sections: Mapping[str, Callable[[ServerT], InfoFields]], server: ServerT, names: Iterable[str]
) -> str:
    """The ``sections`` called ``names``, each once; all of them for none, ``default``, ``all`` or ``everything``."""
    names = list(dict.fromkeys(name.lower() for name in names))
    if not names or {"default", "all", "everything"} & set(names):
        names = list(sections)
    rendered = []
    for name in names:
        if name in sections:
            lines = [f"{field}:{value}" for field, value in sections[name](server).items()]
            rendered.append("\r\n".join([f"# {name.capitalize()}", *lines, ""]))
    return "\r\n".join(rendered)
