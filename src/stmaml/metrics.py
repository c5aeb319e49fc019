"""Scores of a prediction against the truth, and their intervals: arrays in, numbers out."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped
from scipy.special import betaincinv, stdtrit

from stmaml.prediction import AbstractPrediction, Prediction
from stmaml.tasks import Scalar, Weight, weighted_mean

Summary = dict[str, float]
TaskScores = dict[str, Scalar]
CALIBRATION_BINS = 15


def score_task(
    prediction: AbstractPrediction,
    y: Shaped[Array, "n *dy"],
    weight: Weight,
    clean: Float[Array, "n dy"] | None = None,
    seen: Float[Array, " n"] | None = None,
) -> TaskScores:
    """Every score that fits the kind of target, averaged over the query examples of one task. `seen` is 1 for query
    examples that are in the support too; targets in 0..1 are also scored on the others alone."""
    if prediction.target == "real":
        each = _real_scores(prediction, y, clean)
    elif prediction.target == "class":
        each = {"accuracy": (prediction.mean.argmax(-1) == y).astype(float), "nll": -prediction.log_prob(y)}
    else:
        return _binary_scores(prediction, y, weight, seen)
    return {name: weighted_mean(values, weight) for name, values in each.items()}


def _real_scores(
    prediction: AbstractPrediction, y: Float[Array, "n dy"], clean: Float[Array, "n dy"] | None
) -> dict[str, Float[Array, " n"]]:
    cdf = prediction.cdf(y)
    low, high = prediction.quantiles(jnp.array([0.05, 0.95]))
    scores = {
        "mse": jnp.square(prediction.mean - y),
        "mae": jnp.abs(prediction.mean - y),
        "nll": -prediction.log_prob(y)[:, None],
        "crps": prediction.crps(y),
        "coverage90": ((cdf >= 0.05) & (cdf <= 0.95)).astype(y.dtype),
        "width90": high - low,
    }
    if clean is not None:
        scores["mse_clean"] = jnp.square(prediction.mean - clean)
    return {name: values.mean(-1) for name, values in scores.items()}


def _binary_scores(
    prediction: AbstractPrediction, y: Float[Array, "n dy"], weight: Weight, seen: Float[Array, " n"] | None
) -> TaskScores:
    """Cross-entropies of targets in 0..1, which may be grey: of averaged probabilities, of one draw, of whole sets."""
    single = -prediction.components.log_prob(y[None]) / y.shape[-1]  # [s, n]
    bce = -Prediction(prediction.components.pooled()).log_prob(y) / y.shape[-1]
    # Log of the mean over samples of the set's density.
    whole = jax.nn.logsumexp(-(single * weight[None]).sum(-1)) - jnp.log(prediction.num_samples)
    scores = {
        "bce": weighted_mean(bce, weight),
        "bce_single": weighted_mean(single.mean(0), weight),
        "mse": weighted_mean(jnp.square(prediction.mean - y).mean(-1), weight),
        "nll": -whole / jnp.maximum(weight.sum(), 1.0),
        "diversity": weighted_mean(prediction.task_std.mean(-1), weight),
    }
    return scores if seen is None else {**scores, "bce_unseen": weighted_mean(bce, weight * (1 - seen))}


def calibration_gaps(probabilities: Float[Array, "n c"], y: Int[Array, " n"], weight: Weight) -> Float[Array, " bins"]:
    """By how much confidence exceeds accuracy in each of the bins of confidence, as shares of one task's examples. Bins
    are of equal width and closed above (Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks",
    2017). `calibration_error` makes one number of many tasks' gaps."""
    confidence = probabilities.max(-1)
    surplus = confidence - (probabilities.argmax(-1) == y)
    bins = jnp.clip(jnp.ceil(confidence * CALIBRATION_BINS) - 1, 0, CALIBRATION_BINS - 1)
    members = (bins[:, None] == jnp.arange(CALIBRATION_BINS)[None]).astype(surplus.dtype)
    return weighted_mean(members * surplus[:, None], weight)


def calibration_error(gaps: Float[np.ndarray, "m bins"]) -> Summary:
    """The expected calibration error of all tasks together, each counting the same, with its 95 % interval. The error
    is the sum over bins of the distance between mean confidence and accuracy. With the sign of each bin's mean gap
    held, it is the mean over tasks of one number each, whose spread gives the interval."""
    return summarise(gaps @ np.sign(gaps.mean(0)))


