"""The operator's advice in messages, for a laptop: commands of `lookupdb` in place of annotations."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Final

from lookupdb.up.run_state import DATA_DIRECTORY, shorten_name

_PROMOTION: Final = re.compile(
    r"kubectl annotate lds (?P<name>[^ ]+) -n (?P<namespace>[^ ]+) --overwrite lookupdb.dev/promote=(?P<to>g[0-9]+),"
    r" and ends after lookupdb.dev/reject=g[0-9]+"
)
_RETRY: Final = ", or as soon as the spec changes."
_OUR_RETRY: Final = ", or at once after a refresh."
_NEXT_ATTEMPT: Final = re.compile(r" The next attempt is at [^ ,]+" + re.escape(_OUR_RETRY))


def list_data_options(data: Path) -> list[str]:
    """Return the options of commands about datasets in the folder ``data``."""
    return [] if data == DATA_DIRECTORY else ["--data", str(data)]


def localize_advice(message: str, data: Path) -> str:
    """Return ``message`` with commands about datasets in the folder ``data``."""

    def write_promotion(found: re.Match[str]) -> str:
        target = (*list_data_options(data), shorten_name(found["namespace"], found["name"]), found["to"])
        return ", and ends after ".join(shlex.join(("lookupdb", verb, *target)) for verb in ("promote", "reject"))

    return _PROMOTION.sub(write_promotion, message).replace(_RETRY, _OUR_RETRY)


def remove_retry(message: str) -> str:
    """Return the localized ``message`` without its next attempt, which a failed start does not make."""
    return _NEXT_ATTEMPT.sub("", message)
