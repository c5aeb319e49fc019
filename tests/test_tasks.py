"""Sets of examples: weights, padding, unions."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from stmaml.tasks import Examples, Task, TaskSpec, only_asked, pad, weighted_mean

numbers = st.floats(-100, 100, width=32)


@given(
    values=hnp.arrays(np.float32, (5, 2), elements=numbers),
    weight=hnp.arrays(np.float32, 5, elements=st.floats(0.0625, 4, width=32)),
)
@settings(deadline=None)
def test_weighted_mean_is_numpys_average(values, weight):
    got = weighted_mean(jnp.asarray(values), jnp.asarray(weight))
    np.testing.assert_allclose(got, np.average(values, axis=0, weights=weight), rtol=1e-3, atol=1e-3)


@given(
    values=hnp.arrays(np.float32, 5, elements=numbers),
    keep=hnp.arrays(bool, 5).filter(lambda keep: keep.any()),
    garbage=numbers,
)
@settings(deadline=None)
def test_rows_of_weight_0_do_not_count(values, keep, garbage):
    dirty = jnp.asarray(np.where(keep, values, np.float32(garbage)))
    got = weighted_mean(dirty, jnp.asarray(keep, dtype=float))
    np.testing.assert_allclose(got, values[keep].mean(), rtol=1e-3, atol=1e-3)


def test_the_mean_of_nothing_is_zero_with_no_slope():
    mean, slope = jax.value_and_grad(lambda v: weighted_mean(v, jnp.zeros(3)))(jnp.ones(3))
    assert mean == 0
    np.testing.assert_array_equal(slope, np.zeros(3))


def test_the_mean_does_not_grow_with_the_weights():
    values = jnp.array([1.0, 3.0])
    np.testing.assert_allclose(weighted_mean(values, jnp.full(2, 7.0)), 2.0, rtol=1e-6)


def test_padding_appends_rows_of_weight_0(key):
    examples = Examples.of(jr.normal(key, (2, 3)), jnp.array([4, 5]))
    padded = pad(examples, 4)
    np.testing.assert_array_equal(padded.weight, [1, 1, 0, 0])
    np.testing.assert_array_equal(padded.x, np.concatenate([examples.x, np.zeros((2, 3))]))
    np.testing.assert_array_equal(padded.y, [4, 5, 0, 0])
    assert padded.y.dtype == examples.y.dtype
    np.testing.assert_array_equal(pad(examples, 2).x, examples.x)


def test_a_set_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="a set of 3 examples does not fit in 2 rows"):
        pad(Examples.of(jnp.zeros((3, 1)), jnp.zeros((3, 1))), 2)


def test_a_union_has_the_rows_of_both_in_order():
    first = Examples(jnp.array([[1.0]]), jnp.array([[10.0]]), jnp.array([0.0]))
    second = Examples.of(jnp.array([[2.0], [3.0]]), jnp.array([[20.0], [30.0]]))
    both = first + second
    np.testing.assert_array_equal(both.x, [[1], [2], [3]])
    np.testing.assert_array_equal(both.y, [[10], [20], [30]])
    np.testing.assert_array_equal(both.weight, [0, 1, 1])


@pytest.mark.parametrize(("shape", "size"), [((), 1), ((3,), 3), ((4, 5, 2), 40)])
def test_the_size_of_an_input_is_the_product_of_its_extents(shape, size):
    assert TaskSpec(shape, 1).x_size == size


def test_what_is_observed_and_asked_counts_once():
    """The same input with another target is another example; padding is none."""
    support = pad(Examples.of(jnp.array([[0.0, 1], [2, 3]]), jnp.array([[5.0], [6]])), 3)
    query = Examples.of(jnp.array([[2.0, 3], [0, 1], [0, 0], [9, 9]]), jnp.array([[6.0], [7], [0], [1]]))
    assert only_asked(Task(support, query)).weight.tolist() == [0, 1, 1, 1]
