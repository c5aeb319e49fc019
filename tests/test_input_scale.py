"""Inputs scaled by their ranks among the training inputs, from the measurement to a run that is loaded again."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from stmaml.benchmarks import regression2d
from stmaml.benchmarks.base import Benchmark, BenchmarkConfig
from stmaml.benchmarks.sources import freeze, measure_scaling
from stmaml.errors import SettingError
from stmaml.experiments import create_runs, load_experiment, load_run, meta_train, train_runs
from stmaml.methods import maml
from stmaml.methods.base import predict
from stmaml.methods.standardised import Standardised
from stmaml.recipes import Experiment, Modelling, measured_scaling
from stmaml.runs import Run, from_dict, read_npz
from stmaml.tasks import Examples, Scaling, Task, TaskBatch, TaskSpec
from stmaml.training import TrainConfig

ROOT3 = 3**0.5
BY_RANK = Modelling(standardise=True, input_scale="quantiles")
TINY = maml.Config(hidden=(4,))
TASKS = regression2d.Config(shots=5, query_size=5)
TRAINING = TrainConfig(steps=4, tasks_per_batch=4, val_every=2, val_tasks=4, checkpoint_every=2, steps_per_call=2)


@dataclass(frozen=True)
class Given:
    """Always the same tasks: a source to be measured."""

    batch: TaskBatch
    spec: TaskSpec

    def sample(self, num_tasks, *, key):
        del key
        assert num_tasks == len(self.batch.family)
        return self.batch


def one_task(rows: np.ndarray) -> Given:
    """A task that has its first three rows in the support, the others in the query."""
    x = rows.astype(np.float32)[None]
    y = np.linspace(5, 9, len(rows), dtype=np.float32)[None, :, None]
    return Given(TaskBatch.of(x[:, :3], y[:, :3], x[:, 3:], y[:, 3:]), TaskSpec(rows.shape[1:], 1))


def ranked(rows: np.ndarray) -> Scaling:
    return measure_scaling(one_task(rows), by_rank=True, num_tasks=1)


def seen(scaling: Scaling, x: np.ndarray) -> np.ndarray:
    """Inputs as the wrapped learner sees them."""
    return np.asarray(_seen(scaling, jnp.asarray(x, dtype=jnp.float32)))


@eqx.filter_jit
def _seen(scaling: Scaling, x: jax.Array) -> jax.Array:
    learner = Standardised(TINY.build(TaskSpec((2,), 1), key=jr.key(0)), scaling, scale_targets=True)
    return learner.seen(Examples.of(x, jnp.zeros((len(x), 1)))).x


def by_hand(column: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The same map from NumPy alone: quantiles in a dictionary, so that equal ones share an entry."""
    levels: dict[float, list[float]] = {}
    for i in range(65):
        levels.setdefault(float(np.float32(np.quantile(column, i / 64))), []).append(i / 64)
    rank = np.interp(x, list(levels), [sum(tied) / len(tied) for tied in levels.values()])
    return (2 * rank - 1) * ROOT3


def skewed() -> np.ndarray:
    """A long tail with 40 % ties below it, and one with 40 % ties within it, in an order of their own."""
    rng = np.random.default_rng(0)
    tail = 1 + rng.lognormal(0, 2, (2, 600))
    columns = [np.concatenate([np.full(400, tied), tail[i]]) for i, tied in enumerate((0.0, 2.0))]
    return np.stack([rng.permutation(column) for column in columns], axis=1).astype(np.float32)


def test_a_rank_is_that_of_numpy():
    rows = skewed()
    x = np.stack([np.sort(rng.uniform(-3, top, 300)) for rng, top in zip(_generators(), (4, 60), strict=True)], axis=1)
    got = seen(ranked(rows), np.concatenate([x, rows]))
    for i in range(2):
        want = by_hand(rows[:, i], np.concatenate([x[:, i].astype(np.float32), rows[:, i]]))
        np.testing.assert_allclose(got[:, i], want, atol=2e-5)


def _generators():
    return np.random.default_rng(1), np.random.default_rng(2)


def test_ties_share_the_middle_of_their_ranks():
    """Of 1,000 inputs 400 are 0: the quantiles 0 to 25/64, whose middle is 12.5/64. The others are 1 to 600."""
    column = np.concatenate([np.zeros(400), np.arange(1, 601)])
    scaling = ranked(np.stack([column, -column], axis=1))
    got = seen(scaling, np.array([[0.0, 0.0], [600.0, -600.0], [100.0, -100.0]]))
    rank = (399 + 100) / 999
    want = ROOT3 * np.array([2 * 12.5 / 64 - 1, 1.0, 2 * rank - 1])
    np.testing.assert_allclose(got, np.stack([want, -want], axis=1), atol=1e-5)
    assert [len(knots) for knots in scaling.x_knots] == [len(ranks) for ranks in scaling.x_ranks] == [65, 65]


