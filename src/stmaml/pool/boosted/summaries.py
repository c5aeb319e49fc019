"""Trees that read summaries of labelled rows, trained on tasks simulated from groups."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Shaped

from stmaml.pool.base import Arrays, Draw, Fitted, Forecast, GroupedRows, Tasks
from stmaml.pool.boosted.effects import varying
from stmaml.pool.boosted.growing import Rule, grow
from stmaml.pool.boosted.objectives import Squares
from stmaml.pool.boosted.reading import Labelled, nearby
from stmaml.pool.boosted.remembered import Remembered
from stmaml.pool.boosted.ridge import Line, learn_line
from stmaml.pool.boosted.roots import Root, Rooted
from stmaml.pool.boosted.simulated import Joined, simulate
from stmaml.pool.boosted.spread import Said, Spread, learn_spread
from stmaml.pool.boosted.trees import Trees, part, prefixed

NEAR_COLUMNS = 4
"""Columns by which rows are near each other: those that differ most within groups."""


@dataclass(frozen=True)
class Reader:
    """What trees read: the columns, what the root says, and what labelled rows have."""

    root: Root
    line: Line
    near: tuple[int, ...]
    unit: Float[np.ndarray, " u"]

    def read(
        self, rows: GroupedRows, shared: Float[np.ndarray, " n"], joined: Joined, said: Said
    ) -> Float[np.ndarray, "m f"]:
        """A line for each asked row; `said` is what the root says of it."""
        asked, labelled = joined.asked, Labelled.of(joined)
        x, left = rows.x[asked], rows.y - shared
        line = self.line.said(rows, joined)
        of_task = [labelled.moments(rows.y, self.line.mean), labelled.moments(left, 0.0)]
        apart = x[:, list(self.near)] - labelled.means(rows.x[:, list(self.near)])[joined.task]
        return np.column_stack(
            [
                *(x, joined.log_shots, shared[asked], said.mean - shared[asked], said.task_variance),
                *(line.mean - said.mean, line.task_variance),
                *(one[joined.task] for one in of_task),
                nearby(rows, joined, labelled, self.near, np.column_stack([rows.y, left]), self.unit),
                apart * (joined.shots[joined.task] > 0)[:, None],
            ]
        )

    def state(self) -> Arrays:
        """As arrays."""
        near = {"near": np.array(self.near, dtype=int), "unit": self.unit}
        return {**prefixed(self.root.state(), "root"), **prefixed(self.line.state(), "line"), **near}

    @staticmethod
    def restored(state: Arrays) -> "Reader":
        """A reader from its arrays."""
        root, line = Root.restored(part(state, "root")), Line.restored(part(state, "line"))
        return Reader(root, line, tuple(int(j) for j in state["near"]), state["unit"])


def near_columns(rows: GroupedRows) -> tuple[tuple[int, ...], Float[np.ndarray, " c"]]:
    """The columns by which rows are near each other, and the spread of each."""
    near = tuple(varying(rows.x, rows.group, NEAR_COLUMNS))
    return near, np.maximum(rows.x[:, list(near)].std(0), 1e-6)


@dataclass(frozen=True)
class Summaries:
    """What trees add to the root when they read labelled rows."""

    reader: Reader
    trees: Trees
    spread: Spread

    def predict(self, tasks: Tasks) -> Forecast:
        """The root's mean, corrected."""
        joined, rows = Joined.of(tasks), tasks.rows
        shared = self.reader.root.shared(rows, joined)
        said = self.reader.root.said(rows, shared, joined)
        features = self.reader.read(rows, shared, joined, said)
        return self.spread.forecast(replace(said, mean=said.mean + self.trees.predict(features)[:, 0]))

    def state(self) -> Arrays:
        """As arrays."""
        parts = {"reader": self.reader.state(), "trees": self.trees.state(), "spread": self.spread.state()}
        return {key: value for name, state in parts.items() for key, value in prefixed(state, name).items()}


@dataclass(frozen=True)
class SummariesMember:
    """The member `boosting-summaries` for numbers."""

    roots: Remembered[Rooted]
    name: str = "boosting-summaries"

    def suits(self, rows: GroupedRows) -> bool:
        """Numbers."""
        return rows.num_classes == 0

    def fit_each(self, rows: GroupedRows, parts: Sequence[Shaped[np.ndarray, " _"]], draw: Draw) -> list[Fitted]:
        """One fit for each part."""
        return [learn_summaries(rooted, draw) for rooted in self.roots.of_each(rows, parts, draw)]

    def restore(self, state: Arrays) -> Summaries:
        """Back from its arrays."""
        trees, spread = Trees.restored(part(state, "trees")), Spread.restored(part(state, "spread"))
        return Summaries(Reader.restored(part(state, "reader")), trees, spread)


def simulated_rows(num_rows: int) -> int:
    """Asked rows of simulated tasks: several for each row of a small table, two for each of a larger one, and a sixth
    of those of a very large one."""
    return int(np.clip(4 * num_rows, 3_000, np.clip(2 * num_rows, 10_000, np.clip(num_rows // 6, 20_000, 50_000))))


def summaries_rule(num_rows: int) -> Rule:
    """Simulated rows of one group are much alike: leaves are larger than their number asks for."""
    return Rule(rate=0.08, leaves=8, min_leaf=int(np.clip(num_rows / 40, 20, 200)), l2=5.0)


def learn_summaries(rooted: Rooted, draw: Draw) -> Summaries:
    """Trees of what the root leaves on simulated tasks, whose groups it had not seen."""
    rows, root = rooted.rows, rooted.root
    joined = Joined.of(simulate(rows, draw, simulated_rows(len(rows.y))))
    said, asked = root.said(rows, rooted.held_out, joined), joined.asked
    reader = Reader(root, learn_line(rows.x, rows.y, rows.group), *near_columns(rows))
    features = reader.read(rows, rooted.held_out, joined, said)
    left, group = rows.y[asked] - said.mean, rows.group[asked]
    grown = grow(features, Squares(left), group, draw.seed, summaries_rule(len(left)))
    held_out = replace(said, mean=said.mean + grown.held_out[:, 0])
    return Summaries(reader, grown.trees, learn_spread(held_out, rows.y[asked], group, draw.seed))
