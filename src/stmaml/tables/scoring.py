"""How good a model is on test groups: beside what else a practitioner would use, and whether its intervals hold."""

import importlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
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
from stmaml.benchmarks.base import TABLE, VAL_SEED, Benchmark
from stmaml.benchmarks.sources import in_turn
from stmaml.comparison import compare
from stmaml.conditions import Conditions
from stmaml.evaluation import Scores
from stmaml.experiments import EvaluateConfig, Test, evaluate_run, save_scores, summarise_scores, tests_of
from stmaml.progress import tell
from stmaml.runs import Run
from stmaml.tables.aftercare import NOMINAL, NUM_SAMPLES, load_calibration
from stmaml.tasks import TaskSpec

MAX_TUNING_TASKS = 60
QUICK = BoostingConfig(
    learning_rate=(0.1,), min_samples_leaf=(20,), max_iter=200, max_rows=200_000, tuning_rows=20_000, max_passes=8
)
"""Boosting that takes seconds where a benchmark's grid takes minutes."""
USUAL = EvaluateConfig(samples=NUM_SAMPLES)
_VERDICTS = {"better": "helps", "worse": "does not help", "unclear": "makes no clear difference"}
OLD_RESULT = "test-groups"  # under this name 0.1.0 kept all scores of a run


def score_table(
    run: Run, benchmark: Benchmark, *, config: EvaluateConfig = USUAL, baselines: tuple[Baseline, ...] | None = None
) -> dict[str, Any]:
    """Scores a run on test groups by number of labelled rows, and baselines beside it, which are the usual ones if not
    given; all are kept in the run, and what was kept before of the same tests is shown too."""
    tests = tests_of(benchmark, TABLE, config)
    evaluate_run(run, config, benchmark, tests)
    chosen = usual_baselines(benchmark.train.spec) if baselines is None else baselines
    for place, (name, scores) in enumerate(_rival_scores(benchmark, tests, chosen), start=1):
        for test, one in zip(tests, scores, strict=True):
            summary = {**summarise_scores(run, test, benchmark, one), "row": name, "place": place}
            save_scores(run, test, summary, one)
    said = _said(run, tests[-1], keep=replace(config, shots=None) == USUAL)
    return {**_result(run, _kept(run, *tests).values()), "verdict": said}


def usual_baselines(spec: TaskSpec) -> tuple[Baseline, ...]:
    """What a practitioner would try first."""
    if spec.target == "class":
        return class_baselines(spec.y_size, boosting=QUICK)
    plain = Boosting(QUICK)
    return (support_mean(), ridge(), plain, OffsetBoosting(plain), SummaryBoosting(QUICK))


