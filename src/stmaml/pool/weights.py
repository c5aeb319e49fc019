"""How much each member counts: learnt on held-out groups by a proper score, shrunk towards shares of the leading ones.

For numbers the score is the CRPS. That of a mixture is quadratic in the weights, so all that the held-out rows say is a
vector and a matrix for each group, and the best weights are those of a small convex problem. For classes it is the
log-score, whose best weights the EM algorithm finds.

Weights are pulled towards shares that fall with how clearly held-out groups show a member to be worse than the best: by
a factor e for each standard error (for classes e^2). What serves with five labelled rows is likely to serve with four
or six, so neighbouring numbers of labelled rows have a say in each other's weights, and the less the more groups there
are. Both rules, and their strengths, were chosen on development tables.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from stmaml.pool.mixture import distance

SHRINKAGE = 1.0  # groups' worth of the pull, for each member
REACH = 1.0  # how far numbers of labelled rows have a say in each other's weights, in places among those scored
SAY = 100.0  # groups that have as much of a say as neighbouring numbers of labelled rows have at most
CLASSES_STEEP = 2.0  # for classes shares fall by e^2 for each standard error
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

    def without(self, member: int) -> "Costs":
        """Those of all other members."""
        others = np.delete(np.arange(self.own.shape[1]), member)
        return Costs(self.own[:, others], self.apart[:, others][:, :, others])


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


def learn_weights(costs: Sequence[Costs]) -> Float[np.ndarray, "c k"]:
    """The weights for each number of labelled rows, whose costs come in rising order of them."""
    near = neighbours(np.array([len(one.own) for one in costs]))
    scale = np.array([max(float(one.own.mean()), 1e-12) for one in costs])  # each number of rows has the same say
    own = near @ np.stack([one.own.mean(0) / s for one, s in zip(costs, scale, strict=True)])
    apart = np.einsum("cd,dij->cij", near, [one.apart.mean(0) / s for one, s in zip(costs, scale, strict=True)])
    aim = np.stack([leading(one.own - np.einsum("gii->gi", one.apart) / 2) for one in costs])
    pull = SHRINKAGE * own.shape[1] / np.array([max(len(one.own), 1) for one in costs])
    return least_cost(own, apart, aim, pull)


def neighbours(groups: Int[np.ndarray, " c"]) -> Float[np.ndarray, "c c"]:
    """What each number of labelled rows has to say of the weights of each: of their own, the more the more groups."""
    places = np.arange(len(groups))
    near = np.exp(-0.5 * ((places[:, None] - places) / REACH) ** 2)
    near *= np.where(np.eye(len(groups), dtype=bool), 1.0, (SAY / (SAY + groups))[:, None])
    return near / near.sum(1, keepdims=True)


def leading(alone: Float[np.ndarray, "g k"], steep: float = 1.0) -> Weights:
    """Shares of members by their scores in each group, where less is better: e^-t for one that is t standard errors
    behind the best, or the power `steep` of that. Where groups cannot tell, all are alike."""
    behind = alone - alone[:, [int(alone.mean(0).argmin())]]
    error = behind.std(0, ddof=1) / len(alone) ** 0.5 if len(alone) > 1 else np.full(alone.shape[1], np.inf)
    shares = np.exp(-steep * behind.mean(0) / np.maximum(error, 1e-300))
    return shares / shares.sum()


def least_cost(
    own: Float[np.ndarray, "c k"],
    apart: Float[np.ndarray, "c k k"],
    aim: Float[np.ndarray, "c k"],
    pull: Float[np.ndarray, " c"],
) -> Float[np.ndarray, "c k"]:
    """The weights of least cost on the simplex for several problems, each pulled towards its aim."""
    equal = np.full(own.shape[1], 1 / own.shape[1])
    scale = np.maximum(own @ equal - np.einsum("i,cij,j->c", equal, apart, equal) / 2, 1e-12)
    hessian = -apart / scale[:, None, None] + pull[:, None, None] * np.eye(len(equal))
    return _on_simplex(hessian, own / scale[:, None] - pull[:, None] * aim)


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


def class_weights(likelihood: Float[np.ndarray, "k n"], group: Int[np.ndarray, " n"]) -> Weights:
    """The weights with the best log-score, every group alike; `likelihood` is what members gave the true class."""
    group = np.unique(group, return_inverse=True)[1]
    count = np.bincount(group)
    alone = np.stack([np.bincount(group, -np.log(each)) / count for each in likelihood], axis=1)
    return log_score_weights(likelihood, 1 / count[group], SHRINKAGE * len(likelihood) * leading(alone, CLASSES_STEEP))


def log_score_weights(
    likelihood: Float[np.ndarray, "k n"], share: Float[np.ndarray, " n"], prior: Float[np.ndarray, " k"]
) -> Weights:
    """The weights with the best log-score, by EM. `share` is what a row counts, 1 in all for each group; a Dirichlet
    prior worth so many groups for each member pulls towards its own shares."""
    weights = np.full(len(likelihood), 1 / len(likelihood))
    for _ in range(ROUNDS):
        joint = weights[:, None] * likelihood
        counts = (joint / np.maximum(joint.sum(0), 1e-300)) @ share + prior
        weights = counts / counts.sum()
    return weights
