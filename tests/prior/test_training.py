"""Training on made-up tables: the loss is a proper score, steps that run away are not taken, and it helps."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stmaml.benchmarks.hierarchies import Shape, sample_tables, table_key
from stmaml.prior.judging import Judge
from stmaml.prior.learner import Learner, Sizes
from stmaml.prior.pieces import Plan, first_rest, train
from stmaml.prior.steps import begin_steps
from stmaml.prior.training import State, answer, batch_of, draw_batches, log_normal, one_step
from stmaml.prior.training import with_strays as strays

SMALL = Sizes(64, 1, 64, 1)
SHAPE = Shape(4, 2, 5, 2)


def test_the_loss_is_that_of_a_density():
    """It integrates to 1 whatever the spread: no answer can score below the entropy of the rows."""
    y = jnp.linspace(-60, 60, 240_001)
    for mean, std in ((0.0, 1.0), (3.0, 0.02), (-1.0, 5.0)):
        density = jnp.exp(strays(log_normal(y, jnp.full_like(y, mean), jnp.full_like(y, std)), y))
        assert np.trapezoid(np.asarray(density, float), np.asarray(y, float)) == pytest.approx(1, abs=1e-3)


def test_tables_drawn_ahead_are_those_of_the_steps():
    """Their linear models say what a learner finds by itself."""
    batches = jax.jit(partial(draw_batches, SHAPE, 3))(table_key(1))
    learner = Learner(SMALL, key=jr.key(0))
    first = jax.tree.map(lambda leaf: leaf[0], batches)
    alone = jax.jit(batch_of)(first.table)
    ahead, later = (eqx.filter_jit(answer)(learner, one).expected for one in (first, alone))
    np.testing.assert_allclose(ahead, later, rtol=1e-3, atol=1e-3)
    assert not np.allclose(batches.table.y[0], batches.table.y[1])


def test_a_step_that_runs_away_is_not_taken():
    weights, static = eqx.partition(Learner(SMALL, key=jr.key(0)), eqx.is_array)
    state = State(weights, weights, begin_steps(weights))
    batch = batch_of(sample_tables(SHAPE, 2, key=table_key(1)))
    broken = eqx.tree_at(lambda one: one.table.y, batch, batch.table.y.at[0].set(jnp.nan))
    step = jax.jit(partial(one_step, static, False))
    after, loss = step(state, broken, jnp.asarray(1e-3), jnp.asarray(0.0))
    assert np.isnan(float(loss))
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(state), strict=True))
    taken, loss = step(state, batch, jnp.asarray(1e-3), jnp.asarray(0.0))
    assert np.isfinite(float(loss))
    assert not np.array_equal(taken.weights.head.weight, weights.head.weight)


@pytest.mark.slow
def test_training_beats_the_linear_model_it_starts_from():
    """On new tables, with no more than is possible, and with intervals that hold."""
    shape = Shape(8, 3, 8, 2)
    judge = Judge(shape, 200)
    first = Learner(SMALL, key=jr.key(0))
    plan = Plan(3e-3, warm_up=30, fall_from=128, fall_steps=64, keep=0.98, rest=64, half=False)
    *_, last = train(first_rest(first), plan, ((shape, 32),), (0,))
    before, after = judge(first), judge(last.learner)
    assert after["numbers"] < before["numbers"] - 0.005
    assert after["classes"] < before["classes"] - 0.005
    assert after["error"] < before["error"] - 0.005
    assert after["linear"] > after["linear_limit"]
    assert 0.86 < after["holds"] < 0.95
    assert 0.86 < after["linear_holds"] < 0.95
