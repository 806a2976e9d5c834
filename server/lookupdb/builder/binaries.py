"""The forms of binaries in the columns of files with types. They are never guessed from their content."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence, Set
from typing import Final, Literal

from lookupdb.builder.rows import Convert, RowRejected, unknown_column_error
from lookupdb.dataset.spec import DatasetSpec
from lookupdb.errors import BadSource

Form = Literal["base64", "text", "key", "raw"]
"""The form of a binary: base64 text; its UTF-8 text; the same, but bytes if it is not UTF-8; its bytes."""


def make_forms(spec: DatasetSpec) -> dict[str, Form]:
    """Return the forms of binaries that ``spec`` gives, by column. They apply to nested ones, too."""
    forms: dict[str, Form] = {column.name: column.type for column in spec.source.parquet.columns}
    if spec.value.column is not None:
        forms[spec.value.column] = "raw"
    return {**forms, **dict.fromkeys(spec.key.columns, "key")}


def find_form(path: str, forms: Mapping[str, Form]) -> Form:
    """Return the form of the binary at ``path``, by its own name or that of the nearest column around it."""
    while path not in forms and "." in path:
        path = path.rpartition(".")[0]
    return forms.get(path, "base64")


def check_binaries(
    spec: DatasetSpec, where: str, binaries: Set[str], names: Sequence[str], nested: Sequence[str]
) -> None:
    """Raise BadSource if ``source.parquet.columns`` names a column of ``where`` that is missing or not binary."""
    role = "source.parquet.columns"
    for name in (column.name for column in spec.source.parquet.columns):
        if any(path == name or path.startswith(f"{name}.") for path in binaries):
            continue
        if name not in names and name not in nested:
            raise unknown_column_error(where, role, name, names, nested=nested)
        raise BadSource(
            f"{where}: {role} names the column {name!r}, which is not binary",
            hint="leave it out there: columns of other types keep their types",
        )


def decode_text(content: bytes) -> str:
    """Return the text of a binary that the spec calls text. Raises RowRejected."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise RowRejected("holds binary that is not UTF-8, and source.parquet.columns says that it is text") from None


def _decode_key(content: bytes) -> str | bytes:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content  # ``key_column_text`` rejects the row for it


BINARY_CONVERTS: Final[dict[Form, Convert | None]] = {
    "base64": lambda content: b64encode(content).decode(),
    "text": decode_text,
    "key": _decode_key,
    "raw": None,
}
