"""Inputs that look the support up, for every method: what must hold whoever reads them, and what 0.1.0 computed."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stmaml.errors import SettingError
from stmaml.experiments import load_run
from stmaml.inner import InnerLoop
from stmaml.methods import METHODS, st_maml
from stmaml.methods.base import predict
from stmaml.methods.composed import build
from stmaml.methods.looks_up import LooksUp, LookUp
from stmaml.methods.neural_processes import CNPConfig
from stmaml.methods.on_linear import OnLinear
from stmaml.methods.standardised import Standardised
from stmaml.methods.wrapper import inner_loop, method_of, with_inner
from stmaml.runs import read_npz
from stmaml.tasks import Examples, Scaling, Task, TaskSpec, pad
from tests.methods.small import SMALL, gradients, small_task, untouched
from tests.methods.test_contract import ORDER_MATTERS, loss_of, mean_of, spec_of

ATTENTION = LookUp("attention", 4, lookup_layers=1, lookup_heads=2)
QUICK = {"anp", "cnp", "maml", "protonet", "st-maml"}  # the others read what they are given as these do
every_method = pytest.mark.parametrize("name", sorted(METHODS))
every_reading = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in sorted(METHODS)]
)
_BUILT: dict[str, Any] = {}


def looking(name: str) -> LooksUp:
    """A small learner of a method, whose inputs look the support up."""
    if name not in _BUILT:
        _BUILT[name] = eqx.filter_jit(ATTENTION.build)(SMALL[name], spec_of(name), key=jr.key(0))
    return _BUILT[name]


@every_reading
def test_order_and_padding_of_the_support_change_nothing(name, key):
    learner, task = looking(name), small_task(spec_of(name), key=key)
    padded = Task(pad(task.support, 7), pad(task.query, 9))
    np.testing.assert_allclose(loss_of(learner, padded, key), loss_of(learner, task, key), rtol=2e-4, atol=2e-5)
    want = mean_of(learner, task.support, task.query.x, key)
    for got, exact in zip(mean_of(learner, padded.support, task.query.x, key), want, strict=True):
        np.testing.assert_allclose(got, exact, rtol=2e-4, atol=2e-5)
    shuffled = jax.tree.map(lambda leaf: leaf[::-1], task.support)
    again = loss_of(learner, Task(shuffled, task.query), key)
    if name not in ORDER_MATTERS:
        np.testing.assert_allclose(again, loss_of(learner, task, key), rtol=2e-4, atol=2e-5)


@every_method
def test_every_parameter_of_method_and_reader_gets_a_gradient(name, key):
    spec = spec_of(name)
    tasks = jax.vmap(lambda key: small_task(spec, key=key))(jr.split(key, 4))
    grads = gradients(looking(name), tasks, key=key)
    assert untouched(grads) == []
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


def test_asked_inputs_are_read_alike_padded_or_not(key):
    learner, task = looking("cnp"), small_task(spec_of("cnp"), key=key)
    padded = pad(task.query, 9)
    got = eqx.filter_jit(predict)(learner, task.support, padded.x, weight=padded.weight, num_samples=1, key=key)
    want = eqx.filter_jit(predict)(learner, task.support, task.query.x, num_samples=1, key=key)
    np.testing.assert_allclose(got.mean[:6], want.mean, rtol=1e-4, atol=1e-5)


def test_labels_of_the_support_reach_an_asked_input_by_look_up_alone(key):
    """A CNP whose own reading of the support is cut off still hears of a label, through what its input finds."""
    learner, task = looking("cnp"), small_task(spec_of("cnp"), key=key)
    other = eqx.tree_at(lambda s: s.y, task.support, task.support.y.at[0].add(1.0))
    found, again = (learner.seen(support).x[:, 2:] for support in (task.support, other))
    assert found.shape == (5, 4)
    assert (np.abs(found - again).max(1) > 1e-5).all()


# What 0.1.0 computed with attention and lattice inside ST-MAML.

INSIDE = {
    "attention": (
        LookUp("attention", 8, lookup_layers=2, lookup_heads=2, lookup_waves=2),
        0.7108796834945679,
        [0.4180239, 0.4185378, 0.4815278, 0.4242696, 0.4188420, 0.4756305],
    ),
    "lattice": (
        LookUp("lattice", 4),
        0.7056838870048523,
        [0.4375181, 0.4516723, 0.4396933, 0.4384081, 0.4380276, 0.5129583],
    ),
}


@pytest.mark.parametrize("form", INSIDE)
def test_st_maml_that_looks_up_is_that_of_the_first_version(form):
    """Fresh weights, loss and predictions, with a gate that reads the support too."""
    lookup, want_loss, want_mean = INSIDE[form]
    spec = TaskSpec((2,), 1, target="binary", lattice=(8, 12) if form == "lattice" else None)
    config = st_maml.Config(
        hidden=(8,),
        h_size=3,
        encoder=st_maml.Encoding((8, 8), num_heads=2, z_hidden=(), z_size=4),
        gate=st_maml.Gating("set-mlp", (6,)),
        inner=InnerLoop(inner_lr=0.5, inner_steps=2),
    )
    learner = eqx.filter_jit(lookup.build)(config, spec, key=jr.key(0))
    x = jnp.sin(jnp.arange(22.0)).reshape(11, 2) * 0.5 + 0.5
    y = (jnp.cos(jnp.arange(11.0)) * 0.5 + 0.5)[:, None]
    task = Task(Examples.of(x[:5], y[:5]), Examples.of(x[5:], y[5:]))
    np.testing.assert_allclose(loss_of(learner, task, jr.key(3)), want_loss, rtol=1e-5)
    mean = eqx.filter_jit(predict)(learner, task.support, task.query.x, num_samples=3, key=jr.key(5)).mean
    np.testing.assert_allclose(mean[:, 0], want_mean, rtol=1e-5)


# Settings.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"lookup": "lattice", "lookup_waves": 9},
            "--lookup-waves is for --lookup attention, not lattice; set it to 0",
        ),
        ({"lookup_waves": 9}, "--lookup-waves is for --lookup attention, not none"),
        ({"lookup_size": 32}, "--lookup-size is for --lookup attention, not none"),
        ({"lookup": "lattice", "lookup_layers": 2}, "--lookup-layers is for --lookup attention, not lattice"),
        ({"lookup": "attention", "lookup_precision": "bfloat16"}, "--lookup-precision is for --lookup lattice"),
        ({"lookup": "attention", "lookup_size": 0}, "--lookup-size must be at least 1; got 0"),
        ({"lookup": "attention", "lookup_layers": -1}, "--lookup-layers must be at least 1; got -1"),
        ({"lookup": "attention", "lookup_heads": 0}, "--lookup-heads must be at least 1; got 0"),
        ({"lookup": "attention", "lookup_waves": -2}, "--lookup-waves must be at least 0; got -2"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        LookUp(**settings)


def test_attention_does_not_look_up_images(key):
    with pytest.raises(SettingError, match="--lookup attention looks up vectors, not images"):
        ATTENTION.build(SMALL["maml"], TaskSpec((8, 8, 2), 3, target="class"), key=key)


# Wrapped in each other.

SPEC = TaskSpec((2,), 1, noise="learned")
SCALING = Scaling((1.0, -1.0), (2.0, 0.5), (3.0,), (4.0,))


@pytest.fixture(scope="module")
def wrapped() -> Any:
    make = eqx.filter_jit(
        lambda key: build(SMALL["st-maml"], SPEC, lookup=ATTENTION, linear=True, scaling=SCALING, key=key)
    )
    return make(jr.key(0))


def test_all_wrappers_stand_in_their_order(wrapped):
    assert isinstance(wrapped, Standardised)
    assert isinstance(wrapped.learner, OnLinear)
    assert isinstance(wrapped.learner.learner, LooksUp)
    assert isinstance(method_of(wrapped), st_maml.STMAML)


def test_the_task_variable_is_that_of_the_method_on_what_it_sees(wrapped, key):
    """Scaled, with the regression's answer beside it, and what was found: each by hand."""
    support = small_task(SPEC, key=key).support
    scaled = Examples(
        (support.x - jnp.array([[1.0, -1.0]])) / jnp.array([[2.0, 0.5]]), (support.y - 3) / 4, support.weight
    )
    seen = wrapped.learner.learner.seen(wrapped.learner.seen(scaled))
    got = eqx.filter_jit(lambda learner: learner.task_distribution(support))(wrapped)
    want = method_of(wrapped).task_distribution(seen)
    assert got is not None
    assert want is not None
    np.testing.assert_allclose(got.mu, want.mu, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got.sigma, want.sigma, rtol=1e-4, atol=1e-5)


