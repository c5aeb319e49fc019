"""Heavy tails: what a pool says of targets that lie far off, as outliers do.

A spread that is set by squares is too wide for most rows where a few lie far off, and a normal distribution of any
spread hardly allows for these. So a target's spread may be several times as wide with some probability. Both numbers
are those whose gain in log-density on held-out groups, less its standard error, is largest; where none gains more than
that error, or groups are very few, tails stay as members have them. The mean stays the same in any case."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from stmaml.pool.base import evenly
from stmaml.pool.mixture import Mixture
from stmaml.pool.steady import steady_best_temperature, tempered

SCALES = np.geomspace(0.25, 8.0, 31)
"""Factors on a pool's spread, six to a doubling."""
STEPS = (6, 10, 14, 18)  # how many of them a wide spread lies above the usual one: two to eight times
SHARES = (0.02, 0.05, 0.1, 0.2, 0.3)
NARROWER = 9  # of them, how many the usual spread may lie below that without tails
MOST_ROWS = 4_000  # that tails are learnt from
FEWEST_GROUPS = 8  # with fewer, chance often looks like tails: the best of all shares and widths is taken


@dataclass(frozen=True)
class Tail:
    """How far off targets may lie."""

    share: float = 0.0
    """The probability that a target's spread is wider than usual."""
    width: float = 1.0
    """How many times as wide it then is."""


def with_tails(mixture: Mixture, share: Float[np.ndarray, " n"], width: Float[np.ndarray, " n"]) -> Mixture:
    """The mixture of itself and, with some share, of itself stretched about its mean."""
    if not share.any():
        return mixture
    wide = tempered(mixture, width)
    weight = np.concatenate([mixture.weight * (1 - share), wide.weight * share])
    return Mixture(weight, np.concatenate([mixture.mean, wide.mean]), np.concatenate([mixture.std, wide.std]))


def learn_tail(mixture: Mixture, y: Float[np.ndarray, " n"], group: Int[np.ndarray, " n"]) -> tuple[float, Tail] | None:
    """The factor on a pool's spread and the tail that held-out targets show, every group alike; None where they show
    none."""
    if len(np.unique(group)) < FEWEST_GROUPS:
        return None
    rows = evenly(np.arange(len(y)), MOST_ROWS)
    logs, group = _at_scales(mixture.at(rows), y[rows]), np.unique(group[rows], return_inverse=True)[1]
    plain = _by_group(logs, group)
    place = int(plain.mean(0).argmax())
    near = np.arange(max(place - NARROWER, 0), place + 1)
    best, found = 0.0, None
    for steps in STEPS:
        usual = near[near + steps < len(SCALES)]
        for share in SHARES if len(usual) > 2 else ():  # fewer spreads have no minimum among them
            each = np.logaddexp(np.log1p(-share) + logs[usual], np.log(share) + logs[usual + steps])
            log_density = _by_group(each, group)
            sure = _sure(log_density[:, log_density.mean(0).argmax()] - plain[:, place])
            if sure > best:
                best, found = sure, (usual, log_density, Tail(share, float(SCALES[steps] / SCALES[0])))
    if found is None:
        return None
    usual, log_density, tail = found
    return steady_best_temperature(-log_density, SCALES[usual]), tail


def _at_scales(mixture: Mixture, y: Float[np.ndarray, " n"]) -> Float[np.ndarray, "s n"]:
    """The log-density of each target with the spread at each of SCALES."""
    centre = mixture.expected()
    return np.stack([mixture.log_prob(centre + (y - centre) / scale) - np.log(scale) for scale in SCALES])


def _by_group(values: Float[np.ndarray, "s n"], group: Int[np.ndarray, " n"]) -> Float[np.ndarray, "g s"]:
    """The mean of each group."""
    return np.stack([np.bincount(group, each) for each in values], axis=1) / np.bincount(group)[:, None]


def _sure(gain: Float[np.ndarray, " g"]) -> float:
    """What a change gains, less its standard error over groups."""
    return float(gain.mean() - gain.std(ddof=1) / len(gain) ** 0.5) if len(gain) > 1 else 0.0