def _rival_scores(
    benchmark: Benchmark, tests: list[Test], baselines: tuple[Baseline, ...]
) -> Iterator[tuple[str, list[Scores]]]:
    """Each baseline's name and its scores on each test. Its settings are chosen for all of them together."""
    if not baselines:
        return
    source: Any = benchmark.val
    val = in_turn(source, source.num_groups, benchmark.test_tasks, seed=VAL_SEED)
    shots = [test.shots or 0 for test in tests]
    examples = [task for count in shots for task in numpy_tasks(val.with_shots(count))[:MAX_TUNING_TASKS]]
    assert benchmark.rows is not None
    train = Pooled(*benchmark.rows.pooled(QUICK.max_rows, 0))
    importlib.import_module("sklearn.ensemble")  # only what is loaded can be told how many threads to use
    for number, baseline in enumerate(baselines):
        tell(f"fitting {baseline.name}", number, len(baselines))
        # Threads of scikit-learn wait for each other: with a core taken by something else, for thirty times as long.
        with threadpool_limits(max(1, (os.cpu_count() or 1) // 2), "openmp"):
            fitted = baseline.fit(train, examples)
        with threadpool_limits(1, "openmp"):  # for small tasks, threads cost more than they save
            yield fitted.name, [score_baseline(fitted, test.tasks) for test in tests]


def saved_result(run: Run) -> dict[str, Any] | None:
    """What the usual test of a run said; none if it has not been to its end."""
    found = run.scores()
    if OLD_RESULT in found:
        return found[OLD_RESULT]
    last = next((summary for summary in found.values() if "note" in summary), None)
    return None if last is None else _result(run, [s for s in found.values() if _test_of(s) == _test_of(last)])


def _test_of(summary: dict[str, Any]) -> tuple[Any, ...]:
    """What scores with different numbers of labelled rows share."""
    return Conditions.from_json(summary["conditions"]).without("shots"), summary["digest"]


def _result(run: Run, summaries: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What these scores of a run say, by number of labelled rows, in the order in which they were made."""
    ordered = sorted(summaries, key=lambda summary: (summary.get("place", 0), _shots(summary)))
    own = [summary for summary in ordered if not summary.get("row")]
    table: dict[str, Any] = {}
    for summary in ordered:
        row = summary.get("row") or summary["method"]
        table.setdefault(str(_shots(summary)), {})[row] = summary["metrics"]
    calibration = load_calibration(run.folder)
    return {
        "task_set": own[-1]["task_set"],
        "digest": own[-1]["digest"],
        "test_groups": own[-1]["conditions"]["tasks"]["groups"],
        "samples": own[-1]["samples"],
        "scores": table,
        "calibration": {
            str(_shots(s)): {"temperature": float(calibration.at(_shots(s)).temperature), **_held(s)} for s in own
        },
        "verdict": own[-1].get("note", ""),
    }


def _shots(summary: dict[str, Any]) -> int:
    return summary["conditions"]["tasks"]["shots"]


def _held(summary: dict[str, Any]) -> dict[str, Any]:
    """Before and after recalibration, by the names people read; see `aftercare.Judge`."""
    held = summary["extra"]["held"]
    each = [{"mean": mean, "ci95": half} for mean, half in zip(held["mean"], held["ci95"], strict=True)]
    if "accuracy" in summary["metrics"]:
        sets = {f"{nominal:.0%}": each[1 + 2 * i : 3 + 2 * i] for i, nominal in enumerate(NOMINAL[1:])}
        after = summary["metrics"]["nll"]["mean"]
        named = {level: {"holds": holds, "size": size} for level, (holds, size) in sets.items()}
        return {"before": each[0]["mean"], "after": after, "sets": named}
    parts = ("before", "after", "width")
    return {
        f"{nominal:.0%}": dict(zip(parts, each[3 * i : 3 * i + 3], strict=True)) for i, nominal in enumerate(NOMINAL)
    }


def _kept(run: Run, *tests: Test) -> dict[str, dict[str, Any]]:
    """The summaries of all that was scored on these tests, by name."""
    names = tuple(test.name() for test in tests)
    return {name: summary for name, summary in run.scores().items() if name.startswith(names)}


def _said(run: Run, test: Test, *, keep: bool) -> str:
    """What the scores of a test say about meta-learning; with most labelled rows it may be kept beside them."""
    kept = _kept(run, test)
    rows = {summary.get("row") or summary["method"]: run.score_arrays(name) for name, summary in kept.items()}
    own = kept[test.name()]
    sentence = verdict(rows, own["method"], test.shots or 0)
    note = f"{sentence[0].upper()}{sentence[1:]}"
    if keep and test.shots == load_calibration(run.folder).shots[-1]:
        run.save_scores(test.name(), {**own, "note": note}, rows[own["method"]])
    return note


def verdict(rows: dict[str, dict[str, np.ndarray]], method: str, shots: int) -> str:
    """One sentence on whether meta-learning helped, by the differences on the same groups from all baselines: where
    there is none, one in twenty tables at most is said to have one."""
    metric = "mse" if "mse" in rows[method] else "nll"
    others = {name: values[metric] for name, values in rows.items() if name != method}
    if not others:
        return "no baseline was scored, so nothing is said about whether meta-learning helps."
    best = min(others, key=lambda name: others[name].mean())
    difference = compare(rows[method][metric], np.stack(list(others.values())))
    figures = (
        f"{metric} {rows[method][metric].mean():.4g} against {others[best].mean():.4g} of {best}, the best baseline, "
        f"with {shots} labelled rows ({len(others[best])} test groups)"
    )
    return f"meta-learning {_VERDICTS[difference]} on this table: {figures}."
