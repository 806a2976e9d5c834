"""The crate's files: short, each with a sentence about what it owns, and no unsafe code but where it may be.

What clippy holds (no panic, a reason beside each unsafe block) is in server/native/Cargo.toml.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from test_words import DIALECT, MAX_FUNCTION_LINES, MAX_MODULE_LINES

CRATE = Path(__file__).parents[1] / "native"
PATHS = [path for path in sorted(CRATE.rglob("*.rs")) if "target" not in path.relative_to(CRATE).parts]
SOURCES = {str(path.relative_to(CRATE)): path.read_text() for path in PATHS}

MAY_BE_UNSAFE = ("src/system.rs",)
ALLOWED = {"into", "of", "since", "until", "within"}
"""Words of the language's own library, or of a comparison: ``into`` an iterator, ``of`` an enum."""

_FUNCTION = re.compile(r"^( *)(?:pub(?:\([a-z]+\))? )?(?:const )?(?:unsafe )?(?:extern \"C\" )?fn (\w+)", re.MULTILINE)
_BODY = re.compile(r"(\{|\{\}|;)(?: *//.*)?$", re.MULTILINE)
_TYPE = re.compile(r"^ *(?:pub(?:\([a-z]+\))? )?(?:struct|enum|trait|type) (\w+)", re.MULTILINE)
_COMMENT = re.compile(r"//.*$", re.MULTILINE)


def functions(text: str) -> Iterator[tuple[str, int]]:
    """Name and number of lines of each function: rustfmt ends it with a brace in the column where it begins."""
    for match in _FUNCTION.finditer(text):
        end = _BODY.search(text, match.end())
        assert end, match[2]
        if end[1] == "{":
            end = re.compile(rf"^{match[1]}}}", re.MULTILINE).search(text, end.end())
            assert end, match[2]
        yield match[2], text.count("\n", match.start(), end.start()) + 1


def test_a_file_begins_with_what_it_owns() -> None:
    assert [path for path, text in SOURCES.items() if not text.startswith("//! ")] == []


def test_files_and_functions_are_short() -> None:
    assert [path for path, text in SOURCES.items() if len(text.splitlines()) > MAX_MODULE_LINES] == []
    found = [(path, *function) for path, text in SOURCES.items() for function in functions(text)]
    assert [(path, name, lines) for path, name, lines in found if lines > MAX_FUNCTION_LINES] == []


def test_names_are_words_of_the_field() -> None:
    names = [
        (path, name)
        for path, text in SOURCES.items()
        for name in (Path(path).stem, *(name for name, _ in functions(text)), *_TYPE.findall(text))
    ]
    assert [name for name in names if name[1].lower() in DIALECT - ALLOWED or name[1].endswith("_of")] == []


def test_code_is_unsafe_only_where_it_may_be() -> None:
    assert [path for path, text in SOURCES.items() if "unsafe" in _COMMENT.sub("", text)] == [*MAY_BE_UNSAFE]


def test_every_crate_has_its_reason_and_clippy_its_rules() -> None:
    text = (CRATE / "Cargo.toml").read_text()
    manifest = tomllib.loads(text)
    section = text.partition("[dependencies]\n")[2].partition("\n[")[0]
    lines = [line for line in section.splitlines() if line]
    assert len(lines) == len(manifest["dependencies"])
    assert [line for line in lines if " # " not in line] == []
    assert {"unwrap_used", "expect_used", "panic", "undocumented_unsafe_blocks"} <= set(manifest["lints"]["clippy"])
    assert set(manifest["lints"]["clippy"].values()) == {"deny"}


def test_what_is_long_or_unsafe_is_found() -> None:
    body = "    let x = 1;\n" * MAX_FUNCTION_LINES
    text = (
        f"impl A {{\n    pub(crate) unsafe fn told(\n        &self,\n    ) -> u8 {{\n{body}    }}\n}}\nfn one() {{}}\n"
    )
    (long, lines), short = functions(text)
    assert (long, lines) == ("told", MAX_FUNCTION_LINES + 4)
    assert short == ("one", 1)
    assert "unsafe" in _COMMENT.sub("", text)
    assert "unsafe" not in _COMMENT.sub("", "let x = 1; // unsafe\n")
