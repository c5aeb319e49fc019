"""How good a model is on test groups: beside what else a practitioner would use, and whether its intervals hold."""

import importlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from threadpoolctl import threadpool_limits

from stmaml.baselines import (
    Baseline,
    Boosting,
    BoostingConfig,
    OffsetBoosting,
    Pooled,
    SummaryBoosting,
    class_baselines,
    numpy_tasks,
    ridge,
    score_baseline,
    support_mean,
)
from stmaml.benchmarks.base import TaskSet
from stmaml.experiments import TEST_SEED, VAL_SEED
from stmaml.metrics import paired_difference, summarise
from stmaml.progress import Listener
from stmaml.tables.calibration import class_sets, normal_score
from stmaml.tables.fitting import NUM_SAMPLES, Prepared, held_out
from stmaml.tables.groups import GroupTasks, with_shots
from stmaml.tables.heldout import Raw, raw_predictions
from stmaml.tables.model import FewShotModel

NOMINAL = (0.5, 0.8, 0.9)
TEST_TASKS = 600
MAX_TUNING_TASKS = 60
QUICK = BoostingConfig(
    learning_rate=(0.1,), min_samples_leaf=(20,), max_iter=200, max_rows=200_000, tuning_rows=20_000, max_passes=8
)
"""Boosting that takes seconds where a benchmark's grid takes minutes."""


def score(
    model: FewShotModel,
    prepared: Prepared,
    *,
    baselines: tuple[Baseline, ...] | None = None,
    tell: Listener = lambda what, done, total: None,
) -> dict[str, Any]:
    """Scores on test groups by number of labelled rows, of the model and of baselines, and its intervals' coverage."""
    tasks, num_groups = held_out(prepared.test, "table/test", TEST_SEED, TEST_TASKS)
    counts = prepared.shot_counts
    rows: dict[int, dict[str, dict[str, np.ndarray]]] = {}
    coverage: dict[str, Any] = {}
    for number, shots in enumerate(counts):
        tell("scoring", number, len(counts))
        raw = raw_predictions(model.learner, with_shots(tasks, shots), NUM_SAMPLES, TEST_SEED)
        temperature = float(model.calibration.temperature_at(np.array([shots]))[0])
        own = _by_group(raw.scores(temperature), num_groups)
        if model.schema.target.is_class:
            coverage[str(shots)] = _class_coverage(model, raw, shots, temperature, num_groups)
        else:
            intervals = _intervals(model, raw, shots, temperature, num_groups)
            own |= {"coverage90": intervals["90%"]["after"], "width90": intervals["90%"]["width"]}  # what users get
            summaries = {level: {n: summarise(v) for n, v in parts.items()} for level, parts in intervals.items()}
            coverage[str(shots)] = {"temperature": temperature, **summaries}
        rows[shots] = {model.settings.method: own}
    for name, scores in _baseline_scores(prepared, tasks, _chosen(prepared, baselines), counts, tell):
        for shots, values in scores.items():
            rows[shots][name] = _by_group(values, num_groups)
    return {
        "task_set": tasks.name,
        "digest": tasks.digest,
        "test_groups": num_groups,
        "samples": NUM_SAMPLES,
        "scores": {
            str(shots): {name: {m: summarise(v) for m, v in values.items()} for name, values in table.items()}
            for shots, table in rows.items()
        },
        "calibration": coverage,
        "verdict": verdict(rows[counts[-1]], model.settings.method, counts[-1]),
    }


def _chosen(prepared: Prepared, baselines: tuple[Baseline, ...] | None) -> tuple[Baseline, ...]:
    if baselines is not None:
        return baselines
    target = prepared.schema.target
    if target.is_class:
        return class_baselines(len(target.classes), boosting=QUICK)
    plain = Boosting(QUICK)
    return (support_mean(), ridge(), plain, OffsetBoosting(plain), SummaryBoosting(QUICK))


def _by_group(scores: dict[str, Float[np.ndarray, " m"]], num_groups: int) -> dict[str, Float[np.ndarray, " g"]]:
    """The mean over the tasks of each group: tasks of one group are not independent."""
    return {name: values.reshape(-1, num_groups).mean(0) for name, values in scores.items()}


