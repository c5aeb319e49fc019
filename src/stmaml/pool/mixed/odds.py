"""From grouped rows with classes to logistic mixed models, and from these to probabilities of a group's rows."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Float, Int
from scipy import special

from stmaml.pool.base import Arrays, GroupedRows
from stmaml.pool.mixed.covariance import Covariance
from stmaml.pool.mixed.design import Design, Own
from stmaml.pool.mixed.integrals import level_odds, refined
from stmaml.pool.mixed.laplace import Logistic, Trials, fit_logistic, modes
from stmaml.pool.mixed.sums import one_hot

ROUNDS = 4
"""Updates of how much columns are shrunk."""
LOOSEST, TIGHTEST = 0.05, 1e4
"""Precision of a shrunk effect, at least and at most."""
INTERCEPT = 0.01
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(20)


@dataclass(frozen=True)
class Odds:
    """A logistic mixed model of one class against the others."""

    beta: Float[np.ndarray, " p"]
    """Of levels, then of the design's common columns."""
    beta_covariance: Float[np.ndarray, "p p"]
    factor: Float[np.ndarray, "q q"]
    unseen: Float[np.ndarray, " a"]
    """The spread of an unseen level, for each further grouping."""

    def state(self) -> Arrays:
        """As arrays."""
        return {
            "beta": self.beta,
            "beta_covariance": self.beta_covariance,
            "factor": self.factor,
            "unseen": self.unseen,
        }


@dataclass(frozen=True)
class Seen:
    """Rows as a design shows them."""

    x: Float[np.ndarray, "n p"]
    z: Float[np.ndarray, "n q"]
    codes: Int[np.ndarray, "n a"]


def seen(design: Design, own: Own, x: Float[np.ndarray, "n d"], levels: Int[np.ndarray, "n a"]) -> Seen:
    """Levels, common columns, and what a group's own effects multiply."""
    scaled, codes = design.scaled(x), design.levels.codes(levels)
    common = np.concatenate([one_hot(codes, design.levels.num).toarray(), design.common(scaled)], axis=1)
    return Seen(common, design.own(scaled, own), codes)


def fit_odds(
    rows: GroupedRows, is_class: Float[np.ndarray, " n"], design: Design, own: Own, *, exact: bool = False
) -> Odds:
    """The model of one class; how much blocks of columns are shrunk is learnt from the rows (MacKay, 1992). `exact`:
    with levels of groups alone, their spread and the common effects are then those of the integral itself."""
    order = np.argsort(rows.group, kind="stable")
    view = seen(design, own, rows.x, rows.levels)
    trials = Trials(view.x[order], view.z[order], is_class[order], rows.group[order])
    blocks = _blocks(design, trials.x.shape[1])
    ridge, covariance = _first(blocks, trials.x.shape[1]), Covariance(view.z.shape[1])
    fitted = fit_logistic(trials, covariance, ridge)
    for _ in range(ROUNDS if blocks else 0):
        ridge = _updated(ridge, blocks, fitted)
        fitted = fit_logistic(trials, covariance, ridge, start=fitted)
    unseen = np.array([ridge[block[:1]].sum() for block in blocks[: len(design.levels.sizes)]])
    beta, factor = refined(trials, ridge, fitted) if exact else (fitted.beta, fitted.factor)
    return Odds(beta, fitted.beta_covariance, factor, 1.0 / np.sqrt(np.maximum(unseen, LOOSEST)))


def _blocks(design: Design, width: int) -> list[Int[np.ndarray, " k"]]:
    """Columns that are shrunk alike: levels, wiggles, straight lines."""
    sizes = design.blocks()
    ends = np.cumsum((0, *sizes))
    shrunk = [np.arange(a, b) for a, b in pairwise(ends)]
    free = np.arange(ends[-1] + 1, width)  # after the intercept
    return [*shrunk, free] if len(free) else shrunk


