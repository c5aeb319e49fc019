"""What labelled rows of a group say of its other rows, in closed form."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy import linalg

from stmaml.pool.base import Forecast, Tasks
from stmaml.pool.mixed.at_once import root_of, tasks_at_once
from stmaml.pool.mixed.fit import Model


@dataclass(frozen=True)
class Views:
    """Rows as linear functions of independent standard normal unknowns, in units of the noise."""

    mean: Float[np.ndarray, " n"]
    unknown: Float[np.ndarray, "n k"]
    codes: Int[np.ndarray, "n a"]


@dataclass(frozen=True)
class Answer:
    """About the asked rows of a task, in units of the noise."""

    mean: Float[np.ndarray, " q"]
    variance: Float[np.ndarray, " q"]
    squares: float
    """Of the labelled rows' residuals, and their degrees of freedom."""
    dof: float


def predict(model: Model, tasks: Tasks) -> Forecast:
    """The expected targets and their variances, task after task."""
    used = np.unique(np.concatenate([*tasks.support, *tasks.query, np.zeros(0, dtype=int)])).astype(int)
    place = np.zeros(len(tasks.rows.y), dtype=int)
    place[used] = np.arange(len(used))
    views = views_of(model, tasks.rows.x[used], tasks.rows.levels[used])
    target = (tasks.rows.y[used] - model.center) / model.scale - views.mean
    support, query = [place[rows] for rows in tasks.support], [place[rows] for rows in tasks.query]
    if not query:
        return Forecast(np.zeros(0), np.zeros(0), np.zeros(0))
    if views.codes.shape[1]:
        parts = [_task(model, views, target, s, q) for s, q in zip(support, query, strict=True)]
        mean, task, noise = (np.concatenate(part) for part in zip(*parts, strict=True))
    else:
        mean, task, noise = tasks_at_once(model.noise, views.unknown, target, support, query)
        mean = mean + views.mean[np.concatenate(query)]
    return Forecast(model.center + model.scale * mean, model.scale**2 * task, model.scale**2 * noise)


def views_of(model: Model, x: Float[np.ndarray, "n d"], levels: Int[np.ndarray, "n a"]) -> Views:
    """Rows seen by a model."""
    scaled, codes = model.design.scaled(x), model.design.levels.codes(levels)
    common, mean = model.design.common(scaled), np.zeros(len(x))
    mean = common @ model.beta
    for code in codes.T:
        known = np.flatnonzero(code >= 0)
        mean[known] += model.level_mean[code[known]]
        common[known] += model.level_lean[code[known]]
    own = model.design.own(scaled, model.own) @ model.factor
    return Views(mean, np.concatenate([common @ model.half, own], axis=1), codes)


def _task(
    model: Model, views: Views, target: np.ndarray, support: np.ndarray, query: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, task variance and noise variance of the asked rows."""
    support = support[np.isfinite(target[support])]
    told, asked = views.unknown[support], views.unknown[query]
    extra_told, extra_asked = np.zeros(len(support)), np.zeros(len(query))
    if views.codes.shape[1]:
        both = np.concatenate([support, query])
        shared, alone = _of_levels(model, views.codes[both])
        told = np.concatenate([told, shared[: len(support)]], axis=1)
        asked = np.concatenate([asked, shared[len(support) :]], axis=1)
        extra_told, extra_asked = alone[: len(support)], alone[len(support) :]
    ratio = model.noise.shrunk(0.0, 0.0)
    answer = _answer(told, asked, target[support], 1.0 + extra_told)
    if len(support):
        ratio = model.noise.shrunk(answer.squares, answer.dof)
        if ratio != 1.0:
            answer = _answer(told, asked, target[support], ratio + extra_told)
    return answer.mean + views.mean[query], answer.variance + extra_asked, np.full(len(query), ratio)


def _of_levels(model: Model, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What is unknown of rows' levels: columns for levels that rows share, and variances of unseen crossed ones."""
    shared, alone = [np.zeros((len(codes), 0))], np.zeros(len(codes))
    for index, code in enumerate(codes.T):
        values = np.unique(code)
        spread = np.append(model.level_spread, model.unseen_spread[index])[values]  # -1 is the last
        if not model.design.levels.outer[index]:
            alone += np.where(code < 0, model.unseen_spread[index] ** 2, 0.0)
            spread = np.where(values < 0, 0.0, spread)
        shared.append((code[:, None] == values) * spread)
    return np.concatenate(shared, axis=1), alone


def _answer(told: np.ndarray, asked: np.ndarray, target: np.ndarray, noise: np.ndarray) -> Answer:
    """Normal conditioning; many rows are first folded into as many as there are unknowns."""
    prior = (asked**2).sum(axis=1)
    if len(told) == 0:
        return Answer(np.zeros(len(asked)), prior, 0.0, 0.0)
    weight = 1.0 / np.sqrt(noise)
    told, target = told * weight[:, None], target * weight
    rest, dof = 0.0, max(len(told) - told.shape[1], 0)
    if dof > 1:
        folded = np.asarray(np.linalg.qr(np.concatenate([told, target[:, None]], axis=1), mode="r"))
        told, target, rest = folded[:-1, :-1], folded[:-1, -1], float(folded[-1, -1] ** 2)
    else:
        dof = 0
    root = root_of(told @ told.T + np.eye(len(told)))
    solved = linalg.solve_triangular(
        root,
        np.concatenate([told @ asked.T, target[:, None], np.eye(len(told))], axis=1),
        lower=True,
        check_finite=False,
    )
    across, own, inverse = solved[:, : len(asked)], solved[:, len(asked)], solved[:, len(asked) + 1 :]
    squares = float(((inverse.T @ own) ** 2).sum()) + rest
    variance = np.maximum(prior - (across**2).sum(axis=0), 0.0)
    return Answer(across.T @ own, variance, squares, float((inverse**2).sum()) + dof)
