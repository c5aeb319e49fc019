"""The study of tables: what it keeps of a table, how it deals groups, what it scores and prints."""

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from stmaml.pool.base import Column, Forecast, GroupedRows, Tasks
from stmaml.pool.crossfit import HeldOut

STUDIES = Path(__file__).parents[1] / "studies"


def study(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    if not STUDIES.exists():
        pytest.skip("studies/ is not part of this copy of the sources")
    monkeypatch.syspath_prepend(str(STUDIES))
    sys.modules.pop(name, None)
    return importlib.import_module(name)


def lines(groups: int = 12, rows: int = 8) -> GroupedRows:
    random = np.random.default_rng(0)
    group = np.repeat(np.arange(groups), rows)
    x = random.normal(size=(groups * rows, 1))
    y = random.normal(size=groups)[group] + x[:, 0] + 0.1 * random.normal(size=len(group))
    return GroupedRows(x, y, group, np.zeros((len(y), 0), dtype=int), (Column("x", "number"),))


def saved(folder: Path) -> Path:
    rows = lines()
    about = {"columns": [["x", "number"]], "classes": 0, "scale": 2.0, "order": True}
    text = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
    np.savez(folder / "lines.npz", about=text, x=rows.x, y=rows.y, group=rows.group, levels=rows.levels)
    return folder / "lines.npz"


def test_every_group_is_tested_once_and_never_fitted_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tables = study("tables", monkeypatch)
    table = tables.opened(saved(tmp_path))
    splits = [tables.Split.of(table, number, ordered=False) for number in range(tables.SPLITS)]
    assert sum(split.tests[0].rows.num_groups for split in splits) == table.rows.num_groups
    for split in splits:
        assert split.train.num_groups + split.tests[0].rows.num_groups == table.rows.num_groups
        assert not set(split.train.y) & set(split.tests[0].rows.y)
        assert 10 not in split.tests, "groups of eight rows have no tenth to label"


def test_first_rows_are_labelled_where_there_is_an_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tables = study("tables", monkeypatch)
    split = tables.Split.of(tables.opened(saved(tmp_path)), 0, ordered=True)
    for support, query in zip(split.tests[2].support, split.tests[2].query, strict=True):
        assert support.max() < query.min()


def test_scores_are_kept_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    tables = study("tables", monkeypatch)
    path = saved(tmp_path)
    records = [
        record
        for number in range(tables.SPLITS)
        for record in tables.fit_and_score(path, number, False, ("mean", "mixed"))
    ]
    pool = [record for record in records if record["row"] == "pool" and record["shots"] == 5]
    errors = np.concatenate([record["scores"]["mse"] for record in pool])
    assert len(errors) == 12
    assert errors.mean() < 4 * 0.05, "noise of 0.1, in units twice as small"
    figures = study("table_figures", monkeypatch)
    figures.show(records)
    figures.summarise(records)
    printed = capsys.readouterr().out
    assert "**5 labelled rows** (random rows; mse)" in printed
    assert "| lines | 12 |" in printed
    assert "mixed" in printed
    assert "- best averaged member: median ratio" in printed
    assert "clearly behind: nowhere" in printed


def test_a_row_picked_without_knowing_is_what_the_other_parts_would_pick(monkeypatch: pytest.MonkeyPatch):
    """`low` is best in part 0 alone, by so much that it is best on all; the other parts pick `high` there."""
    figures = study("table_figures", monkeypatch)
    each = {"pool": [3.0, 3.0, 3.0], "low": [0.0, 6.0, 6.0], "high": [8.0, 5.0, 5.0]}
    values = {row: {(part, group): v[part] for part in range(3) for group in range(4)} for row, v in each.items()}
    cell = figures.Cell("t", False, 2, {"mse": values})
    assert cell.best(["low", "high"]) == "low"
    ratio, half = cell.against_picked(["low", "high"], 0.05)
    picked = np.array([8.0, 6.0, 6.0])  # in parts 1 and 2 the others' mean is 3 of `low` and 6.5 of `high`
    assert ratio == pytest.approx(3.0 / picked.mean())
    assert half > 0


def test_limits_of_weights_equal_a_search(monkeypatch: pytest.MonkeyPatch):
    """Two members that err one way and the other: half of each is right, and nobody alone is."""
    limits = study("weight_limits", monkeypatch)
    rows = lines()
    query = tuple(rows.by_group())
    tasks = Tasks(rows, tuple(np.zeros(0, dtype=int) for _ in query), query)
    y, none = rows.y[tasks.asked], np.zeros(len(tasks.asked))
    said = {"above": Forecast(y + 1.0, none, none), "below": Forecast(y - 3.0, none, none)}
    one = HeldOut(0, tasks, said, np.zeros(len(tasks), dtype=int))
    weighed, single = limits.best_of_numbers([(one, one)], ["above", "below"])
    assert weighed == pytest.approx(0.0, abs=1e-6)
    assert single == pytest.approx(1.0)
    odds = {
        name: np.stack([1 - p, p], axis=1) for name, p in (("wise", 0.5 + 0.4 * (y > 0) - 0.2), ("even", none + 0.5))
    }
    truth = replace(tasks, rows=replace(rows, y=(rows.y > 0).astype(float), num_classes=2))
    two = HeldOut(0, truth, {name: Forecast(p, none, none) for name, p in odds.items()}, one.fold)
    weighed, single = limits.best_of_classes([(two, two)], ["wise", "even"])
    assert weighed == pytest.approx(single, abs=1e-3), "to mix wisdom with nothing helps nobody"
    assert single == pytest.approx(-np.log(0.7))
