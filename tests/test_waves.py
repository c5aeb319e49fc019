"""Coordinates as waves: against NumPy's sines, and what they can tell apart."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stmaml.errors import SettingError
from stmaml.nets.waves import FADING, LearntWaves, octaves_for, waves


def test_waves_are_sines_and_cosines_of_doubling_rates_beside_the_coordinates():
    x = np.array([[0.0, 1.0], [0.25, 0.5], [0.3, 0.9]], dtype=np.float32)
    rates = (1, 2, 4)
    sines = [np.sin(np.pi * rate * x[:, i]) for i in (0, 1) for rate in rates]
    cosines = [np.cos(np.pi * rate * x[:, i]) for i in (0, 1) for rate in rates]
    got = np.asarray(waves(jnp.asarray(x), 3))
    np.testing.assert_array_equal(got[:, :2], x)
    np.testing.assert_allclose(got[:, 2:], np.stack([*sines, *cosines], axis=1), atol=1e-5)


@pytest.mark.parametrize("extent", [2, 3, 4, 5, 16, 17, 28, 32, 33, 64])
def test_the_finest_wave_is_two_to_four_points_long(extent):
    length = 2 / 2 ** (octaves_for(extent) - 1) * (extent - 1)
    assert 2 <= length < 4


def test_a_single_point_has_one_octave():
    assert octaves_for(1) == 1


def test_neighbours_are_far_apart_and_all_points_differ():
    """By their coordinates neighbouring pixels of 28 differ by 1/27; by their waves at least thirty times as much."""
    x = jnp.linspace(0, 1, 28)[:, None]
    coded = np.asarray(waves(x, octaves_for(28)))
    steps = np.linalg.norm(np.diff(coded, axis=0), axis=1)
    assert steps.min() > 30 / 27
    apart = np.linalg.norm(coded[:, None] - coded[None], axis=-1)
    assert apart[~np.eye(28, dtype=bool)].min() >= steps.min() * 0.99


def test_learnt_waves_start_as_the_fixed_ones_fading():
    x = jnp.asarray([[0.0, -1.3], [0.25, 2.5], [0.3, 0.9]])
    learnt = LearntWaves(2, 4)
    fading = np.concatenate([np.ones(2), np.tile(FADING ** np.arange(4.0), 4)])
    got = np.asarray(learnt(x))
    assert got.shape == (3, learnt.size)
    np.testing.assert_allclose(got, fading * np.asarray(waves(x, 4)), atol=1e-4)


def test_the_rates_of_learnt_waves_follow_the_gradient_of_finite_differences():
    x = jnp.asarray([[0.2, -0.7], [1.1, 0.4]])
    learnt, pull = LearntWaves(2, 2), jnp.cos(jnp.arange(20.0)).reshape(2, 10)

    def score(log_rates) -> jax.Array:
        return (eqx.tree_at(lambda w: w.log_rates, learnt, log_rates)(x) * pull).sum()

    gradient = jax.grad(score)(learnt.log_rates)
    for at in np.ndindex(2, 2):
        nudge = jnp.zeros((2, 2)).at[at].set(1e-2)
        slope = (score(learnt.log_rates + nudge) - score(learnt.log_rates - nudge)) / 2e-2
        np.testing.assert_allclose(gradient[at], slope, rtol=2e-2, atol=2e-3)


def test_no_octaves_are_refused():
    with pytest.raises(SettingError, match="at least one octave; got 0"):
        LearntWaves(2, 0)
    with pytest.raises(SettingError, match="at least one octave; got 0"):
        waves(jnp.zeros((1, 2)), 0)