def summarise(values: Float[np.ndarray, " m"]) -> Summary:
    """Mean over tasks, groups or training seeds, with the half-width of its 95 % interval by Student's t."""
    count = len(values)
    with np.errstate(invalid="ignore", over="ignore"):  # of values that are not finite nothing is known
        half = float(stdtrit(count - 1, 0.975) * values.std(ddof=1) / count**0.5) if count > 1 else float("nan")
        return {"mean": float(values.mean()), "ci95": half}


def summarise_crossed(values: Float[np.ndarray, "s m"]) -> Summary:
    """Mean over training seeds (rows) and tasks (columns), with the half-width of a 95 % interval for other seeds and
    other tasks. Scores are taken as a mean, a part of the seed, a part of the task and a rest, all of them random. The
    variance of the mean is then (MS_seeds + MS_tasks - MS_rest) / (s m), where MS are the mean squares of a two-way
    analysis of variance. Its quantile lies between two: Student's t with Satterthwaite's degrees of freedom, which is
    too short where seeds matter most, and the two half-widths added in quadrature, too long where they matter little;
    they are weighed by the share of each in the variance. docs/results.md has how often such intervals hold."""
    seeds, tasks = values.shape
    if min(seeds, tasks) < 2:
        return summarise(values.mean(0) if seeds < 2 else values.mean(1))
    values = np.asarray(values, dtype=np.float64)  # sums of squares of thousands of tasks
    with np.errstate(invalid="ignore", over="ignore"):
        mean, by_seed, by_task = values.mean(), values.mean(1), values.mean(0)
        rest = values - by_seed[:, None] - by_task[None] + mean
        free = seeds - 1, tasks - 1
        of_seeds = tasks * np.square(by_seed - mean).sum() / free[0]
        of_rest = np.square(rest).sum() / (free[0] * free[1])
        of_tasks = max(seeds * np.square(by_task - mean).sum() / free[1] - of_rest, 0.0)
        half = math.sqrt(_squared_half_width((float(of_seeds), float(of_tasks)), free) / values.size)
    return {"mean": float(mean), "ci95": half}


def _squared_half_width(parts: tuple[float, float], free: tuple[int, int]) -> float:
    """The square of a 95 % interval's half-width, where a variance has these two parts with these degrees of freedom;
    the first part is the one with few."""
    whole = sum(parts)
    if not (whole > 0 and math.isfinite(whole)):
        return 0.0 if whole == 0 else math.nan
    pooled_free = whole**2 / sum(part**2 / count for part, count in zip(parts, free, strict=True))
    pooled = stdtrit(pooled_free, 0.975) ** 2 * whole
    added = sum(stdtrit(count, 0.975) ** 2 * part for part, count in zip(parts, free, strict=True))
    share = parts[0] / whole
    return float((1 - share) * pooled + share * added)


def of_each_task(values: Shaped[np.ndarray, "m *part"]) -> Shaped[np.ndarray, " m"]:
    """One number for each task: its score, or its part in a calibration error with the signs of the bins held."""
    return values if values.ndim == 1 else values @ np.sign(values.mean(0))


def summarise_share(values: Float[np.ndarray, " m"]) -> Summary:
    """Share of tasks whose value is 1 and not 0, with the longer half of its 95 % interval."""
    share = float(values.mean())
    low, high = share_interval(int(values.sum()), len(values))
    return {"mean": share, "ci95": max(share - low, high - share)}


def share_interval(count: int, total: int) -> tuple[float, float]:
    """The 95 % interval of the share that `count` of `total` are a sample of (Clopper, Pearson, 1934)."""
    low = float(betaincinv(count, total - count + 1, 0.025)) if count else 0.0
    return low, float(betaincinv(count + 1, total - count, 0.975)) if count < total else 1.0


def paired_difference(first: Float[np.ndarray, "*s m"], second: Float[np.ndarray, "*r k"]) -> Summary:
    """How much larger `first` is than `second` on the same tasks, with the interval of the difference itself. Rows, if
    there are any, are training seeds: the interval then allows for other seeds too. Of two numbers of seeds the smaller
    counts; what has one alone, such as a baseline, is the same under all."""
    first, second = np.atleast_2d(first), np.atleast_2d(second)
    tasks = first.shape[1], second.shape[1]
    if tasks[0] != tasks[1]:
        raise ValueError(f"a paired comparison needs the same tasks; got {tasks[0]} and {tasks[1]} of them.")
    seeds = [len(each) for each in (first, second) if len(each) > 1]
    count = min(seeds, default=1)
    return summarise_crossed(first[:count] - second[:count])
