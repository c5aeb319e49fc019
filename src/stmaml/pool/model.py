"""A fitted pool: labelled rows of a group in, if there are any, and predictions whose intervals hold out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from jaxtyping import Float, Int, Shaped

from stmaml.pool.base import Fitted, Forecast, GroupedRows, Tasks
from stmaml.pool.guarantee import HIGH, LOW, Reaches, ends_at, notes_on, reach_of, usable
from stmaml.pool.pooling import Pooling
from stmaml.pool.rows import Factors, columns_of, grouped_rows, has_target, in_order, is_fresh, nested
from stmaml.pool.suggesting import suggested
from stmaml.pool.usual import Usual, in_words, surprise_of
from stmaml.progress import tell
from stmaml.tables.adapted import DEFAULT_LEVELS, Answer
from stmaml.tables.answers import beside, level_name, set_name, sets_of
from stmaml.tables.benchmark import Config
from stmaml.tables.calibration import Calibration, caution, class_sets
from stmaml.tables.copies import twice_note
from stmaml.tables.matching import MOST_LABELLED, group_keys_of, labelled_rows, match
from stmaml.tables.ordering import backwards_note
from stmaml.tables.reading import Groups, group_rows
from stmaml.tables.schema import Schema, table_keys

ROWS_AT_ONCE = 100_000


@dataclass(frozen=True)
class PoolModel:
    """The members that have a say, how they are pooled, and the labelled rows of the groups that are known."""

    config: Config
    schema: Schema
    factors: Factors
    pooling: Pooling
    usual: Usual
    members: dict[str, Fitted]
    known: pl.DataFrame
    """Rows of the training table, and what was added since."""
    reaches: Reaches | None = None
    """How far intervals must reach to hold in most groups; none for classes."""

    @property
    def calibration(self) -> Calibration:
        """What makes its predictions hold."""
        return self.pooling.calibration

    def predict(
        self,
        query: pl.DataFrame,
        support: pl.DataFrame | None = None,
        *,
        levels: Sequence[float] = DEFAULT_LEVELS,
        coverage: float = 0.9,
        suggest: int = 0,
        guarantee: bool = False,
        seed: int = 0,
        num_samples: int = 20,
    ) -> Answer:
        """A prediction for each row of `query` from the labelled rows of its group: those in `support`, and those of
        the training table for a group that was in it.

        Args:
            levels: which quantiles to give.
            coverage: how likely the true class is to be in the set of classes that is given.
            suggest: in each group, rank so many rows whose labels would tell most.
            guarantee: add intervals that hold 90 % of a group's rows in nine new groups of ten.
            seed: of nothing here, as is `num_samples`: a pool draws nothing. They are what a single method takes.
        """
        del seed, num_samples
        notes: list[str] = []
        reaches = usable(self.reaches, self.schema.target.is_class) if guarantee else None
        asked = self._matched(query, support, notes)
        columns: dict[str, np.ndarray] = {}
        done = 0
        for tasks in asked.chunks():
            said = self._respond(tasks, levels, coverage, suggest)
            said |= {} if reaches is None else self._guaranteed(reaches, tasks, asked, notes)
            for name, values in said.items():
                column = columns.setdefault(name, _blank(values, asked.height))
                column[tasks.asked - asked.first] = values
            done += len(tasks.asked)
            tell("predicting rows", done, asked.height)
        notes.extend(self._notes(asked, support is not None))
        return Answer(beside(asked.query, self._frame(columns, coverage), notes), notes)

    def forecasts(self, tasks: Tasks) -> dict[str, Forecast]:
        """What each member with a say says of the asked rows."""
        return {name: member.predict(tasks) for name, member in self.members.items()}

    def sample(
        self, query: pl.DataFrame, support: pl.DataFrame | None, num_draws: int, *, seed: int = 0
    ) -> Shaped[np.ndarray, "d n"]:
        """Targets (or class numbers) drawn for the rows of one group: a draw follows one member, with one deviation of
        the whole group from what it expects, and noise of its own in each row. Numbers are then moved as quantiles
        are, so that both agree."""
        random = np.random.default_rng(seed)
        (tasks,) = self._matched(query, support, []).chunks()
        said, shots = self.forecasts(tasks), np.repeat(tasks.shots, [len(rows) for rows in tasks.query])
        if self.schema.target.is_class:
            edges = np.cumsum(self.pooling.odds(said, shots), axis=1)
            return (random.random((num_draws, len(edges), 1)) > edges).sum(2).clip(max=edges.shape[1] - 1)
        raw = self.pooling.mixture(said, shots)
        mixture, finished = self.pooling.usual(raw, shots), self.pooling.finished(raw, shots)
        which = random.choice(len(said), num_draws, p=mixture.weight.mean(1) / mixture.weight.mean(1).sum())
        share = np.stack([one.task_variance / np.maximum(one.variance, 1e-12) for one in said.values()])[which]
        whole, own = random.standard_normal((num_draws, 1)), random.standard_normal((num_draws, mixture.mean.shape[1]))
        tail, width = self.pooling.tail_at(shots)
        wide = np.where(random.random(own.shape) < tail, width, 1.0)  # of the whole spread; the group's part is its own
        noise = (1 - share) * mixture.std[which] ** 2 + (wide**2 - 1) * mixture.variance()
        drawn = mixture.mean[which] + np.sqrt(share) * mixture.std[which] * whole + np.sqrt(noise) * own
        return finished.recalibrated(drawn) * self.schema.target.std + self.schema.target.mean

    def check_support(self, support: pl.DataFrame) -> None:
        """Raises SourceError for labelled rows that cannot be used."""
        labelled_rows(self.schema, support, group_keys_of(self.schema, support, "support", []), [])

    def with_rows(self, frame: pl.DataFrame, notes: list[str]) -> "PoolModel":
        """The same pool that knows further labelled rows, of old groups or new ones; nothing is trained again."""
        frame = nested(frame, self.config.table)
        keys = group_keys_of(self.schema, frame, "new", notes)
        labelled_rows(self.schema, frame, keys, notes)
        kept = frame.filter(keys.is_not_null() & has_target(self.schema, frame))
        kept = kept.select(name for name in self.known.columns if name in frame.columns)
        fresh = kept.filter(is_fresh(kept, self.known))
        notes.extend(twice_note(fresh, self.known))
        if (twice := kept.height - fresh.height) > 0:
            notes.append(f"{twice} rows were known already, to the last cell, and are not added again")
        return replace(self, known=pl.concat([self.known.cast(pl.String), fresh.cast(pl.String)], how="diagonal"))

    def _matched(self, query: pl.DataFrame, support: pl.DataFrame | None, notes: list[str]) -> "_Asked":
        table = self.config.table
        query = nested(query, table)
        support = None if support is None else self._counted_once(in_order(nested(support, table), table), query, notes)
        labelled, keys = match(self.schema, query, support, notes)
        query, keys = query.filter(keys.is_not_null()), keys.drop_nulls()
        groups = group_rows(keys)
        if support is not None:
            notes.extend(twice_note(support, self.known))
            notes.extend(backwards_note(query, support, table.order, self.schema.task, self.schema.missing))
        old = self._old_rows(groups)
        x = np.concatenate([old.x, labelled.x, self.schema.encode(query, "the query table", notes)]).astype(float)
        count = len(old.x) + len(labelled.x)
        target = self.schema.target
        new_y = labelled.y if target.is_class else (labelled.y - target.mean) / target.std
        y = np.concatenate([old.y, new_y, np.full(query.height, np.nan)])
        levels = [self.factors.places(one, self.schema.missing) for one in (support, query) if one is not None]
        whole = np.concatenate([old.levels, *levels[:-1][: len(labelled.x)], levels[-1]])
        group = np.zeros(len(x), dtype=int)
        rows = GroupedRows(x, y, group, whole, columns_of(self.schema), len(target.classes))
        known = _by_name(self._known_groups(groups), old.group)
        support_of = [
            np.concatenate([known.get(name, np.zeros(0, dtype=int)), labelled.rows(name) + len(old.x)])
            for name in groups.names
        ]
        return _Asked(query, rows, groups, [_thinned(part) for part in support_of], count, len(known))

    def _counted_once(self, support: pl.DataFrame, query: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
        """The labelled rows without those that are known: they speak for their group already."""
        if any(self.schema.task not in one.columns for one in (support, query)):
            return support  # its rows say which group is meant
        fresh = support.filter(is_fresh(support, self.known))
        if (twice := support.height - fresh.height) > 0:
            notes.append(f"{twice} labelled rows were known already, to the last cell, and count once")
        return fresh

    def _known_groups(self, groups: Groups) -> list[str]:
        """Groups that are asked for and were known before, in the order of their rows."""
        keys = table_keys(self.known, self.schema.task, self.schema.missing)
        return keys.filter(keys.is_in(list(groups.names))).unique(maintain_order=True).to_list()

    def _old_rows(self, groups: Groups) -> GroupedRows:
        keys = table_keys(self.known, self.schema.task, self.schema.missing)
        frame = self.known.filter(keys.is_in(list(groups.names)))
        found = group_rows(table_keys(frame, self.schema.task, self.schema.missing))
        place = np.zeros(frame.height, dtype=int)
        place[found.order] = np.repeat(np.arange(len(found.names)), found.count)
        return grouped_rows(self.schema, self.factors, frame, place, known=True)

    def _guaranteed(self, reaches: Reaches, tasks: Tasks, asked: "_Asked", notes: list[str]) -> dict[str, np.ndarray]:
        """Ends of intervals that hold in most groups."""
        ordered = self.config.table.order is not None
        reach = reach_of(reaches, self.pooling, self.forecasts, tasks, ordered=ordered)
        sizes = [len(rows) for rows in tasks.query]
        shots = np.repeat(tasks.shots, sizes)
        finished = self.pooling.finished(self.pooling.mixture(self.forecasts(tasks), shots), shots)
        low, high = ends_at(finished, np.repeat(reach, sizes)) * self.schema.target.std + self.schema.target.mean
        notes.extend(note for note in notes_on(reaches, tasks.shots, reach, asked.num_known) if note not in notes)
        return {LOW: low, HIGH: high}

    def _respond(self, tasks: Tasks, levels: Sequence[float], coverage: float, suggest: int) -> dict[str, np.ndarray]:
        said = self.forecasts(tasks)
        sizes = [len(rows) for rows in tasks.query]
        shots = np.repeat(tasks.shots, sizes)
        is_class = self.schema.target.is_class
        columns = self._classes(said, shots, coverage) if is_class else self._numbers(said, shots, levels)
        novelty = np.repeat(self._novelty(tasks), sizes)
        columns |= {"shots": shots.astype(float), "novelty": novelty}
        return {**columns, "suggested": suggested(self.members, tasks, suggest)} if suggest else columns

    def _numbers(
        self, said: dict[str, Forecast], shots: Int[np.ndarray, " n"], levels: Sequence[float]
    ) -> dict[str, np.ndarray]:
        target = self.schema.target
        raw = self.pooling.mixture(said, shots)
        finished = self.pooling.finished(raw, shots)
        whole, usual = finished.mixture, self.pooling.usual(raw, shots)  # tails are noise, whatever the group
        inner = np.stack([one.task_variance / np.maximum(one.variance, 1e-12) for one in said.values()])
        centre = usual.expected()
        task = (usual.weight * (inner * usual.std**2 + (usual.mean - centre) ** 2)).sum(0)
        columns = {"prediction": centre * target.std + target.mean, "std": np.sqrt(whole.variance()) * target.std}
        found = finished.quantiles(levels) if len(levels) else np.zeros((0, len(shots)))
        columns |= {level_name(level): q * target.std + target.mean for level, q in zip(levels, found, strict=True)}
        return {**columns, "task_std": np.sqrt(task) * target.std}

    def _classes(
        self, said: dict[str, Forecast], shots: Int[np.ndarray, " n"], coverage: float
    ) -> dict[str, np.ndarray]:
        odds = self.pooling.odds(said, shots)
        shares = {f"p_{name}": odds[:, i] for i, name in enumerate(self.schema.target.classes)}
        best = odds.argmax(1)
        spread = np.std([one.mean[np.arange(len(best)), best] for one in said.values()], axis=0)
        distinct, which = np.unique(shots, return_inverse=True)
        floor = np.array([float(self.calibration.at(int(one)).floor(coverage)) for one in distinct])[which]
        inside = np.asarray(class_sets(odds, floor))
        classes = np.array(self.schema.target.classes, dtype=object)
        sets = np.array(sets_of(self.schema.target.classes, inside), dtype=object)
        return {"prediction": classes[best], **shares, set_name(coverage): sets, "task_std": spread}

    def _novelty(self, tasks: Tasks) -> Float[np.ndarray, " t"]:
        """Of each task's labelled rows, seen without knowing any of them."""
        given = [i for i, rows in enumerate(tasks.support) if len(rows)]
        surprise = np.zeros(len(tasks))
        if given:
            empty = np.zeros(0, dtype=int)
            blind = Tasks(tasks.rows, (empty,) * len(given), tuple(tasks.support[i] for i in given))
            each = surprise_of(self.pooling, self.forecasts(blind), blind.rows.y[blind.asked])
            surprise[given] = np.bincount(blind.task, each) / np.bincount(blind.task)
        return self.usual.novelty(surprise, tasks.shots)

    def _frame(self, columns: dict[str, np.ndarray], coverage: float) -> pl.DataFrame:
        frame = pl.DataFrame({name: _series(values) for name, values in columns.items()})
        whole = [name for name in ("shots", "suggested") if name in frame.columns]
        frame = frame.with_columns(pl.col(name).cast(pl.Int64) for name in whole)
        if "novelty" not in frame.columns:
            return frame
        distinct, which = np.unique(columns["novelty"], return_inverse=True)
        words = pl.Series("group_looks", [in_words(value) for value in distinct], dtype=pl.String)[which]
        return frame.insert_column(frame.columns.index("novelty") + 1, words)

    def _notes(self, asked: "_Asked", has_support: bool) -> list[str]:
        empty = sum(len(rows) == 0 for rows in asked.support)
        notes = []
        if asked.num_known:
            notes.append(
                f"{asked.num_known} of {len(asked.support)} groups are known from before; what was learnt counts"
            )
        if has_support and empty:
            notes.append(f"{empty} of {len(asked.support)} groups have no labelled row and are predicted without any")
        return [*notes, *(caution(self.calibration.groups, self.schema.target.is_class) if empty else [])]


