"""Scoring on frozen sets of tasks."""

from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stmaml import evaluation
from stmaml.benchmarks.regression2d import Config, Curves
from stmaml.benchmarks.sources import TaskSet, freeze
from stmaml.evaluation import Scores, among, evaluate, scores_of, trace
from stmaml.inner import InnerLoop
from stmaml.methods import st_maml
from stmaml.methods.base import AbstractMetaLearner, AbstractPredictor, predict, stack_one
from stmaml.methods.standardised import Standardised
from stmaml.metrics import score_task
from stmaml.outcomes import CategoricalOutcome, NormalOutcome
from stmaml.progress import Told, listening
from stmaml.runs import Run
from stmaml.tasks import Examples, Scaling, Task, TaskBatch
from tests.changed import changed

SOURCE = Curves(Config(shots=4, query_size=5))
SMALL = changed(st_maml.Config(), hidden=(8,), encoder=(8,), z_size=4, h_size=3, inner=InnerLoop(inner_steps=1))


@pytest.fixture(scope="module")
def tasks() -> TaskSet:
    return freeze(SOURCE, 7, seed=0)


class Echo(AbstractPredictor):
    """Knows that the target is the first input."""

    scale: jax.Array

    def __call__(self, x):
        return NormalOutcome(x[:, :1], jnp.broadcast_to(self.scale, (x.shape[0], 1)))


class Oracle(AbstractMetaLearner):
    """Needs no support."""

    scale: jax.Array

    def loss(self, task, *, key):
        raise NotImplementedError

    def adapt(self, support, *, num_samples, key):
        del support, num_samples, key
        return stack_one(Echo(self.scale))


def test_scores_do_not_depend_on_how_many_tasks_are_scored_at_once(tasks, key):
    learner = SMALL.build(SOURCE.spec, key=key)
    whole, parts = (evaluate(learner, tasks, num_samples=3, key=key, tasks_at_once=n) for n in (7, 3))
    assert whole.values.keys() == parts.values.keys()
    for name, values in whole.values.items():
        assert values.shape == (7,)
        np.testing.assert_allclose(parts.values[name], values, rtol=1e-3, atol=1e-4, err_msg=name)


def test_each_score_is_that_of_its_own_task(tasks, key):
    """The last task, scored by hand with the key of its place."""
    learner = SMALL.build(SOURCE.spec, key=key)
    scores = evaluate(learner, tasks, num_samples=3, key=key, tasks_at_once=7)
    last = jax.tree.map(lambda leaf: jnp.asarray(leaf)[6], tasks.batch.tasks)
    task_key = jax.random.fold_in(key, 6)
    prediction = eqx.filter_jit(predict)(learner, last.support, last.query.x, num_samples=3, key=task_key)
    want = jax.jit(score_task)(prediction, last.query.y, last.query.weight, jnp.asarray(tasks.batch.clean)[6])
    for name, value in want.items():
        np.testing.assert_allclose(scores.values[name][6], value, rtol=1e-3, atol=1e-4, err_msg=name)


def test_a_perfect_predictor_has_no_error_on_clean_targets(key):
    x = jax.random.normal(key, (3, 50, 2))
    y = x[..., :1] + 0.5 * jax.random.normal(jax.random.fold_in(key, 1), (3, 50, 1))
    query = jax.vmap(Examples.of)(x, y)
    batch = TaskBatch(Task(query, query), jnp.array([0, 1, 1]), x[..., :1])
    tasks = TaskSet(jax.tree.map(np.asarray, batch), "none")
    scores = evaluate(Oracle(jnp.array(0.5)), tasks, num_samples=1, key=key)
    np.testing.assert_array_equal(scores.values["mse_clean"], np.zeros(3))
    np.testing.assert_allclose(scores.values["mse"], np.square(y - x[..., :1]).mean((1, 2)), rtol=1e-5)


def test_progress_counts_tasks(tasks, key):
    seen = []
    with listening(seen.append):
        evaluate(Oracle(jnp.array(1.0)), tasks, num_samples=1, key=key, tasks_at_once=3, what="scoring")
        evaluate(Oracle(jnp.array(1.0)), tasks, num_samples=1, key=key, tasks_at_once=3)
    assert seen == [Told("scoring", done, 7) for done in (3, 6, 7)]


def test_families_are_summed_up_on_their_own():
    values = {"mse": np.array([1.0, 2.0, 10.0, 20.0, 30.0])}
    scores = Scores(values, np.array([0, 0, 2, 2, 2]), "digest", 1)
    assert scores.summary()["mse"]["mean"] == pytest.approx(63 / 5)
    families = scores.family_summary(("a", "b", "c"))
    assert list(families) == ["a", "c"]
    assert families["a"]["mse"]["mean"] == 1.5
    assert families["c"]["mse"]["mean"] == 20.0


