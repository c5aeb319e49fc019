"""The search on equal terms: what it tries, that its traced numbers are settings, and how it halves and goes on."""

import dataclasses
import json
from collections import Counter

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stmaml import reproduction, search
from stmaml.benchmarks import regression2d
from stmaml.benchmarks.base import Budget
from stmaml.errors import RunError
from stmaml.inner import InnerLoop
from stmaml.methods import METHODS, st_maml
from stmaml.methods.maml import MAML
from stmaml.nets.learner import Learner
from stmaml.recipes import RECIPES, recipe, rows
from stmaml.recipes.base import setting, with_changes
from stmaml.search import Search, Trial, collect, draw_trials, grid, halving
from stmaml.search.side_by_side import Varied, train_group, varied
from stmaml.tasks import TaskSpec
from stmaml.training import TrainConfig
from tests.changed import changed
from tests.methods.small import small_task

BUDGET = Budget(steps=None, seeds=1, tasks=1)
SPEC = TaskSpec((2,), 1)
SMALL = changed(
    st_maml.Config(), hidden=(4,), encoder=(4,), z_hidden=(), z_size=2, h_size=2, inner=InnerLoop(inner_steps=1)
)


def test_a_traced_step_size_is_that_of_the_settings(key):
    """One program for all trials gives each the loss it has on its own."""
    task = small_task(SPEC, key=key)
    learner = eqx.filter_jit(SMALL.build)(SPEC, key=key)
    rates = (0.05, 0.3)
    varied = jax.vmap(lambda rate: Varied(learner, rate, None).loss(task, key=key)[0])
    together = eqx.filter_jit(varied)(jnp.array(rates))
    loss = eqx.filter_jit(lambda learner: learner.loss(task, key=key)[0])
    alone = [
        loss(dataclasses.replace(learner, settings=dataclasses.replace(SMALL, inner=InnerLoop(rate, inner_steps=1))))
        for rate in rates
    ]
    np.testing.assert_allclose(together, np.array(alone), rtol=1e-5)
    assert abs(alone[0] - alone[1]) > 0.01


def test_a_range_in_an_array_is_that_of_the_settings(key):
    wide = regression2d.Config(input_range=(-5.0, 5.0), shots=3, query_size=2).open()
    assert wide.movable is not None
    got, want = (eqx.filter_jit(lambda s: s.sample(4, key=key))(source) for source in (wide.movable, wide.train))
    np.testing.assert_allclose(got.tasks.support.x, want.tasks.support.x, rtol=1e-6)
    np.testing.assert_allclose(got.tasks.query.y, want.tasks.query.y, rtol=1e-5)
    assert (got.tasks.support.x < 0).any()


def test_trials_that_train_side_by_side_keep_their_own_rates(key):
    """A trial with next to no outer rate stays where it began; another, of the same program, does not."""
    base = dataclasses.replace(
        recipe("regression2d", "maml"),
        benchmark_settings=regression2d.Config(shots=3, query_size=2),
        training=TrainConfig(tasks_per_batch=2),
    )
    base = with_changes(base, {"method_settings.hidden": (4,), "method_settings.inner.inner_steps": 1})
    trials = [Trial({grid.OPTIMIZER: "adam", grid.OUTER_LR: rate, grid.INNER_LR: 0.01}) for rate in (1e-12, 0.01)]
    (still,), (moved,) = train_group(base, trials, benchmarks=[base.benchmark_settings.open()], tasks=100, width=2)
    begun, _ = varied(base, trials[0], base.benchmark_settings.open())
    first, last, other = ([np.asarray(leaf) for leaf in jax.tree.leaves(_theta(one))] for one in (begun, still, moved))
    assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(first, last, strict=True))
    assert any(not np.allclose(a, b, atol=1e-3) for a, b in zip(first, other, strict=True))


def _theta(trial: Varied) -> Learner:
    assert isinstance(trial.learner, MAML)
    assert isinstance(trial.learner.theta, Learner)
    return trial.learner.theta


