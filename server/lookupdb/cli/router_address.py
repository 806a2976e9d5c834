"""How a command line names a router: by its URL, or by the name of a dataset that `lookupdb up` serves; and which
certificates it trusts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import click

from lookupdb.cli.options import option
from lookupdb.errors import Unavailable, UsageError
from lookupdb.local import client
from lookupdb.local.run_state import (
    DATA_DIRECTORY,
    DEFAULT_NAMESPACE,
    is_locked,
    list_served,
    read_state,
    run_directory,
    state_file,
)
from lookupdb.local.trust import Trust

data_dir_option: Final = option(
    "--data-dir", type=click.Path(path_type=Path, file_okay=False), default=DATA_DIRECTORY, help="Of `lookupdb up`."
)
ca_file_option: Final = option(
    "--ca-file",
    "trust",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar="LOOKUPDB_CA_FILE",
    callback=lambda _ctx, _param, file: Trust(file),
    help="Trust the certificates that an authority in this file (PEM) has signed, not those of this machine.",
)

_SHOWN_NAMES: Final = 8


def is_url(dataset: str) -> bool:
    """Whether ``dataset`` is meant as a URL, and not as a name."""
    return "://" in dataset or "@" in dataset


def find_router_url(dataset: str, data: Path) -> str:
    """The URL that ``dataset`` is, or at which the `lookupdb up` with the folder ``data`` serves the dataset of that
    name. Raises UsageError, or Unavailable if none serves it."""
    return _check_url(dataset) if is_url(dataset) else _find_url(dataset, data)


def _check_url(url: str) -> str:
    """Return ``url``. Raises UsageError if it is no router's, or that of a lookup, as `curl` would be given it."""
    client.check_url(url)
    router = re.sub(r"(/v1/(lookup|dataset)(/.*)?)?([?#].*)?$", "", url, count=1)
    if router != url:
        raise UsageError(f"a router's URL ends before /v1, found {url}", hint=f"give {router}, and the keys after it")
    return url


def _find_url(dataset: str, data: Path) -> str:
    namespace, _, name = dataset.rpartition("/")
    place = (data, namespace or DEFAULT_NAMESPACE, name)
    state = read_state(state_file(*place))
    if state is not None:
        return str(state["url"])
    if re.fullmatch(r"[^/]*:\d+/?", dataset):
        raise UsageError(
            f"{dataset} is no dataset's name", hint=f"a router's URL begins with its scheme: http://{dataset}"
        )
    if is_locked(run_directory(*place)):
        raise Unavailable(f"the `lookupdb up` of {dataset} does not serve yet: it builds, or starts its servers")
    served = list_served(data)
    raise Unavailable(
        f"no `lookupdb up` serves {dataset} from {data}{_describe_served(served)}",
        hint="start one, give the --data-dir that it was started with, or give a router's URL, as "
        "http://127.0.0.1:8080, in place of the name",
    )


def _describe_served(names: list[str]) -> str:
    """What follows the name of a dataset that is not served: what is."""
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return f", which has {', '.join(names[:_SHOWN_NAMES])}{more}" if names else ""
