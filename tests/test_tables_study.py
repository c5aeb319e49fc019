"""The study of tables: what it keeps of a table, how it deals groups, what it scores and prints."""

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from stmaml.pool.base import Column, GroupedRows

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
