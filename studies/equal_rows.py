"""The table of 2D regression on equal terms: one search for every row, then training and scores on both ranges.

    python studies/equal_rows.py ahead FOLDER ROW ... --programs PROGRAMS       compiles for a GPU that is not here
    python studies/equal_rows.py ahead-train FOLDER ROW ... --programs PROGRAMS     what trains and scores, after it
    python studies/equal_rows.py check FOLDER ROW --programs PROGRAMS           fails where such a program does not run
    python studies/equal_rows.py search FOLDER ROW ... [--until UNIX_SECONDS]   FOLDER/search/ROW/search.json
    python studies/equal_rows.py train FOLDER ROW ... [--tasks 5000000]         FOLDER/states, FOLDER/rows/ROW.json

What is trained is what a search in FOLDER chose, or else what the package has from one. All stages go on where they
were stopped. Several processes may share a FOLDER: each takes the next row that nobody has.
A row trains six learners side by side: in the search three trials on both ranges of inputs, then three seeds on both,
with the very same compiled program, in which rates and weights are numbers."""

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from ahead import Programs
from clock import falling, parameters
from resumed import OutOfTime, claimed, files_of, keep, kept
from training_rows import here, on_host

from stmaml.benchmarks.base import SEARCH_SEED, TEST_SEED, Benchmark
from stmaml.benchmarks.regression2d import RANGES
from stmaml.benchmarks.sources import TaskSet
from stmaml.border.writing import write_json
from stmaml.evaluation import score_batch
from stmaml.methods.wrapper import method_of, with_inner
from stmaml.metrics import of_each_task, summarise_crossed
from stmaml.recipes import Experiment
from stmaml.recipes.base import with_changes
from stmaml.recipes.rows import chosen
from stmaml.run_files import read_json
from stmaml.search.grid import INNER_STEPS, OUTER_LR, TEST_FACTORS, TEST_STEPS, Trial, draw_trials
from stmaml.search.halving import FILE, Search, best_of, joint
from stmaml.search.side_by_side import Varied, level, stacked, varied
from stmaml.training import TrainConfig, initial_state
from stmaml.training.state import State, bundle, unbundle
from stmaml.training.steps import run_each

CHUNK = 50  # steps in one call, over which the step size stays level
TRAINED_STEPS = 5  # inner steps in training
SEEDS = 3  # of the table; in the search, trials side by side
AT_ONCE = 1000  # tasks scored in one call
SAVED_EVERY = 45  # seconds
FEW = 120_000  # weights of a learner that is kept
DRAWS = (20, 1)
TOLD = ("mse", "mse_clean", "nll", "crps", "coverage90")


