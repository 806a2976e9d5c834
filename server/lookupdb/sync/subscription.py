"""Which datasets are kept, as a command line names them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from lookupdb.errors import UsageError
from lookupdb.store import StoreAddress

DEFAULT_NAMESPACE = "default"


@dataclass(frozen=True, slots=True)
class Subscription:
    """A dataset: the one with ``uid``, or whichever lives under that name."""

    namespace: str
    name: str
    uid: str | None = None
    """Its first eight characters."""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Of [NAMESPACE/]NAME[@UID]. Raises UsageError."""
        path, has_uid, uid = text.partition("@")
        namespace, has_namespace, name = path.rpartition("/")
        namespace = namespace if has_namespace else DEFAULT_NAMESPACE
        try:
            address = StoreAddress("any", namespace, name, uid if has_uid else "local")
        except UsageError as error:
            raise UsageError(
                f"{text!r} is no dataset: {error.message}", hint="write [NAMESPACE/]NAME, or NAMESPACE/NAME@UID"
            ) from error
        return cls(address.namespace, address.name, address.uid if has_uid else None)
