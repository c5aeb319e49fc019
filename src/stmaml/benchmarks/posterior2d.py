"""What can be known of one function of 2D regression: draws from its posterior, for figures.

As the Bayes limit, draws from the prior weighted by the likelihood of the support; then some are drawn again by their
weights, as if they came from the posterior itself."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.benchmarks.bayes2d import Noise, draw, support_log_density, values_of
from stmaml.benchmarks.families2d import FAMILIES
from stmaml.tasks import Examples

NUM_DRAWS = 400_000  # from the prior of each family
NUM_KEPT = 2_000
NUM_CURVES = 10
LEVELS = (0.05, 0.95)


def posterior(
    support: Examples, x: Float[Array, "n 2"], *, noise: Noise, key: PRNGKeyArray, num_draws: int = NUM_DRAWS
) -> dict[str, np.ndarray]:
    """Some functions that may have made the support, as `curves`, and the 5 % and 95 % quantiles of a target at each x,
    as `low` and `high`."""
    values, sigma = _kept(support, x, noise, num_draws, key)
    noisy = values + sigma * np.asarray(jr.normal(jr.fold_in(key, 100), values.shape))
    low, high = np.quantile(noisy, LEVELS, axis=0)[..., None]
    apart = np.linspace(0, len(values) - 1, NUM_CURVES).astype(int)  # they come family by family
    return {"curves": values[apart][..., None], "low": low, "high": high}


def _kept(
    support: Examples, x: Float[Array, "n 2"], noise: Noise, num_draws: int, key: PRNGKeyArray
) -> tuple[Float[np.ndarray, "s n"], Float[np.ndarray, "s 1"]]:
    """Functions drawn by their weights, at x, and the noise that each goes with."""
    uses_x2 = not bool((x[:, 1] == 1.0).all())
    families = [family for family in FAMILIES if family.uses_x2 == uses_x2]
    drawn = [draw(family, noise, num_draws, key=jr.fold_in(key, i)) for i, family in enumerate(families)]
    each = [support_log_density(support, family, *some) for family, some in zip(families, drawn, strict=True)]
    kept = _resampled(np.concatenate([np.asarray(one, dtype=float) for one in each]))
    asked, values, sigma = Examples.of(x, jnp.zeros((x.shape[0], 1))), [], []
    for index, (family, (coefficients, spread)) in enumerate(zip(families, drawn, strict=True)):
        own = jnp.asarray(kept[kept // num_draws == index] - index * num_draws)
        values.append(np.asarray(values_of(family, coefficients[:, own], asked)))
        sigma.append(np.asarray(spread[own]))
    return np.concatenate(values), np.concatenate(sigma)


def _resampled(log_weight: Float[np.ndarray, " d"]) -> np.ndarray:
    """Places of `NUM_KEPT` draws, each as often as its weight asks for: evenly spaced on the cumulated weights."""
    total = np.cumsum(np.exp(log_weight - log_weight.max()))
    return np.searchsorted(total, total[-1] * (np.arange(NUM_KEPT) + 0.5) / NUM_KEPT)
