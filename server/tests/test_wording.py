"""Small pieces of sentences."""

import pytest

from lookupdb.wording import format_count


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 records"), (1, "1 record"), (2, "2 records"), (1234, "1,234 records")]
)
def test_one_is_singular_and_thousands_are_parted(number: int, text: str) -> None:
    assert format_count(number, "record") == text
