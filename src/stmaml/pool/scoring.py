"""How good the pool and its members are on groups that neither they nor the weights have seen."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from stmaml.errors import RunError
from stmaml.pool.base import Forecast
from stmaml.pool.crossfit import HeldOut, by_fold
from stmaml.pool.mixture import Mixture
from stmaml.pool.pooling import FLOOR, Pooling, learn_pooling
from stmaml.tables.calibration import class_sets

POOL = "pool"
NOMINAL = (0.5, 0.8, 0.9)
RELIABILITY = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""Levels at which intervals are looked at; for sets of classes, those from a half on."""
ByGroup = dict[str, Float[np.ndarray, " _"]]


@dataclass(frozen=True)
class Scored:
    """Scores by group with one number of labelled rows."""

    shots: int
    groups: Int[np.ndarray, " g"]
    rows: dict[str, ByGroup]
    """For the pool and each member, each score of each group."""
    held: dict[str, Float[np.ndarray, " g"]]
    """Of the pool: the share of each group's rows that intervals (or sets) hold before and after, by name."""


Folds = Sequence[tuple[Pooling, Sequence[HeldOut]]]


def fold_poolings(held: Sequence[HeldOut]) -> Folds:
    """What was held out in each fold, with weights and calibration from all other folds."""
    parts = by_fold(held)
    return [(learn_pooling(others), mine) for _, others, mine in parts if all(len(one.tasks) for one in others)]


def score_held_out(folds: Folds, scale: float = 1.0) -> list[Scored]:
    """Scores for each number of labelled rows. `scale` is the spread of the targets, in which those held out are
    measured."""
    parts: list[list[Scored]] = [[] for _ in folds[0][1]] if folds else []
    for pooling, mine in folds:
        for place, one in enumerate(mine):
            if len(one.tasks):
                parts[place].append(score_with(one, pooling, scale))
    return [_joined(some) for some in parts if some]


def _joined(parts: list[Scored]) -> Scored:
    order = np.argsort(np.concatenate([part.groups for part in parts]), kind="stable")

    def together(each: list[ByGroup]) -> ByGroup:
        return {name: np.concatenate([one[name] for one in each])[order] for name in each[0]}

    rows = {row: together([part.rows[row] for part in parts]) for row in parts[0].rows}
    groups = np.concatenate([part.groups for part in parts])[order]
    return Scored(parts[0].shots, groups, rows, together([part.held for part in parts]))


def score_with(held: HeldOut, pooling: Pooling, scale: float) -> Scored:
    """Scores of the pool and its members on tasks that the weights have not seen."""
    score = _score_classes if held.tasks.rows.num_classes else _score_numbers
    return score(held, pooling, scale)


def _score_numbers(held: HeldOut, pooling: Pooling, scale: float) -> Scored:
    shots = np.full(len(held.y), held.shots)
    raw = pooling.mixture(held.forecasts, shots)
    finished = pooling.finished(raw, shots)
    ends = finished.quantiles([(1 + sign * nominal) / 2 for nominal in NOMINAL for sign in (-1, 1)])
    level, before = finished.cdf(held.y), raw.cdf(held.y)
    intervals = {"coverage90": _inside(level, 0.9), "width90": (ends[-1] - ends[-2]) * scale}
    rows = {POOL: {**_number_scores(finished.mixture, held.y, scale), **intervals}}
    for i, name in enumerate(pooling.members):
        if name not in held.forecasts:  # it has no say, and is not kept
            continue
        spread = float(pooling.spread_at(shots[:1])[i, 0])
        rows[name] = _member_scores(held.forecasts[name], held.y, spread, scale)
    shares = {f"{nominal:.0%} before": _inside(before, nominal) for nominal in NOMINAL}
    shares |= {f"{nominal:.0%} after": _inside(level, nominal) for nominal in RELIABILITY}
    shares |= {f"{n:.0%} width": (ends[2 * i + 1] - ends[2 * i]) * scale for i, n in enumerate(NOMINAL)}
    return _by_group(held, rows, shares)


def _member_scores(forecast: Forecast, y: Float[np.ndarray, " n"], spread: float, scale: float) -> ByGroup:
    std = np.sqrt(np.maximum(forecast.variance, FLOOR)) * spread
    alone = Mixture(np.ones((1, len(y))), forecast.mean[None], std[None])
    width = {"coverage90": _inside(alone.cdf(y), 0.9), "width90": 2 * 1.6448536269514722 * std * scale}
    return {**_number_scores(alone, y, scale), **width}


