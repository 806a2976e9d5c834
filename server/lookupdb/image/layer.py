"""A layer of an image: a tar archive of one file, made as the file is read. Nothing in it depends on who writes it, or
when."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

_BLOCK: Final = tarfile.BLOCKSIZE
_END: Final = bytes(2 * _BLOCK)


@dataclass(frozen=True, slots=True)
class TarFile:
    """A file at the root of a layer, which anybody may read and nobody write."""

    name: str
    size: int

    @property
    def layer_bytes(self) -> int:
        """The size of the layer that holds it alone."""
        return _BLOCK + self.size + _padding(self.size) + len(_END)


def render_layer(file: TarFile, content: Iterable[bytes]) -> Iterator[bytes]:
    """The layer that holds ``file`` alone. Raises ValueError at its end if ``content`` has another size."""
    header = tarfile.TarInfo(file.name)
    header.size, header.mode = file.size, 0o444
    # GNU's form has room for 8 GiB and more in one header, where PAX would need another one.
    yield header.tobuf(tarfile.GNU_FORMAT)
    size = 0
    for chunk in content:
        size += len(chunk)
        yield chunk
    if size != file.size:
        raise ValueError(f"{file.name} has {size} bytes, its header says {file.size}")
    yield bytes(_padding(file.size)) + _END


def _padding(size: int) -> int:
    return -size % _BLOCK
