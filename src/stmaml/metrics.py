"""Scores of a prediction against the truth, and their intervals: arrays in, numbers out."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from stmaml.prediction import CategoricalOutcome, NormalOutcome, Prediction
from stmaml.tasks import weighted_mean

Summary = dict[str, float]


def score_task(
    prediction: Prediction,
    y: Shaped[Array, "n *dy"],
    weight: Float[Array, " n"],
    clean: Float[Array, "n dy"] | None = None,
) -> dict[str, Float[Array, ""]]:
    """Every score that fits the kind of target, averaged over the query examples of one task."""
    if isinstance(prediction.components, NormalOutcome):
        each = _real_scores(prediction, y, clean)
    elif isinstance(prediction.components, CategoricalOutcome):
        each = _class_scores(prediction, y)
    else:
        each = {"bce": -prediction.log_prob(y) / y.shape[-1], "mse": jnp.square(prediction.mean - y).mean(-1)}
    return {name: weighted_mean(values, weight) for name, values in each.items()}


def _real_scores(
    prediction: Prediction, y: Float[Array, "n dy"], clean: Float[Array, "n dy"] | None
) -> dict[str, Float[Array, " n"]]:
    cdf = prediction.cdf(y)
    low, high = prediction.quantiles(jnp.array([0.05, 0.95]))
    scores = {
        "mse": jnp.square(prediction.mean - y),
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
