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
from jax.extend.core import Var
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stmaml.experiments import with_inner_steps
from stmaml.methods.base import AbstractMetaLearner, AbstractPredictor, predict_with
from stmaml.methods.wrapper import inner_loop
from stmaml.serving.schema import WAIT, Refused
from stmaml.tasks import Examples, TaskSpec, Weight

BAND = (0.05, 0.95)
FEW = 16  # draws that have programs of their own, which are quicker
Answers = dict[str, np.ndarray]


class Draws(eqx.Module):
    """Predictors of a task, stacked; an array that is the same in all of them, such as most weights, is held once."""

    predictors: AbstractPredictor
    once: tuple[bool, ...] = eqx.field(static=True)
    """Which arrays are held once."""
    count: int = eqx.field(static=True)

    @staticmethod
    def of(predictors: AbstractPredictor, once: tuple[bool, ...]) -> "Draws":
        """Stacked predictors, less what is told to be the same in all of them."""
        arrays, rest = eqx.partition(predictors, eqx.is_array)
        leaves, shape = jax.tree.flatten(arrays)
        thin = [leaf[0] if same else leaf for leaf, same in zip(leaves, once, strict=True)]
        return Draws(eqx.combine(jax.tree.unflatten(shape, thin), rest), once, leaves[0].shape[0])

    def chosen(self, which: Int[Array, " s"]) -> AbstractPredictor:
        """Some of them, stacked."""
        arrays, rest = eqx.partition(self.predictors, eqx.is_array)
        leaves, shape = jax.tree.flatten(arrays)
        whole = [
            jnp.broadcast_to(leaf, (len(which), *leaf.shape)) if same else leaf[which]
            for leaf, same in zip(leaves, self.once, strict=True)
        ]
        return eqx.combine(jax.tree.unflatten(shape, whole), rest)


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
        self._once: dict[int, tuple[bool, ...]] = {}
        self._adapting: dict[tuple[int, int], Callable[..., Draws]] = {}
        self._answering: dict[Hashable, Callable[..., dict[str, Array]]] = {}

    def compile(self) -> Iterator[str]:
        """Makes one program after the other; those of the training's inner steps come first, and those for few draws
        before those for all."""
        for shots in self.sizes.shots:
            yield self._compile_for(next(iter(self._learners)), shots, few=True)
        for steps in self._learners:
            for shots in self.sizes.shots:
                yield self._compile_for(steps, shots)

    def _compile_for(self, steps: int, shots: int, *, few: bool = False) -> str:
        learner = self._learners[steps]
        if steps not in self._once:
            self._once[steps] = same_in_all(learner, self._spec, self.sizes)
        told = learner, blank(self._spec, shots), self.sizes.draws, self._once[steps], jr.key(0)
        adapting = self._adapting.get((steps, shots)) or _compiled_later(_adapt).lower(*told).compile()
        drawn = adapting(*told)
        for count in {min(FEW, drawn.count), *(() if few else (drawn.count,))}:
            for rows in self.sizes.rows:
                self._compile_answer(drawn, rows, jnp.arange(count))
        self._adapting[steps, shots] = adapting
        return f"{shots} labelled examples, {steps} inner steps" if self.steps else f"{shots} labelled examples"

    def _compile_answer(self, drawn: Draws, rows: int, which: Int[Array, " s"]) -> None:
        x = blank(self._spec, rows)
        if (name := _signature(drawn, rows, len(which))) not in self._answering:
            self._answering[name] = _compiled_later(_answer).lower(drawn, x.x, x.weight, which).compile()
        self._part(drawn, np.zeros((rows, *self._spec.x_shape), np.float32), which)

    def adapt(self, x: Float[np.ndarray, "n *dx"], y: Float[np.ndarray, " n"], steps: int | None, seed: int) -> Draws:
        """The predictors behind labelled examples, padded to the smallest size that is ready."""
        steps = next(iter(self._learners)) if steps is None else steps
        fitting = [size for size in self.sizes.shots if size >= len(y)]
        ready = [size for size in fitting if (steps, size) in self._adapting]
        if not ready:
            raise Refused(f"the program for {len(y)} examples is still being compiled. Ask again soon.", 503, WAIT)
        told = self._learners[steps], padded(x, y, ready[0]), self.sizes.draws, self._once[steps], jr.key(seed)
        return self._adapting[steps, ready[0]](*told)

    def answer(self, drawn: Draws, x: Float[np.ndarray, "n *dx"], draws: int) -> tuple[Answers, int]:
        """What the first predictors say at each input, and how many they were."""
        total = drawn.count
        power = 2 ** math.ceil(math.log2(draws))
        used = power if total % power == 0 else total  # particles and a single predictor are used whole
        length = min(FEW, total) if used <= FEW else total
        which = jnp.asarray(np.arange(length) % used)  # each as often as any other: the mixture is that of the first
        largest = self.sizes.rows[-1]
        parts = [self._part(drawn, x[i : i + largest], which) for i in range(0, len(x), largest)]
        whole = {name: np.concatenate([part[name] for part in parts], axis=-1) for name in parts[0]}
        return {**whole, "samples": whole["samples"][:used]}, used

    def _part(self, drawn: Draws, x: Float[np.ndarray, "n *dx"], which: Int[Array, " s"]) -> Answers:
        rows = next(size for size in self.sizes.rows if size >= len(x))
        whole = np.zeros((rows, *x.shape[1:]), np.float32)
        whole[: len(x)] = x
        weight = jnp.asarray((np.arange(rows) < len(x)).astype(np.float32))
        program = self._answering.get(_signature(drawn, rows, len(which)))
        if program is None:
            raise Refused("the program for so many draws is still being compiled. Ask again soon.", 503, WAIT)
        answered = program(drawn, jnp.asarray(whole), weight, which)
        return {name: np.asarray(values)[..., : len(x)] for name, values in answered.items()}


