"""Learners that answer as one."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.stats import norm

from stmaml.errors import SettingError
from stmaml.inner import InnerLoop
from stmaml.methods import maml, neural_processes, st_maml
from stmaml.methods.base import predict
from stmaml.methods.committee import Committee
from stmaml.methods.wrapper import in_use, with_inner
from stmaml.tasks import Examples, Task, TaskSpec

SPEC = TaskSpec(x_shape=(2,), y_size=1)
X = jr.normal(jr.key(0), (9, 2))
SUPPORT, QUERY = Examples.of(X[:5], X[:5, :1] * 2), Examples.of(X[5:], X[5:, :1] * 2)
TASK = Task(SUPPORT, QUERY)
MAML = maml.Config(hidden=(4,), inner=InnerLoop(inner_lr=0.05, inner_steps=2)).build(SPEC, key=jr.key(1))
CNP = neural_processes.CNPConfig().build(SPEC, key=jr.key(2))
STMAML = st_maml.Config(hidden=(4,), kl_weight=0.1).build(SPEC, key=jr.key(3))


def said(learner, samples: int = 3):
    return predict(learner, SUPPORT, QUERY.x, num_samples=samples, key=jr.key(4))


def test_density_and_mean_are_averages_over_learners():
    """Against SciPy: two normals, each with half of the weight."""
    each = [said(one) for one in (MAML, CNP)]
    together = said(Committee((MAML, CNP)))
    mean, std = (np.stack([np.asarray(part)[:, 0] for part in parts]) for parts in zip(*map(of_one, each), strict=True))
    density = norm.pdf(np.asarray(QUERY.y)[:, 0], mean, std).mean(0)
    assert np.abs(mean[0] - mean[1]).max() > 0.01
    np.testing.assert_allclose(together.log_prob(QUERY.y), np.log(density), rtol=1e-4)
    np.testing.assert_allclose(np.asarray(together.mean)[:, 0], mean.mean(0), rtol=1e-5)
    np.testing.assert_allclose(np.asarray(together.task_std)[:, 0], mean.std(0), rtol=1e-3)


def of_one(prediction):
    return prediction.mean, prediction.std


def test_a_learner_that_draws_counts_no_more_than_one_that_does_not():
    """Three draws beside one predictor, repeated: half of the weight is MAML's."""
    together, alone = said(Committee((STMAML, MAML))), said(MAML)
    assert together.num_samples == 6
    means = np.asarray(together.components.mean())
    np.testing.assert_array_equal(means[3:], np.repeat(np.asarray(alone.components.mean()), 3, axis=0))
    assert np.ptp(means[:3], axis=0).max() > 0
    np.testing.assert_allclose(together.mean, (means[:3].mean(0) + np.asarray(alone.mean)) / 2, rtol=1e-5)


def test_each_learner_is_trained_as_if_it_were_alone():
    committee = Committee((MAML, CNP))
    loss, grads = eqx.filter_value_and_grad(lambda one: one.loss(TASK, key=jr.key(5))[0])(committee)
    alone = [eqx.filter_value_and_grad(lambda one: one.loss(TASK, key=jr.key(5))[0])(one) for one in (MAML, CNP)]
    np.testing.assert_allclose(loss, sum(float(value) for value, _ in alone), rtol=1e-6)
    for own, (_, expected) in zip(grads.learners, alone, strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), own, expected)


def test_learners_take_the_inner_steps_they_take_in_use():
    longer = with_inner(MAML, lambda inner: replace(inner, test_steps=5))
    assert np.abs(np.asarray(said(in_use(longer)).mean) - np.asarray(said(MAML).mean)).max() > 1e-3
    np.testing.assert_allclose(said(Committee((longer,))).mean, said(in_use(longer)).mean, rtol=1e-5)


def test_what_cannot_answer_together_is_refused():
    with pytest.raises(SettingError, match="at least one learner"):
        Committee(())
    other = maml.Config(hidden=(4,)).build(replace(SPEC, noise="mixture"), key=jr.key(1))
    with pytest.raises(SettingError, match="must answer in the same way"):
        said(Committee((MAML, other)))
    voices = Committee((MAML,)).adapt(SUPPORT, num_samples=1, key=jr.key(0))
    with pytest.raises(SettingError, match="no single predictor"):
        voices(jnp.zeros((1, 2)))
