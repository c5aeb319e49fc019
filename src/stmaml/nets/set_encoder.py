"""Task encoders: a labelled set in, a Gaussian over the task variable z out."""

import itertools
import math
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.errors import SettingError
from stmaml.nets.attention import AttentionBlock
from stmaml.nets.layers import MLP, Linear
from stmaml.tasks import weighted_mean

StdForm = Literal["softplus", "sigmoid"]
STD_FLOOR = 0.1


class DiagonalNormal(eqx.Module):
    """A normal distribution with independent coordinates, as plain arrays."""

    mu: Float[Array, " z"]
    sigma: Float[Array, " z"]

    def sample(self, *, key: PRNGKeyArray) -> Float[Array, " z"]:
        """mu + sigma * eps: a draw that gradients pass through."""
        return self.mu + self.sigma * jr.normal(key, self.mu.shape)

    def kl(self, other: "DiagonalNormal") -> Float[Array, " z"]:
        """KL(self || other) of each coordinate."""
        ratio = jnp.square(self.sigma / other.sigma)
        shift = jnp.square((self.mu - other.mu) / other.sigma)
        return (ratio + shift - 1 - jnp.log(ratio)) / 2


class TaskEncoder(eqx.Module):
    """phi: pair encoder g^Enc, mean over the set, and the heads mu and sigma (eqs. 6-10)."""

    pair: MLP
    blocks: tuple[AttentionBlock, ...]
    post: tuple[Linear, ...]
    mu: Linear
    sigma: Linear | None
    std_form: StdForm = eqx.field(static=True)

    def __init__(
        self,
        pair_size: int,
        hidden: tuple[int, ...],
        z_size: int,
        *,
        post: tuple[int, ...] = (),
        attention: int = 0,
        num_heads: int = 8,
        stochastic: bool = True,
        std_form: StdForm = "softplus",
        std_start: float | None = None,
        key: PRNGKeyArray,
    ):
        """`pair_size` counts the numbers of one (x, y); a deterministic encoder has no sigma.

        `post` are the widths of ReLU layers between r and the heads, the rho of deep sets; `attention` counts layers
        in which the pairs look at each other before the mean; `std_start` is what sigma starts near, 0.7 if not
        given (0.55 for `sigmoid`).
        """
        if attention < 0:
            raise SettingError(f"--attention counts layers, so it must be at least 0; got {attention}.")
        pair_key, mu_key, sigma_key, post_key = jr.split(key, 4)
        block_key = jr.fold_in(key, 4)
        self.pair = MLP((pair_size, *hidden), init="glorot", key=pair_key)
        self.blocks = tuple(
            AttentionBlock(hidden[-1], num_heads=num_heads, key=jr.fold_in(block_key, index))
            for index in range(attention)
        )
        widths = (hidden[-1], *post)
        self.post = tuple(
            Linear(i, o, key=jr.fold_in(post_key, index)) for index, (i, o) in enumerate(itertools.pairwise(widths))
        )
        self.mu = Linear(widths[-1], z_size, init="glorot", key=mu_key)
        self.sigma = Linear(widths[-1], z_size, init="glorot", key=sigma_key) if stochastic else None
        self.std_form = std_form
        if std_start is None:
            return
        bias = _std_bias(std_start, std_form)  # refuses what cannot be, whether there is a sigma or not
        if self.sigma is not None:
            self.sigma = eqx.tree_at(
                lambda layer: layer.bias, self.sigma, replace_fn=lambda old: jnp.full_like(old, bias)
            )

    def embed(self, xy: Float[Array, "n p"], weight: Float[Array, " n"]) -> Float[Array, " r"]:
        """r, the mean of the pairs' codes: a mean, so that r does not grow with the shot count."""
        rows = self.pair(xy)  # eq. 7 (encode)
        for block in self.blocks:
            rows = block(rows, weight)
        return weighted_mean(rows, weight)  # eq. 8 (Rtask)

    def __call__(self, xy: Float[Array, "n p"], weight: Float[Array, " n"]) -> DiagonalNormal:
        """The distribution of z given a set (eq. 6, zmu)."""
        r = self.embed(xy, weight)
        for layer in self.post:
            r = jax.nn.relu(layer(r))
        mu = self.mu(r)
        if self.sigma is None:
            return DiagonalNormal(mu, jnp.zeros_like(mu))
        squash = jax.nn.softplus if self.std_form == "softplus" else jax.nn.sigmoid
        return DiagonalNormal(mu, STD_FLOOR + (1 - STD_FLOOR) * squash(self.sigma(r)))  # a standard deviation


def _std_bias(std: float, form: StdForm) -> float:
    """The bias of sigma's head at which sigma is `std` for r = 0."""
    top = 1.0 if form == "sigmoid" else math.inf
    if not STD_FLOOR < std < top:
        below = "" if math.isinf(top) else f" and below {top:g}"
        raise SettingError(f"--std-start must be above {STD_FLOOR}{below}; got {std:g}.")
    share = (std - STD_FLOOR) / (1 - STD_FLOOR)
    if form == "sigmoid":
        return math.log(share / (1 - share))
    return share + math.log(-math.expm1(-share))  # log(expm1(share)), which would overflow
