"""Messages for DuckDB's errors, which quote values."""

from __future__ import annotations

import duckdb
import pytest

from lookupdb.builder.parquet_rows import describe_value_error

UNKNOWN = "DuckDB cannot read it"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (duckdb.InvalidInputException('Invalid Input Error: Invalid JSON found in Parquet file: "4111"'), "not JSON"),
        (
            duckdb.InvalidInputException("Invalid Input Error: Invalid string encoding found in Parquet file 4111"),
            "UTF-8",
        ),
        (duckdb.ConversionException('Conversion Error: Malformed JSON at byte 4 of input. Input: "4111"'), "converted"),
        (duckdb.ConversionException("Conversion Error: Type INT64 with value 4111 can't be cast"), "converted"),
        (
            duckdb.ConversionException("Conversion Error: Could not convert Timestamp(US) 4111 to Timestamp(NS)"),
            "converted",
        ),
        (duckdb.ConversionException('Conversion Error: timestamp field value out of range: "4111"'), "converted"),
        (
            duckdb.OutOfRangeException("Out of Range Error: Overflow in date/timestamp -> nanoseconds: 4111"),
            "out of range",
        ),
        (duckdb.InvalidInputException("Invalid Input Error: what a later version says of 4111"), UNKNOWN),
        (duckdb.InternalException("INTERNAL Error: __cast: Date out of range in timestamp conversion"), "out of range"),
        (duckdb.InternalException("INTERNAL Error: cast: value -4111 outside of target range"), UNKNOWN),
        (duckdb.Error("don't know what type: 4111"), UNKNOWN),
        (duckdb.Error("TProtocolException: Invalid data"), "metadata are damaged"),
        (
            duckdb.InvalidInputException(
                'Invalid Input Error: Failed to read file "4111": Snappy decompression failure'
            ),
            "page",
        ),
        (UnicodeDecodeError("utf-8", b"4111\xff", 4, 5, "invalid start byte"), "UTF-8"),
    ],
)
def test_no_message_is_passed_on(error: Exception, told: str) -> None:
    found = describe_value_error(error)
    assert told in found
    assert "4111" not in found


def test_the_kind_of_an_error_of_which_nothing_is_known_is_reported() -> None:
    assert describe_value_error(duckdb.InternalException("4111")) == "DuckDB cannot read it (InternalException)"
