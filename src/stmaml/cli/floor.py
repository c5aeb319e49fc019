"""`stmaml floor`."""

import json
from dataclasses import dataclass, field

import jax.random as jr
import numpy as np

from stmaml.benchmarks import regression2d
from stmaml.benchmarks.bayes2d import bayes_scores
from stmaml.benchmarks.floors import floor_key, remember_floor
from stmaml.benchmarks.sources import freeze
from stmaml.cli.parsing import parse
from stmaml.cli.showing import plain_console
from stmaml.conditions import Conditions
from stmaml.errors import at_least
from stmaml.metrics import summarise

FLOOR_SEED = 3


@dataclass(frozen=True)
class Floor:
    """Compute the Bayes limit of regression2d: the scores of the optimal predictor, by importance sampling.

    Reports then show it beside every method. Limits for the paper's settings are shipped with the package."""

    task: regression2d.Config = field(default_factory=regression2d.Config)
    tasks: int = 600
    """Tasks to average over."""
    draws: int = 4_000_000
    """Draws from the prior for each family a task might be of. Fewer are quicker and a little pessimistic."""
    seed: int = FLOOR_SEED
    """Which tasks: 1 are those of `evaluate --validation`, 2 those of a test, as long as the numbers of tasks agree."""
    json: bool = False
    """Print one JSON object instead of a sentence."""


def main(arguments: list[str]) -> None:
    """Computes, remembers and prints a limit."""
    flags = parse(Floor, arguments, "stmaml floor")
    at_least(1, tasks=flags.tasks, draws=flags.draws)
    benchmark = flags.task.open()
    tasks = freeze(benchmark.test, flags.tasks, seed=flags.seed)
    console = plain_console(stderr=True)
    with console.status(f"weighing {flags.draws:,} draws a family for {flags.tasks} tasks"):
        noise = flags.task.noise if flags.task.noise_range is None else flags.task.noise_range
        scores = bayes_scores(tasks.batch, noise=noise, num_draws=flags.draws, key=jr.key(FLOOR_SEED))
    values = {"mse": scores.mse, "mse_clean": scores.mse_clean, "nll": scores.nll}
    own = {name: np.asarray(tasks.batch.family) == i for i, name in enumerate(benchmark.families)}
    result = {
        "tasks": flags.tasks,
        "draws": flags.draws,
        "effective_draws_5th_percentile": float(np.percentile(scores.effective_draws, 5)),
        "metrics": {name: summarise(v) for name, v in values.items()},
        "families": {name: {m: summarise(v[rows]) for m, v in values.items()} for name, rows in own.items()},
    }
    told = {"noise_range": flags.task.noise_range}  # nothing, where the noise is told
    conditions = Conditions("regression2d", benchmark.conditions | told)
    path = remember_floor(conditions, result)
    if flags.json:
        print(json.dumps({floor_key(conditions): result}, indent=1))
        return
    shown = ", ".join(f"{name} {s['mean']:.4f} ± {s['ci95']:.4f}" for name, s in result["metrics"].items())
    console.print(f"{floor_key(conditions)}: {shown} (kept in {path})")
