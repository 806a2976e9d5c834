"""The termination log of Kubernetes: how a container ended, as one line of JSON that the operator reads."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final

import orjson

from lookupdb.errors import LookupdbError
from lookupdb.wording import to_utf8

log = logging.getLogger(__name__)

_MAX_MESSAGE: Final = 500
"""Characters: with all else, and escaped, it is less than the 4096 bytes that Kubernetes keeps."""


def describe_error(error: LookupdbError) -> dict[str, Any]:
    """The members that say why a program failed."""
    return {"exitCode": error.exit_code, "reason": error.reason, "message": to_utf8(str(error))[:_MAX_MESSAGE]}


def render_failure(error: LookupdbError) -> bytes:
    """The line of a program that ended with ``error`` and has no other result."""
    return orjson.dumps({"outcome": "failed", **describe_error(error)})


def write_termination_log(path: Path | None, line: bytes) -> None:
    """Write ``line`` where Kubernetes reads it. A failure to do so is logged, and does not change the exit code."""
    if path is None:
        return
    try:
        path.write_bytes(line)
    except OSError as error:
        log.warning("cannot write the termination log", extra={"path": str(path), "reason": error.strerror})