@dataclass(frozen=True)
class _Asked:
    """Rows to predict, after the labelled rows of their groups."""

    query: pl.DataFrame
    rows: GroupedRows
    groups: Groups
    support: list[Int[np.ndarray, " _"]]
    first: int
    """Where the rows to predict begin."""
    num_known: int

    @property
    def height(self) -> int:
        return self.query.height

    def chunks(self) -> Iterator[Tasks]:
        """The groups in turn, so many that memory holds them; a large group in parts."""
        support, query, size = [], [], 0
        for i in range(len(self.groups.names)):
            mine = self.groups.rows(i) + self.first
            for begin in range(0, len(mine), ROWS_AT_ONCE):
                part = mine[begin : begin + ROWS_AT_ONCE]
                if size + len(part) > ROWS_AT_ONCE and query:
                    yield Tasks(self.rows, tuple(support), tuple(query))
                    support, query, size = [], [], 0
                support.append(self.support[i])
                query.append(part)
                size += len(part)
        if query:
            yield Tasks(self.rows, tuple(support), tuple(query))


def _blank(values: np.ndarray, height: int) -> np.ndarray:
    return np.full(height, None, dtype=object) if values.dtype == object else np.full(height, np.nan)


def _series(values: np.ndarray) -> pl.Series:
    """A column; no number is none."""
    return pl.Series(values.tolist()) if values.dtype == object else pl.Series(values, nan_to_null=True)


def _by_name(names: list[str], group: Int[np.ndarray, " n"]) -> dict[str, Int[np.ndarray, " k"]]:
    """The rows of each group by its name."""
    ends = np.cumsum(np.bincount(group, minlength=len(names)))[:-1] if names else []
    return dict(zip(names, np.split(np.argsort(group, kind="stable"), ends), strict=False))


def _thinned(rows: Int[np.ndarray, " n"]) -> Int[np.ndarray, " m"]:
    if len(rows) <= MOST_LABELLED:
        return rows
    return rows[np.linspace(0, len(rows) - 1, MOST_LABELLED).round().astype(int)]
