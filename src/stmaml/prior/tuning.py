"""Training the learner further on the groups of one table, where there are many: some of them are taken for new ones in
turn. Groups that are held out say how far to go; where they say that no step helps, none is taken."""

import math
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from stmaml.benchmarks.hierarchies import Table
from stmaml.prior.learner import Learner
from stmaml.prior.reading import COLUMN_SIZES, Kept, fitting
from stmaml.prior.steps import begin_steps, moved
from stmaml.prior.training import answer, batch_of, losses

FEWEST_GROUPS = 20
MOST_ROWS = 20_000
TABLES, LEARN, ASK, SLOTS = 2, 16, 6, 12  # of a step: tables, their groups to learn from and new ones, rows of a group
HELD = 0.2
HELD_BATCHES = 6
LOOKS = 4
RATE = 2e-4


@dataclass(frozen=True)
class Tuned:
    """A learner after some steps, and what groups that were held out said on the way."""

    learner: Learner
    looks: tuple[float, ...]
    """Loss of held-out groups: before the first step, then at each look."""

    @property
    def helped(self) -> bool:
        """Whether any look was better than the first."""
        return min(self.looks) < self.looks[0]


def tune(learner: Learner, kept: Kept, steps: int, *, seed: int = 0, rate: float = RATE) -> Tuned:
    """The learner at its best look; the one that was given where none was better."""
    random = np.random.default_rng(seed)
    mixed = random.permutation(int(kept.group.max()) + 1)
    count = max(math.ceil(HELD * len(mixed)), 2)
    held, train = mixed[:count], mixed[count:]
    draw = _Draws(kept)
    judged = [draw.tables(train, held, np.random.default_rng([seed, i])) for i in range(HELD_BATCHES)]
    weights, static = eqx.partition(learner, eqx.is_array)
    memory, best, looks = begin_steps(weights), weights, [_judge(weights, static, judged)]
    every = max(math.ceil(steps / LOOKS), 1)
    for step in range(steps):
        falling = jnp.asarray(rate * (1 - step / steps), dtype=jnp.float32)
        weights, memory, _ = _step(weights, static, memory, draw.tables(train, train, random), falling)
        if (step + 1) % every == 0 or step + 1 == steps:
            looks.append(_judge(weights, static, judged))
            best = weights if looks[-1] == min(looks) and looks[-1] < looks[0] else best
    return Tuned(eqx.combine(jax.tree.map(_half, best), static), tuple(looks))


def _half(leaf: Array) -> Array:
    """As it is kept in files, so that what is read back says the same."""
    return leaf.astype(jnp.float16).astype(jnp.float32)


def _judge(weights: Any, static: Any, judged: list[Table]) -> float:
    """The mean loss. By the program of a step of rate 0, so that no other has to be compiled."""
    nothing = jnp.asarray(0.0, dtype=jnp.float32)
    return float(np.mean([float(_step(weights, static, begin_steps(weights), one, nothing)[2]) for one in judged]))


@eqx.filter_jit
def _step(
    weights: Any, static: Any, memory: Any, table: Table, rate: Float[Array, ""]
) -> tuple[Any, Any, Float[Array, ""]]:
    def loss(weights: Any) -> Float[Array, ""]:
        return losses(answer(eqx.combine(weights, static), batch_of(table)), table)[0].mean()

    value, slopes = jax.value_and_grad(loss)(weights)
    return *moved(weights, slopes, memory, rate), value


class _Draws:
    """Small tables made of the rows of a large one."""

    def __init__(self, kept: Kept):
        self.kept, self.x, self.targets = kept, kept.scaled(kept.x), kept.targets(kept.y)
        self.rows = np.split(np.argsort(kept.group, kind="stable"), np.cumsum(np.bincount(kept.group))[:-1])
        self.width = fitting(max(kept.x.shape[1], 1), COLUMN_SIZES)

    def tables(self, learn: Int[np.ndarray, " _"], ask: Int[np.ndarray, " _"], random: np.random.Generator) -> Table:
        """Groups to learn from and, in other groups, rows to ask for beside some that are labelled."""
        size = (TABLES, LEARN + ASK, SLOTS)
        x = np.zeros((*size, self.width), dtype=np.float32)
        y, row, labelled = np.zeros((3, *size), dtype=np.float32)
        for i in range(TABLES):
            target = self.targets[random.integers(len(self.targets))]
            new = random.choice(ask, min(ASK, max(len(ask) // 2, 1)), replace=False)
            others = random.permutation(np.setdiff1d(learn, new))[:LEARN]
            for place, group in [*enumerate(others), *enumerate(new, LEARN)]:
                mine = self.rows[group]
                mine = np.sort(random.choice(mine, min(len(mine), SLOTS), replace=False))
                there = (i, place, slice(len(mine)))
                x[(*there, slice(self.x.shape[1]))], y[there], row[there] = self.x[mine], target[mine], 1
                known = len(mine) if place < LEARN else _shots(len(mine), random)
                labelled[i, place, random.permutation(len(mine))[:known]] = 1
        return self._table(x, y, row, labelled)

    def _table(self, x: np.ndarray, y: np.ndarray, row: np.ndarray, labelled: np.ndarray) -> Table:
        more = (0, self.width - len(self.kept.kind))
        column = np.tile(np.pad(np.ones(len(self.kept.kind), dtype=np.float32), more), (TABLES, 1))
        kind = np.tile(np.pad(self.kept.kind.astype(np.int32), more), (TABLES, 1))
        is_class = np.full(TABLES, self.kept.num_classes > 0)
        given = [jnp.asarray(part) for part in (x, y, y, row, labelled, column, kind, is_class)]
        return Table(*given, num_train=LEARN)


def _shots(size: int, random: np.random.Generator) -> int:
    """None, or a number of labelled rows whose logarithm is about uniform; one row at least is left to ask for."""
    if random.random() < 0.2:
        return 0
    return min(int(math.exp(random.uniform(0.0, math.log(max(size, 1))))), size - 1)
