"""Logistic regression with a random level for each group, by quadrature: Laplace's approximation takes a level to be
normal once rows are known, which few rows with outcomes 0 and 1 do not make it.

The integral over a group's level is a sum over a grid about its mode, wide and fine enough for many digits; the
gradient of its logarithm is the expected gradient of the rows' (Fisher's identity)."""

import numpy as np
from jaxtyping import Float, Int
from scipy import special

from stmaml.pool.mixed.laplace import LARGEST, Logistic, Trials, modes

STEPS = np.linspace(-6.0, 6.0, 33)
"""The grid, in standard deviations of the normal approximation about the mode."""
PROBIT = np.pi / 8
"""A logistic curve averaged over a normal variable of variance v is nearly one that is flatter by 1 + PROBIT v."""


def levels_of(
    trials: Trials, offset: Float[np.ndarray, " n"], spread: Float[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, "g j"], Float[np.ndarray, "g j"], Float[np.ndarray, " g"]]:
    """Levels that each group may have, in units of their spread; how likely each is; and the log-likelihood of each
    group's rows."""
    found = modes(trials, offset, spread[:, None], np.zeros((len(trials.starts), 1)))
    width = np.sqrt(found.inverse[:, 0])
    level = found.u + width * STEPS
    eta = offset[:, None] + spread[:, None] * level[_index(trials)]
    joint = trials.per_group(trials.y[:, None] * eta - np.logaddexp(0.0, eta)) - 0.5 * level**2
    each = joint + np.log(width * (STEPS[1] - STEPS[0]) / np.sqrt(2 * np.pi))
    total = np.asarray(special.logsumexp(each, axis=1))
    return level, np.exp(each - total[:, None]), total


def _index(trials: Trials) -> Int[np.ndarray, " n"]:
    return np.repeat(np.arange(len(trials.starts)), np.diff(trials.starts, append=len(trials.y)))


def minus_log_likelihood(
    at: Float[np.ndarray, " p"], trials: Trials, ridge: Float[np.ndarray, " f"]
) -> tuple[float, Float[np.ndarray, " p"]]:
    """Of common effects and the spread of levels, which comes last; and its gradient. `ridge` is the precision of each
    common effect."""
    beta, spread = at[:-1], at[-1]
    offset, index = trials.x @ beta, _index(trials)
    level, weight, total = levels_of(trials, offset, np.full(len(offset), spread))
    left = trials.y[:, None] - special.expit(offset[:, None] + spread * level[index])
    left *= weight[index]
    by_beta = trials.x.T @ left.sum(axis=1) - ridge * beta
    by_spread = float((left * level[index]).sum())
    value = float(total.sum()) - 0.5 * float(ridge @ beta**2)
    return -value, -np.append(by_beta, by_spread)


def refined(
    trials: Trials, ridge: Float[np.ndarray, " f"], start: Logistic
) -> tuple[Float[np.ndarray, " f"], Float[np.ndarray, "1 1"]]:
    """Common effects and the spread of levels that are likeliest, from those of Laplace's approximation on."""
    from scipy import optimize  # takes long to import, and predictions need none

    first = np.append(start.beta, max(float(start.factor[0, 0]), 0.1))
    bounds = [(-50.0, 50.0)] * len(start.beta) + [(0.0, LARGEST)]
    options = {"maxiter": 100, "ftol": 1e-9, "gtol": 1e-4}
    best = optimize.minimize(
        minus_log_likelihood, first, (trials, ridge), jac=True, method="L-BFGS-B", bounds=bounds, options=options
    ).x
    return best[:-1], best[-1:, None]


def level_odds(
    told: Trials,
    offsets: tuple[Float[np.ndarray, " m"], Float[np.ndarray, " n"]],
    spreads: tuple[Float[np.ndarray, " m"], Float[np.ndarray, " n"]],
    task: Int[np.ndarray, " n"],
    known: Float[np.ndarray, " n"],
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """The probability of each asked row of some tasks, whose labelled rows are sorted by task, and its variance.
    `known` is the variance of the log-odds for all reasons but the level."""
    num_tasks = int(task.max(initial=-1)) + 1
    plain = np.exp(-0.5 * STEPS**2)
    level, weight = np.tile(STEPS, (num_tasks, 1)), np.tile(plain / plain.sum(), (num_tasks, 1))
    if len(told.y):
        which = told.group[told.starts]
        level[which], weight[which], _ = levels_of(told, offsets[0], spreads[0])
    flatter = np.sqrt(1.0 + PROBIT * known)[:, None]
    each = special.expit((offsets[1][:, None] + spreads[1][:, None] * level[task]) / flatter)
    mean = (each * weight[task]).sum(axis=1)
    return mean, ((each - mean[:, None]) ** 2 * weight[task]).sum(axis=1)