@dataclass
class Row:
    """A row of the table, with all that its programs need."""

    name: str
    search: Search
    programs: Programs
    until: float
    ranges: Sequence[tuple[float, float]] = RANGES
    base: Experiment = field(init=False)
    opened: list[Benchmark] = field(init=False)

    def __post_init__(self):
        self.base = self.search.start("regression2d", self.name)
        ranges = [with_changes(self.base, {"benchmark_settings.input_range": extent}) for extent in self.ranges]
        self.opened = [one.benchmark_settings.open() for one in ranges]

    def begun(self, trials: Sequence[Trial]) -> "Lanes":
        """Fresh learners of SEEDS trials of one group on each range of inputs; the last is repeated where there are
        fewer."""
        padded = [*trials, *[trials[-1]] * (SEEDS - len(trials))]
        config = level(trials[0].of(self.base).training)
        with on_host():
            made = [varied(self.base, trial, benchmark) for trial in padded for benchmark in self.opened]
            states = bundle([initial_state(learner, config) for learner, _ in made])
            sources, keys = stacked([*self.opened] * SEEDS), jnp.stack([key for _, key in made])
        rates = np.array([trial.settings[OUTER_LR] for trial in padded for _ in self.opened])
        words = [str(value) for _, value in trials[0].group if isinstance(value, str)]
        words += [f"{low:g}..{high:g}" for low, high in self.ranges if len(self.ranges) < len(RANGES)]
        name = "-".join([self.name, *words, f"{config.tasks_per_batch}"])
        return Lanes(name, here(states), here(sources), here(keys), rates, config)

    def chosen(self, chosen: dict[str, Any]) -> "Lanes":
        """Fresh learners of what the search chose, SEEDS of them on each range."""
        settings = {path: value for path, value in chosen["settings"].items() if path != TEST_STEPS}
        return self.begun([Trial(settings, seed) for seed in range(SEEDS)])

    def taken(
        self,
        lanes: "Lanes",
        steps: int,
        done: int = 0,
        look: Callable[[State, int], None] | None = None,
        ends: float = math.inf,
    ) -> State:
        """The states after `steps` steps, `done` of which they have taken, with rates that fall along a half cosine;
        of the time until `ends` where that is over sooner."""
        states, began = lanes.states, time.time()
        for start in range(done, steps, CHUNK):
            if (now := time.time()) > self.until:
                raise OutOfTime
            if now >= ends:
                break
            spent = (now - began) / (ends - began)
            rates = lanes.rates * falling(max((start + CHUNK / 2) / steps, spent))
            states = eqx.tree_at(lambda s: s.rate, states, jnp.asarray(rates))
            states, losses = lanes.moved(self.programs, states, start)
            if ends < math.inf:
                jax.block_until_ready(losses)  # else the clock would run ahead of the device
            if start == done:
                began = time.time()  # reading or compiling a program is not training
            if look is not None:
                look(states, start + CHUNK)
        return jax.block_until_ready(states)


@dataclass(frozen=True)
class Lanes:
    """Learners side by side."""

    name: str
    states: State
    sources: Any
    keys: Any
    rates: np.ndarray
    config: TrainConfig

    def program(self) -> Callable[..., Any]:
        """CHUNK steps of all of them: arrays of the states, and losses."""
        config = self.config

        def run(states: State, sources: Any, keys: Any, steps: Any) -> tuple[list[Any], Any]:
            moved, (losses, _, _) = run_each(states, sources, keys, steps, config)
            return jax.tree.leaves(moved), losses

        return run

    def moved(self, programs: Programs, states: State, start: int) -> tuple[State, Any]:
        arrays, losses = programs(self.name, self.program(), *self.inputs(states, start))
        return jax.tree.unflatten(jax.tree.structure(states), arrays), losses

    def inputs(self, states: State, start: int) -> tuple[Any, ...]:
        return states, self.sources, self.keys, start + jnp.arange(CHUNK)


def scoring(steps: Sequence[int | None], draws: int) -> Callable[..., Any]:
    """Scores of a learner on some tasks, with each of these numbers of inner steps."""

    def score(learner: Varied, batch: Any, key: Any, first: Any) -> list[dict[str, Any]]:
        return [score_batch(_stepping(learner, each), batch, draws, key, first) for each in steps]

    return score


def _stepping(learner: Varied, steps: int | None) -> Varied:
    """The learner with so many inner steps, as a loop: one step to compile instead of twenty."""
    if steps is None:
        return learner
    looped = with_inner(learner.learner, lambda inner: replace(inner, inner_steps=steps, test_steps=None, remat=True))
    return replace(learner, learner=looped)


def options(row: Row) -> list[int | None]:
    """Inner steps in the test that are tried."""
    own = draw_trials(row.base, 1, (TRAINED_STEPS,))[0].settings.get(INNER_STEPS)
    return [None] if own is None else [own * factor for factor in TEST_FACTORS]


