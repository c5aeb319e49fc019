"""What every method must keep, whatever its mathematics."""

import dataclasses
import inspect
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stmaml.errors import SettingError
from stmaml.methods import METHODS
from stmaml.methods.base import AbstractMetaLearner, predict
from stmaml.tasks import Examples, Task, TaskSpec, pad
from tests.methods.small import SMALL, VARIANTS, gradients, small_learner, small_task, untouched

ORDER_MATTERS = {"mmaml"}  # a recurrent encoder reads its support in order
CLASSES_ONLY = {"protonet"}
SPECS = {
    "real": TaskSpec((2,), 1),
    "class": TaskSpec((2,), 3, target="class"),
    "binary": TaskSpec((2,), 1, target="binary"),
    "learned": TaskSpec((2,), 1, noise="learned"),
}
every_method = pytest.mark.parametrize("name", sorted(METHODS))
every_version = pytest.mark.parametrize("name", [*sorted(METHODS), *sorted(VARIANTS)])
QUICK_BINARY = {"cnp", "maml", "np", "st-maml"}  # the others do nothing of their own with values in 0..1
GRADIENTS = [
    *(
        pytest.param(target, name, marks=[pytest.mark.slow] * (target == "binary" and name not in QUICK_BINARY))
        for target in ("binary", "class", "real")
        for name in sorted(METHODS)
        if target == "class" or name not in CLASSES_ONLY
    ),
    *(("learned", name) for name in sorted(VARIANTS)),
]


def spec_of(name: str) -> TaskSpec:
    """Real targets; for variants with a density, which a mixture needs; classes where a method knows nothing else."""
    if name in CLASSES_ONLY:
        return SPECS["class"]
    return SPECS["learned" if name in VARIANTS else "real"]


@eqx.filter_jit
def loss_of(learner: AbstractMetaLearner, task: Task, key):
    return learner.loss(task, key=key)[0]


@eqx.filter_jit
def mean_of(learner: AbstractMetaLearner, support: Examples, x, key):
    prediction = predict(learner, support, x, num_samples=3, key=key)
    return prediction.mean, prediction.std


def test_every_method_has_a_small_version():
    """The tests below cover all of METHODS."""
    assert sorted(SMALL) == sorted(METHODS)


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", [name for name in sorted(SMALL) if hasattr(SMALL[name], "kl_weight")])
def test_a_kl_weight_that_makes_no_sense_is_refused(name, weight, key):
    settings: Any = SMALL[name]
    with pytest.raises(SettingError, match=f"--kl-weight must be a number of at least 0; got {weight}"):
        dataclasses.replace(settings, kl_weight=weight).build(SPECS["real"], key=key)


@pytest.mark.parametrize(("target", "name"), GRADIENTS)
def test_every_parameter_gets_a_gradient(target, name, key):
    spec = SPECS[target]
    learner = small_learner(name, spec, key=key)
    tasks = jax.vmap(lambda key: small_task(spec, key=key))(jr.split(key, 4))
    grads = gradients(learner, tasks, key=key)
    assert untouched(grads) == []
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


@pytest.mark.parametrize("noise", ["student", "mixture"])
@pytest.mark.parametrize("name", [name for name in sorted(METHODS) if name not in CLASSES_ONLY])
def test_every_method_bears_every_noise_model(name, noise, key):
    """Finite gradients of the loss, one for what the noise model learns, and a finite density after adapting."""
    spec = TaskSpec((2,), 1, noise=noise)
    learner, task = small_learner(name, spec, key=key), small_task(spec, key=key)

    @eqx.filter_jit
    def ask(learner):
        grads = eqx.filter_grad(lambda learner: learner.loss(task, key=key)[0])(learner)
        prediction = predict(learner, task.support, task.query.x, num_samples=2, key=key)
        return grads, prediction.log_prob(task.query.y)

    grads, log_prob = ask(learner)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))
    assert not [name for name in untouched(grads) if "likelihood" in name]
    assert np.isfinite(log_prob).all()


@every_method
def test_same_key_same_result(name, key):
    spec = spec_of(name)
    learner, task = small_learner(name, spec, key=key), small_task(spec, key=key)
    assert loss_of(learner, task, key) == loss_of(learner, task, key)
    first, second = (mean_of(learner, task.support, task.query.x, key) for _ in range(2))
    np.testing.assert_array_equal(first[0], second[0])