def test_errors_come_before_intervals(tasks, key):
    scores = evaluate(Oracle(jnp.array(1.0)), tasks, num_samples=1, key=key)
    assert list(scores.values) == ["mse", "mae", "mse_clean", "nll", "crps", "coverage90", "width90"]
    assert (scores.digest, scores.num_samples) == (tasks.digest, 1)


def test_frozen_sets_of_a_seed_are_the_same_and_of_another_not(tasks):
    again, other = (freeze(SOURCE, 7, seed=seed) for seed in (0, 1))
    assert tasks.digest == again.digest
    assert tasks.digest != other.digest
    np.testing.assert_array_equal(tasks.batch.tasks.query.y, again.batch.tasks.query.y)


def test_the_digest_of_targets_is_that_of_the_tasks_however_inputs_are_shown(tasks):
    shown = eqx.tree_at(lambda b: b.tasks.query.x, tasks.stored, tasks.stored.tasks.query.x + 1)
    moved = eqx.tree_at(lambda b: b.tasks.query.y, tasks.stored, tasks.stored.tasks.query.y + 0.01)
    kept, other = (TaskSet(stored, "d").targets_digest for stored in (shown, moved))
    assert tasks.targets_digest == kept != other
    assert class_tasks(np.zeros((2, 3), int)).targets_digest == "none"  # classes alone do not tell tasks apart


def test_the_last_chunk_keeps_the_shape(tasks):
    chunks = list(tasks.chunks(3))
    assert [len(chunk.family) for chunk in chunks] == [3, 3, 3]
    np.testing.assert_array_equal(chunks[2].tasks.query.x[0], tasks.batch.tasks.query.x[6])


def test_a_trace_has_what_a_figure_needs(key):
    showcase = Config().open().showcases()[0]
    curves = trace(Oracle(jnp.array(1.0)), showcase, num_curves=2, num_samples=3, key=key)
    num = len(showcase.axis)
    np.testing.assert_allclose(curves["median"][:, 0], showcase.x[:, 0], atol=1e-3)
    np.testing.assert_allclose(curves["high"] - curves["low"], 2 * 1.6449, rtol=1e-3)
    assert curves["curves"].shape == (1, num, 1)
    assert curves["truth"].shape == (num, 1)
    assert len(curves["support_x"]) == int(np.asarray(showcase.support.weight).sum())


def test_a_trace_says_what_it_is_for(tmp_path, key):
    showcase = replace(Config().open().showcases()[0], figure="curves", labels={"family": "sinusoid", "shots": 10})
    run = Run(tmp_path)
    run.save_arrays(Path("curves") / "any.npz", trace(Oracle(jnp.array(1.0)), showcase, num_samples=2, key=key))
    (found,) = run.curves().values()
    assert found.about == {"figure": "curves", "family": "sinusoid", "shots": 10}
    assert "about" not in found.arrays
    np.testing.assert_array_equal(found.arrays["truth"], showcase.truth)


def test_a_standardised_learner_answers_in_original_units(key):
    """The echo of a scaled input, scaled back: y = mean + std * (x - mean_x) / std_x."""
    scaling = Scaling((2.0, 0.0), (4.0, 1.0), (10.0,), (3.0,))
    learner = Standardised(Oracle(jnp.array(0.5)), scaling, scale_targets=True)
    support = Examples.of(jnp.zeros((1, 2)), jnp.zeros((1, 1)))
    prediction = predict(learner, support, jnp.array([[6.0, 0.0], [2.0, 0.0]]), key=key)
    np.testing.assert_allclose(prediction.mean, [[13.0], [10.0]], rtol=1e-6)
    np.testing.assert_allclose(prediction.std, [[1.5], [1.5]], rtol=1e-6)


def test_a_standardised_learner_trains_on_scaled_examples(key):
    scaling = Scaling((2.0, 1.0), (4.0, 0.5), (10.0,), (3.0,))
    plain = SMALL.build(SOURCE.spec, key=key)
    batch = SOURCE.sample(1, key=key)
    task = jax.tree.map(lambda leaf: leaf[0], batch.tasks)

    def scaled(examples: Examples) -> Examples:
        x = (np.asarray(examples.x) - np.array([[2.0, 1.0]])) / np.array([[4.0, 0.5]])
        return Examples(jnp.asarray(x, dtype=float), (examples.y - 10) / 3, examples.weight)

    @eqx.filter_jit
    def loss_of(learner, task):
        return learner.loss(task, key=key)[0]

    want = loss_of(plain, Task(scaled(task.support), scaled(task.query)))
    got = loss_of(Standardised(plain, scaling, scale_targets=True), task)
    np.testing.assert_allclose(got, want, rtol=1e-4)


