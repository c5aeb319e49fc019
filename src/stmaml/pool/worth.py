"""What each member is worth: by how much held-out groups would be predicted worse without it."""

from collections.abc import Sequence

import numpy as np

from stmaml.metrics import Summary, summarise
from stmaml.pool.crossfit import HeldOut
from stmaml.pool.pooling import FLOOR, Pooling
from stmaml.pool.weights import Costs, best_weights, crps_costs, log_score_weights


def worth_of(held: Sequence[HeldOut], pooling: Pooling) -> dict[str, dict[str, Summary]]:
    """For each number of labelled rows and each member: the share by which the CRPS (for classes the log-score) would
    rise if it were left out and the others were weighed anew, with its 95 % interval over groups."""
    is_class = held[0].tasks.rows.num_classes > 0
    each = _class_worth if is_class else _number_worth
    return {str(one.shots): each(one, pooling) for one in held}


def _number_worth(held: HeldOut, pooling: Pooling) -> dict[str, Summary]:
    place = pooling.counts.index(held.shots)
    said = [held.forecasts[name] for name in pooling.members]
    spread = np.array(pooling.spread[place])[:, None]
    std = np.sqrt(np.maximum(np.stack([one.variance for one in said]), FLOOR)) * spread
    group = np.unique(held.tasks.group, return_inverse=True)[1]
    costs = crps_costs(np.stack([one.mean for one in said]), std, held.y, group[held.tasks.task], int(group.max()) + 1)
    whole = costs.of(np.array(pooling.weight[place]))
    found = {}
    for i, name in enumerate(pooling.members):
        others = np.delete(np.arange(len(pooling.members)), i)
        if not len(others):
            continue
        fewer = Costs(costs.own[:, others], costs.apart[:, others][:, :, others])
        found[name] = summarise((fewer.of(best_weights(fewer, pooling.shrinkage)) - whole) / whole.mean())
    return found


def _class_worth(held: HeldOut, pooling: Pooling) -> dict[str, Summary]:
    place = pooling.counts.index(held.shots)
    rows, truth = np.arange(len(held.y)), held.y.astype(int)
    likelihood = np.stack([np.maximum(held.forecasts[name].mean[rows, truth], 1e-9) for name in pooling.members])
    group = np.unique(held.tasks.group, return_inverse=True)[1][held.tasks.task]
    count = np.bincount(group)
    share = 1 / count[group]
    whole = np.bincount(group, -np.log(np.array(pooling.weight[place]) @ likelihood)) / count
    found = {}
    for i, name in enumerate(pooling.members):
        others = np.delete(likelihood, i, axis=0)
        if not len(others):
            continue
        weights = log_score_weights(others, share, pooling.shrinkage)
        without = np.bincount(group, -np.log(weights @ others)) / count
        found[name] = summarise((without - whole) / whole.mean())
    return found
