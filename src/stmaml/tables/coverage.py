"""Coverage group by group: whether intervals hold in each group, and how to have them do so in most of them.

Nine rows of ten may be held on average while a group has all of its rows outside. `missed_groups` counts such groups.
`group_reach` widens or narrows intervals by what a group's few labelled rows show, so that most groups get their
coverage (Fisch, Schuster, Jaakkola, Barzilay, "Few-shot Conformal Prediction with Auxiliary Tasks", 2021): held-out
groups tell how far the reach of the other rows strays from what such few rows let one expect, and by how much it must
be lengthened for all but a tenth of them. All is on plain arrays, whatever model the scores are of.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import bdtr

from stmaml.metrics import share_interval

NOMINAL, LEAST, GROUPS = 0.9, 0.8, 0.9
_SMALLEST = 1e-6  # of a reach: nearer to its median no target of a continuous kind lies


@dataclass(frozen=True)
class Missed:
    """The groups whose interval holds too few of their rows."""

    share: float
    low: float
    """Of the 95 % interval of the share."""
    high: float
    by_chance: float
    """The share to expect where every row is held with the nominal probability: groups of few rows miss by chance."""
    groups: int


def missed_groups(
    group: Int[np.ndarray, " n"], inside: Bool[np.ndarray, " n"], *, nominal: float = NOMINAL, least: float = LEAST
) -> Missed:
    """The share of groups whose interval holds less than `least` of their rows, by the rows it holds."""
    _, place, rows = np.unique(group, return_inverse=True, return_counts=True)
    held = np.bincount(place, weights=inside, minlength=len(rows))
    few = held < least * rows - 1e-9
    low, high = share_interval(int(few.sum()), len(few))
    most = np.ceil(least * rows - 1e-9) - 1  # rows held in a group that just misses
    return Missed(float(few.mean()), low, high, float(bdtr(most, rows, nominal).mean()), len(few))


def group_reach(
    few: Float[np.ndarray, "g k"],
    rest: Float[np.ndarray, "g n"],
    weight: Float[np.ndarray, "g n"],
    own: Float[np.ndarray, "*t k"],
    *,
    coverage: float = NOMINAL,
    groups: float = GROUPS,
) -> Float[np.ndarray, "*t"]:
    """The normal score up to which, either way, an interval must reach to hold `coverage` of the rows of a new group,
    for all but 1 - `groups` of such groups. Infinite where there are too few held-out groups to tell.

    Args:
        few: normal scores of k labelled rows of each held-out group, each predicted from the other k - 1.
        rest: those of the other rows of the same groups, predicted from all k.
        weight: 0 where `rest` is padding.
        own: as `few`, of one new group or of several.
    """
    reached = np.log(_reach(rest, weight, coverage))
    seen, asked = _design(few), _design(own)
    inverse = np.linalg.pinv(seen)
    fitted = inverse @ reached
    # What each group lies off the line through all others.
    off = (reached - seen @ fitted) / np.maximum(1 - np.einsum("gp,pg->g", seen, inverse), _SMALLEST)
    return np.asarray(np.exp(asked @ fitted + _upper(off, groups)))


def _reach(
    scores: Float[np.ndarray, "g n"], weight: Float[np.ndarray, "g n"], coverage: float
) -> Float[np.ndarray, " g"]:
    """How far each group's rows reach: the smallest size that `coverage` of them, and of one to come, do not exceed."""
    ordered = np.sort(np.where(weight > 0, np.abs(scores), np.inf), axis=1)
    rows = (weight > 0).sum(1)
    place = np.minimum(np.ceil(coverage * (rows + 1)).astype(int), rows) - 1
    return np.maximum(np.take_along_axis(ordered, place[:, None], axis=1)[:, 0], _SMALLEST)


def _design(few: Float[np.ndarray, "*t k"]) -> Float[np.ndarray, "*t p"]:
    """What the reach of a group is told from: the logarithm of the size of its few scores, where it has any."""
    ones = np.ones((*few.shape[:-1], 1))
    if few.shape[-1] == 0:
        return ones
    size = np.log(np.maximum(np.square(few).mean(-1, keepdims=True), _SMALLEST**2)) / 2
    return np.concatenate([ones, size], axis=-1)


def _upper(values: Float[np.ndarray, " g"], share: float) -> float:
    """What one more such value does not exceed with probability `share`; infinite where there are too few."""
    place = int(np.ceil(share * (len(values) + 1)))
    return float(np.sort(values)[place - 1]) if place <= len(values) else float("inf")
