"""`lookupdb inspect` and `lookupdb diff` write values so that they can be read back."""

from __future__ import annotations

import ast

from lookupdb.cli.stores import render_line, render_member
from lookupdb.store.generations import MAX_VALUE_BYTES, MAX_VALUE_CHARACTERS


def test_text_is_shown_as_it_is_and_other_bytes_as_python_writes_them() -> None:
    for data, shown in (
        (b"P\xc3\xa4ge", "Päge"),
        ("Päge\n\x1b[2J\\".encode(), r"Päge\n\x1b[2J\\"),
        (b'{"path":"C:\\\\a"}', r'{"path":"C:\\a"}'),
        ("a\u3000b".encode(), "a\u3000b"),
        ("a\u202eb".encode(), r"a\u202eb"),
        (b"\x89PNG\r\n\x1a", r"'\x89PNG\r\n\x1a'"),
        (b"\\\xff\xc3\xa4", r"'\\\xff\xc3\xa4'"),
        (b"it's\xff", r'''"it's\xff"'''),
        (b"\xc3", r"'\xc3'"),
        (b"", ""),
    ):
        assert render_line(data) == shown


def test_every_byte_can_be_read_back() -> None:
    data = bytes(range(256))
    assert ast.literal_eval("b" + render_line(data)) == ast.literal_eval("b" + render_member(data)) == data


def test_a_json_document_escapes_text_by_itself() -> None:
    assert render_member("Päge\n\\".encode()) == "Päge\n\\"
    assert render_member(b"\x89P\\") == r"'\x89P\\'"


def test_a_long_value_is_cut_between_bytes_and_characters() -> None:
    for data in (b"\x89a\xfe" * 9, "ä\n\\".encode() * 9, b"x" * 40):
        for characters in range(2, 30):
            shown = render_line(data, characters)
            assert shown.endswith("…")
            assert characters - 4 < len(shown.removesuffix("…")) <= characters
            if shown.startswith("'"):
                assert data.startswith(ast.literal_eval("b" + shown.removesuffix("…")))


def test_a_sample_that_ends_within_a_character_is_text() -> None:
    for begin in ("", "a", "ab", "abc"):
        for character in ("é", "€", "😀"):
            sample = (begin + character * MAX_VALUE_BYTES).encode()[:MAX_VALUE_BYTES]
            assert render_member(sample) == (begin + character * MAX_VALUE_CHARACTERS)[:MAX_VALUE_CHARACTERS] + "…"
