"""Trains recipes of 2D regression side by side until a given time, on equal numbers of tasks, and scores them.

    python studies/by_clock.py OUT --until UNIX_SECONDS [--rows st-maml tnp] [--start EARLIER --steps-done N]

For a device that is lent for minutes and shared with others: learners take turns, so many steps each, and the step size
falls along a half cosine of the time that is left, whatever the speed. OUT gets a folder of runs for each range of
inputs (the weights are the same), with scores at several numbers of examples, and `scores.jsonl`."""

import argparse
import json
import math
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
from clock import chunk, falling, parameters

from stmaml.benchmarks.base import TEST_SEED
from stmaml.benchmarks.regression2d import RANGES
from stmaml.benchmarks.sources import TaskSet
from stmaml.evaluation import Scores, evaluate
from stmaml.experiments import (
    EvaluateConfig,
    Test,
    create_runs,
    fresh,
    run_keys,
    save_scores,
    scaling_for,
    summarise_scores,
    tests_of,
)
from stmaml.recipes import Experiment, recipe
from stmaml.recipes.base import with_changes
from stmaml.runs import Run, as_json
from stmaml.tasks import Task, pad
from stmaml.training import State, initial_state

CHUNK = 50  # steps of one learner before the next has its turn
SHOTS = (10, 2, 5, 1, 20)
DRAWS = ((20, 1), (100, 4))  # draws, and by what the number of test tasks is divided
ONE = "tnp"  # has one predictor, however many are asked for
RESERVED = 100  # seconds for scores
SAVED_EVERY = 60


@dataclass
class Turn:
    """A learner in training."""

    name: str
    experiment: Experiment
    benchmark: Any
    state: State
    good: State
    factor: float = 1.0
    loss: float = math.nan
    seconds: float = 0.0

    @staticmethod
    def of(name: str, experiment: Experiment, start: Path | None) -> "Turn":
        benchmark = experiment.benchmark_settings.open()
        level = replace(experiment.training, schedule="constant", warmup=0, outer_lr=1.0)
        learner = fresh(experiment, benchmark.train.spec, scaling_for(experiment, benchmark), key=run_keys(0)[0])
        learner = learner if start is None else Run(folder_of(start, name, RANGES[0])).load_learner(learner)
        state = initial_state(learner, level)
        return Turn(name, replace(experiment, training=level), benchmark, state, state)

    def go(self, step: int, rate: float) -> None:
        """A chunk of steps; where a loss is not finite, back to the last good state at half the rate."""
        began = time.time()
        source, key, config = self.benchmark.train, run_keys(0)[1], self.experiment.training
        state, (losses, _, finite) = chunk(self.state, rate * self.factor, source, key, step, CHUNK, config)
        self.loss, self.seconds = float(np.mean(losses)), self.seconds + time.time() - began
        if math.isfinite(self.loss) and bool(finite):
            self.state = state
            return
        self.state, self.factor = self.good, self.factor / 2
        print(f"{self.name}: loss not finite at step {step}; rate now {self.factor} of its schedule", flush=True)


def main() -> None:
    flags = parsed()
    asked = {row: recipe("regression2d", row, flags.preset) for row in flags.rows}
    changes = json.loads(flags.changes)
    asked = {row: with_changes(one, {**changes.get("all", {}), **changes.get(row, {})}) for row, one in asked.items()}
    tests: dict[Any, Test] = {}
    turns = [Turn.of(row, experiment, flags.start) for row, experiment in asked.items()]
    compile_steps(turns)
    thread = threading.Thread(target=prepare, args=(turns, flags.test_tasks, tests))
    thread.start()
    steps = train(turns, asked, flags)
    thread.join()
    for turn in turns:
        save(turn, asked[turn.name], steps, flags.out)
    with (flags.out / "scores.jsonl").open("a") as lines:
        for config in DRAWS:
            for turn in turns:
                for line in scored(turn, asked[turn.name], steps, tests, config, flags):
                    lines.write(json.dumps(line) + "\n")
                    lines.flush()


def compile_steps(turns: list[Turn]) -> None:
    """All programs of training at once; at rate 0 nothing moves."""
    began = time.time()
    threads = [threading.Thread(target=turn.go, args=(0, 0.0)) for turn in turns]
    for thread in threads:
        thread.start()
    for thread, turn in zip(threads, turns, strict=True):
        thread.join()
        turn.seconds = 0.0
        print(
            f"{turn.name}: {parameters(turn.state.learner):,} parameters, ready after {time.time() - began:.0f} s",
            flush=True,
        )


def train(turns: list[Turn], asked: dict[str, Experiment], flags: Any) -> int:
    """All learners in turns, until the time is up; the number of steps that each has taken, earlier ones included."""
    until, step = flags.until - flags.reserved, flags.steps_done
    began, told, saved = time.time(), time.time(), time.time()
    while (share := (time.time() - began) / max(until - began, 1e-9)) < 1:
        for turn in turns:
            training = asked[turn.name].training
            rise = min(1.0, (step - flags.steps_done + CHUNK) / max(training.warmup, 1))
            turn.go(step, training.outer_lr * rise * falling(share))
        step += CHUNK
        if time.time() - told > 15:
            told = time.time()
            words = [f"{t.name} {t.loss:.4f} ({_pace(t, step - flags.steps_done):,.0f} tasks/s)" for t in turns]
            print(f"{told - began:.0f} s, step {step}: {', '.join(words)}", flush=True)
        if time.time() - saved > SAVED_EVERY:
            saved = time.time()
            for turn in turns:
                turn.good = turn.state
                save(turn, asked[turn.name], step, flags.out)
    return step


