"""Cells that are written as numbers."""

import polars as pl
import pytest

from stmaml.tables.cells import as_written_numbers


@pytest.mark.parametrize(
    ("cells", "dtype"),
    [
        (["7", "-8", None], pl.Int64),
        (["7", "0.25"], pl.Float64),
        (["007", "8"], pl.String),
        (["7.50"], pl.String),
        (["+7"], pl.String),
        (["12345678901234567890"], pl.String),
        (["inf", "nan"], pl.String),
        ([None, None], pl.String),
        (["7", "seven"], pl.String),
    ],
)
def test_text_becomes_numbers_only_where_it_would_be_written_again(cells, dtype):
    assert as_written_numbers(pl.Series("a", cells, dtype=pl.String)).dtype == dtype


def test_of_a_column_of_numbers_no_word_is_lost():
    assert as_written_numbers(pl.Series(["7.50", "NA", "1e3"]), known=True).to_list() == [7.5, None, 1000.0]
    assert as_written_numbers(pl.Series(["7.50", "seven"]), known=True).to_list() == ["7.50", "seven"]