@every_version
def test_support_order_is_irrelevant(name, key):
    spec = spec_of(name)
    learner, task = small_learner(name, spec, key=key), small_task(spec, key=key)
    shuffled = jax.tree.map(lambda a: a[::-1], task.support)
    mean, std = mean_of(learner, task.support, task.query.x, key)
    mean2, std2 = mean_of(learner, shuffled, task.query.x, key)
    if name in ORDER_MATTERS:
        assert not np.allclose(mean, mean2, atol=1e-6)
    else:
        np.testing.assert_allclose(mean, mean2, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(std, std2, rtol=1e-4, atol=1e-5)


@every_method
def test_padding_changes_nothing(name, key):
    """A set padded to a larger shape gives the loss and the prediction of the set itself."""
    spec = spec_of(name)
    learner, task = small_learner(name, spec, key=key), small_task(spec, key=key)
    padded = Task(pad(task.support, 7), pad(task.query, 9))
    exact = mean_of(learner, task.support, task.query.x, key)
    for got, want in zip(mean_of(learner, padded.support, task.query.x, key), exact, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(loss_of(learner, padded, key), loss_of(learner, task, key), rtol=2e-4, atol=2e-5)


@every_version
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    keep=st.lists(st.booleans(), min_size=7, max_size=7), garbage=st.floats(-50, 50, width=32), seed=st.integers(0, 99)
)
def test_zero_weight_rows_change_nothing(name, keep, garbage, seed, key):
    """Whatever finite numbers stand in rows of weight 0, in support and query, even if no row is left."""
    spec = spec_of(name)
    learner = small_learner(name, spec, key=key)
    task = small_task(spec, shots=7, queries=7, key=jr.key(seed))
    weight = np.array(keep, dtype=np.float32)

    def hide(examples: Examples, content: float) -> Examples:
        other = round(abs(content)) % spec.y_size if spec.target == "class" else -content  # a class that there is
        y = np.where(weight.reshape(-1, *[1] * (examples.y.ndim - 1)) > 0, examples.y, other)
        x = np.where(weight[:, None] > 0, examples.x, content)
        return Examples(jnp.asarray(x), jnp.asarray(y, dtype=examples.y.dtype), jnp.asarray(weight))

    clean, dirty = (Task(hide(task.support, c), hide(task.query, c)) for c in (0.0, garbage))
    for got, want in zip(
        mean_of(learner, dirty.support, task.query.x, key),
        mean_of(learner, clean.support, task.query.x, key),
        strict=True,
    ):
        assert np.isfinite(want).all()
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(loss_of(learner, dirty, key), loss_of(learner, clean, key), rtol=2e-4, atol=2e-5)


@every_method
def test_vmap_equals_a_loop(name, key):
    spec = spec_of(name)
    learner = small_learner(name, spec, key=key)
    tasks = [small_task(spec, key=jr.fold_in(key, i)) for i in range(3)]
    keys = jr.split(key, 3)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *tasks)
    mapped = eqx.filter_jit(lambda learner: jax.vmap(lambda t, k: learner.loss(t, key=k)[0])(stacked, keys))(learner)
    looped = [loss_of(learner, task, k) for task, k in zip(tasks, keys, strict=True)]
    np.testing.assert_allclose(mapped, np.array(looped), rtol=1e-4, atol=1e-5)


@every_method
def test_query_labels_never_reach_adapt(name, key):
    """`adapt` is handed the support alone; its signature has no room for more."""
    learner = small_learner(name, spec_of(name), key=key)
    parameters = inspect.signature(learner.adapt).parameters
    assert list(parameters) == ["support", "num_samples", "key"]
    assert parameters["support"].annotation is Examples


@every_method
def test_one_trace_a_shape(name, key):
    spec = spec_of(name)
    learner = small_learner(name, spec, key=key)
    step = eqx.filter_jit(eqx.debug.assert_max_traces(lambda learner, t, k: learner.loss(t, key=k)[0], max_traces=1))
    for i in range(3):
        step(learner, small_task(spec, key=jr.key(i)), jr.key(i))


@every_method
def test_loss_falls_on_a_memorised_batch_and_the_same_seed_gives_the_same_result(name, key):
    """The same to the bit: weights from a key, what is learnt, and how the loss goes."""
    spec = spec_of(name)
    learner = small_learner(name, spec, key=key)
    task = small_task(spec, key=key)
    optimizer = optax.adam(1e-2)

    @eqx.filter_jit
    def run(learner):
        state = optimizer.init(eqx.filter(learner, eqx.is_inexact_array))

        def step(carry, step_key):
            learner, state = carry
            loss, grads = eqx.filter_value_and_grad(lambda learner: learner.loss(task, key=step_key)[0])(learner)
            updates, state = optimizer.update(grads, state)
            return (eqx.apply_updates(learner, updates), state), loss

        (learner, _), losses = jax.lax.scan(step, (learner, state), jr.split(key, 150))
        return learner, losses

    trained, losses = run(learner)
    again = run(eqx.filter_jit(SMALL[name].build)(spec, key=key))
    assert [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves((trained, losses))] == [
        np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(again)
    ]
    losses = np.asarray(losses)
    assert losses[-20:].mean() < losses[:5].mean() - 0.2 * abs(losses[:5].mean())


@every_method
def test_settings_are_frozen_and_documented(name):
    config = METHODS[name]
    assert dataclasses.is_dataclass(config)
    assert hash(config()) == hash(config())
