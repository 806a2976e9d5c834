"""Find what a command line names: a generation, by folder or as gN of a stored dataset; or a router, by URL or name.

It also writes the commands that a user can paste after a gate has rejected a generation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, Final

import click

from lookupdb import store
from lookupdb.builder.options import GenerationRefused
from lookupdb.cli.options import EXISTING_FILE, FOLDER, Seconds, option
from lookupdb.client.settings import parse_url
from lookupdb.dataset.spec import LOCAL
from lookupdb.errors import LookupdbError, StoreError, Unavailable, UsageError
from lookupdb.manifest import FILE_NAME, GENERATION, Manifest
from lookupdb.store import StoreAddress, StoredDataset, generations
from lookupdb.store.generations import PATIENCE_SECONDS, find_in_folder, find_in_store
from lookupdb.up.run_state import (
    DATA_DIRECTORY,
    DEFAULT_NAMESPACE,
    is_locked,
    list_datasets,
    list_served,
    read_resource,
    read_state,
    run_directory,
    shorten_name,
    state_file,
)
from lookupdb.wording import format_command

DEFAULT_STORE: Final = ".lookupdb/store"

store_option = option(
    "--store",
    "store_url",
    default=DEFAULT_STORE,
    metavar="URL",
    help="Where generations are kept: a directory, or file://, s3://, gs://, az://; or http(s)://, a gateway.",
)
STORE_WAIT_SECONDS: Final = 60.0  # a store that is installed together with this command needs time to start

store_wait_option = option(
    "--store-wait",
    type=click.FloatRange(min=0),
    default=STORE_WAIT_SECONDS,
    help="Seconds to wait at startup for a store that does not answer yet. A store that denies access fails at once.",
)
patience_option = option(
    "--patience",
    type=Seconds(0),
    default=PATIENCE_SECONDS,
    help="Seconds without a byte from a failing store before giving up.",
)
cluster_option = option(
    "--cluster-id", default=LOCAL, help="This cluster's part of the store: the uid of its kube-system namespace."
)
dataset_option = option(
    "--dataset",
    metavar="[NAMESPACE/]NAME",
    help="Dataset that gN belongs to.  [default: the only dataset in the store]",
)

uid_option = option(
    "--uid",
    metavar="UID",
    help="Uid of the dataset, if the store has several of that name; the first eight characters suffice.",
)


data_dir_option: Final = option(
    "--data-dir", "--data", type=FOLDER, default=DATA_DIRECTORY, help="Data folder of `lookupdb up`."
)


@dataclass(frozen=True, slots=True)
class GenerationLocator:
    """Find ``gN`` in the store, cluster and dataset that the options name."""

    store_url: str
    cluster_id: str
    dataset: str | None
    uid: str | None = None

    def find(self, target: str, expected: str = "a folder") -> generations.StoredGeneration:
        """Return the generation that ``target`` names: a folder, or gN. Raises UsageError, StoreError, CorruptFile."""
        if GENERATION.fullmatch(target):
            return find_in_store(self.find_dataset(), target)
        folder = Path(target)
        if (folder / FILE_NAME).is_file() or folder.is_dir():
            return find_in_folder(folder)
        raise UsageError(
            f"{target} is neither {expected} nor a generation's name",
            hint="give the folder of a generation, or gN with --store and --dataset",
        )

    def find_dataset(self) -> StoredDataset:
        """Return the dataset in the store that the options name. Raises UsageError and StoreError."""
        opened_store = store.open_store(self.store_url, self.cluster_id)
        namespace = (self.dataset or "").rpartition("/")[0]
        if StoreAddress.parse(self.cluster_id, namespace, "any-uid") is None:
            namespace = ""
        addresses = opened_store.addresses_in(namespace) if namespace else opened_store.addresses()
        found = [address for address in addresses if self._fits(address)]
        if not found and namespace:
            addresses = opened_store.addresses()  # for the error message
        names = ", ".join(f"{address} ({address.uid})" for address in addresses) or "none"
        if len(found) == 1:
            return opened_store.dataset_at(found[0])
        if not found:
            elsewhere = f"; --cluster-id names another part of it than {self.cluster_id}" if not addresses else ""
            lack = f"{self.store_url} has no dataset {self.dataset or ''}".rstrip()
            raise StoreError(lack, hint=f"it has: {names}{elsewhere}")
        raise UsageError(f"{self.store_url} has several datasets: {names}", hint="choose one with --dataset")

    def _fits(self, address: StoreAddress) -> bool:
        if self.uid is not None and replace(address, uid=self.uid) != address:
            return False
        if self.dataset is None:
            return True
        namespace, _, name = self.dataset.rpartition("/")
        return address.name == name and namespace in ("", address.namespace)


def complete_datasets(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the datasets of `lookupdb up` that begin with ``incomplete``; after a dataset, its generations."""
    data, given = context.params.get("data_dir") or DATA_DIRECTORY, context.params.get("targets")
    if given:
        namespace, _slash, name = given[0].rpartition("/")
        resource = read_resource(data, namespace or DEFAULT_NAMESPACE, name)
        found = [item["generation"] for item in reversed(resource.get("status", {}).get("generations", ()))]
    else:
        found = list(list_datasets(data))
    return [name for name in found if name.startswith(incomplete)]


