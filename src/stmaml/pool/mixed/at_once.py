"""Many groups in closed form at once, where rows have no further levels: those with as many labelled rows together."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from stmaml.pool.mixed.noise import NoisePrior

Places = Sequence[Int[np.ndarray, " _"]]


def tasks_at_once(
    noise: NoisePrior,
    unknown: Float[np.ndarray, "n k"],
    target: Float[np.ndarray, " n"],
    support: Places,
    query: Places,
) -> tuple[Float[np.ndarray, " q"], Float[np.ndarray, " q"], Float[np.ndarray, " q"]]:
    """How far each asked row lies from its common mean, the variance of that, and that of the noise, task after task.

    Args:
        unknown: rows as functions of independent standard normal unknowns, in units of the noise.
        target: what is left of rows' targets by their common means; no number where it is not known."""
    known = [rows[np.isfinite(target[rows])] for rows in support]
    sizes, counts = np.array([len(rows) for rows in query]), np.array([len(rows) for rows in known])
    asked = unknown[np.concatenate(query)]
    mean, variance, ratio = np.zeros(len(asked)), (asked**2).sum(axis=1), np.full(len(query), noise.shrunk(0.0, 0.0))
    first = np.cumsum(sizes) - sizes
    for count in np.unique(counts[counts > 0]):
        alike = np.flatnonzero(counts == count)
        rows = np.stack([known[i] for i in alike])
        coefficients, told, ratio[alike] = _learnt(noise, unknown[rows], target[rows])
        for i, own, seen in zip(alike, coefficients, told, strict=True):
            mine = slice(first[i], first[i] + sizes[i])
            mean[mine] = asked[mine] @ own
            variance[mine] -= ((asked[mine] @ seen.T) ** 2).sum(axis=1)
    return mean, np.maximum(variance, 0.0), np.repeat(ratio, sizes)


def _learnt(
    noise: NoisePrior, told: Float[np.ndarray, "t s k"], target: Float[np.ndarray, "t s"]
) -> tuple[Float[np.ndarray, "t k"], Float[np.ndarray, "t r k"], Float[np.ndarray, " t"]]:
    """The expected unknowns of each task, what takes their variance away, and the task's noise."""
    rest, dof = np.zeros(len(told)), max(told.shape[1] - told.shape[2], 0)
    if dof > 1:  # many rows are first folded into as many as there are unknowns
        folded = np.asarray(np.linalg.qr(np.concatenate([told, target[..., None]], axis=2), mode="r"))
        told, target, rest = folded[:, :-1, :-1], folded[:, :-1, -1], folded[:, -1, -1] ** 2
    else:
        dof = 0
    seen, own, inverse = _conditioned(told, target)
    residual = np.einsum("tsr,ts->tr", inverse, own)
    ratio = noise.shrunk((residual**2).sum(axis=1) + rest, (inverse**2).sum(axis=(1, 2)) + dof)
    if np.any(ratio != 1.0):
        root = np.sqrt(ratio)
        seen, own, _ = _conditioned(told / root[:, None, None], target / root[:, None])
    return np.einsum("tsk,ts->tk", seen, own), seen, np.broadcast_to(ratio, len(told))


def _conditioned(
    told: Float[np.ndarray, "t s k"], target: Float[np.ndarray, "t s"]
) -> tuple[Float[np.ndarray, "t s k"], Float[np.ndarray, "t s"], Float[np.ndarray, "t s s"]]:
    """Rows and targets made independent, of variance 1, and what makes them so."""
    gram = told @ told.swapaxes(1, 2) + np.eye(told.shape[1])
    try:
        root = np.linalg.cholesky(gram)
    except np.linalg.LinAlgError:
        root = np.stack([root_of(one) for one in gram])
    inverse = np.linalg.inv(root)
    return inverse @ told, np.einsum("tsr,tr->ts", inverse, target), inverse


def root_of(gram: Float[np.ndarray, "n n"]) -> Float[np.ndarray, "n n"]:
    """The Cholesky factor; where columns that tell each other leave rounding the last word, a little is added."""
    for added in (0.0, 1e-12, 1e-10, 1e-8, 1e-6):
        try:
            return np.linalg.cholesky(gram + added * np.trace(gram) * np.eye(len(gram)))
        except np.linalg.LinAlgError:
            continue
    raise np.linalg.LinAlgError("the labelled rows of a group cannot be told from noise")