@pytest.mark.parametrize("row", [*(m for m in METHODS if m != "protonet"), *rows.ABLATIONS])
def test_every_row_has_the_same_number_of_trials_evenly_over_its_programs(row):
    trials = draw_trials(rows.row_recipe(RECIPES, "regression2d", row), 24)
    assert len(trials) == 24
    counts = Counter(trial.group for trial in trials)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert len({(json.dumps(trial.settings), trial.seed) for trial in trials}) == 24  # none twice
    assert {trial.settings[grid.OPTIMIZER] for trial in trials} == {"adam", "muon"}
    assert all(trial.of(rows.row_recipe(RECIPES, "regression2d", row)) for trial in trials)  # each can be set


def test_the_grid_has_what_long_trainings_found_best_for_st_maml():
    found = {grid.OPTIMIZER: "muon", grid.OUTER_LR: 3e-3, grid.KL_WEIGHT: 0.1, grid.INNER_STEPS: 10}
    base = rows.row_recipe(RECIPES, "regression2d", "st-maml")
    assert any(found.items() <= trial.settings.items() for trial in draw_trials(base, 12))
    assert setting(base, "benchmark_settings.query_size") == 40
    assert 2 in grid.TEST_FACTORS


def test_a_grid_says_nothing_about_what_a_method_does_not_have():
    spaces = {row: search.space_of(rows.row_recipe(RECIPES, "regression2d", row)) for row in ("cnp", "bmaml", "np")}
    assert set(spaces["cnp"]) == {grid.OPTIMIZER, grid.OUTER_LR}
    assert spaces["bmaml"][grid.META_LOSS] == ("chaser", "query")
    assert grid.KL_WEIGHT in spaces["np"]
    assert grid.INNER_LR not in spaces["np"]
    assert grid.KL_WEIGHT not in search.space_of(rows.row_recipe(RECIPES, "regression2d", "st-maml-deterministic"))


@pytest.fixture
def trained(monkeypatch) -> list[tuple[int, int]]:
    """Replaces training and scoring by a bowl with its bottom at Muon and an outer rate of 0.01; what was trained."""
    calls: list[tuple[int, int]] = []

    def train(base, trials, *, benchmarks, tasks, width):
        calls.extend((tasks, width) for _ in trials)
        return [[trial] * len(benchmarks) for trial in trials]

    def judge(self, trial, learners):
        bowl = abs(np.log(trial.settings[grid.OUTER_LR] / 0.01)) + (trial.settings[grid.OPTIMIZER] == "adam")
        return best_of(trial, lambda steps: {"test_steps": steps, "score": 1 + bowl + 0.1 / (steps or 1), "scores": []})

    best_of = halving.best_of
    monkeypatch.setattr(halving, "train_group", train)
    monkeypatch.setattr(halving._Judge, "__call__", judge)
    return calls


def test_the_best_third_goes_on_and_the_best_is_chosen(trained, tmp_path):
    record = Search(trials=12, tasks=100, rounds=2, val_tasks=2).run("regression2d", "maml", tmp_path)
    assert Counter(tasks for tasks, _ in trained) == {100: 12, 300: 4}
    assert {width for _, width in trained} == {3}  # the second round needs no other program
    scores = sorted(one["score"] for one in record["trials"] if one["round"] == 0)
    assert max(one["score"] for one in record["trials"] if one["round"] == 1) <= scores[3] + 1e-9
    chosen = record["chosen"]["settings"]
    assert (chosen[grid.OPTIMIZER], chosen[grid.OUTER_LR]) == ("muon", 0.01)
    assert chosen[grid.TEST_STEPS] == max(grid.TEST_FACTORS) * chosen[grid.INNER_STEPS]


def test_a_search_goes_on_where_it_stopped_and_refuses_another(trained, tmp_path):
    some = Search(trials=4, tasks=100, rounds=2, val_tasks=2)
    whole = some.run("regression2d", "maml", tmp_path)
    path = tmp_path / halving.FILE
    cut = {**whole, "trials": whole["trials"][:2]}
    del cut["chosen"]
    path.write_text(json.dumps(cut))
    before = len(trained)
    assert some.run("regression2d", "maml", tmp_path)["chosen"] == whole["chosen"]
    assert len(trained) == 2 * before - 2
    with pytest.raises(RunError, match="is of another search"):
        Search(trials=5, tasks=100, val_tasks=2).run("regression2d", "maml", tmp_path)


