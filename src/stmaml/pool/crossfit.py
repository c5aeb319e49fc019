"""Held-out forecasts for every group: each is predicted by members that have not seen it, and trains all others."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from stmaml.pool.averaging import averaged
from stmaml.pool.base import Draw, Fitted, Forecast, GroupedRows, Member, Tasks

FOLDS = 5
VERY_MANY = 2000
"""Of more groups than these, MAX_GROUPS are held out once and the others never: what they tell is nearly all."""
NEVER = -1
"""The fold of a group that no fit leaves out."""
MAX_TASKS = 300  # held-out tasks for each number of labelled rows, unless there are more groups
MAX_GROUPS = 1000  # groups that are scored, of those in the table
MAX_REPEATS = 10


@dataclass(frozen=True)
class HeldOut:
    """Tasks of held-out groups with one number of labelled rows, and what each member says of them."""

    shots: int
    tasks: Tasks
    forecasts: dict[str, Forecast]
    fold: Int[np.ndarray, " t"]
    """The fold that each task's group is scored with, by what was learnt from all others."""

    @property
    def y(self) -> Float[np.ndarray, " n"]:
        """The truth of each asked row."""
        return self.tasks.rows.y[self.tasks.asked]

    @property
    def groups(self) -> Int[np.ndarray, " g"]:
        """The groups that are asked for, in the order of their tasks."""
        return self.tasks.group[: self.num_groups]

    @property
    def num_groups(self) -> int:
        """Groups that are asked for: tasks go through all of them, then through all again."""
        return len(np.unique(self.tasks.group))

    def only(self, chosen: Bool[np.ndarray, " t"]) -> "HeldOut":
        """Some of the tasks."""
        rows = chosen[self.tasks.task]
        forecasts = {name: _at(forecast, rows) for name, forecast in self.forecasts.items()}
        return HeldOut(self.shots, self.tasks.only(chosen), forecasts, self.fold[chosen])


def folds_of(names: Sequence[str], num_folds: int = FOLDS) -> Int[np.ndarray, " g"]:
    """The fold that each group is held out with, by the rank of a digest of its name: neither order of rows nor a seed
    changes it. Of very many groups most are in none."""
    ranked = sorted(range(len(names)), key=lambda i: hashlib.sha256(names[i].encode()).digest())
    fold, place = np.zeros(len(names), dtype=int), np.arange(len(names))
    fold[ranked] = (
        np.where(place < MAX_GROUPS, 0, NEVER) if len(names) > VERY_MANY else place % min(num_folds, len(names))
    )
    return fold


def scored_with(fold: Int[np.ndarray, " g"], tasks: Tasks) -> Int[np.ndarray, " t"]:
    """The fold that each task is scored with. What fits leave out at once is dealt into folds for that."""
    mine = tasks.group
    return fold[mine] if fold.max() > 0 else np.unique(mine, return_inverse=True)[1] % FOLDS


def shot_counts(most: int) -> tuple[int, ...]:
    """The numbers of labelled rows at which members are weighed and scores are shown."""
    return (*(shots for shots in (0, 1, 2, 5, 10, 20, 50, 100) if shots < most), most)


def held_out_tasks(
    rows: GroupedRows,
    draw: Draw,
    counts: Sequence[int],
    fold: Int[np.ndarray, " g"] | None = None,
    seed: int = 0,
    *,
    most: int | None = None,
) -> list[Tasks]:
    """For each number of labelled rows, tasks of all groups that have more rows, or of some of very many groups: where
    folds are given, of those that are held out; at most so many tasks, if that is said."""
    able = np.arange(rows.num_groups) if fold is None else np.flatnonzero(fold != NEVER)
    chosen = np.random.default_rng(seed).permutation(able)[: min(MAX_GROUPS, most or MAX_GROUPS)]
    spare = np.flatnonzero(np.isin(rows.group, chosen))
    few = rows.at(spare)
    repeats = int(np.clip((most or MAX_TASKS) // max(few.num_groups, 1), 1, MAX_REPEATS))
    found = [draw.tasks(few, shots, repeats) for shots in counts]
    return [
        Tasks(rows, tuple(spare[part] for part in one.support), tuple(spare[part] for part in one.query))
        for one in found
    ]


def cross_fit(
    members: Sequence[Member], rows: GroupedRows, fold: Int[np.ndarray, " g"], draw: Draw, counts: Sequence[int]
) -> tuple[list[HeldOut], dict[str, Fitted]]:
    """What each member says of groups it has not seen, by number of labelled rows; and what answers for new groups."""
    tasks = held_out_tasks(rows, draw, counts, fold)
    whole, forecasts = {}, [dict[str, Forecast]() for _ in counts]
    for member in members:
        held, whole[member.name] = fold_fits(member, rows, fold, draw)
        said = [out_of_fold(held, one, fold) for one in tasks]
        for by_member, forecast in zip(forecasts, said, strict=True):
            by_member[member.name] = forecast
    found = zip(counts, tasks, forecasts, strict=True)
    return [HeldOut(shots, one, said, scored_with(fold, one)) for shots, one, said in found], whole


def fold_fits(
    member: Member, rows: GroupedRows, fold: Int[np.ndarray, " g"], draw: Draw
) -> tuple[list[Fitted], Fitted]:
    """A fit for each fold, to all groups but those of the fold; and what answers for new groups."""
    parts = [np.flatnonzero(fold != held) for held in range(fold.max() + 1)] + [np.arange(len(fold))]
    *held, final = member.fit_each(rows, parts, draw)
    return held, averaged(final, held, rows)


def out_of_fold(fitted: Sequence[Fitted], tasks: Tasks, fold: Int[np.ndarray, " g"]) -> Forecast:
    """Each task answered by the fit that has not seen its group, in the order of the tasks."""
    parts, places = [], []
    mine = fold[tasks.group]
    for number, one in enumerate(fitted):
        chosen = mine == number
        if chosen.any():
            parts.append(one.predict(tasks.only(chosen)))
            places.append(np.flatnonzero(chosen[tasks.task]))
    order = np.argsort(np.concatenate(places), kind="stable")
    return _at(Forecast.joined(parts), order)


def _at(forecast: Forecast, rows: np.ndarray) -> Forecast:
    return Forecast(forecast.mean[rows], forecast.task_variance[rows], forecast.noise_variance[rows])


def by_fold(held: Sequence[HeldOut]) -> Iterator[tuple[int, list[HeldOut], list[HeldOut]]]:
    """Each fold's number, what was held out in all other folds, and what in this one."""
    for number in np.unique(np.concatenate([one.fold for one in held])):
        others = [one.only(one.fold != number) for one in held]
        yield int(number), others, [one.only(one.fold == number) for one in held]