def _first(blocks: list[np.ndarray], width: int) -> Float[np.ndarray, " p"]:
    ridge = np.full(width, INTERCEPT)
    for block in blocks:
        ridge[block] = 1.0
    return ridge


def _updated(ridge: np.ndarray, blocks: list[np.ndarray], fitted: Logistic) -> Float[np.ndarray, " p"]:
    """The precision of each block: effects that the rows determine, by their sum of squares."""
    out, variance = ridge.copy(), np.diag(fitted.beta_covariance)
    for block in blocks:
        known = max(len(block) - float(ridge[block] @ variance[block]), 0.0)
        squares = float((fitted.beta[block] ** 2).sum())
        out[block] = np.clip((known + 0.1) / (squares + 0.1 / TIGHTEST), LOOSEST, TIGHTEST)
    return out


def probabilities(
    odds: Odds, design: Design, told: Seen, y: np.ndarray, task_told: np.ndarray, asked: Seen, task: np.ndarray
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """The probability of the class for each asked row, and its variance. Labelled rows are sorted by task."""
    outer = [index for index, is_outer in enumerate(design.levels.outer) if is_outer]
    scaled_told, scaled = (_scaled(odds, view, outer) for view in (told, asked))
    size = scaled.shape[1]
    num_tasks = int(task.max(initial=-1)) + 1
    effect, spread = np.zeros((num_tasks, size)), np.tile(np.eye(size), (num_tasks, 1, 1))
    if len(y):
        trials = Trials(told.x, told.z, y, task_told)
        found = modes(trials, told.x @ odds.beta, scaled_told, np.zeros((len(trials.starts), size)))
        with_rows = task_told[trials.starts]
        effect[with_rows], spread[with_rows] = found.u, found.inverse
    mean = asked.x @ odds.beta + (scaled * effect[task]).sum(axis=1)
    variance = np.einsum("ni,nij,nj->n", scaled, spread[task], scaled, optimize=True)
    variance += ((asked.x @ odds.beta_covariance) * asked.x).sum(axis=1)
    for index in range(asked.codes.shape[1]):
        if index not in outer:
            variance += np.where(asked.codes[:, index] < 0, odds.unseen[index] ** 2, 0.0)
    return _averaged(mean, variance)


def level_probabilities(
    odds: Odds, design: Design, told: Seen, y: np.ndarray, task_told: np.ndarray, asked: Seen, task: np.ndarray
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """The same for a model whose groups have levels alone, averaged over all levels that a group may have."""
    outer = design.levels.outer
    spreads = [np.sqrt(odds.factor[0, 0] ** 2 + _unseen(odds, view, outer)) for view in (told, asked)]
    known = ((asked.x @ odds.beta_covariance) * asked.x).sum(axis=1) + _unseen(odds, asked, ~outer)
    trials = Trials(told.x, told.z, y, task_told)
    offsets = told.x @ odds.beta, asked.x @ odds.beta
    return level_odds(trials, offsets, (spreads[0], spreads[1]), task, known)


def _unseen(odds: Odds, view: Seen, which: np.ndarray) -> np.ndarray:
    """The variance that unseen levels of some further groupings add."""
    return ((view.codes[:, which] < 0) * odds.unseen[which] ** 2).sum(axis=1)


def _scaled(odds: Odds, view: Seen, outer: list[int]) -> np.ndarray:
    """Z Lambda, and a column for each outer level that is unseen: rows of a task share it."""
    unseen = (view.codes[:, outer] < 0) * odds.unseen[outer]
    return np.concatenate([view.z @ odds.factor, unseen], axis=1)


def _averaged(mean: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of the probability under normal log-odds, by Gauss-Hermite quadrature."""
    at = special.expit(mean[:, None] + np.sqrt(np.maximum(variance, 0.0))[:, None] * NODES)
    weight = WEIGHTS / WEIGHTS.sum()
    average = at @ weight
    return average, np.maximum((at - average[:, None]) ** 2 @ weight, 0.0)