def test_what_was_chosen_becomes_the_preset_of_a_row(trained, tmp_path, monkeypatch):
    Search(trials=4, tasks=100, rounds=1, val_tasks=2).run("regression2d", "maml", tmp_path / "maml")
    found = collect(tmp_path)["rows"]
    assert found["maml"]["trials"] == 4
    assert found["maml"]["search"]["budget"]["tasks"] == 100
    monkeypatch.setattr(rows, "chosen", lambda benchmark: found)
    experiment = rows.searched(RECIPES, "regression2d", "maml")
    assert experiment is not None
    assert experiment.preset == "searched"
    assert experiment.training.optimizer == found["maml"]["settings"][grid.OPTIMIZER]
    assert rows.searched(RECIPES, "regression2d", "cnp") is None
    assert list(rows.searched_presets(RECIPES, ["regression2d"])) == [("regression2d", "maml", "searched")]


def test_trials_near_the_best_take_one_step_and_are_new_first():
    space = {grid.OPTIMIZER: ("adam", "muon"), grid.OUTER_LR: (1e-3, 3e-3, 1e-2), grid.INNER_LR: (1e-3, 1e-2)}
    best = {grid.OPTIMIZER: "adam", grid.OUTER_LR: 1e-2, grid.INNER_LR: 1e-3}
    muon = {**best, grid.OPTIMIZER: "muon"}
    near = grid.near_trials(space, [Trial(best), Trial({**muon, grid.OUTER_LR: 3e-3})], best, 4)
    assert [trial.seed for trial in near] == [0, 0, 1, 1]
    assert [trial.settings for trial in near[:2]] == [muon, {**muon, grid.INNER_LR: 1e-2}]
    assert {**muon, grid.OUTER_LR: 3e-3} in [trial.settings for trial in near[2:]]
    assert len({(json.dumps(trial.settings), trial.seed) for trial in near}) == 4


def test_trials_near_the_best_may_be_chosen(trained, tmp_path):
    record = Search(trials=4, tasks=100, rounds=1, near=6, val_tasks=2).run("regression2d", "maml", tmp_path)
    last = [one for one in record["trials"] if one["round"] == 1]
    assert len(last) == 6
    assert {one["tasks"] for one in last} == {100}
    assert {one["settings"][grid.OPTIMIZER] for one in last} == {"muon"}
    assert record["chosen"]["settings"][grid.OUTER_LR] == 0.01


def test_every_row_of_the_table_of_2d_regression_has_been_searched_for_alike():
    found = rows.chosen("regression2d")
    table = {row.name for row in reproduction.method_cells("regression2d", BUDGET)[0]} | {rows.LOOKING}
    assert set(found) == table
    assert len({json.dumps(one["search"]["budget"], sort_keys=True) for one in found.values()}) == 1
    assert len({one["trials"] for one in found.values()}) == 1
    for row, one in found.items():
        space = search.space_of(rows.row_recipe(RECIPES, "regression2d", row), (5,))
        assert all(one["settings"][path] in values for path, values in space.items())


def test_the_table_is_trained_with_what_the_search_chose():
    """`stmaml reproduce` and `--preset searched` read the file that comes with the package."""
    cells = {cell.name: cell.experiment for cell in reproduction.method_cells("regression2d", BUDGET)[0]}
    for row, one in rows.chosen("regression2d").items():
        if row in cells:
            assert all(setting(cells[row], path) == value for path, value in one["settings"].items())
    assert recipe("regression2d", "st-maml", "searched").method_settings == cells["st-maml"].method_settings


def test_errors_of_two_ranges_count_by_their_ratio():
    assert halving.joint([4.0]) == 4.0
    assert halving.joint([1.0, 4.0]) == pytest.approx(2.0)
