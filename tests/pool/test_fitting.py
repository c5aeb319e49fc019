"""Fitting a pool: a member that a table defeats is left out, and what is left still predicts."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
import polars as pl
import pytest

from stmaml.compiled import free_programs, run_in_one_thread
from stmaml.errors import SourceError
from stmaml.pool import crossfit, fitting, opening
from stmaml.pool.base import Column, Draw, Fitted, Forecast, GroupedRows, Tasks
from stmaml.pool.crossfit import FOLDS, MAX_GROUPS, VERY_MANY, folds_of
from stmaml.pool.mixed.at_once import root_of
from stmaml.pool.mixed.numbers import MIXED, Mixed
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


def test_of_very_many_groups_some_are_held_out_once():
    assert folds_of([str(i) for i in range(VERY_MANY)]).max() == FOLDS - 1
    fold = folds_of([str(i) for i in range(VERY_MANY + 1)])
    assert np.unique(fold, return_counts=True)[1].tolist() == [VERY_MANY + 1 - MAX_GROUPS, MAX_GROUPS]


def test_groups_that_no_fit_leaves_out_are_not_scored_and_others_have_weights_of_others(
    monkeypatch: pytest.MonkeyPatch,
):
    """Each scored group must be new to the fit that predicts it, and to the weights it is scored with."""
    monkeypatch.setattr(crossfit, "VERY_MANY", 20)
    monkeypatch.setattr(crossfit, "MAX_GROUPS", 10)
    group = np.repeat(np.arange(30), 4)
    random = np.random.default_rng(0)
    y = random.normal(size=30)[group] + random.normal(size=120)
    rows = GroupedRows(random.normal(size=(120, 1)), y, group, np.zeros((120, 0), int), (Column("x", "number"),))
    fold = folds_of([str(i) for i in range(30)])
    learnt: list[np.ndarray] = []

    class Spy(Mixed):
        def fit_each(self, rows: GroupedRows, parts: Sequence[np.ndarray], draw: Draw) -> list[Fitted]:
            learnt.extend(parts)
            return super().fit_each(rows, parts, draw)

    held, _ = crossfit.cross_fit([Spy("mixed", MIXED.kind)], rows, fold, Draw(2), (0, 2))
    left_out = np.flatnonzero(fold == 0)
    assert [len(part) for part in learnt] == [20, 30]
    assert not set(learnt[0]) & set(left_out)
    for one in held:
        assert set(one.tasks.group) == set(left_out)
        assert len(np.unique(one.fold)) == FOLDS
        assert all(len(np.unique(one.fold[one.tasks.group == g])) == 1 for g in left_out)


def test_an_accelerator_draws_tasks_from_all_rows_of_a_thinned_table(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(opening, "MOST_ROWS", 40)
    monkeypatch.setattr(opening, "FEWEST_KEPT", 3)
    frame = lines(groups=8, rows=12)
    assert opened(frame).wide is None
    monkeypatch.setattr(opening.jax, "default_backend", lambda: "gpu")
    table = opened(frame)
    assert len(table.rows.y) < frame.height
    wide = table.wide
    assert wide is not None
    x, y, drawn = wide.tasks([np.arange(4), np.arange(8)], Draw(3, max_query=5), range(30), 4)
    by_x = dict(zip(table.schema.encode(frame, "", [])[:, 0].astype(np.float32).tolist(), frame["g"], strict=True))
    mine = [{by_x[x[row, 0].item()] for row in np.unique(drawn.query[:, part])} for part in range(2)]
    assert mine == [set(table.names[:4]), set(table.names)]
    target = frame["y"].to_numpy()
    assert len(y) > len(table.rows.y)
    assert np.isin(np.round(y, 6), np.round((target - table.schema.target.mean) / table.schema.target.std, 6)).all()


def test_one_thread_unless_the_user_said_how_many(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NPROC", "4")
    run_in_one_thread()
    assert os.environ["NPROC"] == "4"
    monkeypatch.delenv("NPROC")
    run_in_one_thread()
    assert os.environ["NPROC"] == "1"


def test_memory_is_given_back_after_members_with_programs_alone(monkeypatch: pytest.MonkeyPatch):
    freed: list[int] = []
    fitting.fit_pool(opened(lines()), MEMBERS, free=lambda: freed.append(1))
    assert not freed
    monkeypatch.setattr(fitting, "Prior", Mixed)
    fitting.fit_pool(opened(lines()), MEMBERS, free=lambda: freed.append(1))
    assert len(freed) == 2


def test_freed_programs_run_again():
    double: Any = jax.jit(lambda x: 2 * x)
    assert double(3) == 6
    free_programs()
    assert double._cache_size() == 0
    assert double(4) == 8


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


def test_rows_that_are_known_twice_stay_and_those_that_come_again_count_once():
    frame = lines()
    frame = pl.concat([frame, frame.head(4)])  # four rows stand twice in the training table
    model = fitting.fit_pool(opened(frame), MEMBERS).model
    notes: list[str] = []
    new = pl.DataFrame({"g": ["stranger"] * 2, "x": [0.0, 0.0], "y": [2.0, 2.0]})
    longer = model.with_rows(pl.concat([new, frame.head(2)]), notes)
    assert longer.known.height == frame.height + 2
    assert "2 rows were known already" in notes[-1]
    asked = pl.DataFrame({"g": ["g3", "stranger"], "x": [0.5, 0.5]})
    told = pl.concat([frame.filter(pl.col("g") == "g3"), new])
    plain, again = longer.predict(asked), longer.predict(asked, told)
    assert again.frame["shots"].to_list() == plain.frame["shots"].to_list() == [6, 2]
    assert again.frame["q95"].to_list() == plain.frame["q95"].to_list()
    assert any("8 labelled rows were known already" in note for note in again.notes)


def test_copies_among_labelled_rows_are_pointed_out():
    model = fitting.fit_pool(opened(lines()), MEMBERS).model
    new = pl.DataFrame({"g": ["stranger"] * 3, "x": [0.0, 0.0, 1.0], "y": [2.0, 2.0, 3.0]})
    asked = pl.DataFrame({"g": ["stranger"], "x": [0.5]})
    said = [note for note in model.predict(asked, new).notes if "twice or more" in note]
    assert said[0].startswith("1 labelled row stands there twice or more")
    notes: list[str] = []
    longer = model.with_rows(new, notes)
    assert any("1 labelled row stands there twice or more" in note for note in notes)
    assert not any("twice or more" in note for note in model.predict(asked, new[1:]).notes)
    again = pl.concat([new, new]).with_columns(g=pl.lit("other"))
    assert not any("twice or more" in note for note in longer.predict(again, again).notes), "known rows are alike, too"


def test_labelled_rows_after_those_asked_for_are_pointed_out():
    frame = lines().with_columns(day=pl.Series([1.0, 2, 3, 4, 5, 6] * 10))
    table = opening.open_pool_table(frame, Config(TableConfig("g", "y", order="day")))
    model = fitting.fit_pool(table, MEMBERS).model
    days = pl.Series([1.0, 2, 3, 4, 5, 6] * 2)
    new = frame.head(12).with_columns(g=pl.Series(["a"] * 6 + ["b"] * 6))
    early, late = new.filter(days < 4), new.filter(days >= 4)
    assert not any("come after" in note for note in model.predict(late, early).notes)
    (said,) = (note for note in model.predict(early, late).notes if "come after" in note)
    assert said.startswith("2 groups have labelled rows that come after rows asked for, by 'day'")
    mixed = pl.concat([early.filter(pl.col("g") == "a"), late.filter(pl.col("g") == "b")])
    (said,) = (note for note in model.predict(new.drop("y"), mixed).notes if "come after" in note)
    assert said.startswith("2 groups have")
    (said,) = (note for note in model.predict(new[:9].drop("y"), mixed).notes if "come after" in note)
    assert said.startswith("2 groups have"), "of the second one only early rows are asked for"
    one = mixed.filter(pl.col("g") == "b")
    (said,) = (note for note in model.predict(new.drop("y"), one).notes if "come after" in note)
    assert said.startswith("1 group has")
    mostly_blank = early.with_columns(day=pl.Series([1.0] + [None] * 5))
    (said,) = (note for note in model.predict(mostly_blank, late).notes if "come after" in note)
    assert said.startswith("1 group has"), "rows without a place are asked about all the same"


def test_a_known_group_may_hold_all_the_odd_cells_of_its_table():
    frame = lines()
    hours = pl.datetime_range(pl.datetime(2024, 1, 1), pl.datetime(2024, 3, 1), "1h", eager=True)
    when = hours[: frame.height].dt.strftime("%Y-%m-%dT%H:%M:%SZ")
    place = pl.int_range(frame.height, eager=True)
    one = frame["g"][0]
    odd = pl.Series((frame["g"] == one) & (place < 1))
    others = (frame["g"] != one) | odd
    for bad in ("2024-02-30", "2024-01-01T05:00:00"):
        dated = frame.with_columns(when=when.set(odd, bad)).filter(others)
        model = fitting.fit_pool(opened(dated), MEMBERS).model
        asked = pl.DataFrame({"g": [one], "x": [0.5], "when": ["2024-01-01T05:00:00Z"]})
        assert model.predict(asked).frame["shots"].to_list() == [1]


def test_rows_without_a_target_are_not_added():
    model = fitting.fit_pool(opened(lines()), MEMBERS).model
    notes: list[str] = []
    new = pl.DataFrame({"g": ["stranger"] * 3, "x": [0.0, 1.0, 2.0], "y": [2.0, None, float("nan")]})
    longer = model.with_rows(new, notes)
    assert longer.known.height == model.known.height + 1
    assert not any("known already" in note for note in notes)
    assert longer.predict(pl.DataFrame({"g": ["stranger"], "x": [0.5]})).frame["shots"].to_list() == [1]


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
