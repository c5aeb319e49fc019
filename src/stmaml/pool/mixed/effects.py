"""What a linear mixed model says of a table: how groups differ, what columns do, and each group's own effects."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from threadpoolctl import threadpool_limits

from stmaml.border.shapes import check_arrays
from stmaml.errors import RunError
from stmaml.pool.base import Arrays, GroupedRows
from stmaml.pool.mixed.covariance import Covariance
from stmaml.pool.mixed.design import varies_within
from stmaml.pool.mixed.fit import differing, labelled, leftovers
from stmaml.pool.mixed.levels import Levels
from stmaml.pool.mixed.reml import Groups, Method, Solved, Structure, estimate, groups_of, reduce, solve
from stmaml.pool.mixed.sums import Matrices, Sums, sums_of

MOST_SLOPES = 3
"""Slopes that a group has of its own unless they are named; with more, correlations say nothing to a reader."""


@dataclass(frozen=True)
class Units:
    """What scaled rows were made from: a value is its number times the spread, plus the middle."""

    middle: Float[np.ndarray, " d"]
    spread: Float[np.ndarray, " d"]
    target_middle: float = 0.0
    target_spread: float = 1.0

    def turn(self, columns: list[int]) -> Float[np.ndarray, "k k"]:
        """The matrix that turns a level and slopes of scaled columns into those of the values."""
        slopes = self.target_spread / self.spread[columns]
        matrix = np.diag(np.concatenate([[self.target_spread], slopes]))
        matrix[0, 1:] = -slopes * self.middle[columns]
        return matrix


@dataclass(frozen=True)
class Effects:
    """Straight lines, in the units of the rows or in those asked for. The fields named `_error` are standard errors."""

    fixed_names: tuple[str, ...]
    """`level`, then a name for each column that is not constant."""
    fixed: Float[np.ndarray, " p"]
    fixed_error: Float[np.ndarray, " p"]
    own_names: tuple[str, ...]
    """`level`, then the columns whose slope differs between groups."""
    spread: Float[np.ndarray, " q"]
    """Standard deviation between groups of each own effect."""
    correlation: Float[np.ndarray, "q q"]
    """Of the own effects; 0 with an effect that does not differ."""
    noise: float
    """Standard deviation of rows within a group."""
    groups: Float[np.ndarray, "g q"]
    """How each group departs from the fixed effects, as far as its rows tell."""
    groups_error: Float[np.ndarray, "g q"]
    """Given the fixed effects and the variances."""
    level_spread: Float[np.ndarray, " a"]
    """Standard deviation of the levels of each further grouping."""
    level_grouping: Int[np.ndarray, " l"]
    """The grouping of each level with an effect, and its number there."""
    level_number: Int[np.ndarray, " l"]
    levels: Float[np.ndarray, " l"]
    levels_error: Float[np.ndarray, " l"]
    log_likelihood: float
    """Of the rows as they were given, whatever the units."""
    between: float
    """Standard deviation between groups of what is expected of a row, over all rows."""

    @property
    def share_between(self) -> float:
        """The intraclass correlation: the share of variance about the fixed effects that lies between groups, where
        all columns are 0."""
        return _share(float(self.spread[0]), self.noise)

    @property
    def share_of_rows(self) -> float:
        """The same over the rows there are, whose slopes count: it does not depend on where a column is 0."""
        return _share(self.between, self.noise)

    def state(self) -> Arrays:
        """As arrays to be saved."""
        names = {"fixed_names": np.array(self.fixed_names), "own_names": np.array(self.own_names)}
        numbers = {"noise": np.array(self.noise), "log_likelihood": np.array(self.log_likelihood)}
        numbers["between"] = np.array(self.between)
        fixed = {"fixed": self.fixed, "fixed_error": self.fixed_error}
        own = {"spread": self.spread, "correlation": self.correlation}
        groups = {"groups": self.groups, "groups_error": self.groups_error, "level_spread": self.level_spread}
        levels = {"level_grouping": self.level_grouping, "level_number": self.level_number}
        values = {"levels": self.levels, "levels_error": self.levels_error}
        return {**names, **numbers, **fixed, **own, **groups, **levels, **values}

    @staticmethod
    def restore(state: Arrays) -> "Effects":
        """Back from its arrays."""
        names = {name: tuple(str(value) for value in state[name]) for name in ("fixed_names", "own_names")}
        numbers = {name: float(state[name]) for name in ("noise", "log_likelihood", "between")}
        found = check_arrays(Effects(**{**state, **names, **numbers}))
        if (len(found.fixed_names), len(found.own_names)) != (len(found.fixed), len(found.spread)):
            raise RunError("effects and their names are not of one number")
        return found


def _share(between: float, within: float) -> float:
    return between**2 / max(between**2 + within**2, 1e-300)


def effects_of(
    rows: GroupedRows, *, slopes: tuple[str, ...] | None = None, method: Method = "reml", units: Units | None = None
) -> Effects:
    """The effects of a table with numbers as its target.

    Args:
        slopes: columns whose slope differs between groups; without them, up to three whose slopes differ by more than
            chance.
        units: what the rows were scaled from, for effects in those units; they are fitted as they are.
    """
    rows = labelled(rows)
    units = units or Units(np.zeros(rows.x.shape[1]), np.ones(rows.x.shape[1]))
    kept = [int(column) for column in np.flatnonzero(rows.x.std(axis=0) > 0.0)]
    with threadpool_limits(1, "blas"):
        own = _slopes(rows) if slopes is None else [_place(rows, name) for name in slopes]
    levels = Levels.of(rows)
    ones = np.ones((len(rows.y), 1))
    z = np.concatenate([ones, rows.x[:, own]], axis=1)
    rest = np.concatenate([ones, rows.x[:, kept], rows.y[:, None]], axis=1)
    structure = Structure(Covariance(1 + len(own)), levels.sizes, method)
    with threadpool_limits(1, "blas"):
        sums = sums_of(Matrices(z, levels.codes(rows.levels), rest, rows.group), levels.num)
        theta = estimate(sums, structure)
        groups = groups_of(sums, structure.covariance.factor(theta[: structure.covariance.num]))
        solved = solve(reduce(sums, groups), structure, theta, np.diag(sums.rr))
        fixed_names = ("level", *(rows.columns[column].name for column in kept))
        own_names = ("level", *(rows.columns[column].name for column in own))
        turns = _Turns(units.turn(kept), units.turn(own), units.target_middle, units.target_spread)
        return _effects(fixed_names, own_names, sums, groups, solved, levels, theta[structure.covariance.num :], turns)


def _place(rows: GroupedRows, name: str) -> int:
    return [column.name for column in rows.columns].index(name)


def _slopes(rows: GroupedRows) -> list[int]:
    """Columns whose slopes differ between groups, as many as the rows and groups allow; the slope of a wave says
    nothing to a reader."""
    can = np.flatnonzero(varies_within(rows) & np.array([column.kind != "wave" for column in rows.columns], dtype=bool))
    most = min(MOST_SLOPES, rows.num_groups // 5, (len(rows.y) - 1) // rows.num_groups - 1)
    return differing(rows, can, most)


@dataclass(frozen=True)
class _Turns:
    """From effects of the rows as given to effects in the units asked for."""

    fixed: Float[np.ndarray, "p p"]
    own: Float[np.ndarray, "q q"]
    middle: float
    spread: float


def _effects(
    fixed_names: tuple[str, ...],
    own_names: tuple[str, ...],
    sums: Sums,
    groups: Groups,
    solved: Solved,
    levels: Levels,
    level_theta: Float[np.ndarray, " a"],
    turns: "_Turns",
) -> Effects:
    sigma = float(np.sqrt(solved.sigma2))
    covariance = groups.factor @ groups.factor.T
    turned = turns.own @ covariance @ turns.own.T
    spread = np.sqrt(np.diag(turned))
    scale = np.where(spread > 0.0, spread, 1.0)
    known = _known_levels(solved, levels.num)
    place = np.argwhere(levels.place >= 0)
    place = place[np.argsort(levels.place[levels.place >= 0])]
    return Effects(
        fixed_names=fixed_names,
        fixed=turns.fixed @ solved.gamma[levels.num :] + turns.middle * (np.arange(len(fixed_names)) == 0),
        fixed_error=sigma * np.sqrt(((turns.fixed @ solved.half[levels.num :]) ** 2).sum(axis=1)),
        own_names=own_names,
        spread=sigma * spread,
        correlation=turned / np.outer(scale, scale),
        noise=sigma * turns.spread,
        groups=leftovers(sums, groups, solved.gamma) @ covariance @ turns.own.T,
        groups_error=sigma * _group_errors(sums, groups, known, turns.own),
        level_spread=sigma * level_theta * turns.spread,
        level_grouping=place[:, 0],
        level_number=place[:, 1],
        levels=solved.gamma[: levels.num] * turns.spread,
        levels_error=sigma * np.sqrt((known**2).sum(axis=1)) * turns.spread,
        log_likelihood=-0.5 * solved.deviance,
        between=sigma * turns.spread * float(np.sqrt((covariance * sums.zz.sum(axis=0)).sum() / sums.num_rows)),
    )


def _known_levels(solved: Solved, num: int) -> Float[np.ndarray, "l l"]:
    """A root of the levels' covariance given the fixed effects."""
    return solved.scales[:num, None] * np.linalg.inv(solved.lower[:num, :num]).T


def _group_errors(
    sums: Sums, groups: Groups, known: Float[np.ndarray, "l l"], turn: Float[np.ndarray, "q q"]
) -> Float[np.ndarray, "g q"]:
    """In units of the noise; what is unknown of levels adds to what is unknown of a group."""
    shrunk = (groups.factor @ groups.factor.T) @ groups.t
    through = turn @ shrunk @ sums.zr[:, :, : len(known)] @ known
    own = np.einsum("ij,gjk,ik->gi", turn, shrunk, turn)
    return np.sqrt(np.maximum(own + (through**2).sum(axis=2), 0.0))
