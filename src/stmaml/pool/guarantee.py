"""Intervals that hold in most groups, not only on average over all.

Held-out groups tell how far, in normal scores of the pool's own prediction, an interval had to reach to hold nine of
ten of their rows, and how far the last labelled rows of each lay from what the pool expected of them while it knew the
others alone. The reach for a new group follows from how far its own labelled rows lie off (`tables.coverage`). A row is
never predicted from itself, and pooling is learnt from other groups than those it is asked about."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
from jaxtyping import Float, Int
from scipy.special import ndtri

from stmaml.border.typed import from_dict
from stmaml.errors import RunError, SettingError
from stmaml.pool.base import Forecast, GroupedRows, Tasks
from stmaml.pool.crossfit import HeldOut
from stmaml.pool.pooling import Finished, Pooling
from stmaml.tables.coverage import GROUPS, NOMINAL, group_reach

BEYOND = 1e-15  # of levels: a normal score of 8 is as far as anyone looks
DIGITS = 6
LOW, HIGH = "guaranteed_low", "guaranteed_high"  # columns of predictions
ToldBy = Callable[[Tasks], dict[str, Forecast]]
ByGroup = dict[int, dict[int, float]]  # of each group the normal scores of its rows


@dataclass(frozen=True)
class Reaches:
    """How far intervals of held-out groups had to reach, for each number of labelled rows."""

    counts: tuple[int, ...]
    """Numbers of labelled rows, from 0 on."""
    looked: tuple[int, ...]
    """At each, how many of the labelled rows were predicted from the number before."""
    size: tuple[tuple[float, ...], ...]
    """The root mean square of their normal scores, a number for each held-out group."""
    reach: tuple[tuple[float, ...], ...]
    """The normal score that nine of ten of its other rows do not exceed either way."""

    def __post_init__(self):
        sizes = {len(part) for part in (self.counts, self.looked, self.size, self.reach)}
        whole = len(sizes) == 1 and self.counts[:1] == (0,) and sorted({*self.counts}) == list(self.counts)
        alike = whole and all(len(a) == len(b) for a, b in zip(self.size, self.reach, strict=True))
        numbers = [value for part in (*self.size, *self.reach) for value in part]
        if not (alike and np.isfinite(numbers).all() and min((*self.looked, *numbers), default=0) >= 0):
            raise RunError("a pool's reaches must be numbers of at least 0 for each held-out group. Fit again.")

    def at(self, place: int, own: Float[np.ndarray, " t"]) -> Float[np.ndarray, " t"]:
        """The reach for new groups, by the size of what their labelled rows lie off."""
        size, reach = np.array(self.size[place])[:, None], np.array(self.reach[place])[:, None]
        told = slice(None if self.looked[place] else 0)  # without labelled rows there is nothing to go by
        return group_reach(size[:, told], reach, np.ones_like(reach), own[:, None][:, told])

    def to_json(self) -> dict[str, Any]:
        """All of it as plain lists."""
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(content: dict[str, Any]) -> "Reaches":
        """Back from `to_json`."""
        return from_dict(Reaches, content)


def usable(reaches: Reaches | None, is_class: bool) -> Reaches:
    """Those of a pool that has them; a sentence for one that has not."""
    if is_class:
        raise SettingError("--guarantee is for numbers, and this pool predicts classes; --coverage is for their sets.")
    if reaches is None:
        raise SettingError("this pool was fitted before guarantees were kept. Fit again to have them.")
    return reaches


def learn_reaches(folds: Sequence[tuple[Pooling, Sequence[HeldOut]]]) -> Reaches | None:
    """From held-out groups, each with a pooling that was learnt from others; none for classes."""
    held = folds[0][1] if folds else ()
    if not held or held[0].tasks.rows.num_classes:
        return None
    found = [_first_scores([(pooling, some[i]) for pooling, some in folds]) for i in range(len(held))]
    support = [_first_support([some[i] for _, some in folds]) for i in range(len(held))]
    looked, size = [0], [tuple(1.0 for _ in found[0])]
    for place in range(1, len(found)):
        off = [_told(found[place - 1].get(one, {}), support[place][one]) for one in found[place]]
        looked.append(min(map(len, off), default=0))
        size.append(tuple(_rounded(_root_mean_square(each[: looked[-1]])) for each in off))
    reach = [tuple(_rounded(_reach(np.abs([*rows.values()]))) for rows in each.values()) for each in found]
    counts = tuple(one.shots for one in held)
    return Reaches(counts, tuple(looked), tuple(size), tuple(reach))


def _first_scores(parts: Sequence[tuple[Pooling, HeldOut]]) -> ByGroup:
    """The normal scores of the asked rows in the first task of each group."""
    found: ByGroup = {}
    for pooling, held in parts:
        scores = normal_scores(pooling, held.forecasts, held.y, np.full(len(held.y), held.shots))
        task, asked = held.tasks.task, held.tasks.asked
        for group, number in zip(*np.unique(held.tasks.group, return_index=True), strict=True):
            mine = task == number
            found[int(group)] = dict(zip(asked[mine].tolist(), scores[mine].tolist(), strict=True))
    return dict(sorted(found.items()))


def _first_support(parts: Sequence[HeldOut]) -> dict[int, Int[np.ndarray, " k"]]:
    """The labelled rows in the first task of each group."""
    found = {}
    for held in parts:
        for group, number in zip(*np.unique(held.tasks.group, return_index=True), strict=True):
            found[int(group)] = held.tasks.support[number]
    return found


def _told(before: dict[int, float], support: Int[np.ndarray, " k"]) -> list[float]:
    """The scores of labelled rows while fewer were labelled."""
    return [before[row] for row in support.tolist() if row in before]


def _root_mean_square(scores: Sequence[float]) -> float:
    return float(np.sqrt(np.square(scores).mean())) if len(scores) else 1.0


def _reach(sizes: Float[np.ndarray, " n"]) -> float:
    """The smallest size that nine of ten rows, and of one to come, do not exceed."""
    place = min(int(np.ceil(NOMINAL * (len(sizes) + 1))), len(sizes)) - 1
    return float(np.sort(sizes)[place])


def _rounded(value: float) -> float:
    return round(value, DIGITS)


def normal_scores(
    pooling: Pooling, forecasts: dict[str, Forecast], y: Float[np.ndarray, " n"], shots: Int[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """Where each value lies in the recalibrated prediction, as a normal distribution would have it."""
    level = pooling.finished(pooling.mixture(forecasts, shots), shots).cdf(y)
    return ndtri(np.clip(level, BEYOND, 1 - BEYOND))


def reach_of(
    reaches: Reaches, pooling: Pooling, told_by: ToldBy, tasks: Tasks, *, ordered: bool
) -> Float[np.ndarray, " t"]:
    """How far the intervals of each task's group must reach; infinite where too few groups were held out to tell."""
    places = np.searchsorted(reaches.counts, tasks.shots, side="right") - 1
    found = np.full(len(tasks), np.inf)
    for place in np.unique(places):
        mine = places == place
        own = np.ones(int(mine.sum()))
        if looked := reaches.looked[place]:
            own = _off(pooling, told_by, tasks.only(mine), reaches.counts[place - 1], looked, ordered)
        found[mine] = reaches.at(int(place), own)
    return found