def locator_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --store, --cluster-id, --dataset and --uid."""
    return store_option(cluster_option(dataset_option(uid_option(command))))


def with_dataset(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --data-dir, --store, --cluster-id and --uid, for a command whose argument is a dataset, by default one in the
    folder of `lookupdb up`. The command gets ``locate``, which returns the ``NamedDataset`` of a name."""

    @data_dir_option
    @option("--store", "store_url", metavar="URL", help="A store, in place of --data-dir.")
    @cluster_option
    @uid_option
    @wraps(command)
    def wrapped(
        *args: Any, data_dir: Path, store_url: str | None, cluster_id: str, uid: str | None, **rest: Any
    ) -> Any:
        def locate(name: str | None) -> NamedDataset:
            locator = GenerationLocator(store_url or str(data_dir / "store"), cluster_id, name, uid)
            namespace, _, last = (name or "").rpartition("/")
            place = data_dir, namespace or DEFAULT_NAMESPACE, last
            return NamedDataset(locator, {} if store_url else read_resource(*place))

        return command(*args, locate=locate, **rest)

    return wrapped


@dataclass(frozen=True, slots=True)
class NamedDataset:
    """A dataset in a store, and its LookupDataset, which is empty unless the dataset is one of `lookupdb up`."""

    locator: GenerationLocator
    resource: Mapping[str, Any]

    @property
    def status(self) -> Mapping[str, Any]:
        """The status of the LookupDataset; empty if it is unknown."""
        status: Mapping[str, Any] = self.resource.get("status") or {}
        return status


ca_file_option: Final = option(
    "--ca-file",
    type=EXISTING_FILE,
    envvar="LOOKUPDB_CA_FILE",
    help="Trust the certificate authorities in this PEM file instead of those of this machine.",
)

_SHOWN_NAMES: Final = 8


def is_url(dataset: str) -> bool:
    """Return whether ``dataset`` is a URL rather than a name."""
    return "://" in dataset or "@" in dataset


_ADVICE: Final = (
    ("by token= or token_file=", "with --token-file or in LOOKUPDB_TOKEN"),
    ("by ca_file=", "with --ca-file or in LOOKUPDB_CA_FILE"),
    ("the ca_file ", "the --ca-file "),
    ("give the client a certificate, by cert_file= and key_file=", "use lookupdb.client or curl: they can show one"),
)
"""Advice of the client about its arguments → the same advice about command-line options."""


@contextmanager
def advise_options() -> Iterator[None]:
    """Replace the client's arguments in the advice of its errors by options."""
    try:
        yield
    except LookupdbError as error:
        for argument, advice in _ADVICE:
            error.hint = error.hint and error.hint.replace(argument, advice)
        raise


def find_router_url(dataset: str, data: Path) -> str:
    """Return the URL that ``dataset`` is, or the one at which `lookupdb up` with the folder ``data`` serves it.

    Raises UsageError, or Unavailable if nothing serves it.
    """
    if is_url(dataset):
        with advise_options():
            parse_url(dataset)
        return dataset
    namespace, _, name = dataset.rpartition("/")
    place = (data, namespace or DEFAULT_NAMESPACE, name)
    state = read_state(state_file(*place))
    if state is not None:
        return str(state["url"])
    if re.fullmatch(r"[^/]*:\d+/?", dataset):
        raise UsageError(
            f"{dataset} is not a dataset's name", hint=f"a router's URL begins with its scheme: http://{dataset}"
        )
    if is_locked(run_directory(*place)):
        raise Unavailable(f"the `lookupdb up` of {dataset} does not serve yet: it builds, or starts its servers")
    served = list_served(data)
    more = f" and {len(served) - _SHOWN_NAMES} more" if len(served) > _SHOWN_NAMES else ""
    others = f", which has {', '.join(served[:_SHOWN_NAMES])}{more}" if served else ""
    raise Unavailable(
        f"no `lookupdb up` serves {dataset} from {data}{others}",
        hint="start one, or give its --data-dir, or a router's URL such as http://127.0.0.1:8080 in place of the name",
    )


# Commands to paste after a gate has rejected a generation.


@contextmanager
def show_ways_out(file: Path, store_url: str, cluster_id: str) -> Iterator[None]:
    """Add to a GenerationRefused the commands that show the generation and that override the gate."""
    try:
        yield
    except GenerationRefused as error:
        if error.manifest is not None:
            commands = _render_ways_out(error.manifest, file, store_url, cluster_id)
            error.hint = "".join((f"{error.hint}:", *(f"\n    {command}" for command in commands)))
        raise


def _render_ways_out(refused: Manifest, file: Path, store_url: str, cluster_id: str) -> Iterator[str]:
    assert refused.refused is not None
    if cluster_id != LOCAL:
        about = f"{refused.name} -n {refused.namespace}"
        if refused.refused.active:
            yield f"kubectl lookupdb diff {about} {refused.refused.active} {refused.generation}"
        yield f"kubectl annotate lds {about} lookupdb.dev/override-gates={refused.generation} --overwrite"
        return
    is_default = Path(store_url).absolute() == Path(DEFAULT_STORE).absolute()
    store = [] if is_default else ["--store", store_url]
    dataset = ["--dataset", f"{refused.namespace}/{refused.name}", *store]
    look = ["diff", refused.refused.active] if refused.refused.active else ["inspect"]
    yield format_command(*look, refused.generation, *dataset)
    data = Path(store_url).absolute().parent
    if file.absolute().is_relative_to(run_directory(data, refused.namespace, refused.name)):  # an `up` builds
        flag = [] if is_default else ["--data-dir", str(data)]
        name = shorten_name(refused.namespace, refused.name)
        yield format_command("override-gates", *flag, name, refused.generation)
    else:
        yield format_command("build", "-f", str(file), *store, "--override-gates", refused.generation)
