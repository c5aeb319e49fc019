"""Logistic regression with random effects of groups, by Laplace's approximation.

As in Bates et al. (lme4's glmer): for given fixed effects beta and Lambda(theta), the modes of all groups' effects are
found by Newton's method, and the approximate likelihood is climbed in beta and theta together. A ridge on beta, which
lme4 has not, keeps classes that columns separate from running away."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy import special

from stmaml.pool.mixed.covariance import Covariance

STEPS = 30
LARGEST = 20.0
"""Most spread of an effect in log-odds."""


@dataclass(frozen=True)
class Trials:
    """Rows with outcomes 0 and 1, sorted by group."""

    x: Float[np.ndarray, "n p"]
    z: Float[np.ndarray, "n q"]
    y: Float[np.ndarray, " n"]
    group: Int[np.ndarray, " n"]

    @property
    def starts(self) -> Int[np.ndarray, " g"]:
        """The first row of each group."""
        return np.flatnonzero(np.diff(self.group, prepend=-1))

    def per_group(self, values: Float[np.ndarray, "n *k"]) -> Float[np.ndarray, "g *k"]:
        """Sums over groups."""
        return np.add.reduceat(values, self.starts, axis=0)


@dataclass(frozen=True)
class Modes:
    """The likeliest effects u of groups, in units of Lambda, and the curvature there."""

    u: Float[np.ndarray, "g q"]
    mu: Float[np.ndarray, " n"]
    inverse: Float[np.ndarray, "g q q"]
    """Of each group's Hessian I + Lambda' Z'WZ Lambda."""
    log_det: float
    log_joint: float


def modes(
    trials: Trials, offset: Float[np.ndarray, " n"], scaled: Float[np.ndarray, "n q"], start: Float[np.ndarray, "g q"]
) -> Modes:
    """Newton's method for all groups at once, each with its own halved steps; `scaled` is Z Lambda."""
    index = np.repeat(np.arange(len(trials.starts)), np.diff(trials.starts, append=len(trials.y)))
    u, best = start, _joint(trials, offset, scaled, start, index)
    for _ in range(STEPS):
        mu = special.expit(offset + (scaled * u[index]).sum(axis=1))
        hessian = _hessian(trials, scaled, mu)
        score = trials.per_group(scaled * (trials.y - mu)[:, None]) - u
        step = np.linalg.solve(hessian, score[:, :, None])[:, :, 0]
        u, best = _climbed(trials, offset, scaled, index, u, best, step)
        if np.abs(step).max(initial=0.0) < 1e-9:
            break
    mu = special.expit(offset + (scaled * u[index]).sum(axis=1))
    hessian = _hessian(trials, scaled, mu)
    return Modes(u, mu, np.linalg.inv(hessian), float(np.linalg.slogdet(hessian)[1].sum()), float(best.sum()))


