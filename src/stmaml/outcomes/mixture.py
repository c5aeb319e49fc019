"""Targets of any shape."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.special import ndtr
from jaxtyping import Array, Float, Shaped

from stmaml.outcomes.base import AbstractRealOutcome, positive
from stmaml.outcomes.normal import absolute_mean
from stmaml.quantiles import at_normal_score
from stmaml.tasks import Scalar

NUM_NORMALS = 5


class NormalMixtureOutcome(AbstractRealOutcome):
    """Targets of any shape: some normals for each, with weights."""

    rest_size: ClassVar[int] = 3 * NUM_NORMALS
    shared_start: ClassVar[tuple[float, ...]] = ()
    logits: Float[Array, "... dy c"]
    loc: Float[Array, "... dy c"]
    scale: Float[Array, "... dy c"]

    @classmethod
    def from_raw(
        cls, mean: Float[Array, "... dy"], rest: Float[Array, "... dy 15"], shared: Float[Array, " 0"], unit: float
    ) -> "NormalMixtureOutcome":
        """Weights, places about the mean and scales for each input. They start side by side: equal ones stay equal."""
        logits, places, scales = jnp.split(rest, 3, axis=-1)
        places = unit * (places + jnp.broadcast_to(jnp.linspace(-1, 1, NUM_NORMALS), places.shape))
        middle = (jax.nn.softmax(logits) * places).sum(-1, keepdims=True)
        loc = mean[..., None] + places - jnp.broadcast_to(middle, places.shape)
        return NormalMixtureOutcome(logits, loc, positive(scales, unit * 0.5**0.5))

    def distribution(self) -> dist.Distribution:
        """Independent mixtures."""
        return dist.MixtureSameFamily(dist.CategoricalLogits(self.logits), dist.Normal(self.loc, self.scale))

    def log_prob(self, y: Shaped[Array, "... dy"]) -> Float[Array, "..."]:
        """Sum over targets."""
        each = jnp.asarray(dist.Normal(self.loc, self.scale).log_prob(self._beside(y)))
        return jax.nn.logsumexp(jax.nn.log_softmax(self.logits) + each, axis=-1).sum(-1)

    def mean(self) -> Float[Array, "... dy"]:
        """The weighted mean of the locations."""
        return self._weighted(self.loc)

    def variance(self) -> Float[Array, "... dy"]:
        """That of the normals and that of their places."""
        return self._weighted(jnp.square(self.scale) + jnp.square(self.loc - self._beside(self.mean())))

    def affine(self, shift: Float[Array, "... dy"], scale: Float[Array, "... dy"]) -> "NormalMixtureOutcome":
        """Each normal moved and scaled."""
        scale = self._beside(scale)
        return NormalMixtureOutcome(self.logits, self._beside(shift) + scale * self.loc, scale * self.scale)

    def tail(self, y: Float[Array, "... dy"], side: Scalar) -> Float[Array, "... dy"]:
        """The weighted mean of the normals' tails."""
        return self._weighted(ndtr(side * (self._beside(y) - self.loc) / self.scale))

    def at_score(self, score: Scalar) -> Float[Array, "... dy"]:
        """By bisection between the normals' own."""
        return at_normal_score(self.tail, score, jnp.moveaxis(self.loc + score * self.scale, -1, 0))

    def distance(self, y: Float[Array, "... dy"]) -> Float[Array, "... dy"]:
        """In closed form."""
        return self._weighted(absolute_mean(self._beside(y) - self.loc, jnp.square(self.scale)))

    def mean_distance(self, other: "NormalMixtureOutcome") -> Float[Array, "... dy"]:
        """In closed form, over all pairs of normals."""
        gap = self.loc[..., :, None] - other.loc[..., None, :]
        variance = jnp.square(self.scale)[..., :, None] + jnp.square(other.scale)[..., None, :]
        shares = (jax.nn.softmax(self.logits), jax.nn.softmax(other.logits))
        return jnp.einsum("...a,...b,...ab->...", *shares, absolute_mean(gap, variance))

    def _beside(self, values: Float[Array, "... dy"]) -> Float[Array, "... dy c"]:
        return jnp.broadcast_to(values[..., None], (*values.shape, self.loc.shape[-1]))

    def _weighted(self, each: Float[Array, "... dy c"]) -> Float[Array, "... dy"]:
        return (jax.nn.softmax(self.logits) * each).sum(-1)
