"""Fitting a pool: a member that a table defeats is left out, and what is left still predicts."""

import os
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import pytest

from stmaml.compiled import run_in_one_thread
from stmaml.errors import SourceError
from stmaml.pool import fitting, opening
from stmaml.pool.base import Forecast, Tasks
from stmaml.pool.crossfit import FOLDS, VERY_MANY, folds_of
from stmaml.pool.mixed.at_once import root_of
from stmaml.pool.registry import members_named
from stmaml.pool.store import PoolSettings
from stmaml.progress import listening
from stmaml.tables.benchmark import Config, TableConfig

MEMBERS = PoolSettings(("mean", "mixed"))


def lines(groups: int = 10, rows: int = 6) -> pl.DataFrame:
    random = np.random.default_rng(0)
    group = np.repeat(np.arange(groups), rows)
    x = random.normal(size=len(group))
    y = random.normal(size=groups)[group] + x + 0.1 * random.normal(size=len(group))
    return pl.DataFrame({"g": [f"g{i}" for i in group], "x": x, "y": y})


def opened(frame: pl.DataFrame) -> opening.PoolTable:
    return opening.open_pool_table(frame, Config(TableConfig("g", "y")))


@dataclass(frozen=True)
class Broken:
    """A member that says the same of every row: no number, or a wild one."""

    said: float = np.nan
    name: str = "broken"

    def suits(self, rows):
        return True

    def fit_each(self, rows, parts, draw):
        return [self for _ in parts]

    def restore(self, state):
        return self

    def predict(self, tasks: Tasks) -> Forecast:
        wild = np.full(len(tasks.asked), self.said)
        return Forecast(wild, np.ones_like(wild), np.ones_like(wild))

    def state(self):
        return {}


@pytest.mark.parametrize("said", [np.nan, 1e9])
def test_a_member_whose_numbers_do_not_hold_is_left_out(monkeypatch: pytest.MonkeyPatch, said: float):
    def with_broken(*args, **kwargs):
        return [Broken(said), *members_named(*args, **kwargs)]

    monkeypatch.setattr(fitting, "members_named", with_broken)
    told = []
    with listening(told.append):
        fit = fitting.fit_pool(opened(lines()), MEMBERS)
    assert "broken is left out" in str(told)
    assert set(fit.result["weights"]["0"]) == {"mean", "mixed"}
    assert np.isfinite(fit.model.predict(lines().drop("y")).frame["prediction"].to_numpy()).all()


def test_a_pool_of_nothing_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fitting, "members_named", lambda *_, **__: [Broken()])
    with pytest.raises(SourceError, match="no model of the pool could learn"):
        fitting.fit_pool(opened(lines()), MEMBERS)


def test_large_tables_learn_from_whole_groups_and_know_the_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(opening, "MOST_ROWS", 40)
    table = opened(lines())
    assert set(np.bincount(table.rows.group)) == {6}
    assert len(table.rows.y) == 36
    assert table.frame.height == 60
    assert any("6 of its 10 groups train" in note for note in table.notes)
    assert opened(lines().reverse()).names[::-1] == table.names, "which groups train does not depend on their order"


def test_large_tables_learn_from_some_rows_of_every_group(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(opening, "MOST_ROWS", 40)
    monkeypatch.setattr(opening, "FEWEST_KEPT", 3)
    table = opened(lines())
    assert table.rows.counts.tolist() == [4] * 10
    assert table.frame.height == 60
    assert any("10 of its 10 groups train and are scored, with at most 4 rows of each" in note for note in table.notes)
    forecast = opening.open_pool_table(lines(), Config(TableConfig("g", "y", order="x")))
    assert set(forecast.rows.counts) == {6}, "the first rows of a thinned group would be other rows"


def test_rows_of_small_groups_are_all_kept_and_large_ones_share_the_rest(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(opening, "MOST_ROWS", 50)
    monkeypatch.setattr(opening, "FEWEST_KEPT", 3)
    counts = np.array([2, 5, 100, 40])
    each = opening._room(counts)
    assert np.minimum(counts, each).sum() <= 50 < np.minimum(counts, each + 1).sum()


def test_very_many_groups_are_dealt_into_fewer_folds():
    assert folds_of([str(i) for i in range(VERY_MANY)]).max() == FOLDS - 1
    assert np.bincount(folds_of([str(i) for i in range(VERY_MANY + 1)])).tolist() == [667] * 3


def test_one_thread_unless_the_user_said_how_many(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NPROC", "4")
    run_in_one_thread()
    assert os.environ["NPROC"] == "4"
    monkeypatch.delenv("NPROC")
    run_in_one_thread()
    assert os.environ["NPROC"] == "1"


def test_known_groups_answer_from_their_rows_and_new_ones_do_not():
    frame = lines()
    model = fitting.fit_pool(opened(frame), MEMBERS).model
    asked = pl.DataFrame({"g": ["g1", "stranger"], "x": [0.0, 0.0]})
    answer = model.predict(asked)
    assert answer.frame["shots"].to_list() == [6, 0]
    level = frame.filter(pl.col("g") == "g1").select(pl.col("y") - pl.col("x")).to_series().mean()
    assert answer.frame["prediction"][0] == pytest.approx(level, abs=0.15)
    assert answer.frame["std"][0] < answer.frame["std"][1]
    notes: list[str] = []
    longer = model.with_rows(pl.DataFrame({"g": ["stranger"], "x": [0.0], "y": [2.0]}), notes)
    again = longer.predict(asked)
    assert again.frame["shots"].to_list() == [6, 1]
    assert again.frame["prediction"][1] > answer.frame["prediction"][1]
    assert longer.with_rows(frame.head(3), notes).known.height == longer.known.height
    assert "3 rows were known already" in notes[-1]


def test_asked_labels_do_not_matter():
    frame = lines()
    model = fitting.fit_pool(opened(frame), MEMBERS).model
    support = frame.head(2).with_columns(g=pl.lit("new"))
    query = frame.tail(3).with_columns(g=pl.lit("new"))
    plain = model.predict(query, support).frame["prediction"].to_list()
    poisoned = model.predict(query.with_columns(y=pl.lit(1e9)), support).frame["prediction"].to_list()
    assert plain == poisoned


def test_nested_groups_of_one_name_are_two():
    frame = lines().with_columns(area=pl.Series(["north", "south"] * 30))
    config = TableConfig("g", "y", within=("area",))
    table = opening.open_pool_table(frame, Config(config))
    assert len(table.names) == 20
    assert table.rows.levels.shape == (60, 1)
    model = fitting.fit_pool(table, MEMBERS).model
    answer = model.predict(pl.DataFrame({"g": ["g1", "g1"], "area": ["north", "west"], "x": [0.0, 0.0]}))
    assert answer.frame["shots"].to_list() == [3, 0]


def test_a_gram_matrix_that_rounding_spoils_has_a_root():
    row = np.array([[1e9, 1.0], [1e9, 1.0], [1e9, 1.0 + 1e-7]])
    root = root_of(row @ row.T + np.eye(3) * 1e-9)
    assert np.isfinite(root).all()


def test_settings_do_not_change_what_is_learnt_from_the_same_rows():
    table = opened(lines())
    first, second = (fitting.fit_pool(replace(table), MEMBERS).result["scores"] for _ in range(2))
    assert first == second
