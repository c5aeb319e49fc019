"""Calibration of a pool on held-out groups, pulled towards none where groups are few."""

import numpy as np
from jaxtyping import Float, Int
from scipy.special import ndtri

from stmaml.pool.mixture import Mixture
from stmaml.tables.calibration import LEVELS, TEMPERATURES, Rows, conformal_scores, free_rows

TRUST = 0.2
"""How far, in logarithms, the spread of a pool is off before calibration: what is believed where groups are few."""
FREE_ROWS = 30.0
"""Free rows that weigh as much as the belief that a pool's own quantiles are right."""


def tempered(mixture: Mixture, temperature: Float[np.ndarray, "*n"]) -> Mixture:
    """Stretched about its mean."""
    centre = mixture.expected()
    return Mixture(mixture.weight, centre + temperature * (mixture.mean - centre), temperature * mixture.std)


def softened(odds: Float[np.ndarray, "n c"], temperature: Float[np.ndarray, "*t"]) -> Float[np.ndarray, "n c"]:
    """Probabilities with their logarithms divided by the temperature."""
    logs = np.log(np.maximum(odds, 1e-12)) / temperature
    shares = np.exp(logs - logs.max(1, keepdims=True))
    return shares / shares.sum(1, keepdims=True)


def steady_temperature(values: Rows, weight: Rows, groups: int) -> float:
    """The factor on the spread by which held-out normal scores have variance 1, pulled towards 1 where groups are too
    few to tell. `values` are by task, all groups in turn."""
    by_group = (values**2 * weight).reshape(-1, groups, values.shape[1]).sum((0, 2))
    by_group = by_group / weight.reshape(-1, groups, values.shape[1]).sum((0, 2))
    variance = max(float(by_group.mean()), 1e-6)
    error = by_group.var(ddof=1) / variance**2 / groups / 4 if groups > 1 else np.inf  # of the log of the spread
    return float(np.exp(TRUST**2 / (TRUST**2 + error) * np.log(variance) / 2))


def steady_best_temperature(
    nll: Float[np.ndarray, "g t"], temperatures: Float[np.ndarray, " t"] = TEMPERATURES
) -> float:
    """The temperature of the least log-loss, pulled towards 1 like the spread of numbers. `nll` is that of each group
    at each temperature, of evenly spaced logarithms; how far off its minimum may be, the spread of groups' slopes over
    its curvature says."""
    place = int(np.clip(nll.mean(0).argmin(), 1, len(temperatures) - 2))
    step = float(np.log(temperatures[1] / temperatures[0]))
    below, at, above = nll[:, place - 1], nll[:, place], nll[:, place + 1]
    curvature = float((above - 2 * at + below).mean()) / step**2
    if len(nll) < 2 or curvature <= 0:
        return 1.0
    error = ((above - below) / (2 * step)).var(ddof=1) / len(nll) / curvature**2
    return float(temperatures[place] ** (TRUST**2 / (TRUST**2 + error)))


def steady_scores(values: Rows, weight: Rows, groups: int) -> tuple[float, ...]:
    """The normal score at which each of LEVELS holds, between that of held-out groups and the plain one: the more free
    rows these are worth, the nearer to theirs."""
    if groups < 2:
        return tuple(ndtri(np.array(LEVELS)).tolist())
    found = np.array(conformal_scores(values, weight, groups))
    worth = min(free_rows(each, weight, groups) for each in (values, np.abs(values)))
    known = ndtri(np.array(LEVELS))
    return tuple((known + worth / (worth + FREE_ROWS) * (found - known)).tolist())


def padded(
    values: Float[np.ndarray, " n"], task: Int[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, "t q"], Float[np.ndarray, "t q"]]:
    """Values of rows by task, and which of them are real."""
    count = np.bincount(task)
    place = np.arange(len(task)) - np.repeat(np.cumsum(count) - count, count)
    table, weight = np.zeros((2, len(count), count.max()))
    table[task, place], weight[task, place] = values, 1.0
    return table, weight