def test_inputs_beyond_those_of_training_are_at_the_ends():
    rows = np.stack([np.linspace(-2, 5, 90), np.repeat([0.0, 1.0], 45)], axis=1)
    scaling = ranked(rows)
    low, high = seen(scaling, np.array([[-2.0, 0.0], [5.0, 1.0]]))
    np.testing.assert_allclose(low[0], -ROOT3, rtol=1e-6)
    np.testing.assert_allclose(high[0], ROOT3, rtol=1e-6)
    assert -ROOT3 < low[1] < -0.5 < 0.5 < high[1] < ROOT3
    np.testing.assert_array_equal(seen(scaling, np.array([[-3.0, -1e30], [6.0, 1e30]])), [low, high])


def test_a_constant_column_is_0():
    scaling = ranked(np.stack([np.full(50, 7.25), np.arange(50.0)], axis=1))
    np.testing.assert_array_equal(
        seen(scaling, np.array([[7.25, 0], [7.0, 0], [1e9, 0], [-1e9, 0]]))[:, 0], np.zeros(4)
    )


def test_a_column_without_ties_has_mean_0_and_spread_1():
    rng = np.random.default_rng(3)
    rows = np.stack([rng.standard_cauchy(5000), -rng.exponential(1e-3, 5000)], axis=1)
    got = seen(ranked(rows), rows)
    np.testing.assert_allclose(got.mean(0), [0, 0], atol=5e-3)
    np.testing.assert_allclose(got.std(0), [1, 1], atol=5e-3)
    assert (np.abs(np.median(got, 0)) < 0.01).all()


@given(rows=hnp.arrays(np.float32, (40, 1), elements=st.floats(-1000, 1000, width=32)), ties=st.integers(0, 40))
@settings(deadline=None, max_examples=60)
def test_a_larger_input_never_has_a_lower_rank(rows, ties):
    rows[:ties] = rows[0]
    scaling = ranked(np.repeat(rows, 2, axis=1))
    x = np.sort(np.concatenate([rows[:, 0], np.linspace(-1100, 1100, 60, dtype=np.float32)]))
    got = seen(scaling, np.stack([x, x], axis=1))[:, 0]
    assert (np.diff(got) >= -1e-5).all()
    assert (got[-1] > got[0]) == (rows.min() < rows.max())
    assert np.abs(got).max() <= ROOT3 + 1e-6


def test_rows_of_weight_0_have_no_rank_and_those_of_the_support_have_one():
    support = Examples(jnp.array([[0.0], [1.0], [1e6]]), jnp.zeros((3, 1)), jnp.array([1.0, 2.0, 0.0]))
    query = Examples(jnp.array([[-1e6], [2.0], [3.0], [4.0]]), jnp.ones((4, 1)), jnp.array([0.0, 1.0, 1.0, 1.0]))
    tasks = jax.tree.map(lambda leaf: leaf[None], Task(support, query))
    scaling = measure_scaling(Given(TaskBatch(tasks, jnp.array([0])), TaskSpec((1,), 1)), by_rank=True, num_tasks=1)
    (knots,), (ranks,) = scaling.x_knots, scaling.x_ranks
    np.testing.assert_allclose(knots, np.linspace(0, 4, 65), rtol=1e-6)
    np.testing.assert_allclose(ranks, np.linspace(0, 1, 65), rtol=1e-6)


def test_ranks_change_nothing_else():
    """Means and spreads are those without ranks, and without them there are none."""
    source = one_task(skewed())
    plain, by_rank = (measure_scaling(source, by_rank=flag, num_tasks=1) for flag in (False, True))
    assert plain.x_knots == plain.x_ranks == ()
    assert dataclasses.replace(by_rank, x_knots=(), x_ranks=()) == plain
    x = np.array([[3.0, 8.0]], dtype=np.float32)
    np.testing.assert_allclose(seen(plain, x), (x - np.array(plain.x_mean)) / np.array(plain.x_std), rtol=1e-5)


def test_quantiles_that_single_precision_cannot_tell_apart_are_one():
    """Else a step between two equal knots would hang on how they were rounded."""
    rows = np.stack([np.linspace(1e6, 1e6 + 0.5, 200)] * 2, axis=1)
    scaling = ranked(rows)
    knots = np.array(scaling.x_knots[0])
    assert (np.float32(knots) == knots).all()
    assert len(set(scaling.x_knots[0])) == len(set(scaling.x_ranks[0])) < 65
    column = rows[:, 0].astype(np.float32)
    np.testing.assert_allclose(seen(scaling, rows)[:, 0], by_hand(column, column), atol=1e-5)


