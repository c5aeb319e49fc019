"""Compiled programs of a learner: made at the start, for a few sizes that all requests are padded to."""

import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stmaml.experiments import with_inner_steps
from stmaml.methods.base import AbstractMetaLearner, AbstractPredictor, predict_with
from stmaml.methods.wrapper import inner_loop
from stmaml.serving.schema import WAIT, Refused
from stmaml.tasks import Examples, TaskSpec, Weight

BAND = (0.05, 0.95)
Answers = dict[str, np.ndarray]


@dataclass(frozen=True)
class Sizes:
    """What programs are compiled for."""

    shots: tuple[int, ...]
    """Labelled examples, rising; the first is compiled first."""
    rows: tuple[int, ...]
    """Inputs to predict at, rising; more come in parts of the largest."""
    draws: int
    """Predictors of a stochastic method, a power of two: fewer are the first of them."""


def blank(spec: TaskSpec, rows: int) -> Examples:
    """A set of padding alone, made as that of a request."""
    return padded(np.zeros((0, *spec.x_shape), np.float32), np.zeros(0, np.float32), rows)


def offered_steps(learner: AbstractMetaLearner) -> tuple[int, ...]:
    """Numbers of inner steps to choose from, those of the training first; none for a method without an inner loop."""
    inner = inner_loop(learner)
    if inner is None:
        return ()
    own = inner.inner_steps
    return (own, *sorted({0, 1, 2 * own} - {own}))


class Programs:
    """Adapts and answers with what is compiled, and compiles nothing when asked."""

    def __init__(self, learner: AbstractMetaLearner, spec: TaskSpec, sizes: Sizes):
        self._spec, self.sizes = spec, sizes
        self.steps = offered_steps(learner)
        self._learners = {steps: with_inner_steps(learner, steps) for steps in self.steps} or {0: learner}
        self._adapting: dict[tuple[int, int], Callable[..., AbstractPredictor]] = {}
        self._answering: dict[Hashable, Callable[..., dict[str, Array]]] = {}

    def compile(self) -> Iterator[str]:
        """Makes one program after the other; those of the training's inner steps come first."""
        for shots in self.sizes.shots:
            for steps in list(self._learners)[:1]:
                yield self._compile_for(steps, shots)
        for shots in self.sizes.shots:
            for steps in list(self._learners)[1:]:
                yield self._compile_for(steps, shots)

    def _compile_for(self, steps: int, shots: int) -> str:
        learner, support = self._learners[steps], blank(self._spec, shots)
        adapting = _compiled_later(_adapt).lower(learner, support, self.sizes.draws, jr.key(0)).compile()
        predictors = adapting(learner, support, self.sizes.draws, jr.key(0))
        for rows in self.sizes.rows:
            if (name := _signature(predictors, rows)) not in self._answering:
                x, which = blank(self._spec, rows), jnp.arange(_count(predictors))
                self._answering[name] = _compiled_later(_answer).lower(predictors, x.x, x.weight, which).compile()
            self._part(predictors, np.zeros((rows, *self._spec.x_shape), np.float32), jnp.arange(_count(predictors)))
        self._adapting[steps, shots] = adapting
        return f"{shots} labelled examples, {steps} inner steps" if self.steps else f"{shots} labelled examples"

    def adapt(self, x: Float[np.ndarray, "n *dx"], y: Float[np.ndarray, " n"], steps: int | None, seed: int) -> Any:
        """The predictors behind labelled examples, padded to the smallest size that is ready."""
        steps = next(iter(self._learners)) if steps is None else steps
        fitting = [size for size in self.sizes.shots if size >= len(y)]
        ready = [size for size in fitting if (steps, size) in self._adapting]
        if not ready:
            raise Refused(f"the program for {len(y)} examples is still being compiled. Ask again soon.", 503, WAIT)
        return self._adapting[steps, ready[0]](
            self._learners[steps], padded(x, y, ready[0]), self.sizes.draws, jr.key(seed)
        )

    def answer(self, predictors: Any, x: Float[np.ndarray, "n *dx"], draws: int) -> tuple[Answers, int]:
        """What the first predictors say at each input, and how many they were."""
        total = _count(predictors)
        power = 2 ** math.ceil(math.log2(draws))
        used = power if total % power == 0 else total  # particles and a single predictor are used whole
        which = jnp.asarray(np.arange(total) % used)  # each as often as any other: the mixture is that of the first
        largest = self.sizes.rows[-1]
        parts = [self._part(predictors, x[i : i + largest], which) for i in range(0, len(x), largest)]
        whole = {name: np.concatenate([part[name] for part in parts], axis=-1) for name in parts[0]}
        return {**whole, "samples": whole["samples"][:used]}, used

    def _part(self, predictors: Any, x: Float[np.ndarray, "n *dx"], which: Int[Array, " s"]) -> Answers:
        rows = next(size for size in self.sizes.rows if size >= len(x))
        whole = np.zeros((rows, *x.shape[1:]), np.float32)
        whole[: len(x)] = x
        weight = jnp.asarray((np.arange(rows) < len(x)).astype(np.float32))
        answered = self._answering[_signature(predictors, rows)](predictors, jnp.asarray(whole), weight, which)
        return {name: np.asarray(values)[..., : len(x)] for name, values in answered.items()}


def _compiled_later(function: Callable[..., Any]) -> Any:
    """The function with `lower`, which compiles it for shapes alone."""
    return eqx.filter_jit(function)


def _adapt(learner: AbstractMetaLearner, support: Examples, draws: int, key: PRNGKeyArray) -> AbstractPredictor:
    return learner.adapt(support, num_samples=draws, key=key)


def _answer(
    predictors: AbstractPredictor, x: Float[Array, "n *dx"], weight: Weight, which: Int[Array, " s"]
) -> dict[str, Array]:
    chosen = jax.tree.map(lambda leaf: leaf[which] if eqx.is_array(leaf) else leaf, predictors)
    prediction = predict_with(chosen, x, weight)
    said = {"mean": prediction.mean, "std": prediction.std, "task_std": prediction.task_std}
    said["samples"] = prediction.components.mean()
    if prediction.target == "real":
        said["low"], said["high"] = prediction.quantiles(jnp.array(BAND))
    return {name: values[..., 0] for name, values in said.items()}


def padded(x: Float[np.ndarray, "n *dx"], y: Float[np.ndarray, " n"], size: int) -> Examples:
    """Labelled examples with rows of weight 0 behind them; made by NumPy, which compiles nothing."""
    rows = np.zeros((size, *x.shape[1:]), np.float32)
    labels, weight = np.zeros((size, 1), np.float32), np.zeros(size, np.float32)
    rows[: len(y)], labels[: len(y), 0], weight[: len(y)] = x, y, 1
    return Examples(jnp.asarray(rows), jnp.asarray(labels), jnp.asarray(weight))


def _count(predictors: AbstractPredictor) -> int:
    return jax.tree.leaves(eqx.filter(predictors, eqx.is_array))[0].shape[0]


def _signature(predictors: AbstractPredictor, rows: int) -> Hashable:
    """What a compiled program depends on."""
    arrays, rest = eqx.partition(predictors, eqx.is_array)
    shapes = tuple(leaf.shape for leaf in jax.tree.leaves(arrays))
    return jax.tree.structure(arrays), tuple(jax.tree.leaves(rest)), shapes, rows


def held_bytes(predictors: AbstractPredictor) -> int:
    """What predictors take in memory."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(eqx.filter(predictors, eqx.is_array)))