def _off(
    pooling: Pooling, told_by: ToldBy, tasks: Tasks, known: int, looked: int, ordered: bool
) -> Float[np.ndarray, " t"]:
    """The size of so many labelled rows' scores while some others alone were known."""
    mixed = [rows if ordered else _shuffled(tasks.rows, rows) for rows in tasks.support]
    parts = [(np.sort(rows[:known]), np.sort(rows[known : known + looked])) for rows in mixed]
    asked = Tasks(tasks.rows, *(tuple(part) for part in zip(*parts, strict=True)))
    y = asked.rows.y[asked.asked]
    scores = normal_scores(pooling, told_by(asked), y, np.full(len(y), known))
    return np.sqrt(np.bincount(asked.task, scores**2) / looked)


def _shuffled(rows: GroupedRows, some: Int[np.ndarray, " k"]) -> Int[np.ndarray, " k"]:
    """Some rows in an order that what they hold decides by chance, neither the file's order nor other groups."""
    content = np.column_stack([rows.levels[some], rows.x[some], rows.y[some]])
    content = np.nan_to_num(content).round(DIGITS) + 0.0  # -0.0 is 0.0, whatever its bits
    order = np.lexsort(content.T)
    return np.random.default_rng(crc32(content[order].tobytes())).permutation(some[order])


def ends_at(finished: Finished, reach: Float[np.ndarray, " n"]) -> Float[np.ndarray, "2 n"]:
    """The values of each row at so many normal scores below its median and above; NaN where that is infinite."""
    known = np.isfinite(reach)
    sizes = np.where(known, reach, 0.0)
    ends = finished.mixture.at_scores(finished.moved(np.stack([-sizes, sizes])))
    return np.where(known, ends, np.nan)


def notes_on(reaches: Reaches, shots: Int[np.ndarray, " t"], reach: Float[np.ndarray, " t"], known: int) -> list[str]:
    """What the guarantee says, and for which groups it does not."""
    said = [
        f"{LOW} to {HIGH} hold {NOMINAL:.0%} of a group's rows in {GROUPS:.0%} of new groups like those of the table"
    ]
    if np.isinf(reach).any():
        said.append(
            f"{int(np.isinf(reach).sum())} groups have no such interval: with their labelled rows fewer than nine "
            "groups of the table could be held out"
        )
    between = ~np.isin(shots, reaches.counts)
    if between.any():
        counts = ", ".join(map(str, reaches.counts))
        said.append(
            f"{int(between.sum())} groups have another number of labelled rows than {counts}; what held-out groups "
            "showed at the next smaller one is taken for them"
        )
    return [*said, *([f"{known} groups are known from before; the guarantee is for new ones"] if known else [])]
