"""The Bayesian linear regression before a method: against its closed form in NumPy, and by leaving rows out."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array, Float, PRNGKeyArray
from scipy import stats

from stmaml.methods.base import AbstractMetaLearner, AbstractPredictor, Metrics
from stmaml.methods.on_linear import GAIN, MIN_NOISE, OnLinear, Prior, extended
from stmaml.outcomes import NormalOutcome
from stmaml.tasks import Examples, Task, TaskSpec
from tests.table_data import draw

MEAN = np.array([[0.4], [-0.3], [0.8]])
STD = np.array([1.3, 0.5, 0.2])
NOISE = 0.3


def prior() -> Prior:
    noise = np.log(NOISE**2 - MIN_NOISE**2) / 2
    known = (jnp.array(MEAN), jnp.log(jnp.array(STD)), jnp.float32(noise))
    return eqx.tree_at(
        lambda p: (p.mean, p.log_std, p.log_noise),
        Prior(2, 1),
        tuple(jnp.asarray(value, dtype=jnp.float32) / GAIN for value in known),
    )


def rows(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    x = draw(stats.norm, size=(count, 2), random_state=seed)
    return x, 1 + x @ np.array([[0.5], [-1.0]]) + 0.3 * draw(stats.norm, size=(count, 1), random_state=seed + 1)


def closed_form(x: np.ndarray, y: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and spread of new targets by the textbook posterior, whose precision is that of prior and data together."""
    phi, new = (np.hstack([np.ones((len(a), 1)), a]) for a in (x, at))
    precision = np.diag(STD**-2.0) + phi.T @ phi / NOISE**2
    mean = np.linalg.solve(precision, np.diag(STD**-2.0) @ MEAN + phi.T @ y / NOISE**2)
    spread = np.sqrt((new @ np.linalg.inv(precision) * new).sum(1) + NOISE**2)
    return new @ mean, spread[:, None]


@pytest.mark.parametrize("count", [1, 3, 12])
def test_it_predicts_as_the_textbook_posterior_does(count):
    x, y = rows(count)
    at = rows(5, seed=9)[0]
    posterior, _, _ = prior().learn(jnp.array(x), jnp.array(y), jnp.ones(count))
    for found, expected in zip(posterior(jnp.array(at)), closed_form(x, y, at), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)


def test_a_labelled_row_is_judged_by_the_others_alone():
    x, y = rows(6)
    _, mean, spread = prior().learn(jnp.array(x), jnp.array(y), jnp.ones(6))
    for i in range(6):
        others = np.arange(6) != i
        expected = closed_form(x[others], y[others], x[[i]])
        np.testing.assert_allclose(mean[i], expected[0][0], rtol=1e-3)
        np.testing.assert_allclose(spread[i], expected[1][0], rtol=1e-3)


def test_padding_changes_nothing_and_without_rows_it_is_the_prior():
    x, y = rows(6)
    weight = jnp.array([1.0, 1, 1, 0, 0, 0])
    padded, mean, _ = prior().learn(jnp.array(x), jnp.array(y), weight)
    short, expected, _ = prior().learn(jnp.array(x[:3]), jnp.array(y[:3]), jnp.ones(3))
    np.testing.assert_allclose(mean[:3], expected, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(padded), jax.tree.leaves(short), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    none, _, _ = prior().learn(jnp.array(x), jnp.array(y), jnp.zeros(6))
    np.testing.assert_allclose(none.mean, MEAN, rtol=1e-5)
    np.testing.assert_allclose(none.covariance, np.diag(STD**2), rtol=1e-5)


class Fixed(AbstractPredictor):
    """The same shift and spread at every input."""

    shift: Float[Array, ""]
    spread: Float[Array, ""]

    def __call__(self, x):
        ones = jnp.ones((x.shape[0], 1))
        return NormalOutcome(ones * self.shift, ones * self.spread)


class Stub(AbstractMetaLearner):
    """A method that predicts one shift and one spread, whatever it sees."""

    shift: Float[Array, ""]
    spread: Float[Array, ""]

    def loss(self, task: Task, *, key: PRNGKeyArray) -> tuple[Float[Array, ""], Metrics]:
        log_prob = Fixed(self.shift, self.spread)(task.query.x).log_prob(task.query.y)
        return -(log_prob @ task.query.weight) / task.query.weight.sum(), {}

    def adapt(self, support: Examples, *, num_samples: int, key: PRNGKeyArray) -> Fixed:
        return Fixed(jnp.full(num_samples, self.shift), jnp.full(num_samples, self.spread))


@pytest.mark.parametrize(("shift", "spread"), [(0.0, 1.0), (0.7, 2.0)])
def test_a_method_corrects_the_regression_in_its_spreads_and_the_loss_is_minus_the_log_density(shift, spread):
    x, y = rows(4)
    at, truth = rows(5, seed=9)
    learner = OnLinear(Stub(jnp.float32(shift), jnp.float32(spread)), prior(), num_classes=0)
    support, query = Examples.of(jnp.array(x), jnp.array(y)), Examples.of(jnp.array(at), jnp.array(truth))
    mean, width = closed_form(x, y, at)
    predictors = learner.adapt(support, num_samples=2, key=jr.key(0))
    outcome = jax.vmap(lambda p: p(query.x))(predictors)
    for one in range(2):
        np.testing.assert_allclose(outcome.loc[one], mean + shift * width, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(outcome.scale[one], spread * width, rtol=1e-3)
    loss, _ = learner.loss(Task(support, query), key=jr.key(0))
    expected = -stats.norm.logpdf(truth, mean + shift * width, spread * width).mean()
    np.testing.assert_allclose(loss, expected, rtol=1e-3)


def test_the_prior_is_learnt_with_the_method():
    """Gradients reach every number of the prior, and point towards the noise there is."""
    x, y = rows(8)
    task = Task(Examples.of(jnp.array(x[:4]), jnp.array(y[:4])), Examples.of(jnp.array(x[4:]), jnp.array(y[4:])))
    stub = Stub(jnp.float32(0), jnp.float32(1))

    def gradient(noise: float) -> Prior:
        start = eqx.tree_at(lambda p: p.log_noise, prior(), jnp.float32(np.log(noise) / GAIN))
        learner = OnLinear(stub, start, num_classes=0)
        return eqx.filter_grad(lambda one: one.loss(task, key=jr.key(0))[0])(learner).prior

    assert all((np.asarray(leaf) != 0).all() for leaf in jax.tree.leaves(gradient(0.3)))
    assert float(gradient(3.0).log_noise) > 0  # too much: downhill is less
    assert float(gradient(0.02).log_noise) < float(gradient(3.0).log_noise)


def test_classes_are_handed_on_beside_a_regression_on_their_indicators():
    x, _ = rows(5)
    labels = jnp.array([0, 2, 1, 2, 2])
    learner = OnLinear(Stub(jnp.float32(0), jnp.float32(1)), Prior(2, 3), num_classes=3)
    posterior, seen = learner._learn(Examples.of(jnp.array(x), labels))
    np.testing.assert_array_equal(seen.y, labels)
    assert seen.x.shape == (5, 2 + 3 + 1)
    alone = Prior(2, 1).learn(jnp.array(x), (labels == 2).astype(jnp.float32)[:, None], jnp.ones(5))[0]
    np.testing.assert_allclose(posterior.mean[:, 2:], alone.mean, rtol=1e-5)
    spec = TaskSpec((2,), 3, target="class")
    assert extended(spec) == replace(spec, x_shape=(6,))
    assert extended(TaskSpec((2,), 1, noise="predicted")).x_size == 4
