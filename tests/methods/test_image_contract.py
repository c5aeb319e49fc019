"""What every method must keep on images: tiny ones, three classes of two examples."""

import dataclasses
from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stmaml.methods import METHODS, st_maml
from stmaml.methods.base import AbstractMetaLearner, predict
from stmaml.nets.conv import Conv, NormMode
from stmaml.runs import load_arrays, save_arrays
from stmaml.tasks import Examples, Task, TaskSpec
from tests.changed import changed
from tests.methods.small import ONE_STEP, SMALL, untouched

SPEC = TaskSpec((6, 6, 2), 3, target="class")
VARIANTS = {
    "st-maml-beyond": changed(
        st_maml.Config(),
        encoder=(8,),
        z_hidden=(),
        z_size=4,
        h_size=3,
        reads="prototypes",
        proto_head=True,
        prior_draws=2,
        inner=ONE_STEP,
    )
}
# What these add to maml, mmaml and cnp on images is either covered by the other contract or slow to compile.
SLOW = {"anp", "np", "arml", "bmaml", "hsml", "meta-sgd", "platipus"}
every_version = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in [*sorted(METHODS), *VARIANTS]]
)


def config_of(name: str, norm: NormMode) -> Any:
    config: Any = (SMALL | VARIANTS)[name]
    changes = {"conv": Conv(channels=4, conv_blocks=1, norm=norm), "inner": ONE_STEP}
    return dataclasses.replace(config, **{key: value for key, value in changes.items() if hasattr(config, key)})


@cache
def weights_of(name: str) -> list:
    return jax.tree.leaves(eqx.filter_jit(config_of(name, "batch").build)(SPEC, key=jr.key(0)))


def learner_of(name: str, norm: NormMode) -> AbstractMetaLearner:
    """The same weights under any normalisation, made once: that takes longer than tracing."""
    blank = eqx.filter_eval_shape(config_of(name, norm).build, SPEC, key=jr.key(0))
    return jax.tree.unflatten(jax.tree.structure(blank), weights_of(name))


def examples(n: int, seed: int) -> Examples:
    return Examples.of(jr.uniform(jr.key(seed), (n, *SPEC.x_shape)), jnp.arange(n) % SPEC.y_size)


def task_of(seed: int) -> Task:
    return Task(examples(6, seed), examples(6, seed + 1000))


def stack(*tasks: Task) -> Task:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *tasks)


def with_hidden_rows(given: Examples, content: float) -> Examples:
    """Two rows of weight 0, whatever they hold."""
    shown = jnp.array([1.0, 1, 0, 1, 1, 0])
    x = jnp.where(shown[:, None, None, None] > 0, given.x, content)
    return Examples(x, jnp.where(shown > 0, given.y, int(abs(content)) % 3), shown)


@cache
def losses(name: str):
    """A program of losses of a batch of tasks and their gradient; statistics are those of the set that is read."""

    @eqx.filter_value_and_grad(has_aux=True)
    def total(learner: AbstractMetaLearner, tasks: Task, keys):
        each = jax.vmap(lambda task, key: learner.loss(task, key=key)[0])(tasks, keys)
        return each.sum(), each

    traced_once = eqx.filter_jit(eqx.debug.assert_max_traces(total, max_traces=1))

    def run(*tasks: Task):
        (_, each), grads = traced_once(learner_of(name, "batch"), stack(*tasks), jr.split(jr.key(1), len(tasks)))
        return np.asarray(each), grads

    return run


@cache
def answers(name: str):
    """A program of class probabilities; statistics are those of the support."""

    @eqx.filter_jit
    def program(learner: AbstractMetaLearner, support: Examples, x):
        return predict(learner, support, x, num_samples=2, key=jr.key(2)).mean

    return lambda support, x: np.asarray(program(learner_of(name, "support"), support, x))


@every_version
def test_every_parameter_gets_a_finite_gradient_and_the_same_one_again(name):
    run = losses(name)
    each, grads = run(task_of(0), task_of(1))
    assert untouched(grads) == []
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))
    again, same = run(task_of(0), task_of(1))
    np.testing.assert_array_equal(again, each)
    assert eqx.tree_equal(same, grads)


@every_version
def test_the_loss_of_a_task_is_its_own_and_hidden_rows_have_no_part_in_it(name):
    run = losses(name)
    alone, _ = run(task_of(0), task_of(1))
    beside, _ = run(task_of(0), task_of(2))
    np.testing.assert_allclose(alone[0], beside[0], rtol=1e-5)
    assert alone[1] != beside[1]
    clean, dirty = (
        Task(with_hidden_rows(task_of(0).support, content), with_hidden_rows(task_of(0).query, content))
        for content in (0.0, 20.0)
    )
    np.testing.assert_allclose(run(dirty, dirty)[0], run(clean, clean)[0], rtol=2e-4, atol=2e-5)


@every_version
def test_answers_depend_on_the_support_as_a_set_and_on_no_other_query(name):
    run = answers(name)
    support, x = examples(6, 3), examples(4, 4).x
    given = run(support, x)
    np.testing.assert_array_equal(run(support, x), given)
    turned = jax.tree.map(lambda rows: rows[::-1], support)
    np.testing.assert_allclose(run(turned, x), given, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(run(support, x.at[1:].set(5.0))[0], given[0], rtol=1e-3, atol=1e-5)
    clean, dirty = (run(with_hidden_rows(support, content), x) for content in (0.0, 20.0))
    np.testing.assert_allclose(dirty, clean, rtol=1e-3, atol=1e-5)
    assert not np.allclose(clean, given, atol=1e-4)


@every_version
def test_weights_survive_a_file(name, tmp_path):
    learner = learner_of(name, "batch")
    save_arrays(tmp_path / "learner.npz", learner)
    other = jax.tree.map(lambda leaf: leaf + 1 if eqx.is_inexact_array(leaf) else leaf, learner)
    assert eqx.tree_equal(load_arrays(tmp_path / "learner.npz", other), learner)
