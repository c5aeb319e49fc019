"""Successive halving (Jamieson, Talwalkar, "Non-stochastic Best Arm Identification", 2016): all trials are trained for
a little, the best third anew for three times as long. Every choice is made on validation tasks."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax.random as jr
import numpy as np

from stmaml.benchmarks.base import SEARCH_SEED, Benchmark
from stmaml.benchmarks.sources import TaskSet
from stmaml.border.run_content import check_search
from stmaml.border.writing import write_json
from stmaml.errors import RunError, at_least
from stmaml.evaluation import evaluate
from stmaml.methods.base import AbstractMetaLearner
from stmaml.metric_table import metric
from stmaml.provenance import provenance
from stmaml.recipes import RECIPES, Experiment
from stmaml.recipes.base import setting, with_changes
from stmaml.recipes.rows import row_recipe
from stmaml.run_files import read_json
from stmaml.search.grid import INNER_STEPS, TEST_FACTORS, TEST_STEPS, Trial, draw_trials, near_trials, space_of
from stmaml.search.side_by_side import Varied, train_group

FILE = "search.json"
TASKS_AT_ONCE = 500
Record = dict[str, Any]
Train = Callable[..., Sequence[Sequence[AbstractMetaLearner]]]
"""Trials of one group, `tasks` and `width` -> a learner of each for every benchmark that is searched."""
Judge = Callable[[Trial, Sequence[Any]], Record]
"""A trial and its learners -> the trial with its scores."""


@dataclass(frozen=True)
class Search:
    """A search for the settings of one row of a table; its budget is the same for every row."""

    trials: int = 24
    """Trials of the first round."""
    tasks: int = 150_000
    """Training tasks of a trial in the first round; each later round has `keep` times as many."""
    rounds: int = 2
    """Rounds; in each, one in `keep` of the trials goes on, trained anew."""
    keep: int = 3
    """One in so many trials goes on."""
    near: int = 0
    """Trials after the last round, as long as its own: Muon, one step of the grid around the best cell."""
    tasks_per_batch: int = 100
    """Tasks in a meta-step."""
    inner_steps: tuple[int, ...] = (5, 10)
    """Inner steps in training that are tried; in the test, also twice and four times as many."""
    val_tasks: int = 2000
    """Validation tasks that judge a trial."""
    val_draws: int = 20
    """Predictors sampled for each of them."""

    def __post_init__(self):
        at_least(1, trials=self.trials, tasks=self.tasks, rounds=self.rounds, tasks_per_batch=self.tasks_per_batch)
        at_least(1, val_tasks=self.val_tasks, val_draws=self.val_draws)
        at_least(2, keep=self.keep)
        at_least(1, inner_steps=min(self.inner_steps, default=0))

    def run(self, benchmark: str, row: str, folder: Path, **changes: Any) -> Record:
        """All trials, those kept in `folder` from before not again; `changes` are to settings of the benchmark."""
        base = with_changes(
            self.start(benchmark, row), {f"benchmark_settings.{name}": value for name, value in changes.items()}
        )
        judge = _Judge.of(base, self)
        train = partial(train_group, base, benchmarks=judge.benchmarks)
        return self.halve(base, row, folder, train, judge, together=judge.together)

    def start(self, benchmark: str, row: str) -> Experiment:
        """What all trials of a row have in common."""
        return with_changes(row_recipe(RECIPES, benchmark, row), {"training.tasks_per_batch": self.tasks_per_batch})

    def halve(
        self, base: Experiment, row: str, folder: Path, train: Train, judge: Judge, *, together: bool = True
    ) -> Record:
        """`run` for settings that are at hand, with trials trained and judged as the caller says, side by side or each
        by itself."""
        record = self._opened(base, row, folder)
        trials = draw_trials(base, self.trials, self.inner_steps)
        widths = _count(trial.group for trial in trials)
        how = (train, judge, widths if together else dict.fromkeys(widths, 1))
        for number in range(self.rounds):
            self._round(number, trials, how, record, folder)
            trials = _best(_of_round(record, number), trials, max(1, len(trials) // self.keep))
        last = _of_round(record, self.rounds - 1)
        if self.near:
            tried = [Trial(one["settings"], one["seed"]) for one in record["trials"] if one["round"] < self.rounds]
            trials = near_trials(space_of(base, self.inner_steps), tried, _cells(last)[0][1], self.near)
            self._round(self.rounds, trials, how, record, folder)
            last += _of_round(record, self.rounds)
        record["chosen"] = _chosen(base, last)
        write_json(folder / FILE, record)
        return record

    def _opened(self, base: Experiment, row: str, folder: Path) -> Record:
        space = {path: list(values) for path, values in space_of(base, self.inner_steps).items()}
        budget = asdict(self) | {"inner_steps": list(self.inner_steps)}  # as JSON has it
        asked = {"benchmark": base.benchmark, "row": row, "grid": space, "budget": budget}
        path = folder / FILE
        if not path.exists():
            return {**provenance(), **asked, "trials": []}
        record = check_search(read_json(path))
        if any(record.get(name) != value for name, value in asked.items()):
            raise RunError(f"{path} is of another search. Choose another --out, or remove it.")
        return record

    def _round(
        self,
        number: int,
        trials: Sequence[Trial],
        how: tuple[Train, Judge, Mapping[Any, int]],
        record: Record,
        folder: Path,
    ) -> None:
        """Trains and judges the trials of a round, group by group, and keeps what came out after each."""
        tasks, (train, judge, widths) = self.tasks * self.keep ** min(number, self.rounds - 1), how
        done = [Trial(one["settings"], one["seed"]) for one in _of_round(record, number)]
        for group in dict.fromkeys(trial.group for trial in trials):
            mine = [trial for trial in trials if trial.group == group and trial not in done]
            width = widths[group]
            for some in _in_parts(mine, width):
                began = time.monotonic()
                learners = train(some, tasks=tasks, width=width)
                took = round((time.monotonic() - began) / len(some), 2)
                about = {"round": number, "tasks": tasks, "seconds": took}
                record["trials"] += [about | judge(*pair) for pair in zip(some, learners, strict=True)]
                write_json(folder / FILE, record)


def _in_parts(trials: Sequence[Trial], size: int) -> Iterable[Sequence[Trial]]:
    return (trials[i : i + size] for i in range(0, len(trials), size))


@dataclass(frozen=True)
class _Judge:
    """Scores trials on validation tasks."""

    base: Experiment
    benchmarks: list[Benchmark]
    tasks: list[TaskSet]
    draws: int

    @staticmethod
    def of(base: Experiment, search: Search) -> "_Judge":
        first = base.benchmark_settings.open()
        opened = [first.vary(settings) for settings in base.benchmark_settings.searched()]
        tests = [first.vary(each.settings.at_test(base.benchmark)) for each in opened]
        sets = [each.choosing_set(search.val_tasks) for each in tests]
        return _Judge(base, opened, sets, search.val_draws)

    @property
    def together(self) -> bool:
        """Whether trials train side by side; networks for pictures fill a device by themselves."""
        return not self.benchmarks[0].train.spec.is_image

    def __call__(self, trial: Trial, learners: Sequence[Varied]) -> Record:
        """The trial with its scores."""
        return best_of(trial, lambda steps: self._scored(steps, learners))

    def _scored(self, steps: int | None, learners: Sequence[Varied]) -> Record:
        ready = learners if steps is None else [learner.with_steps(steps) for learner in learners]
        each = [self._means(learner, tasks) for learner, tasks in zip(ready, self.tasks, strict=True)]
        judged = metric(self.base.training.val_metric)
        score = joint([judged.badness(one[judged.name]) for one in each])
        return {"test_steps": steps, "score": score, "scores": each}

    def _means(self, learner: Varied, tasks: TaskSet) -> dict[str, float]:
        at_once = min(TASKS_AT_ONCE, tasks.num_tasks)
        scores = evaluate(learner, tasks, num_samples=self.draws, key=jr.key(SEARCH_SEED), tasks_at_once=at_once)
        means = {name: summary["mean"] for name, summary in scores.summary().items()}
        return {name: round(mean, 5) if math.isfinite(mean) else math.inf for name, mean in means.items()}


def best_of(trial: Trial, scored: Callable[[int | None], Record]) -> Record:
    """The trial with its scores, at that number of inner steps in the test that suits it best."""
    own = trial.settings.get(INNER_STEPS)
    options = [None] if own is None else [own * factor for factor in TEST_FACTORS]
    found = [scored(steps) for steps in options]
    best = min(found, key=lambda one: one["score"])
    return {"settings": trial.settings, "seed": trial.seed, **best, "tested": found if len(found) > 1 else []}


def joint(values: Sequence[float]) -> float:
    """One number for a trial: of several errors, whose sizes may differ, the geometric mean."""
    if len(values) == 1:
        return values[0]
    return float(np.exp(np.mean(np.log(values))))


def _of_round(record: Record, number: int) -> list[Record]:
    return [one for one in record["trials"] if one["round"] == number]


def _count(groups: Iterable[Any]) -> dict[Any, int]:
    counts: dict[Any, int] = {}
    for group in groups:
        counts[group] = counts.get(group, 0) + 1
    return counts


def _cells(found: Sequence[Record]) -> list[tuple[float, dict[str, Any], list[Record]]]:
    """The cells that were tried, the best first: mean score over seeds, settings, trials."""
    settings = [
        one["settings"] for i, one in enumerate(found) if one["settings"] not in [f["settings"] for f in found[:i]]
    ]
    by_cell = [(each, [one for one in found if one["settings"] == each]) for each in settings]
    scored = [(float(np.mean([one["score"] for one in some])), each, some) for each, some in by_cell]
    return sorted(scored, key=lambda cell: cell[0])


def _best(found: Sequence[Record], trials: Sequence[Trial], count: int) -> list[Trial]:
    """The trials of the best cells."""
    order = [Trial(one["settings"], one["seed"]) for _, _, some in _cells(found) for one in some]
    return [trial for trial in order if trial in trials][:count]


def _chosen(base: Experiment, last: Sequence[Record]) -> Record:
    """The best cell of the last trials, as settings by their paths."""
    score, settings, some = _cells(last)[0]
    steps = min(some, key=lambda one: one["score"])["test_steps"]
    differs = steps is not None and steps != setting(with_changes(base, settings), INNER_STEPS)
    return {"settings": {**settings, **({TEST_STEPS: steps} if differs else {})}, "score": score}


@dataclass(frozen=True)
class Searching:
    """The search for one row, to be run by another process."""

    search: Search
    benchmark: str
    row: str
    changes: dict[str, Any] = field(default_factory=dict)
    """To settings of the benchmark."""

    def __call__(self, folder: Path) -> Record:
        """What the search chose; trials that are kept in the folder are not run again."""
        return self.search.run(self.benchmark, self.row, folder, **self.changes)["chosen"]


def collect(folder: Path) -> Record:
    """What all searches in a folder chose, by row, with where each comes from: the file a recipe is read from."""
    rows = {}
    for path in sorted(folder.glob(f"*/{FILE}")):
        record = check_search(read_json(path))
        if "chosen" in record:
            origin = {name: record.get(name) for name in ("created", "device", "versions", "budget")}
            rows[record["row"]] = {**record["chosen"], "trials": len(record["trials"]), "search": origin}
    if not rows:
        raise RunError(f"{folder} holds no finished search. Run 'stmaml search' first.")
    return {"rows": rows}
