"""How a command line names a generation: by the folder that holds it, or as gN of a dataset in a store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click

from lookupdb import store
from lookupdb.cli.options import option
from lookupdb.errors import StoreError, UsageError
from lookupdb.manifest import FILE_NAME, GENERATION
from lookupdb.spec import LOCAL
from lookupdb.store import StoreAddress, StoredDataset
from lookupdb.store import stored_generation as generations
from lookupdb.store.stored_generation import find_in_folder, find_in_store

DEFAULT_STORE: Final = ".lookupdb/store"

store_option = option(
    "--store",
    "store_url",
    default=DEFAULT_STORE,
    metavar="URL",
    help="Where generations are kept: a directory, or file://, s3://, gs://, az://; or http(s)://, a gateway.",
)
STORE_WAIT_SECONDS: Final = 60.0
"""A store of the same installation takes its time to start: image, volume, credentials."""

store_wait_option = option(
    "--store-wait",
    type=click.FloatRange(min=0),
    default=STORE_WAIT_SECONDS,
    help="Seconds to wait at the start for a store that does not answer yet; one that denies is not waited for.",
)
cluster_option = option(
    "--cluster-id", default=LOCAL, help="The part of the store that is this cluster's: the uid of its kube-system."
)
dataset_option = option(
    "--dataset",
    metavar="[NAMESPACE/]NAME",
    show_default=False,
    help="Whose generation gN is.  [default: the only dataset in the store]",
)

uid_option = option(
    "--uid",
    metavar="UID",
    help="Its uid, where the store has several datasets of that name; its first eight characters count.",
)


@dataclass(frozen=True, slots=True)
class GenerationLocator:
    """Finds ``gN`` in the store, cluster and dataset that the options name."""

    store_url: str
    cluster_id: str
    dataset: str | None
    uid: str | None = None

    def find(self, target: str) -> generations.StoredGeneration:
        """Return the generation that ``target`` names: a folder, or gN. Raises UsageError, StoreError, CorruptFile."""
        if GENERATION.fullmatch(target):
            return find_in_store(self._dataset(), target)
        folder = Path(target)
        if (folder / FILE_NAME).is_file() or folder.is_dir():
            return find_in_folder(folder)
        raise UsageError(
            f"{target} is neither a folder nor a generation's name",
            hint="give the folder of a generation, or gN with --store and --dataset",
        )

    def _dataset(self) -> StoredDataset:
        if self.dataset and self.dataset.startswith("/"):
            name = self.dataset.lstrip("/")
            raise UsageError(f"--dataset {self.dataset} names no namespace", hint=f"give {name}, or NAMESPACE/{name}")
        opened_store = store.open_store(self.store_url, self.cluster_id)
        namespace = (self.dataset or "").rpartition("/")[0]
        if StoreAddress.parse(self.cluster_id, namespace, "any-uid") is None:
            namespace = ""
        addresses = opened_store.addresses_in(namespace) if namespace else opened_store.addresses()
        found = [address for address in addresses if self._fits(address)]
        if not found and namespace:
            addresses = opened_store.addresses()  # to say what there is
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


def locator_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--store, --cluster-id, --dataset and --uid."""
    return store_option(cluster_option(dataset_option(uid_option(command))))
