"""Every page of docs/decisions is in the index under its date and its title, and answers the same questions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "decisions"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")
INDEX = re.findall(r"^\| (.+?) \| \[(.+?)\]\((.+?)\) \|", (FOLDER / "README.md").read_text(), re.M)
NOT_TAKEN = "not yet taken"
DATE = r"2\d{3}-\d{2}-\d{2}"


def test_the_index_lists_every_page_once_and_by_date() -> None:
    assert sorted(file for *_, file in INDEX) == [page.name for page in PAGES]
    dates = [date for date, *_ in INDEX]
    assert dates == sorted(dates), "what is not yet taken comes last"


def test_the_index_says_which_decisions_another_one_has_superseded() -> None:
    index = (FOLDER / "README.md").read_text()
    told = dict(re.findall(r"^\| .+? \| \[.+?\]\((.+?)\) \| .+; \*superseded\* by \[.+?\]\((.+?)\) \|$", index, re.M))
    pages = {page.name: re.search(r"^Superseded on .+\]\((.+?)\)", page.read_text(), re.M) for page in PAGES}
    assert told == {name: found[1] for name, found in pages.items() if found}
    assert "jemalloc.md" in told


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_its_date_its_title_and_the_four_answers(page: Path) -> None:
    title, _, first, *rest = page.read_text().splitlines()
    date, named = next((date, title) for date, title, file in INDEX if file == page.name)
    assert title == f"# {named}"
    assert first.rstrip(".").lower() == date
    assert re.fullmatch(rf"{DATE}|{NOT_TAKEN}", date)
    text = "\n".join(rest)
    taken = ["Decision", "What would change our mind"]
    if date == NOT_TAKEN:
        taken = ["What was measured", "What would make us take it"]
    for answer in ("Context", *taken, "Price"):
        assert f"**{answer}.**" in text, f"{page.name} does not tell {answer}"
    assert len(rest) < 40, "half a page"
