"""What a linear mixed model says of a table: how groups differ, what columns do, and each group's own effects."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from threadpoolctl import threadpool_limits

from stmaml.pool.base import Arrays, GroupedRows
from stmaml.pool.mixed.covariance import Covariance
from stmaml.pool.mixed.design import varies_within
from stmaml.pool.mixed.fit import labelled, leftovers
from stmaml.pool.mixed.levels import Levels
from stmaml.pool.mixed.reml import Groups, Method, Solved, Structure, estimate, groups_of, reduce, solve
from stmaml.pool.mixed.sums import Matrices, Sums, sums_of

MOST_SLOPES = 3
"""Slopes that a group has of its own; with more, their correlations say nothing to a reader."""


@dataclass(frozen=True)
class Effects:
    """Straight lines, in the units of the rows. The fields named `_error` are standard errors."""

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

    @property
    def share_between(self) -> float:
        """The intraclass correlation: the share of variance about the fixed effects that lies between groups."""
        between = float(self.spread[0] ** 2)
        return between / max(between + self.noise**2, 1e-300)

    def state(self) -> Arrays:
        """As arrays to be saved."""
        names = {"fixed_names": np.array(self.fixed_names), "own_names": np.array(self.own_names)}
        numbers = {"noise": np.array(self.noise), "log_likelihood": np.array(self.log_likelihood)}
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
        numbers = {name: float(state[name]) for name in ("noise", "log_likelihood")}
        return Effects(**{**state, **names, **numbers})


def effects_of(rows: GroupedRows, *, slopes: tuple[str, ...] | None = None, method: Method = "reml") -> Effects:
    """The effects of a table with numbers as its target.

    Args:
        slopes: columns whose slope differs between groups; without them, the three that vary most within groups.
    """
    rows = labelled(rows)
    kept = np.flatnonzero(rows.x.std(axis=0) > 0.0)
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
        return _effects(fixed_names, own_names, sums, groups, solved, levels, theta[structure.covariance.num :])


def _place(rows: GroupedRows, name: str) -> int:
    return [column.name for column in rows.columns].index(name)


def _slopes(rows: GroupedRows) -> list[int]:
    """Columns that vary within groups, those with the largest share first, as many as the groups allow."""
    can = np.flatnonzero(varies_within(rows))
    means = np.stack([np.bincount(rows.group, rows.x[:, column], rows.num_groups) for column in can] or [rows.counts])
    within = rows.x[:, can] - (means / rows.counts)[: len(can), rows.group].T
    share = within.var(axis=0) / rows.x[:, can].var(axis=0)
    order = can[np.argsort(-share, kind="stable")]
    return [int(column) for column in order[: min(MOST_SLOPES, rows.num_groups // 5)]]


def _effects(
    fixed_names: tuple[str, ...],
    own_names: tuple[str, ...],
    sums: Sums,
    groups: Groups,
    solved: Solved,
    levels: Levels,
    level_theta: Float[np.ndarray, " a"],
) -> Effects:
    sigma = float(np.sqrt(solved.sigma2))
    covariance = groups.factor @ groups.factor.T
    spread = np.sqrt(np.diag(covariance))
    scale = np.where(spread > 0.0, spread, 1.0)
    errors = sigma * np.sqrt((solved.half**2).sum(axis=1))
    known = _known_levels(solved, levels.num)
    place = np.argwhere(levels.place >= 0)
    place = place[np.argsort(levels.place[levels.place >= 0])]
    return Effects(
        fixed_names=fixed_names,
        fixed=solved.gamma[levels.num :],
        fixed_error=errors[levels.num :],
        own_names=own_names,
        spread=sigma * spread,
        correlation=covariance / np.outer(scale, scale),
        noise=sigma,
        groups=leftovers(sums, groups, solved.gamma) @ covariance,
        groups_error=sigma * _group_errors(sums, groups, known),
        level_spread=sigma * level_theta,
        level_grouping=place[:, 0],
        level_number=place[:, 1],
        levels=solved.gamma[: levels.num],
        levels_error=sigma * np.sqrt((known**2).sum(axis=1)),
        log_likelihood=-0.5 * solved.deviance,
    )


def _known_levels(solved: Solved, num: int) -> Float[np.ndarray, "l l"]:
    """A root of the levels' covariance given the fixed effects."""
    return solved.scales[:num, None] * np.linalg.inv(solved.lower[:num, :num]).T


def _group_errors(sums: Sums, groups: Groups, known: Float[np.ndarray, "l l"]) -> Float[np.ndarray, "g q"]:
    """In units of the noise; what is unknown of levels adds to what is unknown of a group."""
    shrunk = (groups.factor @ groups.factor.T) @ groups.t
    through = shrunk @ sums.zr[:, :, : len(known)] @ known
    return np.sqrt(np.maximum(np.einsum("gii->gi", shrunk) + (through**2).sum(axis=2), 0.0))
