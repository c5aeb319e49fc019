"""Tasks that leave several rules open: which rule a model is given to, and the scores that follow, against NumPy."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml import ambiguity
from stmaml.ambiguity import NUM_ASSIGNED, assign, sample_answers, samples_models, score_open, score_rules
from stmaml.benchmarks.base import Showcase
from stmaml.benchmarks.sources import TaskSet
from stmaml.evaluation import evaluate, trace
from stmaml.methods.base import AbstractMetaLearner, AbstractPredictor
from stmaml.outcomes import CategoricalOutcome
from stmaml.tasks import Examples, Task, TaskBatch


class Sloped(AbstractPredictor):
    """Logits that rise with how far an input is from the mean of all inputs it is shown: it reads sets as a whole."""

    slope: Float[Array, ""]

    def __call__(self, x: Float[Array, "n 1"]) -> CategoricalOutcome:
        one = self.slope * (x[:, 0] - x.mean())
        return CategoricalOutcome(jnp.stack([jnp.zeros_like(one), one], axis=-1))


class Fake(AbstractMetaLearner):
    """Models with random slopes, with one slope, or with a slope for each of two particles."""

    kind: str = eqx.field(static=True)

    def loss(self, task: Task, *, key: PRNGKeyArray):
        raise NotImplementedError

    def adapt(self, support: Examples, *, num_samples: int, key: PRNGKeyArray) -> Sloped:
        del support
        slopes = {"one": jnp.array([2.0]), "two": jnp.array([2.0, -1.0])}
        return Sloped(slopes[self.kind] if self.kind in slopes else jr.normal(key, (num_samples,)))


SUPPORT = Examples.of(jnp.zeros((2, 1)), jnp.array([0, 1]))
X = jnp.array([[3.0], [-1.0], [0.5], [2.0], [10.0], [11.0]])
Y = jnp.array([1, 0, 1, 0, 0, 1])


SCORE = eqx.filter_jit(score_rules)
SCORE_OPEN = eqx.filter_jit(score_open)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def by_hand(slopes: np.ndarray) -> np.ndarray:
    """Log-probability of the true labels for each model, rule and example."""
    x, y = np.asarray(X).reshape(3, 2), np.asarray(Y).reshape(3, 2)
    one = slopes[:, None, None] * (x - x.mean(1, keepdims=True))[None]
    log_p = log_softmax(np.stack([np.zeros_like(one), one], axis=-1))
    return np.where(y[None] == 1, log_p[..., 1], log_p[..., 0])


def test_a_model_is_given_to_the_rule_it_serves_best():
    log_p = jnp.log(jnp.array([[[0.9, 0.1], [0.4, 0.5], [0.6, 0.2]], [[0.1, 0.2], [0.3, 0.1], [0.5, 0.5]]]))
    assert assign(log_p).tolist() == [1, 2], "by the mean of logarithms: by that of probabilities the first gets 0"


def test_scores_are_their_definitions():
    rng = np.random.default_rng(0)
    p = rng.uniform(0.05, 0.95, (7, 3, 4))
    scores = SCORE(jnp.log(p), jnp.asarray(p > 0.5), jnp.asarray(p.mean(0) > 0.5))
    best = np.log(p).mean(-1).argmax(-1)
    assert len(set(best.tolist())) > 1
    np.testing.assert_allclose(scores["accuracy"], np.mean([(p[m, best[m]] > 0.5).mean() for m in range(7)]), rtol=1e-6)
    np.testing.assert_allclose(scores["coverage"], len(set(best.tolist())))
    np.testing.assert_allclose(scores["nll"], -np.log(p.mean(0)).mean(), rtol=1e-6)
    np.testing.assert_allclose(scores["accuracy_all"], (p.mean(0) > 0.5).mean(), rtol=1e-6)


def test_only_the_first_forty_models_cover_rules_but_all_count_in_the_probability():
    p = np.full((NUM_ASSIGNED + 1, 2, 3), 0.6)
    p[:, 0] = 0.7
    p[-1] = [[0.2] * 3, [0.9] * 3]  # the last model alone would serve the second rule better
    scores = SCORE(jnp.log(p), jnp.asarray(p > 0.5), jnp.asarray(p.mean(0) > 0.5))
    assert float(scores["coverage"]) == 1
    assert float(scores["accuracy"]) == 1
    np.testing.assert_allclose(scores["nll"], -np.log(p.mean(0)).mean(), rtol=1e-6)


@pytest.mark.parametrize(("kind", "wanted"), [("random", True), ("one", False), ("two", False)])
def test_methods_that_draw_models_are_told_from_those_that_have_them(kind, wanted):
    assert samples_models(Fake(kind), SUPPORT) is wanted


@pytest.mark.parametrize(("kind", "slopes"), [("one", [2.0]), ("two", [2.0, -1.0])])
def test_each_set_is_read_by_itself(kind, slopes, key):
    task = Task(SUPPORT, Examples.of(X, Y))
    log_p = by_hand(np.array(slopes))
    scores = SCORE_OPEN(Fake(kind), task, 3, num_samples=40, key=key)
    np.testing.assert_allclose(scores["nll"], -np.log(np.exp(log_p).mean(0)).mean(), rtol=1e-5)
    best = log_p.mean(-1).argmax(-1)
    own = [(log_p[m, best[m]] > np.log(0.5)).mean() for m in range(len(slopes))]
    np.testing.assert_allclose(scores["accuracy"], np.mean(own), rtol=1e-6)
    assert float(scores["coverage"]) == len(set(best.tolist()))


@pytest.mark.parametrize("count", [1, 10, 23])
def test_as_many_different_models_are_drawn_as_asked_for(count, key):
    answers = eqx.filter_jit(sample_answers)(Fake("random"), SUPPORT, X.reshape(3, 2, 1), num_samples=count, key=key)
    probabilities = np.asarray(answers.mean())
    assert probabilities.shape == (count, 3, 2, 2)
    assert len(np.unique(probabilities[:, 0, 0, 1])) == count


def test_memory_holds_a_few_models_at_once(monkeypatch, key):
    asked = []
    adapt = Fake.adapt

    def watched(self, support, *, num_samples, key):
        asked.append(num_samples)
        return adapt(self, support, num_samples=num_samples, key=key)

    monkeypatch.setattr(Fake, "adapt", watched)
    sample_answers(Fake("random"), SUPPORT, X.reshape(3, 2, 1), num_samples=100, key=key)
    assert max(asked) == ambiguity.MODELS_AT_ONCE


def open_set(count: int = 5) -> TaskSet:
    x = jnp.stack([X + i for i in range(count)]) * jnp.arange(1.0, count + 1)[:, None, None]
    support = jax.tree.map(lambda leaf: jnp.stack([leaf] * count), SUPPORT)
    query = jax.vmap(Examples.of)(x, jnp.stack([Y] * count))
    rules = jnp.tile(jnp.arange(3), (count, 1))
    return TaskSet(TaskBatch(Task(support, query), jnp.zeros(count, dtype=int), rules=rules), "digest")


def test_an_evaluation_scores_open_tasks_one_by_one_however_many_at_once(key):
    tasks = open_set()
    together = evaluate(Fake("random"), tasks, num_samples=20, key=key)
    apart = evaluate(Fake("random"), tasks, num_samples=20, key=key, tasks_at_once=2)
    assert set(together.values) == {"accuracy", "coverage", "nll", "nll_served", "accuracy_all"}
    for name, values in together.values.items():
        np.testing.assert_allclose(values, apart.values[name], rtol=1e-6)
    one = jax.tree.map(lambda leaf: leaf[3], tasks.batch.tasks)
    alone = SCORE_OPEN(Fake("random"), one, 3, num_samples=20, key=jr.fold_in(key, 3))
    for name, value in alone.items():
        np.testing.assert_allclose(together.values[name][3], value, rtol=1e-5)


def test_nll_served_is_that_of_each_model_on_its_own_rule():
    p = np.array([[[0.9, 0.8], [0.2, 0.3]], [[0.4, 0.1], [0.7, 0.6]]])  # models, rules, examples
    right = jnp.asarray(p > 0.5)
    scores = score_rules(jnp.log(jnp.asarray(p)), right, right.any(0))
    assert scores["nll_served"] == pytest.approx(-np.log([0.9, 0.8, 0.7, 0.6]).mean(), rel=1e-6)


def test_a_deterministic_method_covers_exactly_one_rule(key):
    scores = evaluate(Fake("one"), open_set(), num_samples=20, key=key)
    np.testing.assert_array_equal(scores.values["coverage"], 1)
    assert scores.summary()["coverage"] == {"mean": 1.0, "ci95": 0.0}


def test_tasks_without_open_rules_are_scored_as_ever(key):
    tasks = replace(open_set(), stored=replace(open_set().stored, rules=None))
    assert "coverage" not in evaluate(Fake("one"), tasks, num_samples=2, key=key).values


def test_a_figures_data_hold_every_models_answer_and_rule(key):
    shown = Showcase(
        "rules-1",
        "rules",
        {"number": 1},
        SUPPORT,
        X / 11,
        Y[:, None].astype(float),
        jnp.arange(6.0),
        rules=("a", "b", "c"),
    )
    found = trace(Fake("two"), shown, key=key)
    assert found["rules"].tolist() == ["a", "b", "c"]
    assert found["query_y"].tolist() == [[1, 0], [1, 0], [0, 1]]
    assert found["query_x"].dtype == np.uint8
    np.testing.assert_array_equal(found["query_x"][2, :, 0], [232, 255])
    x = np.asarray(X).reshape(3, 2) / 11
    one = np.array([2.0, -1.0])[:, None, None] * (x - x.mean(1, keepdims=True))
    p = 1 / (1 + np.exp(np.where(np.asarray(found["query_y"]) == 1, -one, one)))
    np.testing.assert_allclose(found["probability"], p, rtol=1e-5)
    np.testing.assert_array_equal(found["assigned"], np.log(p).mean(-1).argmax(-1))
