"""Scores of a prediction against the truth, and their intervals: arrays in, numbers out."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from stmaml.prediction import BernoulliOutcome, CategoricalOutcome, Prediction
from stmaml.tasks import weighted_mean

Summary = dict[str, float]
CALIBRATION_BINS = 15


def score_task(
    prediction: Prediction,
    y: Shaped[Array, "n *dy"],
    weight: Float[Array, " n"],
    clean: Float[Array, "n dy"] | None = None,
    seen: Float[Array, " n"] | None = None,
) -> dict[str, Float[Array, ""]]:
    """Every score that fits the kind of target, averaged over the query examples of one task.

    `seen` is 1 for query examples that are in the support too; targets in 0..1 are also scored on the others alone.
    """
    if isinstance(prediction.components, BernoulliOutcome):
        return _binary_scores(prediction, prediction.components, y, weight, seen)
    if isinstance(prediction.components, CategoricalOutcome):
        each = _class_scores(prediction, y)
    else:
        each = _real_scores(prediction, y, clean)
    return {name: weighted_mean(values, weight) for name, values in each.items()}


def _real_scores(
    prediction: Prediction, y: Float[Array, "n dy"], clean: Float[Array, "n dy"] | None
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


def _class_scores(prediction: Prediction, y: Shaped[Array, " n"]) -> dict[str, Float[Array, " n"]]:
    right = prediction.mean.argmax(-1) == y
    return {"accuracy": right.astype(float), "nll": -prediction.log_prob(y)}


def calibration_gaps(
    probabilities: Float[Array, "n c"], y: Int[Array, " n"], weight: Float[Array, " n"]
) -> Float[Array, " bins"]:
    """By how much confidence exceeds accuracy in each of the bins of confidence, as shares of one task's examples.

    Bins are of equal width and closed above (Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks",
    2017). `calibration_error` makes one number of many tasks' gaps.
    """
    confidence = probabilities.max(-1)
    surplus = confidence - (probabilities.argmax(-1) == y)
    bins = jnp.clip(jnp.ceil(confidence * CALIBRATION_BINS) - 1, 0, CALIBRATION_BINS - 1)
    members = (bins[:, None] == jnp.arange(CALIBRATION_BINS)[None]).astype(surplus.dtype)
    return weighted_mean(members * surplus[:, None], weight)


def calibration_error(gaps: Float[np.ndarray, "m bins"]) -> Summary:
    """The expected calibration error of all tasks together, each counting the same, with its 95 % interval.

    The error is the sum over bins of the distance between mean confidence and accuracy. With the sign of each bin's
    mean gap held, it is the mean over tasks of one number each, whose spread gives the interval.
    """
    return summarise(gaps @ np.sign(gaps.mean(0)))


def _binary_scores(
    prediction: Prediction,
    outcome: BernoulliOutcome,
    y: Float[Array, "n dy"],
    weight: Float[Array, " n"],
    seen: Float[Array, " n"] | None,
) -> dict[str, Float[Array, ""]]:
    """Cross-entropies of targets in 0..1, which may be grey: of averaged probabilities, of one draw, of whole sets."""
    single = -outcome.log_prob(y[None]) / y.shape[-1]  # [s, n]
    count = jnp.log(prediction.num_samples)
    log_one = jax.nn.logsumexp(jax.nn.log_sigmoid(outcome.logits), axis=0) - count
    log_zero = jax.nn.logsumexp(jax.nn.log_sigmoid(-outcome.logits), axis=0) - count
    bce = -(y * log_one + (1 - y) * log_zero).mean(-1)
    whole = (
        jax.nn.logsumexp(-(single * weight[None]).sum(-1)) - count
    )  # log of the mean over samples of the set's density
    scores = {
        "bce": weighted_mean(bce, weight),
        "bce_single": weighted_mean(single.mean(0), weight),
        "mse": weighted_mean(jnp.square(prediction.mean - y).mean(-1), weight),
        "nll": -whole / jnp.maximum(weight.sum(), 1.0),
        "diversity": weighted_mean(prediction.task_std.mean(-1), weight),
    }
    return scores if seen is None else {**scores, "bce_unseen": weighted_mean(bce, weight * (1 - seen))}


def summarise(values: Float[np.ndarray, " m"]) -> Summary:
    """Mean over tasks, with the half-width of its 95 % interval."""
    return {"mean": float(values.mean()), "ci95": _half_width(values)}


def summarise_seeds(means: Float[np.ndarray, " s"]) -> Summary:
    """Mean over training seeds, with the half-width of its 95 % interval by Student's t."""
    half = _student(len(means) - 1) * float(means.std(ddof=1)) / len(means) ** 0.5 if len(means) > 1 else float("nan")
    return {"mean": float(means.mean()), "ci95": half}


def _student(freedom: int) -> float:
    """The 97.5 % point of Student's t: tabled where few degrees of freedom count, else by Cornish and Fisher."""
    tabled = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
    return tabled.get(freedom, 1.96 + 2.372 / freedom + 2.823 / freedom**2)


def paired_difference(first: Float[np.ndarray, " m"], second: Float[np.ndarray, " k"]) -> Summary:
    """How much larger `first` is than `second` on the same tasks, with the interval of the difference itself."""
    if len(first) != len(second):
        raise ValueError(f"a paired comparison needs the same tasks; got {len(first)} and {len(second)} of them.")
    return summarise(first - second)


def _half_width(values: Float[np.ndarray, " m"]) -> float:
    return float(1.96 * values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else float("nan")