def test_ranks_keep_shape_and_single_precision_under_vmap():
    scaling = ranked(skewed())
    x = jr.normal(jr.key(0), (4, 3, 2))
    whole = eqx.filter_jit(jax.vmap(lambda x: _seen(scaling, x)))(x)
    assert (whole.shape, whole.dtype) == ((4, 3, 2), jnp.float32)
    for task in range(4):
        np.testing.assert_allclose(whole[task], seen(scaling, np.asarray(x[task])), rtol=1e-6)
    assert seen(scaling, np.zeros((0, 2))).shape == (0, 2)


def test_inputs_of_fewer_digits_have_the_same_ranks():
    scaling = ranked(skewed())
    x = jnp.array([[0, 1], [2, 3], [5, 4]])
    got = _seen(scaling, x.astype(jnp.bfloat16))
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, seen(scaling, np.asarray(x)), rtol=1e-6)


def test_a_learner_learns_and_answers_from_ranks(key):
    """Its loss, and its predictions in original units, are the plain learner's on inputs scaled by NumPy."""
    rows = skewed()
    scaling = dataclasses.replace(ranked(rows), y_mean=(10.0,), y_std=(3.0,))
    plain = TINY.build(TaskSpec((2,), 1), key=key)
    learner = Standardised(plain, scaling, scale_targets=True)
    task = Task(*(Examples.of(jnp.asarray(part), jnp.asarray(part[:, :1])) for part in (rows[:5], rows[5:9])))

    def scaled(examples: Examples) -> Examples:
        x = np.stack([by_hand(rows[:, i], np.asarray(examples.x)[:, i]) for i in range(2)], axis=1)
        return Examples(jnp.asarray(x, dtype=jnp.float32), (examples.y - 10) / 3, examples.weight)

    support, query = scaled(task.support), scaled(task.query)
    loss_of = eqx.filter_jit(lambda learner, task: learner.loss(task, key=key)[0])
    np.testing.assert_allclose(loss_of(learner, task), loss_of(plain, Task(support, query)), rtol=1e-4)
    want = predict(plain, support, query.x, key=key)
    got = predict(learner, task.support, task.query.x, key=key)
    np.testing.assert_allclose(got.mean, 10 + 3 * want.mean, rtol=1e-4)
    np.testing.assert_allclose(got.std, 3 * want.std, rtol=1e-4)


def test_the_ranks_are_those_of_the_tasks_the_moments_come_from():
    benchmark = TASKS.open()
    scaling = measured_scaling(BY_RANK, benchmark.train)
    tasks = freeze(benchmark.train, 2000, seed=0).batch.tasks
    x = np.concatenate([np.asarray(part.x).reshape(-1, 2) for part in (tasks.support, tasks.query)])
    np.testing.assert_allclose(seen(scaling, x[:500])[:, 0], by_hand(x[:, 0], x[:500, 0]), atol=2e-5)
    np.testing.assert_allclose(seen(scaling, x[:500])[:, 1], by_hand(x[:, 1], x[:500, 1]), atol=2e-5)
    assert measured_scaling(Modelling(standardise=True), benchmark.train) == measure_scaling(benchmark.train)


def test_ranks_survive_json():
    scaling = ranked(skewed())
    back = from_dict(Scaling, json.loads(json.dumps(dataclasses.asdict(scaling))))
    assert back == scaling
    assert hash(back) == hash(scaling)


def last_checkpoint(run: Run) -> Path:
    return run.folder / "checkpoints" / f"step-{TRAINING.steps:09d}.npz"


def cut_back(run: Run) -> dict[str, np.ndarray]:
    """What a trained run ended with, taken from it, so that there is something to resume."""
    assert run.checkpoint_steps() == [2, TRAINING.steps]
    ended = read_npz(last_checkpoint(run))
    last_checkpoint(run).unlink()
    return ended


def assert_ends_with(run: Run, want: dict[str, np.ndarray]) -> None:
    got = read_npz(last_checkpoint(run))
    assert got.keys() == want.keys()
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array, err_msg=name)


