"""What the gateway asks of the store: one object or one listing a call, with the store's errors as problems."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Final

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from lookupdb.network import panics_as_errors
from lookupdb.store.gateway_wire import ErrorKind
from lookupdb.store.object_store import PART_BYTES, Version, object_version
from lookupdb.store.obstore_objects import ObstoreObjects
from lookupdb_operator.gateway.credentials import StoreClient
from lookupdb_operator.gateway.problems import RequestProblem, from_store, missing

__all__ = ["LINK_SECONDS", "PART_BYTES", "UPLOADS_AT_ONCE", "Objects", "object_version"]

LINK_SECONDS: Final = 300
"""For how long a presigned URL is valid."""
UPLOADS_AT_ONCE: Final = 2
"""Parts of one object that are on their way to the store."""
_PAGE: Final = 1000
"""Entries of a listing that are in memory at once."""


class Objects:
    """The store, by the credentials that are the current ones when a call begins."""

    def __init__(self, client: StoreClient) -> None:
        self._client = client

    @contextmanager
    def _translate(self, store: ObstoreObjects, action: str, path: str) -> Iterator[None]:
        try:
            with panics_as_errors():
                yield
        except FileNotFoundError as error:
            raise missing(path) from error
        except (AlreadyExistsError, PreconditionError) as error:
            raise RequestProblem(ErrorKind.PRECONDITION, f"{path} is there, or of another version") from error
        except (BaseError, OSError, ValueError) as error:
            raise from_store(store.error(action, error)) from error

    async def head(self, path: str) -> Mapping[str, Any]:
        """The entry of the object at ``path``. Raises RequestProblem."""
        store = self._client.store
        with self._translate(store, "read", path):
            return await obstore.head_async(store.store, path)

    async def open(self, path: str, offset: int) -> Any:
        """The object at ``path`` from byte ``offset`` on, which is smaller than its size: what obstore gives. Raises
        RequestProblem."""
        store = self._client.store
        with self._translate(store, "read", path):
            return await obstore.get_async(store.store, path, options={"range": {"offset": offset}} if offset else {})

    def describe_failure(self, error: Exception) -> str:
        """A sentence for the log about a read that broke off."""
        return self._client.store.error("read", error).message

    async def put(self, path: str, body: bytearray, mode: Any) -> Version:
        """Put ``body`` at ``path``, on the condition ``mode`` if there is one. Raises RequestProblem."""
        store = self._client.store
        with self._translate(store, "write to", path):
            result = await obstore.put_async(store.store, path, body, mode=mode, use_multipart=False)
            return object_version(result)

    async def put_parts(self, path: str, chunks: AsyncIterator[bytes], part_bytes: int) -> Version:
        """Put what ``chunks`` gives at ``path``, in parts. If ``chunks`` raises, nothing is put, and it raises that;
        else it raises RequestProblem. It must not be cancelled: the parts would stay in the store."""
        store = self._client.patient_store
        with self._translate(store, "write to", path):
            result = await obstore.put_async(
                store.store,
                path,
                chunks,
                use_multipart=True,
                chunk_size=part_bytes,
                max_concurrency=UPLOADS_AT_ONCE,
            )
            return object_version(result)

    async def copy(self, source: str, target: str, size: int) -> bool:
        """Copy the object at ``source``, of ``size`` bytes, to ``target``; False if the store does not copy so many by
        itself. Raises RequestProblem."""
        store = self._client.patient_store
        if not store.can_copy(size):
            return False
        with self._translate(store, "copy within", source):
            await obstore.copy_async(store.store, source, target)
        return True

    async def delete(self, paths: Sequence[str]) -> None:
        """Delete those of ``paths`` that exist. Raises RequestProblem."""
        store = self._client.store
        with self._translate(store, "remove objects from", ""):
            try:
                await obstore.delete_async(store.store, paths)
            except FileNotFoundError:  # some stores refuse to delete what is not there
                for path in paths:
                    with suppress(FileNotFoundError):
                        await obstore.delete_async(store.store, path)

    async def pages(self, folder: str) -> AsyncIterator[Sequence[Mapping[str, Any]]]:
        """The entries under ``folder``, a page at a time. Raises RequestProblem."""
        store = self._client.store
        with self._translate(store, "list", folder):
            async for page in obstore.list(store.store, folder, chunk_size=_PAGE):
                yield page

    async def link(self, path: str) -> str:
        """A URL with which anybody can read the object at ``path``, and nothing else, for ``LINK_SECONDS``. Raises
        RequestProblem."""
        store = self._client.store
        with self._translate(store, "sign a link to", path):
            seconds = timedelta(seconds=LINK_SECONDS)
            return await obstore.sign_async(store.store, "GET", path, expires_in=seconds)
