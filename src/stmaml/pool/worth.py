"""What each member is worth: by how much held-out groups would be predicted worse without it."""

from collections.abc import Sequence

import numpy as np

from stmaml.metrics import Summary, summarise
from stmaml.pool.crossfit import HeldOut
from stmaml.pool.pooling import Pooling, costs_of
from stmaml.pool.weights import class_weights, learn_weights


def worth_of(held: Sequence[HeldOut], pooling: Pooling) -> dict[str, dict[str, Summary]]:
    """For each number of labelled rows and each member: the share by which the CRPS (for classes the log-score) would
    rise if it were left out and the others were weighed anew, with its 95 % interval over groups."""
    if held[0].tasks.rows.num_classes:
        return {str(one.shots): _class_worth(one, pooling) for one in held}
    return _number_worth(held, pooling)


def _number_worth(held: Sequence[HeldOut], pooling: Pooling) -> dict[str, dict[str, Summary]]:
    spreads = [np.array(pooling.spread[pooling.counts.index(one.shots)]) for one in held]
    costs = [costs_of(one, pooling.members, each) for one, each in zip(held, spreads, strict=True)]
    whole = [one.of(weights) for one, weights in zip(costs, learn_weights(costs), strict=True)]
    found: dict[str, dict[str, Summary]] = {str(one.shots): {} for one in held}
    for i, name in enumerate(pooling.members if len(pooling.members) > 1 else ()):
        fewer = [one.without(i) for one in costs]
        for one, left, weights, now in zip(held, fewer, learn_weights(fewer), whole, strict=True):
            found[str(one.shots)][name] = summarise((left.of(weights) - now) / now.mean())
    return found


def _class_worth(held: HeldOut, pooling: Pooling) -> dict[str, Summary]:
    place = pooling.counts.index(held.shots)
    rows, truth = np.arange(len(held.y)), held.y.astype(int)
    likelihood = np.stack([np.maximum(held.forecasts[name].mean[rows, truth], 1e-9) for name in pooling.members])
    group = np.unique(held.tasks.group, return_inverse=True)[1][held.tasks.task]
    count = np.bincount(group)
    whole = np.bincount(group, -np.log(np.array(pooling.weight[place]) @ likelihood)) / count
    found = {}
    for i, name in enumerate(pooling.members):
        others = np.delete(likelihood, i, axis=0)
        if not len(others):
            continue
        weights = class_weights(others, group)
        without = np.bincount(group, -np.log(weights @ others)) / count
        found[name] = summarise((without - whole) / whole.mean())
    return found