def test_a_support_of_no_rows_is_one_of_no_weight(key):
    learner = SMALL.build(SOURCE.spec, key=key)
    x = jnp.ones((2, 2))
    supports = (Examples(jnp.zeros((n, 2)), jnp.zeros((n, 1)), jnp.zeros(n)) for n in (0, 3))
    none, padded = (predict(learner, support, x, num_samples=2, key=key).mean for support in supports)
    np.testing.assert_allclose(none, padded, rtol=1e-5)


def test_inputs_among_the_support_are_found(key):
    """Which pixels of an image were shown: padding that happens to hold the same numbers shows nothing."""
    x = jax.random.normal(key, (4, 2))
    support = Examples(jnp.stack([x[2], x[0], x[3]]), jnp.zeros((3, 1)), jnp.array([1.0, 1.0, 0.0]))
    np.testing.assert_array_equal(among(x, support), [1.0, 0.0, 1.0, 0.0])


class Confident(AbstractPredictor):
    """Sure of class 0, as sure as it was told."""

    logit: jax.Array

    def __call__(self, x):
        return CategoricalOutcome(jnp.stack([jnp.full(x.shape[0], self.logit), jnp.zeros(x.shape[0])], axis=1))


class Guesser(AbstractMetaLearner):
    """Believes in class 0 in three cases of four, or in as many as the sample's number says."""

    draws: bool = eqx.field(static=True, default=False)

    def loss(self, task, *, key):
        raise NotImplementedError

    def adapt(self, support, *, num_samples, key):
        del support, key
        logits = jnp.log(jnp.full(num_samples if self.draws else 1, 3.0))
        return Confident(logits)


def class_tasks(y: np.ndarray) -> TaskSet:
    """Tasks of two classes with the given query targets, in turn of two families."""
    m, n = y.shape
    batch = TaskBatch.of(np.zeros((m, 2, 1)), np.zeros((m, 2), int), np.zeros((m, n, 1)), y)
    batch = eqx.tree_at(lambda b: b.family, batch, jnp.arange(m) % 2)
    return TaskSet(jax.tree.map(np.asarray, batch), "none")


def test_the_calibration_error_is_of_all_tasks_and_of_each_family_together(key):
    """Confidence is 3/4. In the first family all are right, in the second half: two errors of 1/4, which cancel out."""
    y = np.array([[0, 0, 0, 0], [0, 0, 1, 1]] * 3)
    scores = evaluate(Guesser(), class_tasks(y), num_samples=1, key=key)
    assert list(scores.summary()) == ["accuracy", "nll", "ece"]
    np.testing.assert_allclose(scores.summary()["accuracy"]["mean"], 0.75, rtol=1e-6)
    np.testing.assert_allclose(scores.summary()["ece"]["mean"], 0.0, atol=1e-6)
    families = scores.family_summary(("sure", "unsure"))
    np.testing.assert_allclose([families[f]["ece"]["mean"] for f in ("sure", "unsure")], [0.25, 0.25], rtol=1e-5)
    np.testing.assert_allclose(families["sure"]["ece"]["ci95"], 0, atol=1e-6)


def test_tasks_of_real_targets_have_no_calibration_error(tasks, key):
    scores = evaluate(SMALL.build(SOURCE.spec, key=key), tasks, num_samples=1, key=key)
    assert "ece" not in scores.summary()


@pytest.mark.parametrize(("draws", "room", "sizes"), [(False, 3, 3), (False, 100, 6), (True, 3, 1), (True, 8, 2)])
def test_as_many_tasks_are_scored_at_once_as_memory_bears(draws, room, sizes, key, monkeypatch):
    """Each task counts once for every predictor: four where they are drawn, one where the method has but one."""
    tasks = class_tasks(np.zeros((6, 4), int))
    monkeypatch.setitem(evaluation.EVALUATED_BYTES, "cpu", room * tasks.task_bytes)
    told: list[Told] = []
    with listening(told.append):
        evaluate(Guesser(draws), tasks, num_samples=4, key=key, what="scoring")
    assert told[0].done == sizes
    assert told[-1].done == 6


@pytest.mark.parametrize("name", ["coverage90", "sets90"])
def test_groups_that_are_held_in_fewer_than_eight_rows_of_ten_are_missed(name):
    """Two groups, each in two tasks: 70 % and 90 % of the first are held, 60 % and 80 % of the second."""
    batch = TaskBatch.of(*(np.zeros((4, 1, 1)) for _ in range(4)))
    scores = scores_of({name: np.array([0.7, 0.6, 0.9, 0.8])}, TaskSet(batch, "digest", num_groups=2), 1)
    np.testing.assert_allclose(scores.values[name], [0.8, 0.7])
    np.testing.assert_array_equal(scores.values["missed90"], [0.0, 1.0])
    assert scores.summary()["missed90"]["mean"] == 0.5
