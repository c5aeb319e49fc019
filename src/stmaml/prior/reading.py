"""Rows of a real table as the learner reads them: within its limits, padded to a few sizes, its programs compiled."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from stmaml.prior.learner import About, Groups, Learner, Memory

NUMBER = 0
MOST_SCALED = 8.0
MOST_ROWS = 512
MOST_COLUMNS = 30
MOST_CLASSES = 10
MOST_LABELLED = 64
FEWEST_SLOTS, MOST_SLOTS = 12, 64
AT_ONCE, ASKED = 16, 64
COLUMN_SIZES = (4, 8, 16, MOST_COLUMNS)
SLOT_SIZES = (16, 32, 64, 128)  # of questions: few, since each has a program of its own
FEW, FEW_SLOTS = 4, (64, 128)  # tasks that are asked together, and their sizes: most then need one program
KEPT_SLOTS = (4, 8, 12, 16, 24, 32, 48, 64)
GROUP_SIZES = (16, 32, 48, 64, 96, 128, 192, 256)
ROW_SIZES = (128, 256, MOST_ROWS)


@dataclass(frozen=True)
class Kept:
    """The rows that the learner reads of those there are to learn from."""

    x: Float[np.ndarray, "n d"]
    y: Float[np.ndarray, " n"]
    """In units of the table, or numbers of classes."""
    group: Int[np.ndarray, " n"]
    chosen: Int[np.ndarray, " d"]
    """Which of the table's columns they hold."""
    kind: Int[np.ndarray, " d"]
    num_classes: int

    @property
    def mean(self) -> float:
        """What targets are centred on."""
        return 0.0 if self.num_classes else float(self.y.mean())

    @property
    def spread(self) -> float:
        """What targets are divided by."""
        return 1.0 if self.num_classes else max(float(self.y.std()), 1e-6)

    def scaled(self, x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """Inputs as the learner reads them: numbers in spreads of the rows that it learns from."""
        number = self.kind == NUMBER
        mean = np.where(number, self.x.mean(0), 0.0)
        spread = np.where(number, np.maximum(self.x.std(0), 1e-6), 1.0)
        return np.clip((x - mean) / spread, -MOST_SCALED, MOST_SCALED)

    @property
    def asked_classes(self) -> list[int]:
        """Classes that are told from all others: of two, the second."""
        return [1] if self.num_classes == 2 else list(range(self.num_classes))

    def targets(self, y: Float[np.ndarray, " n"]) -> Float[np.ndarray, "b n"]:
        """Targets as the learner reads them: scaled, or for each asked class 1 where a row is of it."""
        if not self.num_classes:
            return ((y - self.mean) / self.spread)[None]
        return np.stack([(y == one).astype(float) for one in self.asked_classes])


def keep_rows(
    x: Float[np.ndarray, "n d"],
    y: Float[np.ndarray, " n"],
    group: Int[np.ndarray, " n"],
    kind: Int[np.ndarray, " d"],
    num_classes: int = 0,
    *,
    seed: int = 0,
    most_rows: int = MOST_ROWS,
) -> Kept:
    """At most `most_rows` rows with a target, of whole or thinned groups, and the columns that tell most of it."""
    known = np.flatnonzero(np.isfinite(y))
    x, y, group = x[known], y[known], np.unique(group[known], return_inverse=True)[1]
    rows = _thinned(group, most_rows, np.random.default_rng(seed))
    chosen = _columns(x[rows], y[rows], num_classes)
    return Kept(
        x[rows][:, chosen], y[rows], np.unique(group[rows], return_inverse=True)[1], chosen, kind[chosen], num_classes
    )


def _thinned(group: Int[np.ndarray, " n"], most: int, random: np.random.Generator) -> Int[np.ndarray, " m"]:
    count = np.bincount(group)
    slots = int(np.clip(most // len(count), FEWEST_SLOTS, MOST_SLOTS))
    order = np.argsort(group, kind="stable")
    parts = [_evenly(part, slots) for part in np.split(order, np.cumsum(count)[:-1])]
    kept, total = [], 0
    for number in random.permutation(len(parts)):
        if total + len(parts[number]) > most and len(kept) >= 3:
            break
        kept.append(parts[number])
        total += len(parts[number])
    return np.sort(np.concatenate(kept))


def _evenly(rows: Int[np.ndarray, " n"], most: int) -> Int[np.ndarray, " m"]:
    return rows if len(rows) <= most else rows[np.linspace(0, len(rows) - 1, most).round().astype(int)]


def _columns(x: Float[np.ndarray, "n d"], y: Float[np.ndarray, " n"], num_classes: int) -> Int[np.ndarray, " k"]:
    """Columns that are not the same everywhere, or as many as there may be of those that go most with the target."""
    uneven = np.flatnonzero(x.std(0) > 1e-6)
    if len(uneven) <= MOST_COLUMNS:
        return uneven if len(uneven) else np.arange(1)
    targets = np.stack([y == one for one in range(num_classes)], axis=1) if num_classes else y[:, None]
    centred, wanted = x - x.mean(0), targets - targets.mean(0)
    size = np.sqrt(np.square(centred).sum(0))[:, None] * np.sqrt(np.square(wanted).sum(0))
    tie = np.abs(centred.T @ wanted / np.maximum(size, 1e-9)).max(1)
    return np.sort(np.argsort(-tie, kind="stable")[:MOST_COLUMNS])


def limits_said(rows: int, groups: int, columns: int) -> list[str]:
    """What is left out of a table that is larger than what the learner reads."""
    notes = []
    if rows > MOST_ROWS:
        notes.append(
            f"the prior reads {MOST_ROWS:,} of {rows:,} rows, of some of the {groups:,} groups; 'stmaml fit' reads all"
        )
    if columns > MOST_COLUMNS:
        notes.append(f"the prior reads {MOST_COLUMNS} of {columns} encoded columns, those that go most with the target")
    return notes


def room_for(some: Sequence[Kept]) -> tuple[int, int]:
    """Groups and rows of a group that all of these are padded to, so that one program reads them."""
    counts = [np.bincount(kept.group) for kept in some]
    groups, slots = max(len(count) for count in counts), max(int(count.max()) for count in counts)
    return fitting(groups, GROUP_SIZES), fitting(slots, KEPT_SLOTS)


def recall(learner: Learner, kept: Kept, room: tuple[int, int] | None = None) -> Memory:
    """What the learner remembers of the kept rows."""
    groups, slots = room or room_for([kept])
    place = _places(kept.group)
    width = fitting(max(kept.x.shape[1], 1), COLUMN_SIZES)
    targets = kept.targets(kept.y)
    x = np.zeros((len(targets), groups, slots, width), dtype=np.float32)
    y, labelled = np.zeros((2, len(targets), groups, slots), dtype=np.float32)
    x[:, kept.group, place, : kept.x.shape[1]] = kept.scaled(kept.x)
    y[:, kept.group, place], labelled[:, kept.group, place] = targets, 1
    real = np.zeros(fitting(len(kept.y), ROW_SIZES), dtype=np.int32)
    real[: len(kept.y)] = kept.group * slots + place
    there = (np.arange(len(real)) < len(kept.y)).astype(np.float32)
    train = Groups(*jax.device_put((x, y, labelled)))  # jnp.asarray would compile a program for each shape
    return _remember(learner, train, _about(kept, len(targets), width), *jax.device_put((real, there)))


def _places(group: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """The place of each row among those of its group."""
    order = np.argsort(group, kind="stable")
    count = np.bincount(group)
    place = np.zeros(len(group), dtype=int)
    place[order] = np.arange(len(group)) - np.repeat(np.cumsum(count) - count, count)
    return place


def _about(kept: Kept, tables: int, width: int) -> About:
    more = width - len(kept.kind)
    column = np.tile(np.pad(np.ones(len(kept.kind), dtype=np.float32), (0, more)), (tables, 1))
    kind = np.tile(np.pad(kept.kind.astype(np.int32), (0, more)), (tables, 1))
    is_class = np.full(tables, kept.num_classes > 0, dtype=np.float32)
    return About(*jax.device_put((column, kind, is_class)))


@dataclass(frozen=True)
class Question:
    """Rows asked for, the labelled rows of their group, and where they stand in the answer."""

    labelled: Int[np.ndarray, " k"]
    asked: Int[np.ndarray, " q"]
    place: int
    slots: int
    """What it is padded to."""


def questions(
    support: tuple[Int[np.ndarray, " _"], ...], query: tuple[Int[np.ndarray, " _"], ...], y: Float[np.ndarray, " n"]
) -> list[Question]:
    """Tasks in parts of a size that is answered at once."""
    found, place, sizes = [], 0, FEW_SLOTS if len(query) <= FEW else SLOT_SIZES
    for known, asked in zip(support, query, strict=True):
        labelled = _evenly(known[np.isfinite(y[known])], MOST_LABELLED)
        for first in range(0, len(asked), ASKED):
            some = asked[first : first + ASKED]
            found.append(Question(labelled, some, place, fitting(len(labelled) + len(some), sizes)))
            place += len(some)
    return found


def respond(
    learner: Learner,
    memory: Memory,
    kept: Kept,
    x: Float[np.ndarray, "n d"],
    y: Float[np.ndarray, " n"],
    some: list[Question],
    at_once: int = AT_ONCE,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Expected target, its variance, that of the group's part, and log-odds, by class, question and row. All questions
    must be of one size, and at most `at_once`."""
    slots, width = some[0].slots, memory.about.column.shape[1]
    tables = len(kept.asked_classes) if kept.num_classes else 1
    inputs = np.zeros((tables, at_once, slots, width), dtype=np.float32)
    targets, labelled = np.zeros((2, tables, at_once, slots), dtype=np.float32)
    for i, one in enumerate(some):
        count, total = len(one.labelled), len(one.labelled) + len(one.asked)
        rows = np.concatenate([one.labelled, one.asked])
        inputs[:, i, :total, : len(kept.chosen)] = kept.scaled(x[rows][:, kept.chosen])
        targets[:, i, :count], labelled[:, i, :count] = kept.targets(y[one.labelled]), 1
    said = _answer(learner, memory, Groups(*jax.device_put((inputs, targets, labelled))))
    expected, variance, task_std, odds = (np.asarray(part, float) for part in said)
    task = np.minimum(task_std**2, 0.99 * variance)
    scale = kept.spread
    return kept.mean + scale * expected, scale**2 * variance, scale**2 * task, odds


@eqx.filter_jit
def _remember(learner: Learner, train: Groups, about: About, real: Array, there: Array) -> Memory:
    return only_rows(learner.remember(train, about), real, there)


def only_rows(memory: Memory, real: Int[Array, " k"], there: Float[Array, " k"]) -> Memory:
    """The same memory with some of its rows, of which those count that are `there`: what is padded is not looked at a
    second time, and all memories of as many rows are alike."""
    cells, rows = (jax.tree.map(lambda one: jnp.take(one, real, axis=3), seen) for seen in (memory.cells, memory.rows))
    counted = jnp.broadcast_to(there[None], (memory.there.shape[0], len(real)))
    values = jnp.take(memory.values, real, axis=1) * there[None, :, None]
    return replace(memory, there=counted, values=values, cells=cells, rows=rows)


@eqx.filter_jit
def _answer(learner: Learner, memory: Memory, new: Groups) -> tuple[Array, Array, Array, Array]:
    said = learner.answer(memory, new)
    return said.expected, said.variance, said.task_std, said.odds


def fitting(count: int, sizes: tuple[int, ...]) -> int:
    """The least of some sizes that holds so many."""
    return next((size for size in sizes if size >= count), count)