def test_a_method_without_task_variable_says_none(key):
    learner = build(CNPConfig(encoder=(4,), decoder=(4,)), SPEC, scaling=SCALING, key=key)
    assert learner.task_distribution(small_task(SPEC, key=key).support) is None
    assert inner_loop(learner) is None


def test_the_inner_loop_is_changed_inside_all_wrappers(wrapped):
    assert inner_loop(wrapped) == SMALL["st-maml"].inner
    again: Any = with_inner(wrapped, lambda inner: dataclasses.replace(inner, inner_steps=7))
    assert inner_loop(again) == dataclasses.replace(SMALL["st-maml"].inner, inner_steps=7)
    assert eqx.tree_equal(again.learner.prior, wrapped.learner.prior)


def test_numbers_of_a_learner_with_all_wrappers_are_finite(wrapped, key):
    task = small_task(SPEC, key=key)
    assert np.isfinite(loss_of(wrapped, task, key))
    mean, std = mean_of(wrapped, task.support, task.query.x, key)
    assert np.isfinite(mean).all()
    assert (std > 0).all()


def test_the_command_line_gives_look_ups_to_any_method(stmaml, tmp_path):
    small = ["--hidden", 4, "--lookup-size", 4, "--lookup-heads", 1, "--lookup-layers", 1, "--inner-steps", 1]
    short = ["--steps", 2, "--val-every", 2, "--val-tasks", 2, "--tasks-per-batch", 2, "--steps-per-call", 2]
    train = ["train", "regression2d", "--method", "maml", "--run", tmp_path / "run"]
    code, _, err = stmaml(*train, "--lookup", "lattice")
    assert code == 2
    assert "needs inputs on a lattice" in err
    assert stmaml(*train, "--lookup", "attention", *small, *short)[0] == 0
    experiment, learner = load_run(tmp_path / "run")
    assert experiment.modelling.lookup == LookUp("attention", 4, lookup_layers=1, lookup_heads=1)
    assert isinstance(learner, LooksUp)
    assert "reader.blocks.0.attention.key.weight" in read_npz(tmp_path / "run" / "learner.npz")


def test_predictors_that_look_up_together_say_what_each_says_alone(key):
    spec = spec_of("st-maml")
    scaling = Scaling((0.5,) * spec.x_size, (2.0,) * spec.x_size, (1.0,), (3.0,))
    learner = Standardised(looking("st-maml"), scaling, scale_targets=True)
    task = small_task(spec, key=key)
    weight = task.query.weight.at[0].set(0.0)

    @eqx.filter_jit
    def both():
        predictors = learner.adapt(task.support, num_samples=3, key=key)
        alone = eqx.filter_vmap(lambda one: one.padded(task.query.x, weight))(predictors)
        return predictors.together(task.query.x, weight), alone

    got, want = both()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, want)
    assert np.ptp(np.asarray(got.mean()), axis=0).max() > 1e-3  # three predictors, not one
