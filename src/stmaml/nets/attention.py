"""Attention over a weighted set."""

import copy
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.errors import SettingError
from stmaml.nets.layers import MLP, Linear
from stmaml.nets.patches import Precision
from stmaml.tasks import Weight

Tree = TypeVar("Tree")


class MultiHeadAttention(eqx.Module):
    """Scaled dot-product attention with several heads, whose answers are joined and mixed by `out`. A row of weight w
    counts as w copies of itself: weight 0 is no row at all, and an empty set gives zeros."""

    query: Linear
    key: Linear
    value: Linear
    out: Linear
    num_heads: int = eqx.field(static=True)

    def __init__(self, key_size: int, value_size: int, *, num_heads: int, key: PRNGKeyArray):
        """Queries are as long as keys, answers as long as values. No biases: one on the keys would cancel."""
        if num_heads < 1 or key_size % num_heads or value_size % num_heads:
            sizes = f"{key_size} and {value_size}"
            raise SettingError(f"{num_heads} heads must divide the sizes of keys and values, which are {sizes}")
        sizes = (key_size, key_size, value_size, value_size)
        self.query, self.key, self.value, self.out = (
            Linear(size, size, init="glorot", use_bias=False, key=k)
            for size, k in zip(sizes, jr.split(key, 4), strict=True)
        )
        self.num_heads = num_heads

    def __call__(
        self, queries: Float[Array, "q k"], keys: Float[Array, "n k"], values: Float[Array, "n v"], weight: Weight
    ) -> Float[Array, "q v"]:
        """For each query, a mean of the values whose keys are like it."""
        q, k, v = self._split(self.query(queries)), self._split(self.key(keys)), self._split(self.value(values))
        logits = jnp.einsum("qhd,nhd->hqn", q, k) / q.shape[-1] ** 0.5
        answers = jnp.einsum("hqn,nhd->qhd", weighted_softmax(logits, weight), v)
        return self.out(answers.reshape(queries.shape[0], -1))

    def with_self(self, rows: Float[Array, "q k"], seen: Float[Array, "n k"], weight: Weight) -> Float[Array, "q k"]:
        """For each row, a mean of the values of `seen` and of its own: what a mask that hides the other rows gives, at
        the cost of q (n + 1) products instead of (n + q)^2."""
        q, own_k, own_v = (self._split(layer(rows)) for layer in (self.query, self.key, self.value))
        k, v = self._split(self.key(seen)), self._split(self.value(seen))
        others, own = jnp.einsum("qhd,nhd->hqn", q, k), jnp.einsum("qhd,qhd->hq", q, own_k)
        logits = jnp.concatenate([others, own[..., None]], axis=-1) / q.shape[-1] ** 0.5
        shares = weighted_softmax(logits, jnp.append(weight, 1.0))
        answers = jnp.einsum("hqn,nhd->qhd", shares[..., :-1], v) + jnp.einsum("hq,qhd->qhd", shares[..., -1], own_v)
        return self.out(answers.reshape(rows.shape[0], -1))

    def _split(self, rows: Float[Array, "n f"]) -> Float[Array, "n h d"]:
        return rows.reshape(rows.shape[0], self.num_heads, -1)


class AttentionBlock(eqx.Module):
    """A transformer layer: rows look at each other, or at those of another set, then each is revised on its own."""

    attention: MultiHeadAttention
    revise: MLP
    norms: tuple[eqx.nn.LayerNorm, eqx.nn.LayerNorm]
    precision: Precision = eqx.field(static=True)
    """Numbers in which both parts are computed. What they are added to, and shares of attention, stay as they are."""

    def __init__(self, size: int, *, num_heads: int, key: PRNGKeyArray):
        """Rows of `size` numbers in and out; the revision is twice as wide inside."""
        attention_key, revise_key = jr.split(key)
        self.attention = MultiHeadAttention(size, size, num_heads=num_heads, key=attention_key)
        self.revise = MLP((size, 2 * size, size), init="glorot", key=revise_key)
        self.norms = (eqx.nn.LayerNorm(size), eqx.nn.LayerNorm(size))
        self.precision = "float32"

    def __call__(self, rows: Float[Array, "n f"], weight: Weight) -> Float[Array, "n f"]:
        """The rows after looking at each other."""
        return self.look(rows, rows, weight)

    def look(self, rows: Float[Array, "q f"], seen: Float[Array, "n f"], weight: Weight) -> Float[Array, "q f"]:
        """The rows after looking at `seen`; normalised before each part, so that the sum stays a straight path."""
        normed, seen = self._normed(0, rows), self._normed(0, seen)
        return self._revised(rows + self._lowered(self.attention)(normed, seen, seen, weight).astype(rows.dtype))

    def look_with_self(
        self, rows: Float[Array, "q f"], seen: Float[Array, "n f"], weight: Weight
    ) -> Float[Array, "q f"]:
        """The same, where each row looks at itself too, and at no other."""
        normed, seen = self._normed(0, rows), self._normed(0, seen)
        return self._revised(rows + self._lowered(self.attention).with_self(normed, seen, weight).astype(rows.dtype))

    def _revised(self, rows: Float[Array, "q f"]) -> Float[Array, "q f"]:
        return rows + self._lowered(self.revise)(self._normed(1, rows)).astype(rows.dtype)

    def _normed(self, which: int, rows: Float[Array, "q f"]) -> Float[Array, "q f"]:
        return self._lowered(jax.vmap(self.norms[which])(rows))

    def _lowered(self, tree: Tree) -> Tree:
        """The same in the numbers that both parts are computed in."""
        if self.precision == "float32":
            return tree
        return jax.tree.map(lambda leaf: leaf.astype(self.precision) if eqx.is_inexact_array(leaf) else leaf, tree)


def in_precision(tree: Tree, precision: Precision) -> Tree:
    """A learner whose layers of attention compute in these numbers; its weights are the same."""

    def change(node: Any) -> Any:
        if isinstance(node, AttentionBlock):
            node = copy.copy(node)
            object.__setattr__(node, "precision", precision)  # it has an __init__ of its own, which makes new weights
        return node

    return jax.tree.map(change, tree, is_leaf=lambda node: isinstance(node, AttentionBlock))


def weighted_softmax(logits: Float[Array, "*rest n"], weight: Weight) -> Float[Array, "*rest n"]:
    """Shares proportional to weight * exp(logits); all zero for an empty set."""
    weight = jnp.broadcast_to(weight, logits.shape)
    counts, log_weight = weight > 0, jnp.log(jnp.where(weight > 0, weight, 1.0))
    given, logits = logits.dtype, logits.astype(log_weight.dtype)
    shares = jax.nn.softmax(jnp.where(counts, logits + log_weight, jnp.finfo(logits.dtype).min))
    return jnp.where(counts, shares, 0.0).astype(given)  # an empty set would get equal shares of its padding
