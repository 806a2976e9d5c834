"""Converts the names of fields between Python and JSON or YAML."""

from __future__ import annotations

import re


def to_camel_case(name: str) -> str:
    """``camelCase`` of ``snake_case``."""
    return re.sub("_([a-z])", lambda match: match[1].upper(), name)


def to_snake_case(name: str) -> str:
    """``snake_case`` of ``camelCase``."""
    return re.sub("([A-Z])", lambda match: "_" + match[1].lower(), name)
