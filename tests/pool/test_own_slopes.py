"""Columns that are named for slopes of their own: what they stand for, and sentences for those that cannot have any."""

from datetime import date, timedelta

import numpy as np
import polars as pl
import pytest

from stmaml.errors import SettingError, SourceError
from stmaml.pool.group_effects import effects_of_table
from stmaml.pool.opening import PoolTable, open_pool_table
from stmaml.tables.benchmark import Config, TableConfig


@pytest.fixture(scope="module")
def table() -> PoolTable:
    random = np.random.default_rng(0)
    shop, x = np.repeat(np.arange(20), 15), random.normal(size=300)
    effect = random.normal(0.0, 2.0, (20, 3))
    kind = random.integers(0, 3, 300)
    sold = effect[shop, kind] + x + random.normal(0.0, 0.3, 300)
    columns = {
        "shop": shop,
        "town": shop // 5,
        "x": x,
        "twice": 2.0 * x,
        "kind": np.array(["milk", "bread", "salt"])[kind],
        "size": random.normal(size=20)[shop],
        "same": "a",
        "day": [date(2024, 1, 1) + timedelta(days=int(one)) for one in random.integers(0, 700, 300)],
        "sold": sold,
    }
    return open_pool_table(pl.DataFrame(columns), Config(TableConfig("shop", "sold", within=("town",))))


def test_a_column_of_names_stands_for_its_levels(table):
    """Variances of differences from the first level: twice that of a level."""
    own = effects_of_table(table, ("kind",)).effects
    assert own.own_names == ("level", "kind is milk", "kind is salt")
    np.testing.assert_allclose(own.spread[1:], np.full(2, np.sqrt(8.0)), rtol=0.35)
    np.testing.assert_allclose(own.noise, 0.3, rtol=0.15)
    assert effects_of_table(table, ("kind is salt", "x", "x")).effects.own_names == ("level", "kind is salt", "x")


def test_a_date_stands_for_its_days(table):
    assert effects_of_table(table, ("day",)).effects.own_names == ("level", "day")


def test_the_columns_that_differ_are_found_in_a_table(table):
    assert set(effects_of_table(table).effects.own_names) == {"level", "kind is milk", "kind is salt"}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("shop", "which says what group a row is of and has no slope"),
        ("town", "which says what group a row is of and has no slope"),
        ("sold", "which is the target and has no slope"),
        ("twice", "which other columns tell, so that it is left out"),
        ("same", "which is not used (constant)"),
        ("size", "which is the same in all rows of most groups: its slopes there cannot be told"),
    ],
)
def test_columns_that_can_have_none_are_refused(table, name, why):
    with pytest.raises(SettingError) as caught:
        effects_of_table(table, (name,))
    assert str(caught.value) == f"--slopes names '{name}', {why}."


def test_a_column_that_is_not_there_is_refused(table):
    with pytest.raises(
        SourceError, match=r"^the table has no column 'knid'; did you mean 'kind'\? It has: shop, sold,"
    ):
        effects_of_table(table, ("x", "knid"))


def test_more_effects_than_rows_are_refused():
    random = np.random.default_rng(1)
    columns = {"shop": np.repeat(np.arange(30), 2), "x": random.normal(size=60), "sold": random.normal(size=60)}
    table = open_pool_table(pl.DataFrame(columns), Config(TableConfig("shop", "sold")))
    with pytest.raises(SettingError) as caught:
        effects_of_table(table, ("x",))
    assert str(caught.value) == (
        "--slopes asks for 60 levels and slopes of 30 groups, and 60 rows cannot tell so many. Name fewer columns."
    )