def _compiled_later(function: Callable[..., Any]) -> Any:
    """The function with `lower`, which compiles it for shapes alone."""
    return eqx.filter_jit(function)


def same_in_all(learner: AbstractMetaLearner, spec: TaskSpec, sizes: Sizes) -> tuple[bool, ...]:
    """Which arrays of the predictors that a stochastic method draws do not depend on the draw."""
    support = blank(spec, sizes.shots[0])

    def arrays(key: PRNGKeyArray) -> list[Array]:
        return jax.tree.leaves(eqx.filter(learner.adapt(support, num_samples=sizes.draws, key=key), eqx.is_array))

    program = jax.make_jaxpr(arrays)(jr.key(0)).jaxpr
    drawn = set(program.invars)
    for equation in program.eqns:
        if drawn.intersection(each for each in equation.invars if isinstance(each, Var)):
            drawn.update(equation.outvars)
    depends = tuple(isinstance(each, Var) and each in drawn for each in program.outvars)
    return tuple(any(depends) and not each for each in depends)  # particles differ without being drawn


def _adapt(
    learner: AbstractMetaLearner, support: Examples, draws: int, once: tuple[bool, ...], key: PRNGKeyArray
) -> Draws:
    return Draws.of(learner.adapt(support, num_samples=draws, key=key), once)


def _answer(drawn: Draws, x: Float[Array, "n *dx"], weight: Weight, which: Int[Array, " s"]) -> dict[str, Array]:
    prediction = predict_with(drawn.chosen(which), x, weight)
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


def _signature(drawn: Draws, rows: int, length: int) -> Hashable:
    """What a compiled program depends on."""
    arrays, rest = eqx.partition(drawn, eqx.is_array)
    shapes = tuple(leaf.shape for leaf in jax.tree.leaves(arrays))
    return jax.tree.structure(arrays), tuple(jax.tree.leaves(rest)), shapes, rows, length


def held_bytes(drawn: Draws) -> int:
    """What predictors take in memory."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(eqx.filter(drawn, eqx.is_array)))