def _number_scores(mixture: Mixture, y: Float[np.ndarray, " n"], scale: float) -> ByGroup:
    return {
        "mse": (mixture.expected() - y) ** 2 * scale**2,
        "nll": np.log(scale) - mixture.log_prob(y),
        "crps": mixture.crps(y) * scale,
    }


def _inside(level: Float[np.ndarray, " n"], nominal: float) -> Float[np.ndarray, " n"]:
    return (np.abs(level - 0.5) <= nominal / 2).astype(float)


def _score_classes(held: HeldOut, pooling: Pooling, scale: float) -> Scored:
    del scale
    shots, truth = np.full(len(held.y), held.shots), held.y.astype(int)
    odds, before = pooling.odds(held.forecasts, shots), pooling.plain_odds(held.forecasts, shots)
    rows = {POOL: _class_scores(odds, truth)}
    rows |= {
        name: _class_scores(held.forecasts[name].mean, truth) for name in pooling.members if name in held.forecasts
    }
    shares = {"before": _class_scores(before, truth)["nll"]}
    recalibration = pooling.calibration.at(held.shots)
    for nominal in (level for level in RELIABILITY if level >= NOMINAL[0]):
        floor = np.full(len(truth), float(recalibration.floor(nominal)))
        inside = np.asarray(class_sets(odds, floor))
        shares[f"{nominal:.0%} holds"] = inside[np.arange(len(truth)), truth].astype(float)
        shares[f"{nominal:.0%} size"] = inside.sum(1).astype(float)
    return _by_group(held, rows, shares)


def _class_scores(odds: Float[np.ndarray, "n c"], truth: Int[np.ndarray, " n"]) -> ByGroup:
    of_truth = odds[np.arange(len(truth)), truth]
    return {"accuracy": (odds.argmax(1) == truth).astype(float), "nll": -np.log(np.maximum(of_truth, 1e-12))}


def _by_group(held: HeldOut, rows: dict[str, ByGroup], shares: ByGroup) -> Scored:
    """Rows' scores as means of each group, over all its tasks."""
    groups, place = np.unique(held.tasks.group, return_inverse=True)
    of_row = place[held.tasks.task]
    count = np.bincount(of_row)

    def mean(values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " g"]:
        return np.bincount(of_row, values) / count

    means = {row: {name: mean(values) for name, values in each.items()} for row, each in rows.items()}
    return Scored(held.shots, groups, means, {name: mean(values) for name, values in shares.items()})


def scored_arrays(scored: Sequence[Scored]) -> dict[str, np.ndarray]:
    """As arrays to be saved; what a name is made of stands between bars."""
    found = {}
    for one in scored:
        found[f"{one.shots}|groups"] = one.groups
        found |= {f"{one.shots}|rows|{row}|{name}": v for row, each in one.rows.items() for name, v in each.items()}
        found |= {f"{one.shots}|held|{name}": values for name, values in one.held.items()}
    return found


PARTS = {"groups": 0, "rows": 2, "held": 1}
"""How many names follow the kind of an array."""


def scored_from(arrays: dict[str, np.ndarray]) -> list[Scored]:
    """Back from `scored_arrays`; arrays that are not of one number for each group are refused."""
    found: dict[int, Scored] = {}
    for name, values in arrays.items():
        shots, kind, *rest = name.split("|")
        groups = arrays[f"{shots}|groups"]
        if values.shape != (len(groups),) or values.dtype.kind not in "fiub" or len(rest) != PARTS[kind]:
            raise RunError(f"'{name[:60]}' is not a number for each group")
        one = found.setdefault(int(shots), Scored(int(shots), arrays[f"{shots}|groups"], {}, {}))
        if kind == "rows":
            one.rows.setdefault(rest[0], {})[rest[1]] = values
        elif kind == "held":
            one.held[rest[0]] = values
    for one in found.values():
        _check_names(one)
    return list(found.values())


def _check_names(scored: Scored) -> None:
    """Refuses scores of which some are missing."""
    if "before" in scored.held:  # classes
        names, sets = {"accuracy", "nll"}, [nominal for nominal in RELIABILITY if nominal >= NOMINAL[0]]
        held = {"before", *(f"{nominal:.0%} {part}" for nominal in sets for part in ("holds", "size"))}
    else:
        names = {"mse", "nll", "crps", "coverage90", "width90"}
        held = {f"{nominal:.0%} {part}" for nominal in NOMINAL for part in ("before", "width")}
        held |= {f"{nominal:.0%} after" for nominal in RELIABILITY}
    whole = all(set(row) == names for row in scored.rows.values())
    if POOL not in scored.rows or set(scored.held) != held or not whole:
        raise RunError(f"scores with {scored.shots} labelled rows are not complete")
