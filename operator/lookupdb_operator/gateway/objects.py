"""What the gateway asks of the store: one object or one listing a call, with the store's errors as problems."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Final

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from lookupdb.store.gateway_wire import ErrorKind
from lookupdb.store.object_store import PART_BYTES, Version, object_version
from lookupdb.store.obstore_objects import ObstoreObjects
from lookupdb_operator.gateway.problems import RequestProblem, from_store, missing

__all__ = ["LINK_SECONDS", "PART_BYTES", "UPLOADS_AT_ONCE", "Objects", "object_version"]

LINK_SECONDS: Final = 300
"""For how long a presigned URL is valid."""
UPLOADS_AT_ONCE: Final = 2
"""Parts of one object that are on their way to the store."""
_PAGE: Final = 1000
"""Entries of a listing that are in memory at once."""


class Objects:
    """The store, through whichever client is the current one when a call begins."""

    def __init__(self, bucket: Callable[[], ObstoreObjects]) -> None:
        self._bucket = bucket

    @contextmanager
    def _translate(self, bucket: ObstoreObjects, action: str, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise missing(path) from error
        except (AlreadyExistsError, PreconditionError) as error:
            raise RequestProblem(ErrorKind.PRECONDITION, f"{path} is there, or of another version") from error
        except (BaseError, OSError, ValueError) as error:
            raise from_store(bucket.error(action, error)) from error

    async def head(self, path: str) -> Mapping[str, Any]:
        """The entry of the object at ``path``. Raises RequestProblem."""
        bucket = self._bucket()
        with self._translate(bucket, "read", path):
            return await obstore.head_async(bucket.store, path)

    async def open(self, path: str, offset: int) -> Any:
        """The object at ``path`` from byte ``offset`` on, which is smaller than its size: what obstore gives. Raises
        RequestProblem."""
        bucket = self._bucket()
        with self._translate(bucket, "read", path):
            return await obstore.get_async(bucket.store, path, options={"range": {"offset": offset}} if offset else {})

    def describe_failure(self, error: Exception) -> str:
        """A sentence for the log about a read that broke off."""
        return self._bucket().error("read", error).message

    async def put(self, path: str, body: bytes, mode: Any) -> Version:
        """Put ``body`` at ``path``, on the condition ``mode`` if there is one. Raises RequestProblem."""
        bucket = self._bucket()
        with self._translate(bucket, "write to", path):
            result = await obstore.put_async(bucket.store, path, body, mode=mode, use_multipart=False)
            return object_version(result)

    async def put_parts(self, path: str, chunks: AsyncIterator[bytes], part_bytes: int) -> Version:
        """Put what ``chunks`` gives at ``path``, in parts. If ``chunks`` raises, nothing is put, and it raises that;
        else it raises RequestProblem. It must not be cancelled: the parts would stay in the store."""
        bucket = self._bucket()
        with self._translate(bucket, "write to", path):
            result = await obstore.put_async(
                bucket.store,
                path,
                chunks,
                use_multipart=True,
                chunk_size=part_bytes,
                max_concurrency=UPLOADS_AT_ONCE,
            )
            return object_version(result)

    async def delete(self, paths: Sequence[str]) -> None:
        """Delete those of ``paths`` that exist. Raises RequestProblem."""
        bucket = self._bucket()
        with self._translate(bucket, "remove objects from", ""):
            try:
                await obstore.delete_async(bucket.store, paths)
            except FileNotFoundError:  # some stores refuse to delete what is not there
                for path in paths:
                    with suppress(FileNotFoundError):
                        await obstore.delete_async(bucket.store, path)

    async def pages(self, folder: str) -> AsyncIterator[Sequence[Mapping[str, Any]]]:
        """The entries under ``folder``, a page at a time. Raises RequestProblem."""
        bucket = self._bucket()
        with self._translate(bucket, "list", folder):
            async for page in obstore.list(bucket.store, folder, chunk_size=_PAGE):
                yield page

    async def folders(self, folder: str) -> list[str]:
        """The folders directly below ``folder``. Raises RequestProblem."""
        bucket = self._bucket()
        with self._translate(bucket, "list", folder):
            found = await obstore.list_with_delimiter_async(bucket.store, folder)
        return [prefix.rstrip("/") for prefix in found["common_prefixes"]]

    async def link(self, path: str) -> str:
        """A URL with which anybody can read the object at ``path``, and nothing else, for ``LINK_SECONDS``. Raises
        RequestProblem."""
        bucket = self._bucket()
        with self._translate(bucket, "sign a link to", path):
            seconds = timedelta(seconds=LINK_SECONDS)
            return await obstore.sign_async(bucket.store, "GET", path, expires_in=seconds)