def search_row(row: Row, folder: Path) -> dict[str, Any]:
    """Every trial trained and judged on validation tasks, as `stmaml search` does; what was chosen."""
    sets = [benchmark.choosing_set(row.search.val_tasks) for benchmark in row.opened]
    steps = options(row)
    name, score = f"{row.name}-judge-{row.search.val_draws}", scoring(steps, row.search.val_draws)

    def train(trials: Sequence[Trial], *, tasks: int, width: int) -> list[list[Varied]]:
        found = []
        for first in range(0, len(trials), SEEDS):
            some = trials[first : first + SEEDS]
            lanes = row.begun(some)
            states = row.taken(lanes, -(-tasks // lanes.config.tasks_per_batch))
            learners, each = _learners(states), len(row.ranges)
            found += [learners[i * each : (i + 1) * each] for i in range(len(some))]
        return found

    def judge(trial: Trial, learners: Sequence[Varied]) -> dict[str, Any]:
        each = [row.programs(name, score, one, *_batch(s)) for one, s in zip(learners, sets, strict=True)]
        means = [[{k: _mean(v) for k, v in one.items()} for one in some] for some in zip(*each, strict=True)]
        by_steps = dict(zip(steps, means, strict=True))
        return best_of(
            trial, lambda n: {"test_steps": n, "score": joint([m["mse"] for m in by_steps[n]]), "scores": by_steps[n]}
        )

    return row.search.halve(row.base, row.name, folder, train, judge)


def _mean(values: Any) -> float:
    mean = float(np.mean(np.asarray(values)))
    return round(mean, 5) if math.isfinite(mean) else math.inf


def _batch(tasks: TaskSet) -> tuple[Any, ...]:
    (batch,) = tasks.chunks(tasks.num_tasks)
    return batch, jr.key(SEARCH_SEED), jnp.asarray(0)


def _learners(states: State) -> list[Varied]:
    count = jax.tree.leaves(eqx.filter(states, eqx.is_array))[0].shape[0]
    return [state.learner for state in unbundle(states, count)]  # pyright: ignore[reportReturnType]


def train_row(row: Row, folder: Path, chosen: dict[str, Any], tasks: int, ends: float) -> None:
    """SEEDS learners of the chosen settings on each range, kept in `folder` from time to time and at the end."""
    lanes = row.chosen(chosen)
    states, done, before = kept(lanes.states, row.name, folder)
    began, saved, first = time.time(), time.time(), done
    steps = -(-tasks // lanes.config.tasks_per_batch)

    def seconds() -> float:
        return before + time.time() - began

    def look(states: State, step: int) -> None:
        nonlocal saved
        latest.update(states=states, step=step)
        if time.time() - saved > SAVED_EVERY:
            jax.block_until_ready(states)
            saved = time.time()
            pace = (step - first) * lanes.config.tasks_per_batch * len(lanes.rates) / (saved - began)
            print(f"{row.name}: step {step} of {steps}, {pace:,.0f} tasks/s", flush=True)
            keep(states, row.name, folder, step, seconds())

    latest = {"states": states, "step": done}
    try:
        row.taken(replace(lanes, states=states), steps, done, look, ends)
    finally:
        if latest["step"] > done:
            keep(latest["states"], row.name, folder, latest["step"], seconds())


def score_row(row: Row, folder: Path, chosen: dict[str, Any], test_tasks: int) -> dict[str, Any]:
    """Scores of all learners of a row on the test tasks, with intervals over seeds and tasks."""
    lanes = row.chosen(chosen)
    states, step, seconds = kept(lanes.states, row.name, folder)
    learners = _learners(states)
    steps = _test_steps(chosen)
    about = {"row": row.name, "seeds": SEEDS, "trained_on": step * lanes.config.tasks_per_batch, "seconds": seconds}
    about |= {"parameters": parameters(learners[0].learner), "settings": chosen["settings"], "lines": []}
    for draws in DRAWS if _draws(learners[0]) else DRAWS[:1]:
        program = partial(row.programs, f"{row.name}-score-{steps}-{draws}", scoring([steps], draws))
        for place, (extent, benchmark) in enumerate(zip(row.ranges, row.opened, strict=True)):
            tests = benchmark.test_set(test_tasks)
            values = [_values(program, one, tests, row.until) for one in learners[place :: len(row.ranges)]]
            about["lines"].append(_line(extent, draws, tests, values))
            print(f"{row.name} {_short(about['lines'][-1])}", flush=True)
    return about


def _test_steps(chosen: dict[str, Any]) -> int | None:
    return chosen["settings"].get(TEST_STEPS, chosen["settings"].get(INNER_STEPS))


def keep_weights(row: Row, chosen: dict[str, Any], folder: Path) -> None:
    """The weights of seed 0, where they are few, in place of all states."""
    lanes = row.chosen(chosen)
    learners = _learners(kept(lanes.states, row.name, folder / "states")[0])
    if parameters(learners[0]) <= FEW:
        (folder / "weights").mkdir(exist_ok=True)
        eqx.tree_serialise_leaves(folder / "weights" / f"{row.name}.eqx", learners[: len(row.ranges)])
    for path in files_of(row.name, folder / "states"):
        path.unlink()


def _draws(learner: Varied) -> bool:
    """Whether a learner has as many predictors as are asked for."""
    settings = getattr(method_of(learner.learner), "settings", None)
    return getattr(settings, "stochastic", hasattr(settings, "kl_weight"))


def _values(program: Callable[..., Any], learner: Varied, tests: TaskSet, until: float) -> dict[str, np.ndarray]:
    parts, key = [], jr.key(TEST_SEED)
    for index, batch in enumerate(tests.chunks(min(AT_ONCE, tests.num_tasks))):
        if time.time() > until:
            raise OutOfTime
        (scores,) = program(learner, batch, key, jnp.asarray(index * AT_ONCE))
        parts.append({name: np.asarray(scores[name]) for name in TOLD})
    return {name: np.concatenate([part[name] for part in parts])[: tests.num_tasks] for name in TOLD}


def _line(extent: Any, draws: int, tests: TaskSet, values: Sequence[dict[str, np.ndarray]]) -> dict[str, Any]:
    each = {name: np.stack([of_each_task(one[name]) for one in values]) for name in TOLD}
    return {
        "range": extent,
        "draws": draws,
        "tasks": tests.num_tasks,
        "digest": tests.digest,
        "metrics": {name: summarise_crossed(one) for name, one in each.items()},
        "medians": {name: float(np.median(one.mean(0))) for name, one in each.items()},
        "by_seed": {name: one.mean(1).tolist() for name, one in each.items()},
    }


def _short(line: dict[str, Any]) -> str:
    metrics = " ".join(f"{name} {one['mean']:.3f}±{one['ci95']:.3f}" for name, one in line["metrics"].items())
    return f"{line['range']} {line['draws']} draws: {metrics}"


def compile_search(row: Row) -> None:
    """The programs of a search, for a GPU that is not here; those of training are among them."""
    trials = draw_trials(row.base, row.search.trials, (TRAINED_STEPS,))
    groups = dict.fromkeys(trial.group for trial in trials)
    found = [row.begun([trial for trial in trials if trial.group == group][:SEEDS]) for group in groups]
    for lanes in found:
        row.programs.ahead(lanes.name, lanes.program(), *lanes.inputs(lanes.states, 0))
    name, score = f"{row.name}-judge-{row.search.val_draws}", scoring(options(row), row.search.val_draws)
    tasks = row.opened[0].choosing_set(row.search.val_tasks)
    row.programs.ahead(name, score, _learners(found[0].states)[0], *_batch(tasks))


def already_chosen(row: str, folder: Path) -> dict[str, Any]:
    """What a search in `folder` chose for a row, or else what the package has from one."""
    path = folder / "search" / row / FILE
    return read_json(path)["chosen"] if path.exists() else chosen("regression2d")[row]


def compile_train(row: Row, found: dict[str, Any]) -> None:
    """The programs that train and score what a search chose."""
    lanes = row.chosen(found)
    row.programs.ahead(lanes.name, lanes.program(), *lanes.inputs(lanes.states, 0))
    learner, steps = _learners(lanes.states)[0], _test_steps(found)
    (tasks,) = row.opened[0].test_set(AT_ONCE).chunks(AT_ONCE)
    for draws in DRAWS if _draws(learner) else DRAWS[:1]:
        name = f"{row.name}-score-{steps}-{draws}"
        row.programs.ahead(name, scoring([steps], draws), learner, tasks, jr.key(0), jnp.asarray(0))


def check(row: Row) -> None:
    """Runs a program that was compiled ahead for a few steps; raises where it cannot be read."""
    trials = draw_trials(row.base, row.search.trials, (TRAINED_STEPS,))
    lanes = row.begun([trial for trial in trials if trial.group == trials[-1].group][:SEEDS])
    states = eqx.tree_at(lambda s: s.rate, lanes.states, jnp.asarray(lanes.rates))
    row.programs.compiles = False
    for _ in range(3):  # the first reads the program
        began = time.time()
        loss = float(lanes.moved(row.programs, states, 0)[1].mean())
        print(f"{lanes.name}: {CHUNK} steps in {time.time() - began:.3f} s, loss {loss:.4f}", flush=True)


def work(row: Row, flags: Any) -> None:
    """One stage for one row."""
    if flags.stage == "ahead":
        return compile_search(row)
    if flags.stage == "ahead-train":
        return compile_train(row, already_chosen(row.name, flags.folder))
    if flags.stage == "check":
        return check(row)
    path = flags.folder / "rows" / f"{row.name}.json"
    if path.exists():
        return None
    if flags.stage == "search":
        found = search_row(row, flags.folder / "search" / row.name)["chosen"]
        print(f"{row.name}: chosen {json.dumps(found)}", flush=True)
        return None
    found = already_chosen(row.name, flags.folder)
    train_row(row, flags.folder / "states", found, flags.tasks, flags.ends)
    told = score_row(row, flags.folder / "states", found, flags.test_tasks)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, told)
    keep_weights(row, found, flags.folder)


def main() -> None:
    flags = parsed()
    search = Search(
        trials=flags.trials,
        tasks=flags.search_tasks,
        rounds=1,
        near=flags.near,
        tasks_per_batch=flags.batch,
        inner_steps=(TRAINED_STEPS,),
        val_tasks=flags.val_tasks,
        val_draws=flags.val_draws,
    )
    programs, ranges = Programs(flags.programs), [(low, high) for low, high in flags.input_range or RANGES]
    for name in claimed(flags.rows, flags.folder / "claims" / f"{flags.stage}-{flags.claim}"):
        began = time.time()
        try:
            work(Row(name, search, programs, flags.until, ranges), flags)
        except OutOfTime:
            print(f"{name}: out of time", flush=True)
            break
        print(f"{name}: {flags.stage} took {time.time() - began:.0f} s", flush=True)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["ahead", "ahead-train", "check", "search", "train"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("rows", nargs="+")
    parser.add_argument("--programs", type=Path, help="folder of compiled programs")
    parser.add_argument("--until", type=float, default=math.inf, help="seconds since 1970")
    parser.add_argument("--ends", type=float, default=math.inf, help="when training ends at the latest, likewise")
    parser.add_argument("--claim", default=str(os.getpid()), help="processes with the same one share the rows")
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--near", type=int, default=6, help="trials around the best of them")
    parser.add_argument("--search-tasks", type=int, default=200_000, help="of each trial")
    parser.add_argument("--val-tasks", type=int, default=1000)
    parser.add_argument("--val-draws", type=int, default=10)
    parser.add_argument("--tasks", type=int, default=5_000_000, help="of each learner")
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--input-range", type=float, nargs=2, action="append", help="both ranges if not given")
    parser.add_argument("--test-tasks", type=int, default=20_000)
    return parser.parse_args()


if __name__ == "__main__":
    main()
