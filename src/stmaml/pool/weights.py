"""How much each member counts: learnt on held-out groups by a proper score, shrunk towards equal shares.

For numbers the score is the CRPS. That of a mixture is quadratic in the weights, so all that the held-out rows say is a
vector and a matrix for each group, and the best weights are those of a small convex problem. For classes it is the
log-score, whose best weights the EM algorithm finds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from stmaml.pool.mixture import distance

SHRINKAGES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Strengths of the pull towards equal weights that are tried, in parts of one group's worth."""
ROUNDS = 400
Weights = Float[np.ndarray, " k"]


@dataclass(frozen=True)
class Costs:
    """What any weights would have cost in each group: w.a - w.B w / 2."""

    own: Float[np.ndarray, "g k"]
    """Expected distance of each member from the truth."""
    apart: Float[np.ndarray, "g k k"]
    """Expected distance of two members from each other."""

    def of(self, weights: Weights) -> Float[np.ndarray, " g"]:
        """The mean CRPS of each group."""
        return self.own @ weights - np.einsum("i,gij,j->g", weights, self.apart, weights) / 2

    def at(self, groups: Int[np.ndarray, " m"]) -> "Costs":
        """Those of some groups."""
        return Costs(self.own[groups], self.apart[groups])


def crps_costs(
    mean: Float[np.ndarray, "k n"],
    std: Float[np.ndarray, "k n"],
    y: Float[np.ndarray, " n"],
    group: Int[np.ndarray, " n"],
    num_groups: int,
) -> Costs:
    """The costs of normal members in each group; those of a group without a row are zero."""
    members = len(mean)
    share = 1 / np.maximum(np.bincount(group, minlength=num_groups), 1)

    def by_group(values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " g"]:
        return np.bincount(group, values, num_groups) * share

    own = np.stack([by_group(distance(y - mean[i], std[i])) for i in range(members)], axis=1)
    apart = np.zeros((num_groups, members, members))
    for i in range(members):
        for j in range(i + 1):
            gap = by_group(distance(mean[i] - mean[j], np.sqrt(std[i] ** 2 + std[j] ** 2)))
            apart[:, i, j] = apart[:, j, i] = gap
    return Costs(own, apart)


def best_weights(costs: Costs, shrinkage: float) -> Weights:
    """The weights of least cost on the simplex, with a pull towards equal ones that fades as groups grow in number."""
    return least_cost([costs], [shrinkage])[0]


def least_cost(costs: Sequence[Costs], shrinkages: Sequence[float]) -> Float[np.ndarray, "m k"]:
    """The best weights of several problems at once, one shrinkage for each."""
    members = costs[0].own.shape[1]
    equal = np.full(members, 1 / members)
    own = np.stack([one.own.mean(0) for one in costs])
    apart = np.stack([one.apart.mean(0) for one in costs])
    scale = np.maximum(own @ equal - np.einsum("i,mij,j->m", equal, apart, equal) / 2, 1e-12)[:, None]
    pull = np.array(shrinkages)[:, None] * members / np.array([max(len(one.own), 1) for one in costs])[:, None]
    hessian = -apart / scale[:, :, None] + pull[:, :, None] * np.eye(members)
    return _on_simplex(hessian, own / scale - pull * equal)


def _on_simplex(hessian: Float[np.ndarray, "m k k"], linear: Float[np.ndarray, "m k"]) -> Float[np.ndarray, "m k"]:
    """The minima of w.H w / 2 + w.l, which are convex there, by projected steps with momentum."""
    members = linear.shape[1]
    centred = np.eye(members) - 1 / members  # steps stay on the plane of weights that sum to 1
    largest = np.linalg.eigvalsh(centred @ hessian @ centred).max(1)
    step = 1 / np.maximum(largest, 1e-9)[:, None]
    w = before = np.full(linear.shape, 1 / members)
    for i in range(ROUNDS):
        ahead = w + i / (i + 3) * (w - before)
        slope = np.einsum("mij,mj->mi", hessian, ahead) + linear
        before, w = w, project(ahead - step * slope)
    return w


def project(v: Float[np.ndarray, "*m k"]) -> Float[np.ndarray, "*m k"]:
    """The nearest point of the simplex."""
    down = -np.sort(-v, axis=-1)
    excess = (np.cumsum(down, axis=-1) - 1) / np.arange(1, v.shape[-1] + 1)
    last = (down > excess).sum(-1, keepdims=True) - 1
    return np.maximum(v - np.take_along_axis(excess, last, axis=-1), 0.0)


def log_score_weights(
    likelihood: Float[np.ndarray, "k n"], share: Float[np.ndarray, " n"], shrinkage: float
) -> Weights:
    """The weights with the best log-score, by EM. `share` is what a row counts, 1 in all for each group; a Dirichlet
    prior of `shrinkage` groups for each member pulls towards equal weights."""
    members = len(likelihood)
    weights = np.full(members, 1 / members)
    for _ in range(ROUNDS):
        joint = weights[:, None] * likelihood
        counts = (joint / np.maximum(joint.sum(0), 1e-300)) @ share + shrinkage
        weights = counts / counts.sum()
    return weights


def chosen_shrinkage(costs: Sequence[Costs], fold: Sequence[Int[np.ndarray, " g"]]) -> float:
    """The shrinkage whose weights cost least in groups that did not choose them, over all numbers of labelled rows.

    Each of `costs` is for one number of them, and `fold` says which fold each of its groups is in."""
    trials = [
        (one.at(np.flatnonzero(folds != held)), one.at(np.flatnonzero(folds == held)), float(one.own.mean()))
        for one, folds in zip(costs, fold, strict=True)
        for held in np.unique(folds)
        if (folds != held).any()
    ]
    if not trials:
        return SHRINKAGES[-1]
    problems = [seen for _ in SHRINKAGES for seen, _, _ in trials]
    strengths = [shrinkage for shrinkage in SHRINKAGES for _ in trials]
    weights = least_cost(problems, strengths).reshape(len(SHRINKAGES), len(trials), -1)
    cost = [
        sum(float(unseen.of(w).sum()) / max(scale, 1e-12) for w, (_, unseen, scale) in zip(each, trials, strict=True))
        for each in weights
    ]
    return SHRINKAGES[int(np.argmin(cost))]
