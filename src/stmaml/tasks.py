"""The shared vocabulary: a set of labelled examples, a task, a batch of tasks."""

import math
from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int, Shaped

TargetKind = Literal["real", "binary", "class"]
Scalar = Float[Array, ""]
Weight = Float[Array, " n"]  # of each example of a set: 0 for padding


class Examples(eqx.Module):
    """A set of labelled examples. Rows of weight 0 are padding: whatever they hold (not NaN, nor numbers whose square
    overflows), they change nothing."""

    x: Float[Array, "n *dx"]
    y: Shaped[Array, "n *dy"]
    weight: Weight

    @staticmethod
    def of(x: Float[Array, "n *dx"], y: Shaped[Array, "n *dy"]) -> "Examples":
        """All rows real: weight 1 each."""
        return Examples(x, y, jnp.ones(x.shape[0]))

    def __add__(self, other: "Examples") -> "Examples":
        return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), self, other)


class Task(eqx.Module):
    """One few-shot task: learn from `support` (D^tr), be judged on `query` (D^te)."""

    support: Examples
    query: Examples


class TaskBatch(eqx.Module):
    """`m` tasks on a leading axis. `family`, `clean`, `rules` are for scores and reports: no method is handed them."""

    tasks: Task
    family: Int[Array, " m"]
    clean: Float[Array, "m q dy"] | None = None
    """Query targets without their noise, where the source knows them."""
    rules: Int[Array, "m r"] | None = None
    """The rules a support set leaves open, where it leaves several: the query then holds one set of examples for each,
    all of one size, one after the other."""

    @staticmethod
    def of(
        support_x: Float[ArrayLike, "m n *dx"],
        support_y: Shaped[ArrayLike, "m n *dy"],
        query_x: Float[ArrayLike, "m q *dx"],
        query_y: Shaped[ArrayLike, "m q *dy"],
    ) -> "TaskBatch":
        """Tasks from plain arrays, all examples real and all tasks of one family."""
        support = jax.vmap(Examples.of)(jnp.asarray(support_x), jnp.asarray(support_y))
        query = jax.vmap(Examples.of)(jnp.asarray(query_x), jnp.asarray(query_y))
        return TaskBatch(Task(support, query), jnp.zeros(support.weight.shape[0], dtype=int))


@dataclass(frozen=True)
class TaskSpec:
    """What the tasks of a source look like: enough to build a network and a likelihood for them."""

    x_shape: tuple[int, ...]
    """Shape of one input."""
    y_size: int
    """Numbers to predict for one input; for classes, how many there are."""
    target: TargetKind = "real"
    """Real numbers, values in 0..1, or class indices."""
    noise: str = "residual"
    """How the spread of real targets is modelled (see likelihoods.NOISE_MODELS)."""
    noise_std: float = 1.0
    """Where that spread starts, or stays if `noise` is fixed; in units of the targets the method sees."""
    lattice: tuple[int, int] | None = None
    """Rows and columns of the places inputs can be at, where the first two numbers of each, from 0 to 1, tell which."""
    found: int = 0
    """Numbers at the end of each input that it found in the support (see methods/looks_up.py)."""

    @property
    def x_size(self) -> int:
        """Numbers in one input."""
        return math.prod(self.x_shape)

    @property
    def is_image(self) -> bool:
        """Whether an input is an image: height, width, channels."""
        return len(self.x_shape) == 3


@dataclass(frozen=True)
class Scaling:
    """Means and standard deviations of inputs and targets over the training tasks, and quantiles where asked for."""

    x_mean: tuple[float, ...]
    x_std: tuple[float, ...]
    y_mean: tuple[float, ...]
    y_std: tuple[float, ...]
    x_knots: tuple[tuple[float, ...], ...] = ()
    """Quantiles of each input, where inputs are scaled by their ranks; none where they are by their moments."""
    x_ranks: tuple[tuple[float, ...], ...] = ()
    """The ranks of those quantiles, from 0 to 1."""


def weighted_mean(values: Float[Array, "n *rest"], weight: Weight) -> Float[Array, "*rest"]:
    """Mean of the rows that count; zero for an empty set, so that zero-shot tasks stay finite."""
    shares = weight / jnp.maximum(weight.sum(), jnp.finfo(weight.dtype).tiny)
    return jnp.tensordot(shares, values, axes=1)


def only_asked(task: Task) -> Examples:
    """The query with weight 0 for examples that are in the support as well. Images are taken to be in one alone."""
    support, query = task.support, task.query
    if query.x.ndim != 2:
        return query
    there = (query.x[:, None] == support.x[None]).all(-1) & (support.weight > 0)[None]
    targets = (query.y[:, None] == support.y[None]).reshape(*there.shape, -1).all(-1)
    return Examples(query.x, query.y, query.weight * ~(there & targets).any(1))


def pad(examples: Examples, size: int) -> Examples:
    """The same set with rows of zeros and weight 0 appended until it has `size` rows."""
    missing = size - examples.weight.shape[0]
    if missing < 0:
        raise ValueError(f"a set of {examples.weight.shape[0]} examples does not fit in {size} rows")
    return jax.tree.map(lambda a: jnp.pad(a, [(0, missing)] + [(0, 0)] * (a.ndim - 1)), examples)
