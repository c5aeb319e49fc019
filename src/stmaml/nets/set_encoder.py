"""Task encoders: a labelled set in, a Gaussian over the task variable z out."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.draws import standard_normal
from stmaml.errors import SettingError, at_least
from stmaml.nets.attention import AttentionBlock
from stmaml.nets.layers import MLP, Linear
from stmaml.tasks import Weight, weighted_mean

StdForm = Literal["softplus", "sigmoid"]
STD_FLOOR = 0.1


@dataclass(frozen=True)
class Encoding:
    """Settings of a task encoder phi."""

    encoder: tuple[int, ...] = (80, 80)
    """Widths of the pair encoder; the last one is the size of r."""
    attention: int = 0
    """Layers of self-attention over the encoded pairs, beyond the paper: 0 is its plain mean."""
    num_heads: int = 8
    """Heads of that attention."""
    z_hidden: tuple[int, ...] = (80,)
    """Widths of the ReLU layers between r and the mean and spread of z."""
    z_size: int = 20
    """Numbers in the task variable z."""
    std_form: StdForm = "softplus"
    """How sigma is made positive."""
    std_start: float | None = None
    """What sigma is near when training starts: 0.7 if not given (0.55 for sigmoid), which drowns z until its mean has
    grown. Worth a trial just above its floor of 0.1."""
    reads: Literal["pairs", "prototypes"] = "pairs"
    """What is read of images: each with its label, as in the paper, or the mean of each class under the base learner's
    features, which is beyond it."""

    def build(self, pair_size: int, *, stochastic: bool, key: PRNGKeyArray) -> "TaskEncoder":
        """A fresh encoder of pairs (x, y) of `pair_size` numbers."""
        return TaskEncoder(pair_size, self, stochastic=stochastic, key=key)


class DiagonalNormal(eqx.Module):
    """A normal distribution with independent coordinates, as plain arrays."""

    mu: Float[Array, " z"]
    sigma: Float[Array, " z"]

    def sample(self, *, key: PRNGKeyArray) -> Float[Array, " z"]:
        """mu + sigma * eps: a draw that gradients pass through."""
        return self.mu + self.sigma * standard_normal(key, self.mu.shape)

    def kl(self, other: "DiagonalNormal") -> Float[Array, " z"]:
        """KL(self || other) of each coordinate."""
        ratio, shift = jnp.square(self.sigma / other.sigma), jnp.square((self.mu - other.mu) / other.sigma)
        return (ratio + shift - 1 - jnp.log(ratio)) / 2


class TaskEncoder(eqx.Module):
    """phi: pair encoder g^Enc, mean over the set, and the heads mu and sigma (eqs. 6-10)."""

    pair: MLP
    blocks: tuple[AttentionBlock, ...]
    post: tuple[Linear, ...]
    mu: Linear
    sigma: Linear | None
    std_form: StdForm = eqx.field(static=True)

    def __init__(self, pair_size: int, settings: Encoding, *, stochastic: bool = True, key: PRNGKeyArray):
        """`pair_size` counts the numbers of one (x, y); a deterministic encoder has no sigma."""
        at_least(0, attention=settings.attention)
        pair_key, mu_key, sigma_key, post_key = jr.split(key, 4)
        block_keys = [jr.fold_in(jr.fold_in(key, 4), index) for index in range(settings.attention)]
        r_size, z_size = settings.encoder[-1], settings.z_size
        self.pair = MLP((pair_size, *settings.encoder), init="glorot", key=pair_key)
        self.blocks = tuple(AttentionBlock(r_size, num_heads=settings.num_heads, key=k) for k in block_keys)
        widths = (r_size, *settings.z_hidden)
        self.post = tuple(Linear(i, o, key=jr.fold_in(post_key, n)) for n, (i, o) in enumerate(pairwise(widths)))
        self.mu = Linear(widths[-1], z_size, init="glorot", key=mu_key)
        self.sigma = Linear(widths[-1], z_size, init="glorot", key=sigma_key) if stochastic else None
        self.std_form = settings.std_form
        if settings.std_start is None:
            return
        bias = _std_bias(settings.std_start, self.std_form)  # refuses what cannot be, whether there is a sigma or not
        if self.sigma is not None:
            self.sigma = eqx.tree_at(lambda layer: layer.bias, self.sigma, jnp.full(z_size, bias, dtype=float))

    def embed(self, xy: Float[Array, "n p"], weight: Weight) -> Float[Array, " r"]:
        """r, the mean of the pairs' codes: a mean, so that r does not grow with the shot count."""
        rows = self.pair(xy)  # eq. 7 (encode)
        for block in self.blocks:
            rows = block(rows, weight)
        return weighted_mean(rows, weight)  # eq. 8 (Rtask)

    def __call__(self, xy: Float[Array, "n p"], weight: Weight) -> DiagonalNormal:
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