def _baseline_scores(
    prepared: Prepared, tasks: TaskSet, baselines: tuple[Baseline, ...], counts: list[int], tell: Listener
) -> Iterator[tuple[str, dict[int, dict[str, np.ndarray]]]]:
    """Each baseline's name and scores by number of labelled rows. Its settings are chosen for all of them together."""
    val, _ = held_out(prepared.val, "table/val", VAL_SEED, TEST_TASKS)
    examples = [task for shots in counts for task in numpy_tasks(with_shots(val, shots))[:MAX_TUNING_TASKS]]
    train = _pooled(prepared.train)
    importlib.import_module("sklearn.ensemble")  # only what is loaded can be told how many threads to use
    for number, baseline in enumerate(baselines):
        tell(f"fitting {baseline.name}", number, len(baselines))
        # Threads of scikit-learn wait for each other: with a core taken by something else, for thirty times as long.
        with threadpool_limits(max(1, (os.cpu_count() or 1) // 2), "openmp"):
            fitted = baseline.fit(train, examples)
        with threadpool_limits(1, "openmp"):  # for small tasks, threads cost more than they save
            scores = {shots: score_baseline(fitted, with_shots(tasks, shots)).values for shots in counts}
        yield fitted.name, scores


def _pooled(source: GroupTasks) -> Pooled:
    count = np.asarray(source.count)
    y = np.asarray(source.y)
    return Pooled(
        np.asarray(source.x), y[:, 0].astype(float) if y.ndim == 2 else y, np.repeat(np.arange(len(count)), count)
    )


def _share(inside: Shaped[np.ndarray, "m q"], raw: Raw, num_groups: int) -> Float[np.ndarray, " g"]:
    """The mean over the rows of each group."""
    weight = np.asarray(raw.query.weight)
    return ((inside * weight).sum(1) / weight.sum(1)).reshape(-1, num_groups).mean(0)


def _intervals(
    model: FewShotModel, raw: Raw, shots: int, temperature: float, num_groups: int
) -> dict[str, dict[str, Float[np.ndarray, " g"]]]:
    """The share of targets inside central intervals before and after recalibration, and how wide they then are."""
    before, after = raw.normal_scores(1.0), raw.normal_scores(temperature)
    found: dict[str, dict[str, Float[np.ndarray, " g"]]] = {}
    for nominal in NOMINAL:
        ends = np.array([(1 - nominal) / 2, (1 + nominal) / 2])
        plain = normal_score(ends)
        low, high = model.calibration.scores_at(np.array([shots]), ends)[0]
        parts = {
            "before": (before >= plain[0]) & (before <= plain[1]),
            "after": (after >= low) & (after <= high),
            "width": raw.interval(temperature, float(low), float(high)),
        }
        found[f"{nominal:.0%}"] = {name: _share(values, raw, num_groups) for name, values in parts.items()}
    return found


def _class_coverage(model: FewShotModel, raw: Raw, shots: int, temperature: float, num_groups: int) -> dict[str, Any]:
    """The log-score before and after recalibration, and how often sets of classes hold the true one."""
    nll = {part: float(raw.scores(t)["nll"].mean()) for part, t in (("before", 1.0), ("after", temperature))}
    sets = {f"{nominal:.0%}": _set_coverage(model, raw, shots, temperature, nominal) for nominal in NOMINAL[1:]}
    return {
        "temperature": temperature,
        **nll,
        "sets": {
            level: {
                "holds": summarise(_share(holds, raw, num_groups)),
                "size": summarise(_share(size, raw, num_groups)),
            }
            for level, (holds, size) in sets.items()
        },
    }


def _set_coverage(
    model: FewShotModel, raw: Raw, shots: int, temperature: float, nominal: float
) -> tuple[Bool[np.ndarray, "m q"], Int[np.ndarray, "m q"]]:
    """Whether the set of classes holds the true one, and how many it has, in each row."""
    probabilities = raw.probabilities(temperature)
    floor = np.full(probabilities.shape[:2], model.calibration.floor_at(np.array([shots]), nominal)[0])
    inside = class_sets(probabilities, floor)
    truth = np.asarray(raw.query.y)[..., None]
    return np.take_along_axis(inside, truth, axis=-1)[..., 0], inside.sum(-1)


def verdict(rows: dict[str, dict[str, np.ndarray]], method: str, shots: int) -> str:
    """One sentence on whether meta-learning helped, by the differences on the same groups."""
    metric = "mse" if "mse" in rows[method] else "nll"
    others = {name: values[metric] for name, values in rows.items() if name != method}
    if not others:
        return "no baseline was scored, so nothing is said about whether meta-learning helps."
    best = min(others, key=lambda name: others[name].mean())
    gap = paired_difference(rows[method][metric], others[best])
    figures = (
        f"{metric} {rows[method][metric].mean():.4g} against {others[best].mean():.4g} of {best}, the best baseline, "
        f"with {shots} labelled rows ({len(others[best])} test groups)"
    )
    if not np.isfinite(gap["ci95"]) or abs(gap["mean"]) <= gap["ci95"]:
        return f"meta-learning makes no clear difference on this table: {figures}."
    if gap["mean"] < 0:
        return f"meta-learning helps on this table: {figures}."
    return f"meta-learning does not help on this table: {figures}."
