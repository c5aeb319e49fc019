"""Attention over the rows and columns of a table. Half of the heads look at the labelled rows of the same group, the
other half at the rows of all groups to learn from; nothing else tells groups apart."""

from functools import partial
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

HEAD = 32
NEVER = -1e9


class Dense(eqx.Module):
    """x W + b, in half precision where x is."""

    weight: Float[Array, "i o"]
    bias: Float[Array, " o"]

    def __init__(self, in_size: int, out_size: int, *, scale: float = 1.0, key: PRNGKeyArray):
        self.weight = scale * in_size**-0.5 * jr.normal(key, (in_size, out_size))
        self.bias = jnp.zeros(out_size)

    def __call__(self, x: Float[Array, "*n i"]) -> Float[Array, "*n o"]:
        """One output row for each input row."""
        out = x @ self.weight.astype(x.dtype)
        return out + jnp.broadcast_to(self.bias.astype(x.dtype), out.shape)


class Norm(eqx.Module):
    """Rows scaled to a mean square of 1, then by learnt factors."""

    scale: Float[Array, " d"]

    def __init__(self, size: int):
        self.scale = jnp.ones(size)

    def __call__(self, x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """The scaled rows."""
        wide = x.astype(jnp.float32)
        square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
        return (wide * jax.lax.rsqrt(square + 1e-6) * jnp.broadcast_to(self.scale, x.shape)).astype(x.dtype)


class Rows(eqx.Module):
    """Which rows may be looked at."""

    labelled: Float[Array, "b g s"]
    """Those whose target is known, by others of their group."""
    there: Float[Array, "b r"]
    """Those to learn from, by all; 0 for padding."""


class Seen(eqx.Module):
    """Rows to learn from as a layer meets them: keys and values of the heads that look at all groups."""

    key: Float[Array, "*l b c r h e"]
    value: Float[Array, "*l b c r h e"]


class Project(eqx.Module):
    """Queries, keys and values of all heads, and how their answers are joined."""

    into: Dense
    out: Dense
    norm: Norm

    def __init__(self, size: int, *, key: PRNGKeyArray):
        in_key, out_key = jr.split(key)
        self.into = Dense(size, 3 * size, key=in_key)
        self.out = Dense(size, size, scale=0.1, key=out_key)
        self.norm = Norm(size)

    def heads(self, x: Float[Array, "*n d"]) -> tuple[Array, Array, Array]:
        """Queries, keys and values by head."""
        split = self.into(self.norm(x)).reshape(*x.shape[:-1], 3, -1, HEAD)
        return split[..., 0, :, :], split[..., 1, :, :], split[..., 2, :, :]

    def joined(self, answers: Float[Array, "*n h e"]) -> Float[Array, "*n d"]:
        """One row for the answers of all heads."""
        return self.out(answers.reshape(*answers.shape[:-2], -1))


class Revise(eqx.Module):
    """A network of two layers that each row goes through on its own."""

    into: Dense
    out: Dense
    norm: Norm

    def __init__(self, size: int, *, key: PRNGKeyArray):
        in_key, out_key = jr.split(key)
        self.into, self.out = Dense(size, 4 * size, key=in_key), Dense(4 * size, size, scale=0.1, key=out_key)
        self.norm = Norm(size)

    def __call__(self, x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """What is added to each row."""
        return self.out(jax.nn.gelu(self.into(self.norm(x))))


class CellLayer(eqx.Module):
    """The cells of a row look at each other; those of a column do; each is revised on its own."""

    across: Project
    down: Project
    revise: Revise

    def __init__(self, size: int, *, key: PRNGKeyArray):
        keys = jr.split(key, 3)
        self.across, self.down = Project(size, key=keys[0]), Project(size, key=keys[1])
        self.revise = Revise(size, key=keys[2])

    def __call__(
        self, cells: Float[Array, "b g s c d"], column: Float[Array, "b c"], rows: Rows, seen: Seen | None
    ) -> tuple[Float[Array, "b g s c d"], Seen]:
        """The cells one layer on, and what was seen: the first of their own rows if nothing is given."""
        query, key, value = self.across.heads(cells)
        hidden = jnp.where(column > 0, 0.0, NEVER)[:, None, None, None, None, :]
        cells = cells + self.across.joined(attend("bgsqhe,bgskhe->bgshqk", query, key, value, hidden))
        query, key, value = (jnp.moveaxis(part, 3, 1) for part in self.down.heads(cells))
        looked, seen = look(query, key, value, rows, seen)
        cells = cells + self.down.joined(jnp.moveaxis(looked, 1, 3))
        return cells + self.revise(cells), seen


class RowLayer(eqx.Module):
    """Rows look at each other, then each is revised on its own."""

    look: Project
    revise: Revise

    def __init__(self, size: int, *, key: PRNGKeyArray):
        keys = jr.split(key)
        self.look, self.revise = Project(size, key=keys[0]), Revise(size, key=keys[1])

    def __call__(
        self, x: Float[Array, "b g s d"], rows: Rows, seen: Seen | None
    ) -> tuple[Float[Array, "b g s d"], Seen]:
        """The rows one layer on, and what was seen: the first of them if nothing is given."""
        query, key, value = (part[:, None] for part in self.look.heads(x))
        looked, seen = look(query, key, value, rows, seen)
        x = x + self.look.joined(looked[:, 0])
        return x + self.revise(x), seen


def look(
    query: Array, key: Array, value: Array, rows: Rows, seen: Seen | None
) -> tuple[Float[Array, "b c g s h e"], Seen]:
    """What each row sees: with the first half of the heads labelled rows of its group and itself, with the others all
    rows to learn from. Sets of rows on the second axis (columns of a table) know nothing of each other."""
    half = query.shape[-2] // 2
    eye = jnp.eye(rows.labelled.shape[-1])
    shown = jnp.where((rows.labelled[..., None, :] + eye[None, None]) > 0, 0.0, NEVER)[:, None, :, None]
    own = attend("bcgqhe,bcgkhe->bcghqk", query[..., :half, :], key[..., :half, :], value[..., :half, :], shown)
    asked, keys, values = (_flat(part[..., half:, :]) for part in (query, key, value))
    if seen is None:  # the rows to learn from come first
        count = rows.there.shape[1]
        seen = Seen(keys[:, :, :count], values[:, :, :count])
    hidden = jnp.where(rows.there > 0, 0.0, NEVER)[:, None, None, None]
    others = attend("bcqhe,bckhe->bchqk", asked, seen.key, seen.value, hidden)
    return jnp.concatenate([own, others.reshape(own.shape[:-2] + others.shape[-2:])], axis=-2), seen


def _flat(part: Float[Array, "b c g s h e"]) -> Float[Array, "b c r h e"]:
    return part.reshape(*part.shape[:2], -1, *part.shape[4:])


def attend(form: str, query: Array, key: Array, value: Array, hidden: Array) -> Float[Array, "*n q h e"]:
    """Scaled dot-product attention; `hidden` is added to the logits."""
    return cast(Array, _with_slopes(form, query, key, value, hidden))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _with_slopes(form: str, query: Array, key: Array, value: Array, hidden: Array) -> Array:
    return _attended(form, query, key, value, hidden)[0]


def _attended(form: str, query: Array, key: Array, value: Array, hidden: Array) -> tuple[Array, Any]:
    asked, seen, logits = _letters(form)
    scores = jnp.einsum(form, query, key, preferred_element_type=jnp.float32) * HEAD**-0.5 + hidden
    shares = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
    return jnp.einsum(f"{logits},{seen}->{asked}", shares, value), (query, key, value, shares)


def _slopes(form: str, kept: Any, slope: Array) -> tuple[Array, Array, Array, None]:
    """By hand, so that all large arrays of training are in half precision: they take most of its time."""
    asked, seen, logits = _letters(form)
    query, key, value, shares = kept
    of_shares = jnp.einsum(form, slope, value)
    wide = shares.astype(jnp.float32) * of_shares.astype(jnp.float32)
    of_scores = wide - shares.astype(jnp.float32) * wide.sum(-1, keepdims=True)
    of_scores = (HEAD**-0.5 * of_scores).astype(value.dtype)
    of_query = jnp.einsum(f"{logits},{seen}->{asked}", of_scores, key)
    of_key = jnp.einsum(f"{logits},{asked}->{seen}", of_scores, query)
    return of_query, of_key, jnp.einsum(f"{logits},{asked}->{seen}", shares, slope), None


_with_slopes.defvjp(_attended, _slopes)


def _letters(form: str) -> list[str]:
    return [part.strip() for part in form.replace("->", ",").split(",")]
