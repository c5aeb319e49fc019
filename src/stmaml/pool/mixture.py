"""Weighted mixtures of normal distributions, one for each row: what a pool of members says of a number."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import ndtr, ndtri

SMALLEST = 1e-9  # of probabilities: a normal score of 6 is as far as anyone looks
NEWTON_STEPS = 7
CLOSE = 1e-7  # of the spread of a row: the last of Newton's steps is at most so long, and leaves the square of that
HALVINGS = 40
AT_ONCE = 20_000  # rows whose quantiles are found together


@dataclass(frozen=True)
class Mixture:
    """What several members say of each row, and how much each of them counts."""

    weight: Float[np.ndarray, "k n"]
    mean: Float[np.ndarray, "k n"]
    std: Float[np.ndarray, "k n"]

    def expected(self) -> Float[np.ndarray, " n"]:
        """The mean of each row."""
        return (self.weight * self.mean).sum(0)

    def variance(self) -> Float[np.ndarray, " n"]:
        """Of each row: that of the members, and how much they differ."""
        return (self.weight * (self.std**2 + (self.mean - self.expected()) ** 2)).sum(0)

    def cdf(self, y: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """The probability of a smaller value."""
        return (self.weight * ndtr((y - self.mean) / self.std)).sum(0)

    def normal_scores(self, y: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Where each value lies, as a normal distribution would have it; precise in both tails."""
        z = (y - self.mean) / self.std
        below, above = (self.weight * ndtr(z)).sum(0), (self.weight * ndtr(-z)).sum(0)
        lower = ndtri(np.maximum(below, SMALLEST))
        return np.where(below < 0.5, lower, -ndtri(np.maximum(above, SMALLEST)))

    def log_prob(self, y: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """The log-density of each value."""
        z = (y - self.mean) / self.std
        with np.errstate(divide="ignore"):
            each = np.log(self.weight) - 0.5 * z**2 - np.log(self.std) - 0.5 * np.log(2 * np.pi)
        top = each.max(0)  # of members with weight: beside one without, all others might be lost to rounding
        return top + np.log(np.exp(each - top).sum(0))

    def at_scores(self, scores: Float[np.ndarray, "l n"]) -> Float[np.ndarray, "l n"]:
        """The value of each row that lies at each normal score."""
        parts = [slice(first, first + AT_ONCE) for first in range(0, scores.shape[1], AT_ONCE)]
        found = [self.at(part)._solved(scores[:, part]) for part in parts]
        return np.concatenate(found, axis=1) if found else np.zeros_like(scores)

    def at(self, rows: slice | Int[np.ndarray, " m"]) -> "Mixture":
        """Some of the rows."""
        return Mixture(self.weight[:, rows], self.mean[:, rows], self.std[:, rows])

    def _solved(self, scores: Float[np.ndarray, "l n"]) -> Float[np.ndarray, "l n"]:
        """By Newton's steps on the normal score, which is almost a straight line; where it is not, by halving."""
        (low, high), found, rows, part = self._ends(scores), np.empty_like(scores), np.arange(scores.shape[1]), self
        at = np.clip((self.weight[:, None] * (self.mean[:, None] + scores * self.std[:, None])).sum(0), low, high)
        for _ in range(NEWTON_STEPS):
            reached, slope = part._reached(at, scores > 0)
            low, high = np.where(reached < scores, at, low), np.where(reached > scores, at, high)
            with np.errstate(all="ignore"):  # there may be no density between members that lie far apart
                step = (reached - scores) / slope
                small = np.abs(step) <= CLOSE * part.std.min(0)
                inside = (at - step >= low) & (at - step <= high)
            at, near = np.where(inside | small, at - step, (low + high) / 2), small.all(0)
            found[:, rows[near]] = at[:, near]
            left = np.flatnonzero(~near)  # each row goes on for itself, so that its answer is its own
            rows, part = rows[left], part.at(left)
            low, high, at, scores = (each[:, left] for each in (low, high, at, scores))
        if len(rows):
            found[:, rows] = part._halved(scores)
        return found

    def _reached(
        self, at: Float[np.ndarray, "l n"], upper: Bool[np.ndarray, "l n"]
    ) -> tuple[Float[np.ndarray, "l n"], Float[np.ndarray, "l n"]]:
        """The normal scores of some values, from the tail that is told, and how fast they rise there."""
        sign = np.where(upper, -1.0, 1.0)
        z = (at - self.mean[:, None]) / self.std[:, None]
        tail = (self.weight[:, None] * ndtr(sign * z)).sum(0)
        reached = sign * ndtri(np.clip(tail, SMALLEST**2, 1.0))
        density = ((self.weight / self.std)[:, None] * np.exp(-0.5 * z**2)).sum(0)
        return reached, density * np.exp(0.5 * reached**2)

    def _ends(self, scores: Float[np.ndarray, "l n"]) -> tuple[Float[np.ndarray, "l n"], Float[np.ndarray, "l n"]]:
        """Between what members say lies what all of them say."""
        used = self.weight[:, None] > 0  # members without weight bound nothing
        each = self.mean[:, None] + scores[None] * self.std[:, None]
        return np.where(used, each, np.inf).min(0), np.where(used, each, -np.inf).max(0)

    def _halved(self, scores: Float[np.ndarray, "l n"]) -> Float[np.ndarray, "l n"]:
        low, high = self._ends(scores)
        upper = scores > 0  # the tail that is small, so that no digit is lost
        wanted = ndtr(-np.abs(scores))
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            z = (middle[None] - self.mean[:, None]) / self.std[:, None]
            tail = (self.weight[:, None] * ndtr(np.where(upper, -z, z))).sum(0)
            too_low = np.where(upper, tail > wanted, tail < wanted)
            low, high = np.where(too_low, middle, low), np.where(too_low, high, middle)
        return (low + high) / 2

    def crps(self, y: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """The continuous ranked probability score of each value, in closed form."""
        own = (self.weight * distance(y - self.mean, self.std)).sum(0)
        apart = np.zeros_like(own)
        for i in range(len(self.weight)):
            spread = np.sqrt(self.std[i] ** 2 + self.std**2)
            apart += self.weight[i] * (self.weight * distance(self.mean[i] - self.mean, spread)).sum(0)
        return own - apart / 2


def distance(gap: Float[np.ndarray, "*n"], spread: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
    """The expected distance of a normal variable from a point that lies `gap` from its mean."""
    z = gap / spread
    return spread * (z * (2 * ndtr(z) - 1) + 2 * np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi))