def _pace(turn: Turn, steps: int) -> float:
    return steps * turn.experiment.training.tasks_per_batch / max(turn.seconds, 1e-9)


def save(turn: Turn, experiment: Experiment, steps: int, out: Path) -> None:
    """The weights as runs, one for each range of inputs."""
    for extent in RANGES:
        mine = with_changes(experiment, {"training.steps": max(steps, 1), "benchmark_settings.input_range": extent})
        (run,) = create_runs(mine, turn.benchmark, folder_of(out, turn.name, extent), [0], force=True)
        run.config_path.write_text(json.dumps({**run.config(), "benchmark": _told(mine)}, indent=1))
        run.save_learner(turn.state.learner)
        run.append_log({"step": steps, "seconds": round(turn.seconds, 1), "loss": turn.loss})


def _told(experiment: Experiment) -> dict[str, Any]:
    return {"name": experiment.benchmark, "settings": as_json(experiment.benchmark_settings)}


def folder_of(out: Path, row: str, extent: tuple[float, float]) -> Path:
    return out / f"{extent[0]:g}..{extent[1]:g}" / f"{row}-best"


def prepare(turns: list[Turn], count: int, tests: dict[Any, Test]) -> None:
    """The test tasks, and programs that score them, while others train."""
    freeze_tests(turns[0].experiment, count, tests)
    test = next(iter(tests.values()))
    for draws, share in DRAWS:
        for turn in (one for one in turns if one.name != ONE or share == 1):
            _score(turn, _first(test.tasks, _at_once(test, share)), draws, share)
            print(f"{turn.name}: ready to score with {draws} draws", flush=True)


def _at_once(test: Test, share: int) -> int:
    return min(1000 // share, test.tasks.num_tasks // share)


def _score(turn: Turn, tasks: TaskSet, draws: int, share: int) -> Scores:
    at_once = min(1000 // share, tasks.num_tasks)
    return evaluate(turn.state.learner, tasks, num_samples=draws, key=jr.key(TEST_SEED), tasks_at_once=at_once)


def freeze_tests(experiment: Experiment, count: int, tests: dict[Any, Test]) -> None:
    """Test tasks of each range and number of examples, all padded to one shape: one program scores them."""
    for extent in RANGES:
        for shots in SHOTS:
            config = EvaluateConfig(tasks=count, shots=shots)
            settings = config.of(with_changes(experiment, {"benchmark_settings.input_range": extent}))
            (test,) = tests_of(settings.open(), experiment.benchmark, config)
            tests[extent, shots] = replace(test, tasks=_padded(test.tasks))


def _padded(tasks: TaskSet) -> TaskSet:
    given = tasks.batch.tasks
    support = jax.tree.map(np.asarray, jax.vmap(lambda one: pad(one, max(SHOTS)))(given.support))
    return replace(tasks, stored=eqx.tree_at(lambda b: b.tasks, tasks.stored, Task(support, given.query)))


def scored(turn: Turn, experiment: Experiment, steps: int, tests: Any, config: tuple[int, int], flags: Any) -> Any:
    """A line for each range and number of examples; what is not done in time is left out."""
    draws, share = config
    if turn.name == ONE and share > 1:
        return
    for (extent, shots), test in tests.items():
        if time.time() > flags.until - 5:
            return
        test = replace(test, conditions=replace(test.conditions, samples=draws))
        if share > 1:
            test = replace(test, tasks=_first(test.tasks, test.tasks.num_tasks // share))
        scores = _score(turn, test.tasks, draws, share)
        run = Run(folder_of(flags.out, turn.name, extent))
        mine = with_changes(experiment, {"benchmark_settings.input_range": extent, "benchmark_settings.shots": shots})
        save_scores(run, test, summarise_scores(run, test, mine.benchmark_settings.open(), scores), scores)
        metrics = {name: scores.summary()[name] for name in ("mse", "mse_clean", "nll", "crps", "coverage90")}
        line = {"row": turn.name, "range": extent, "shots": shots, "draws": draws, "tasks": test.tasks.num_tasks}
        line |= {"trained_on": steps * experiment.training.tasks_per_batch, "seconds": round(turn.seconds)}
        short = " ".join(f"{name} {one['mean']:.4f}±{one['ci95']:.4f}" for name, one in metrics.items())
        print(f"{turn.name} {extent[0]:g}..{extent[1]:g} shots {shots} draws {draws}: {short}", flush=True)
        yield line | {"metrics": metrics}


def _first(tasks: TaskSet, count: int) -> TaskSet:
    return replace(
        tasks, stored=jax.tree.map(lambda leaf: leaf[:count], tasks.stored), digest=tasks.digest[:12] + "part"
    )


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--until", type=float, required=True)
    parser.add_argument("--reserved", type=float, default=RESERVED, help="seconds kept for scores")
    parser.add_argument("--start", type=Path, help="an earlier OUT, from whose weights to go on")
    parser.add_argument("--steps-done", type=int, default=0, help="steps that those weights have seen")
    parser.add_argument("--rows", nargs="+", default=["st-maml", "tnp"])
    parser.add_argument("--preset", default="best")
    parser.add_argument("--test-tasks", type=int, default=20_000)
    parser.add_argument("--changes", default="{}", help="settings by row and path, as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
