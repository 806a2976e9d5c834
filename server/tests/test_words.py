"""Names are words of the field: nouns for classes and values, a verb and its object for functions. No module and no
function is long, and prose avoids the worst phrases. ``python server/tests/test_words.py`` prints what is wrong.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

REPOSITORY: Final = Path(__file__).resolve().parents[2]
ROOTS: Final = ("server/lookupdb", "operator/lookupdb_operator")

MAX_MODULE_LINES: Final = 800
MAX_FUNCTION_LINES: Final = 80

PHRASES: Final = re.compile(r"\banew\b|\b(?:is|are|was|were|be) told\b(?! apart)|\bstands? in\b", re.IGNORECASE)
"""Phrases of no colleague: write again, is reported, is."""

_PARTICIPLES: Final = """
    asked begun broken brought called chosen closed done drawn dropped felt fetched gathered given gone held heard
    kept known left lost made meant missed moved named needed outlived paid passed said seen shown spent stood taken
    thought told understood unseen used wanted written
"""
_PRONOUNS: Final = """
    another anybody each every everyone everything it its nobody one ones other others somebody someone something such
    that the_only_one them these they this those whatever which who whoever whom whose
"""
_PREPOSITIONS_AND_ADVERBS: Final = """
    about above after again against ahead along alone already among anew apart around aside at away back before behind
    below beneath beside between beyond but during else here into near of off onto over past since still than then there
    through till toward under until up upon via within without
"""
_ADJECTIVES: Final = "dead living silent whole"
DIALECT: Final = frozenset(
    word for words in (_PARTICIPLES, _PRONOUNS, _PREPOSITIONS_AND_ADVERBS, _ADJECTIVES) for word in words.split()
)
"""Words that no name is: a name says what a thing is, or what a function does."""

ALLOWED: Final[dict[str, str]] = {
    "before": "the first of the two states that a change lies between",
    "after": "the second of them",
    "since": "the begin of a period, as in kubectl logs --since",
    "until": "the end of one",
    "done": "asyncio's word for a future that has a result",
    "up": "the verb `lookupdb up`",
    "at": 'of a client, the generation that it asks: client.at("g13")',
    "other": "the operand of a comparison, as the language reference calls it",
}
"""Name → why it may be one, wherever it stands."""


class Name(NamedTuple):
    """A name that is defined, and where."""

    kind: str
    name: str
    path: str
    line: int
    lines: int = 1
    """The length of a module or function."""


@cache
def all_names() -> tuple[Name, ...]:
    """The names in all modules of the source roots."""
    paths = [path for root in ROOTS for path in sorted((REPOSITORY / root).rglob("*.py"))]
    return tuple(
        name
        for path in paths
        for source in (path.read_text(),)
        for name in defined_names(str(path.relative_to(REPOSITORY)), ast.parse(source), len(source.splitlines()))
    )


def defined_names(path: str, module: ast.Module, lines: int = 1) -> Iterator[Name]:
    """The names of the module, its classes, functions, parameters and loop variables."""
    stem = Path(path).stem
    yield Name("module", Path(path).parent.name if stem == "__init__" else stem, path, 1, lines)
    for node in ast.walk(module):
        match node:
            case ast.ClassDef():
                yield Name("class", node.name, path, node.lineno)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield Name("function", node.name, path, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1)
                arguments = node.args
                for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                    yield Name("parameter", argument.arg, path, argument.lineno)
            case ast.For() | ast.AsyncFor() | ast.comprehension():
                for target in ast.walk(node.target):
                    if isinstance(target, ast.Name):
                        yield Name("loop variable", target.id, path, target.lineno)


def is_dialect(name: Name) -> bool:
    """Return whether the name is a participle, a pronoun or a preposition, or leans on one: ``something_of``."""
    word = name.name.strip("_").lower()
    if word in ALLOWED:
        return False
    return word in DIALECT or (name.kind == "function" and word.endswith("_of"))


def find_dialect() -> list[Name]:
    """The names that are not words of the field."""
    return [name for name in all_names() if is_dialect(name)]


def find_shared_class_names() -> dict[str, list[str]]:
    """Public classes that share their name with another, and where these are."""
    paths = defaultdict(list)
    for name in all_names():
        if name.kind == "class" and not name.name.startswith("_"):
            paths[name.name].append(name.path)
    return {class_name: found for class_name, found in paths.items() if len(found) > 1}


def find_long_modules() -> list[str]:
    """Modules that have more lines than one may have."""
    modules = [name for name in all_names() if name.kind == "module"]
    return [f"{module.path} has {module.lines} lines" for module in modules if module.lines > MAX_MODULE_LINES]


def find_long_functions() -> list[str]:
    """Functions that have more lines than one may have."""
    return [
        f"{name.path}:{name.line} {name.name} has {name.lines} lines"
        for name in all_names()
        if name.kind == "function" and name.lines > MAX_FUNCTION_LINES
    ]


def find_phrases(path: str, source: str) -> list[str]:
    """Find the phrases of ``PHRASES`` in a module's comments and docstrings."""
    if not PHRASES.search(source):
        return []
    texts = [
        (node.value.lineno, node.value.value)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    texts += [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]
    return [f"{path}:{line} {phrase}" for line, text in texts for phrase in PHRASES.findall(text)]


def test_prose_has_no_translated_phrases() -> None:
    paths = [path for root in ROOTS for path in sorted((REPOSITORY / root).rglob("*.py"))]
    assert [place for path in paths for place in find_phrases(str(path), path.read_text())] == []


def test_a_translated_phrase_is_seen() -> None:
    source = '"""It is told anew."""\nX = "anew"\n# what stands in a file\n'
    assert find_phrases("m", source) == ["m:1 is told", "m:1 anew", "m:3 stands in"]


def test_no_two_public_classes_share_a_name() -> None:
    assert find_shared_class_names() == {}


def test_names_are_words_of_the_field() -> None:
    assert [f"{name.path}:{name.line} {name.kind} {name.name}" for name in find_dialect()] == []


def test_modules_are_short() -> None:
    assert find_long_modules() == []


def test_functions_are_short() -> None:
    assert find_long_functions() == []


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("def told(): ...", "told"),
        ("def garbage_of(dataset): ...", "garbage_of"),
        ("def plan(*, wanted): ...", "wanted"),
        ("class Held: ...", "Held"),
        ("for one in rollouts: ...", "one"),
        ("[each for rollout, each in rollouts]", "each"),
    ],
)
def test_dialect_is_seen(source: str, word: str) -> None:
    names = defined_names("server/lookupdb/module.py", ast.parse(source))
    assert [name.name for name in names if is_dialect(name)] == [word]


def test_the_allow_list_is_needed() -> None:
    words = {name.name.strip("_").lower() for name in all_names()}
    assert set(ALLOWED) - words == set()


def report() -> Iterator[str]:
    """Everything that is wrong."""
    yield "Public classes of one name:"
    for class_name, paths in sorted(find_shared_class_names().items()):
        yield f"  {class_name}: {', '.join(paths)}"
    yield from ("Long modules:", *(f"  {line}" for line in find_long_modules()))
    yield from ("Long functions:", *(f"  {line}" for line in find_long_functions()))
    names = sorted(find_dialect(), key=lambda name: name.path)
    yield f"Names that are no words of the field: {len(names)}"
    for name in names:
        yield f"  {name.path}:{name.line} {name.kind} {name.name}"


if __name__ == "__main__":
    print(*report(), sep="\n")
