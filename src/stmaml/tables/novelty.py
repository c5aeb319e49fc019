"""Whether a group looks like those a learner was trained on, and which labels would tell most about it."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Float, Int

SHRINKAGE = 0.1
Codes = Float[np.ndarray, "_ c"]  # of groups, one a row


@dataclass(frozen=True)
class Reference:
    """Where the codes of known groups lie, by the number of labelled rows they were made from."""

    shots: Int[np.ndarray, " k"]
    mean: Float[np.ndarray, "k c"]
    precision: Float[np.ndarray, "k c c"]
    distance: Float[np.ndarray, "k h"]
    """Distances of held-out groups, sorted: what is usual for a group that was not trained on."""
    entropy: Float[np.ndarray, " k"]  # mean entropy of z over held-out groups; NaN for methods without z

    def novelty(self, code: Float[np.ndarray, "m c"], shots: Int[np.ndarray, " m"]) -> Float[np.ndarray, " m"]:
        """The share of held-out groups that look less unusual than each group; NaN without labelled rows."""
        found = np.full(len(code), np.nan)
        for i in np.unique(which := self._nearest(shots)):
            chosen = (which == i) & (shots > 0)
            distance = mahalanobis(code[chosen], self.mean[i], self.precision[i])
            found[chosen] = np.searchsorted(self.distance[i], distance) / self.distance.shape[1]
        return found

    def surplus_entropy(
        self, entropy: Float[np.ndarray, " m"], shots: Int[np.ndarray, " m"]
    ) -> Float[np.ndarray, " m"]:
        """How much less is known about each group than about held-out ones with as many labelled rows, in nats."""
        return np.where(shots > 0, entropy - self.entropy[self._nearest(shots)], np.nan)

    def known_in_words(self, surplus: Sequence[float | None]) -> list[str]:
        """What such a surplus means to a reader: it counts from what the next number of labelled rows tells (2 after 1,
        5 after 2), on average over held-out groups."""
        step = float(np.abs(np.diff(self.entropy)).mean()) if len(self.entropy) > 1 else 1.0
        return [_known(one, step) for one in surplus]

    def _nearest(self, shots: Int[np.ndarray, " m"]) -> Int[np.ndarray, " m"]:
        own, fitted = (np.log1p(np.asarray(each, dtype=float)) for each in (shots, self.shots))
        return np.abs(own[:, None] - fitted[None]).argmin(1)


def odd_part(arrays: dict[str, np.ndarray]) -> str | None:
    """What is wrong with arrays that are to be a reference, if anything is."""
    names = [field.name for field in fields(Reference)]
    if lacking := sorted(set(names) ^ set(arrays)):
        return f"{lacking[0]} is missing or unknown"
    count, size = len(np.atleast_1d(arrays["shots"])), arrays["mean"].shape[-1:]
    held = arrays["distance"].shape[-1:]
    shapes = {"shots": (), "mean": size, "precision": size * 2, "distance": held, "entropy": ()}
    for name, array in arrays.items():
        if array.shape != (count, *shapes[name]) or array.dtype.kind not in ("i" if name == "shots" else "f"):
            return f"{name} is {array.dtype} of shape {array.shape}"
        if 0 in array.shape or (name != "entropy" and not np.isfinite(array).all()):
            return f"{name} holds no number, or one that is not finite"
    rising = (np.diff(arrays["distance"]) >= 0).all() and (np.diff(arrays["shots"]) > 0).all()
    return None if rising and arrays["distance"].min() >= 0 and arrays["shots"][0] > 0 else "its order is wrong"


def _known(surplus: float | None, step: float) -> str:
    if surplus is None:
        return "no labelled rows"
    return "less known than most" if surplus > step else "better known than most" if surplus < -step else "as usual"


def mahalanobis(
    code: Float[np.ndarray, "m c"], mean: Float[np.ndarray, " c"], precision: Float[np.ndarray, "c c"]
) -> Float[np.ndarray, " m"]:
    """The distance of each code from the mean, in spreads of the known codes."""
    gap = code - mean
    return np.sqrt(np.maximum(np.einsum("mi,ij,mj->m", gap, precision, gap), 0.0))


def refer(
    shots: list[int], known: list[Codes], held_out: list[Codes], entropy: list[Float[np.ndarray, " h"]]
) -> Reference:
    """A reference from codes of training groups and of held-out ones, one array for each number of labelled rows."""
    means = np.stack([codes.mean(0) for codes in known])
    precisions = np.stack([_precision(codes) for codes in known])
    distances = [np.sort(mahalanobis(codes, m, p)) for codes, m, p in zip(held_out, means, precisions, strict=True)]
    means_of_entropy = np.array([values.mean() for values in entropy])
    return Reference(np.array(shots), means, precisions, np.stack(distances), means_of_entropy)


def _precision(codes: Float[np.ndarray, "g c"]) -> Float[np.ndarray, "c c"]:
    """The inverse covariance, shrunk towards independent coordinates: there may be fewer groups than coordinates."""
    covariance = np.atleast_2d(np.cov(codes, rowvar=False))
    spread = np.diag(np.maximum(np.diag(covariance), 1e-12))
    return np.linalg.inv((1 - SHRINKAGE) * covariance + SHRINKAGE * spread)


def suggest_rows(
    functions: Float[np.ndarray, "s n k"], noise: Float[np.ndarray, " n"], num_rows: int
) -> Int[np.ndarray, " r"]:
    """The rows whose labels would lower the summed variance over all rows most, the best first.

    Sampled predictors stand for a Gaussian over functions: `functions` is what each expects in each row (of each
    class, for classes), `noise` the variance of a label about that. After each choice the Gaussian is conditioned on
    the row's label, whose value does not matter for the variances."""
    centred = (functions - functions.mean(0)).astype(float)
    num_samples, size, num_outputs = centred.shape
    covariance = np.einsum("snk,smk->knm", centred, centred) / num_samples
    floor = 1e-12 + 1e-9 * float(np.max(covariance, initial=0.0))
    chosen: list[int] = []
    for _ in range(min(num_rows, size)):
        variance = np.einsum("knn->kn", covariance) + noise[None] / num_outputs + floor
        gain = (np.square(covariance).sum(2) / variance).sum(0)
        gain[chosen] = -1.0
        best = int(gain.argmax())
        column = covariance[:, :, best]
        covariance = covariance - column[:, :, None] * column[:, None, :] / variance[:, best, None, None]
        chosen.append(best)
    return np.array(chosen, dtype=int)
