"""Codes for missing values are told from ordinary numbers; what would spoil a target is refused."""

import re

import numpy as np
import polars as pl
import pytest
from scipy import stats

from stmaml.errors import SourceError
from stmaml.tables.cells import check_finite
from stmaml.tables.oddities import centre_and_spread, far_codes, fences, refuse_outliers
from stmaml.tables.schema import infer_schema
from stmaml.tables.target import check_target, infer_target
from tests.table_data import draw


def codes_in(values) -> list[float]:
    return [code.value for code in far_codes(pl.Series("c", values, strict=False))]


def normal(size: int, mean: float = 20.0, std: float = 5.0) -> np.ndarray:
    return draw(stats.norm, mean, std, size=size, random_state=0)


@pytest.mark.parametrize("share", [0.002, 0.01, 0.053, 0.3, 0.7, 0.95])
@pytest.mark.parametrize("code", [-9999.0, 9999.9, 999.0, -1.0])
def test_a_code_is_found_at_any_share(code, share):
    values = np.abs(normal(1000)) + 5
    values[: int(1000 * share)] = code
    assert codes_in(values) == [code]


@pytest.mark.parametrize(
    ("values", "codes"),
    [
        ([1, 2, 3, 4, 5, 99] * 10, [99]),
        ([1, 2, 3, 4, 5, 97, 98, 99] * 10, [97, 98, 99]),
        ([1, 2, 3, 4, 9] * 10, [9]),
        ([0, 1, 9] * 10, [9]),
        ([1, 2, 3, 4, 5, -1] * 10, [-1]),
        ([0, 1, 2, 3, 4, 5, -9] * 10, [-9]),
        ([*range(30), -9999, -9999, 9999, 9999], [-9999, 9999]),
        ([*range(18, 60), -99, -99, -9999, -9999, -9999], [-9999, -99]),
        ([*np.linspace(990, 1030, 60), 0, 0, 0], [0]),
        ([*range(50), 1_234_567, 1_234_567], [1_234_567]),
        ([2015, 2016, 2017, 2018, 9999] * 5, [9999]),
    ],
)
def test_codes_of_every_usual_kind_are_found(values, codes):
    assert sorted(codes_in(values)) == sorted(codes)


@pytest.mark.parametrize(
    "values",
    [
        [0] * 900 + [1, 2, 2, 3, 5, 9, 9, 14] * 10,
        np.round(draw(stats.lognorm, 1.5, scale=30_000, size=5000, random_state=1), -2),
        np.minimum(draw(stats.lognorm, 1.0, scale=30_000, size=5000, random_state=2), 150_000),
        [0, 1] * 50,
        [-1, 0, 1] * 30,
        [-1, 1] * 30,
        [1990 + i % 30 for i in range(300)],
        [1, 2, 3, 4, 5] * 20,
        [1, 2, 3, 4, 5, 6, 7, 8, 9] * 20,
        [-3, -2, -1, 1, 2, 3] * 20,
        [0, 0.1, 1, 10, 100, 1000] * 20,
        [2**i for i in range(25)] * 3,
        [5] * 40,
        [0, *[100] * 50],
        [],
        [99, 99],
        [None] * 10,
        [*range(98), 99, 99],
    ],
)
def test_ordinary_numbers_raise_no_alarm(values):
    assert codes_in(values) == []


def test_a_single_far_value_is_no_code_but_odd():
    assert codes_in([*range(50), -9999]) == []


def grouped(num_rows: int = 240, **columns) -> pl.DataFrame:
    return pl.DataFrame({"g": [str(i % 12) for i in range(num_rows)], "x": normal(num_rows), **columns})


def test_codes_of_inputs_are_noted_with_the_flag_that_helps():
    temp = np.linspace(4.1, 38.2, 240)
    temp[::5] = -9999
    notes: list[str] = []
    frame = grouped(temp=temp, y=normal(240))
    low = min(value for value in temp if value > 0)
    infer_schema(frame, "g", "y", train=np.ones(240, dtype=bool), notes=notes)
    assert notes == [
        f"column 'temp' holds -9999 in 48 of 240 rows, far from all others ({low:.6g} to 38.2); if it stands for a "
        "missing value, add --missing -9999"
    ]
    notes.clear()
    infer_schema(frame, "g", "y", train=np.ones(240, dtype=bool), missing=("-9999",), notes=notes)
    assert notes == []


def test_codes_of_a_target_are_refused_unless_kept():
    y = normal(100)
    y[:6] = -9999
    series = pl.Series("y", y)
    with pytest.raises(
        SourceError, match=r"the target 'y' holds -9999 in 6 of 100 rows.*--missing -9999 .*--keep-codes"
    ):
        check_target(series)
    assert check_target(series, ("-9999",)) == []
    assert ["it is kept as real" in note for note in check_target(series, keep_codes=True)] == [True]


@pytest.mark.parametrize("wild", [1e30, -1e30, 1e12])
def test_a_slip_of_the_pen_in_a_target_is_refused_with_its_row(wild):
    y = normal(1800)
    y[16] = wild
    with pytest.raises(SourceError, match=rf"holds {re.escape(f'{wild:.6g}')} in row 17, .* spreads from the others"):
        check_target(pl.Series("y", y), keep_codes=True)


def test_heavy_tails_are_no_slips_but_numbers_without_a_square_are_refused():
    refuse_outliers("y", pl.Series(draw(stats.cauchy, size=20_000, random_state=3)))
    refuse_outliers("y", pl.Series(draw(stats.lognorm, 4.0, size=20_000, random_state=3)))
    refuse_outliers("y", pl.Series([0.0] * 990 + [1.0, 5.0, 2000.0, None]))
    with pytest.raises(SourceError, match=r"square is beyond single precision. Give it in a larger unit"):
        refuse_outliers("y", pl.Series(1e24 * normal(100)))


def test_one_wild_target_does_not_set_the_scale_and_ordinary_ones_are_as_they_were():
    every, y = np.ones(1800, dtype=bool), normal(1800)
    plain = infer_target(pl.Series("y", y), every)
    assert (plain.mean, plain.std) == (float(y.mean()), float(y.std()))
    y[16] = 1e30
    wild = infer_target(pl.Series("y", y), every)
    assert wild.mean == pytest.approx(plain.mean, rel=0.01)
    assert wild.std == pytest.approx(plain.std, rel=0.1)


@pytest.mark.parametrize("unit", [1.0, 1e120, 1e295])
def test_numbers_whose_squares_are_beyond_all_have_a_finite_scale(unit):
    """With `filterwarnings = error`, an overflow that is told would end the test."""
    values = normal(500)
    mean, spread = centre_and_spread(values * unit)
    inside = np.clip(values, *fences(values))
    np.testing.assert_allclose([mean / unit, spread / unit], [inside.mean(), inside.std()], rtol=1e-12)


@pytest.mark.parametrize("value", [1.1e300, -1.7e308])
def test_numbers_next_to_infinity_are_refused_with_their_row(value):
    with pytest.raises(SourceError, match=re.escape(f"column 'c' holds {value:.3g} in row 2")):
        check_finite(pl.Series("c", [1.0, value]))
    check_finite(pl.Series("c", [1.0, 1e299, None]))
