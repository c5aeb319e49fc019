"""Training in pieces that resume exactly: the same plan gives the same weights, bit for bit, however often it is left
and taken up again.

Every few steps training rests: weights and their running mean are rounded to half precision, the optimizer's momentum
to bfloat16, which is what files hold (`states.py`). Whoever does not stop there rounds all the same."""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from stmaml.benchmarks.hierarchy_rows import Shape
from stmaml.prior.learner import Learner
from stmaml.prior.steps import begin_steps
from stmaml.prior.training import AHEAD, Batch, State, draw_numbered, one_step

SHAPES = (
    (Shape(40, 8, 12, 6, most_groups=1000, longest=200), 128),
    (Shape(20, 6, 24, 14, longest=200), 48),
    (Shape(8, 4, 48, 30, longest=200), 24),
    (Shape(160, 8, 3, 6, most_groups=1000), 96),
)
"""What tables are like that are trained on, and how many of them at a step."""
TURNS = (0, 1, 0, 2, 0, 1, 0, 3)
"""The shapes of steps, one after the other: AHEAD steps each."""
Function = Callable[..., Any]
Compile = Callable[[dict[str, tuple[Function, tuple]]], dict[str, Function]]
"""Functions of arrays with what their arguments are like, by name; the same compiled."""


@dataclass(frozen=True)
class Plan:
    """All that decides on weights, beside those that training begins with."""

    rate: float = 1e-3
    warm_up: int = 100
    """Steps."""
    fall_from: int | None = None
    """The step from which on the rate falls; the running mean of the weights begins there too."""
    fall_steps: int = 1024
    """In so many steps it falls to 0, and training ends."""
    keep: float = 0.99
    """Of the running mean, at each step."""
    rest: int = 128
    """Steps from one rest to the next; a multiple of AHEAD."""
    seed: int = 0
    half: bool = True
    """Activations in bfloat16."""

    @property
    def end(self) -> float:
        """The step at which training ends, if it does."""
        return math.inf if self.fall_from is None else float(self.fall_from + self.fall_steps)

    def rate_at(self, step: int) -> float:
        """The rate of a step."""
        left = 1.0 if self.fall_from is None else min(1.0, max(self.end - step, 0.0) / self.fall_steps)
        return self.rate * min(1.0, (step + 1) / self.warm_up) * left

    def keep_at(self, step: int) -> float:
        """What stays of the running mean: nothing before the fall, so that it is the weights."""
        return self.keep if self.fall_from is not None and step >= self.fall_from else 0.0


@dataclass(frozen=True)
class Rest:
    """Where training stands at a rest, which is all that it needs to go on."""

    step: int
    state: State
    static: Any
    loss: float = math.nan
    """Mean over the steps since the last rest."""

    @property
    def learner(self) -> Learner:
        """With the running mean of the weights."""
        return eqx.combine(self.state.mean, self.static)


def first_rest(learner: Learner) -> Rest:
    """The beginning, with weights that were trained before or not."""
    weights, static = eqx.partition(learner, eqx.is_array)
    return Rest(0, rounded(State(weights, weights, begin_steps(weights))), static)


def rounded(state: State) -> State:
    """A state as files hold it. Not to be compiled: a compiler may leave out what only rounds."""
    half = [_through(part, jnp.float16) for part in (state.weights, state.mean)]
    memory = replace(state.memory, momentum=_through(state.memory.momentum, jnp.bfloat16))
    return State(half[0], half[1], memory)


def _through(tree: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.astype(dtype).astype(jnp.float32), tree)


def train(
    begun: Rest,
    plan: Plan,
    shapes: tuple[tuple[Shape, int], ...] = SHAPES,
    turns: tuple[int, ...] = TURNS,
    *,
    compiled: Compile | None = None,
) -> Iterator[Rest]:
    """All rests after `begun`, until the plan ends; whoever has no more time leaves, keeps the last one, and goes on
    from it another day."""
    programs = (compiled or compile_here)(programs_of(begun, plan, shapes))
    leaves, tree = jax.tree.flatten(begun.state)
    step, found, seed = begun.step, [], jnp.asarray(plan.seed)
    while step < plan.end:
        shape = turns[step // AHEAD % len(turns)]
        rates, keeps = (
            jnp.asarray([value(step + i) for i in range(AHEAD)], dtype=jnp.float32)
            for value in (plan.rate_at, plan.keep_at)
        )
        drawn = programs[f"draw-{shape}"](seed, jnp.asarray(step))
        *leaves, loss = programs[f"steps-{shape}"](leaves, drawn, rates, keeps)
        step, found = step + AHEAD, [*found, loss]
        if step % plan.rest == 0:
            state = rounded(jax.tree.unflatten(tree, leaves))
            yield Rest(step, state, begun.static, float(jnp.nanmean(jnp.concatenate(found))))
            leaves, found = jax.tree.leaves(state), []


def programs_of(begun: Rest, plan: Plan, shapes: tuple[tuple[Shape, int], ...]) -> dict[str, tuple[Function, tuple]]:
    """What draws tables of each shape and what takes AHEAD steps with them, with their arguments; both give lists of
    arrays."""
    number, line = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((AHEAD,), jnp.float32)
    state = jax.eval_shape(lambda: begun.state)
    found: dict[str, tuple[Function, tuple]] = {}
    for i, (shape, tables) in enumerate(shapes):
        draw = partial(draw_numbered, shape, tables)
        batches = jax.eval_shape(draw, number, number)
        trees = jax.tree.structure(state), jax.tree.structure(batches)
        found[f"steps-{i}"] = (
            partial(_steps, begun.static, plan.half, trees),
            (jax.tree.leaves(state), jax.tree.leaves(batches), line, line),
        )
        found[f"draw-{i}"] = (partial(_listed, draw), (number, number))
    return found


def _listed(function: Function, *args: Any) -> list[Array]:
    return jax.tree.leaves(function(*args))


def _steps(
    static: Any, half: bool, trees: tuple[Any, Any], state: list, batches: list, rates: Array, keeps: Array
) -> list[Float[Array, "..."]]:
    begun: State = jax.tree.unflatten(trees[0], state)
    drawn: Batch = jax.tree.unflatten(trees[1], batches)

    def one(state: State, item: tuple[Batch, Array, Array]) -> tuple[State, Array]:
        return one_step(static, half, state, *item)

    after, loss = jax.lax.scan(one, begun, (drawn, rates, keeps))
    return [*jax.tree.leaves(after), loss]


def compile_here(functions: dict[str, tuple[Function, tuple]]) -> dict[str, Function]:
    """All of them at once, each in a thread of its own."""
    with ThreadPoolExecutor(len(functions)) as pool:
        waiting = {
            name: pool.submit(lambda function=function, like=like: jax.jit(function).lower(*like).compile())
            for name, (function, like) in functions.items()
        }
        return {name: one.result() for name, one in waiting.items()}
