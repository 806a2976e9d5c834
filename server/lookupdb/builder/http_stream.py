"""A file behind an http(s) URL whose server sends no length: it comes in chunks, up to a marked end.

The object store's client, which reads all other URLs, rejects such responses.
"""

from __future__ import annotations

import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage
from typing import IO, Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from lookupdb.errors import BadSource
from lookupdb.manifest import SourceFile
from lookupdb.network import proxy_handlers

_CHUNK: Final = 1 << 20
_STALL_SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class HttpStream:
    """The URL of such a file."""

    url: str

    def open(self, description: SourceFile) -> Iterator[bytes]:
        """Yield its bytes, to the end. Raises BadSource if no end is marked, OSError if the server cannot be read."""
        with _open(self.url) as response:
            if response.headers.get("Transfer-Encoding", "").lower() != "chunked" and response.length is None:
                raise BadSource(
                    f"{description.url}: its server sends neither its length nor a marked end",
                    hint="a truncated file would go unnoticed: send Content-Length, or chunks",
                )
            yield from _chunks(response)

    def content_encoding(self) -> str:
        """Return the Content-Encoding header, empty if there is none. Raises OSError if the server cannot be read."""
        with _open(self.url) as response:
            return str(response.headers.get("Content-Encoding", ""))


def _chunks(response: Any) -> Iterator[bytes]:
    try:
        while chunk := response.read(_CHUNK):
            yield chunk
    except HTTPException as error:
        raise OSError(f"it is cut short ({type(error).__name__})") from error


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follow no redirect to plain http."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        if not newurl.startswith("https://") and req.full_url.startswith("https://"):
            raise OSError("it is redirected to plain http")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _open(url: str) -> Any:
    parts = urlsplit(url)
    user, at_sign, host = parts.netloc.rpartition("@")
    request = urllib.request.Request(urlunsplit(parts._replace(netloc=host, fragment="")))  # noqa: S310 - http(s) only
    request.add_header("Accept-Encoding", "identity")
    if at_sign:
        credentials = b64encode(unquote(user).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {credentials}")
    return urllib.request.build_opener(_SafeRedirects, *proxy_handlers(url)).open(request, timeout=_STALL_SECONDS)