def _climbed(
    trials: Trials,
    offset: np.ndarray,
    scaled: np.ndarray,
    index: np.ndarray,
    u: np.ndarray,
    best: np.ndarray,
    step: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """A step of each group that does not lower its density."""
    size = np.ones(len(u))
    tried, value, worse = u, best, np.zeros(len(u), dtype=bool)
    for _ in range(12):
        tried = u + size[:, None] * step
        value = _joint(trials, offset, scaled, tried, index)
        worse = value < best - 1e-12 * (1.0 + np.abs(best))
        if not worse.any():
            break
        size = np.where(worse, 0.5 * size, size)
    return np.where(worse[:, None], u, tried), np.where(worse, best, value)


def _joint(trials: Trials, offset: np.ndarray, scaled: np.ndarray, u: np.ndarray, index: np.ndarray) -> np.ndarray:
    """The log density of each group's outcomes and effects, but for a constant."""
    eta = offset + (scaled * u[index]).sum(axis=1)
    return trials.per_group(trials.y * eta - np.logaddexp(0.0, eta)) - 0.5 * (u**2).sum(axis=1)


def _hessian(trials: Trials, scaled: np.ndarray, mu: np.ndarray) -> np.ndarray:
    weight = (mu * (1.0 - mu))[:, None, None]
    return np.eye(scaled.shape[1]) + trials.per_group(weight * scaled[:, :, None] * scaled[:, None, :])


@dataclass(frozen=True)
class Logistic:
    """A fitted model in log-odds."""

    beta: Float[np.ndarray, " p"]
    beta_covariance: Float[np.ndarray, "p p"]
    theta: Float[np.ndarray, " t"]
    factor: Float[np.ndarray, "q q"]
    log_likelihood: float
    u: Float[np.ndarray, "g q"]
    """The likeliest effects of the training groups, in units of `factor`."""


def fit_logistic(
    trials: Trials, covariance: Covariance, ridge: Float[np.ndarray, " p"], start: Logistic | None = None
) -> Logistic:
    """The fixed effects and covariance of groups' effects that fit best; `ridge` is the precision of each beta."""
    from scipy import optimize  # takes long to import, and predictions need none

    num = trials.x.shape[1]
    kept = {"u": np.zeros((len(trials.starts), trials.z.shape[1]))}
    if start is None:
        first = np.concatenate([_plain(trials, ridge), 0.7 * covariance.start()])
    else:
        first = np.concatenate([start.beta, start.theta])

    def loss(at: np.ndarray) -> tuple[float, np.ndarray]:

        value, gradient, found = _laplace(at[:num], at[num:], trials, covariance, ridge, kept["u"])
        kept["u"] = found.u if np.all(np.isfinite(found.u)) else np.zeros_like(found.u)
        return value, gradient

    bounds = [(-50.0, 50.0)] * num + [(0.0 if spread else -LARGEST, LARGEST) for spread in covariance.spreads]
    options = {"maxiter": 200, "ftol": 1e-9, "gtol": 1e-4}
    best = optimize.minimize(loss, first, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
    beta, theta = best[:num], best[num:]
    value, _, found = _laplace(beta, theta, trials, covariance, ridge, kept["u"])
    factor = covariance.factor(theta)
    return Logistic(beta, _beta_covariance(trials, factor, found, ridge), theta, factor, -value, found.u)


def _plain(trials: Trials, ridge: np.ndarray) -> np.ndarray:
    """Fixed effects without random ones, to start from."""
    beta = np.zeros(trials.x.shape[1])
    for _ in range(8):
        mu = special.expit(np.clip(trials.x @ beta, -8.0, 8.0))
        hessian = (trials.x * (mu * (1.0 - mu))[:, None]).T @ trials.x + np.diag(ridge + 1e-3)
        step = np.linalg.solve(hessian, trials.x.T @ (trials.y - mu) - ridge * beta)
        beta = np.clip(beta + step / max(1.0, np.abs(step).max(initial=0.0) / 2.0), -20.0, 20.0)
    return beta


def _laplace(
    beta: np.ndarray, theta: np.ndarray, trials: Trials, covariance: Covariance, ridge: np.ndarray, start: np.ndarray
) -> tuple[float, np.ndarray, Modes]:
    """Minus the approximate log-likelihood and its gradient.

    The determinant depends on the modes, which move with beta and theta: hence the terms with `pull`."""
    factor = covariance.factor(theta)
    scaled = trials.z @ factor
    found = modes(trials, trials.x @ beta, scaled, start)
    index = np.repeat(np.arange(len(trials.starts)), np.diff(trials.starts, append=len(trials.y)))
    weight = found.mu * (1.0 - found.mu)
    leverage = np.einsum("ni,nij,nj->n", scaled, found.inverse[index], scaled, optimize=True)
    bend = 0.5 * leverage * weight * (1.0 - 2.0 * found.mu)
    # d(bend' eta) through the modes: an offset a moves eta by a - Z Lambda H^-1 (Z Lambda)' W a.
    pull = np.einsum("gij,gj->gi", found.inverse, trials.per_group(scaled * bend[:, None]))
    through = bend - weight * (scaled * pull[index]).sum(axis=1)
    left = trials.y - found.mu
    by_beta = trials.x.T @ (left - through) - ridge * beta
    by_factor = trials.z.T @ ((left - through)[:, None] * found.u[index])
    by_factor -= np.einsum("gi,gj->ij", trials.per_group(trials.z * left[:, None]), pull)
    solved = np.einsum("nj,njk->nk", scaled, found.inverse[index])
    by_factor -= trials.z.T @ (weight[:, None] * solved)
    value = found.log_joint - 0.5 * found.log_det - 0.5 * float(ridge @ beta**2)
    return -value, -np.concatenate([by_beta, covariance.pull(by_factor)]), found


def _beta_covariance(trials: Trials, factor: np.ndarray, found: Modes, ridge: np.ndarray) -> np.ndarray:
    weight = found.mu * (1.0 - found.mu)
    cross = trials.per_group((weight[:, None] * (trials.z @ factor))[:, :, None] * trials.x[:, None, :])
    taken = np.einsum("gip,gij,gjr->pr", cross, found.inverse, cross, optimize=True)
    information = (trials.x * weight[:, None]).T @ trials.x - taken + np.diag(ridge)
    return np.linalg.inv(information + 1e-8 * np.eye(len(information)))