def test_a_run_is_trained_evaluated_and_resumed_by_ranks(stmaml, tmp_path):
    """Cut back to its first checkpoint and resumed, it ends as it did; its scaling is the stored one."""
    flags = ["--method", "maml", "--hidden", 4, "--inner-steps", 1, "--shots", 5, "--query-size", 5]
    flags += ["--steps", 4, "--tasks-per-batch", 4, "--val-every", 2, "--val-tasks", 4]
    flags += ["--checkpoint-every", 2, "--steps-per-call", 2, "--standardise", "--input-scale", "quantiles"]
    code, _, err = stmaml("train", "regression2d", *flags, "--run", tmp_path)
    assert code == 0, err
    run = Run(tmp_path)
    assert load_experiment(run).modelling == dataclasses.replace(BY_RANK, noise_model="residual")
    learner: Any = load_run(tmp_path)[1]
    assert learner.scaling == measured_scaling(BY_RANK, TASKS.open().train)
    code, _, err = stmaml("evaluate", tmp_path, "--tasks", 6, "--samples", 1)
    assert code == 0, err
    assert len(run.scores()) == 1
    before = cut_back(run)
    code, _, err = stmaml("train", "--resume", tmp_path)
    assert code == 0, err
    assert_ends_with(run, before)


def test_a_run_keeps_the_ranks_it_was_trained_with(tmp_path):
    """Measured anew when a run is loaded, they would differ where the benchmark's files have changed since."""
    experiment, benchmark = Experiment("regression2d", "maml", "paper", TASKS, TINY, BY_RANK, TRAINING), TASKS.open()
    (run,) = create_runs(experiment, benchmark, tmp_path, [0])
    kept = run.config()["scaling"]
    knots = [[100.0 + k for k in column] for column in kept["x_knots"]]
    run.config_path.write_text(json.dumps({**run.config(), "scaling": {**kept, "x_knots": knots}}))
    for learner in (*train_runs([run], experiment, benchmark), load_run(tmp_path)[1]):
        assert isinstance(learner, Standardised)
        assert learner.scaling.x_knots == tuple(map(tuple, knots))
        hash(learner.scaling)


def test_a_run_of_before_there_were_ranks_is_loaded_and_resumed(tmp_path):
    modelling, benchmark = Modelling(standardise=True), TASKS.open()
    experiment = Experiment("regression2d", "maml", "paper", TASKS, TINY, modelling, TRAINING)
    (run,) = create_runs(experiment, benchmark, tmp_path, [0])
    train_runs([run], experiment, benchmark)
    before, config = cut_back(run), run.config()
    for part, name in (("modelling", "input_scale"), ("scaling", "x_knots"), ("scaling", "x_ranks")):
        del config[part][name]
    run.config_path.write_text(json.dumps(config))
    train_runs([run], load_experiment(run), benchmark)
    assert_ends_with(run, before)
    assert load_experiment(run).modelling == modelling
    learner = load_run(tmp_path)[1]
    assert isinstance(learner, Standardised)
    assert learner.scaling == measure_scaling(benchmark.train)
    assert learner.scaling.x_knots == ()


def test_meta_train_scales_by_ranks():
    benchmark = TASKS.open()
    learner: Any = meta_train(TINY, benchmark.train, input_scale="quantiles", training=TRAINING)
    assert learner.scaling == measure_scaling(benchmark.train, by_rank=True)


def test_ranks_without_standardising_are_refused(stmaml, tmp_path):
    with pytest.raises(SettingError, match=r"--input-scale quantiles .*; add --standardise"):
        Modelling(input_scale="quantiles")
    code, _, err = stmaml("train", "regression2d", "--input-scale", "quantiles", "--run", tmp_path / "run")
    assert code == 2
    assert "add --standardise" in " ".join(err.split())
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


@dataclass(frozen=True)
class Pictures(BenchmarkConfig):
    """A benchmark of pictures."""

    def open(self, shelf=None) -> Benchmark:
        x, y = (np.linspace(0, 1, 2000 * 2 * size, dtype=np.float32) for size in (4, 1))
        batch = TaskBatch.of(*(x.reshape(2000, 2, 2, 2, 1), y.reshape(2000, 2, 1)) * 2)
        source = Given(batch, TaskSpec((2, 2, 1), 1))
        return Benchmark(self, source, source, source, families=("all",), conditions={})


def test_ranks_of_pictures_are_refused(tmp_path):
    experiment = Experiment("pictures", "maml", "paper", Pictures(), TINY, BY_RANK)
    with pytest.raises(SettingError, match=r"^--input-scale quantiles [^.]*2 x 2 x 1[^.]*--input-scale moments\.$"):
        create_runs(experiment, Pictures().open(), tmp_path / "run", [0])
    assert not (tmp_path / "run").exists()
    assert len(measured_scaling(Modelling(standardise=True), Pictures().open().train).x_mean) == 4
