"""What can be known of one function of 2D regression: draws from its posterior, for figures and pages.

As the Bayes limit, draws from the prior weighted by the likelihood of the support; then some are drawn again by their
weights, as if they came from the posterior itself."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.benchmarks.bayes2d import Noise, draw, support_log_density, values_of
from stmaml.benchmarks.families2d import FAMILIES
from stmaml.outcomes import NormalOutcome
from stmaml.prediction import Prediction
from stmaml.tasks import Examples, Scalar

NUM_DRAWS = 400_000  # from the prior of each family, for a figure
NUM_KEPT = 512
NUM_CURVES = 10
LEVELS = (0.05, 0.95)


class Posterior(eqx.Module):
    """Functions that may have made a support, each as often as it is likely, and what follows, at some inputs."""

    curves: Float[Array, "s n"]
    mean: Float[Array, " n"]
    low: Float[Array, " n"]
    high: Float[Array, " n"]
    """The 5 % and 95 % quantiles of a target."""
    effective_draws: Scalar
    """How many equally weighted draws they were drawn from; below about 30 the band is rough."""


@eqx.filter_jit
def posterior(
    support: Examples, x: Float[Array, "n 2"], *, uses_x2: bool, noise: Noise, num_draws: int, key: PRNGKeyArray
) -> Posterior:
    """What may be behind the support, with `num_draws` draws for each family that it might be of."""
    families = [family for family in FAMILIES if family.uses_x2 == uses_x2]
    drawn = [draw(family, noise, num_draws, key=jr.fold_in(key, i)) for i, family in enumerate(families)]
    each = [support_log_density(support, family, *some) for family, some in zip(families, drawn, strict=True)]
    weight = jax.nn.softmax(jnp.concatenate(each))
    # Evenly spaced places of the running sum: draws come as often as they weigh.
    places = (jnp.arange(NUM_KEPT) + 0.5) / NUM_KEPT
    kept = jnp.minimum(jnp.searchsorted(jnp.cumsum(weight), places), weight.shape[0] - 1)
    which, row = kept // num_draws, kept % num_draws
    asked = Examples.of(x, jnp.zeros((x.shape[0], 1)))
    curves = jnp.stack([values_of(f, some[:, row], asked) for f, (some, _) in zip(families, drawn, strict=True)])
    sigma = jnp.stack([some[row] for _, some in drawn])[which, jnp.arange(NUM_KEPT)]
    curves = curves[which, jnp.arange(NUM_KEPT)]
    noisy = Prediction(NormalOutcome(curves[..., None], jnp.broadcast_to(sigma, curves.shape)[..., None]))
    low, high = noisy.quantiles(jnp.array(LEVELS))[..., 0]
    return Posterior(curves, noisy.mean[:, 0], low, high, 1 / jnp.square(weight).sum())


def drawn_beside(
    support: Examples, x: Float[Array, "n 2"], *, noise: Noise, key: PRNGKeyArray
) -> dict[str, np.ndarray]:
    """What a figure shows beside a learner's answer: some functions, as `curves`, and a band from `low` to `high`."""
    uses_x2 = not bool((x[:, 1] == 1.0).all())
    found = posterior(support, x, uses_x2=uses_x2, noise=noise, num_draws=NUM_DRAWS, key=key)
    apart = np.linspace(0, NUM_KEPT - 1, NUM_CURVES).astype(int)  # they come family by family
    arrays = {"curves": found.curves[apart], "low": found.low, "high": found.high}
    return {name: np.asarray(values)[..., None] for name, values in arrays.items()}
