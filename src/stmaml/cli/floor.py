"""`stmaml floor`."""

import json
from dataclasses import dataclass, field

import jax.random as jr
import numpy as np
import tyro

from stmaml.benchmarks import regression2d
from stmaml.benchmarks.base import freeze
from stmaml.benchmarks.bayes2d import bayes_scores
from stmaml.benchmarks.floors import floor_key, remember_floor
from stmaml.cli.parsing import parse
from stmaml.cli.showing import plain_console
from stmaml.errors import SettingError
from stmaml.metrics import summarise

FLOOR_SEED = 3


@dataclass(frozen=True)
class Floor:
    """Compute the Bayes limit of regression2d: the scores of the optimal predictor, by importance sampling.

    Reports then show it beside every method. Limits for the paper's settings are shipped with the package.
    """

    task: regression2d.Config = field(default_factory=regression2d.Config)
    tasks: int = 600
    """Tasks to average over."""
    draws: int = 4_000_000
    """Draws from the prior for each family a task might be of. Fewer are quicker and a little pessimistic."""
    json: bool = False
    """Print one JSON object instead of a sentence."""


def main(arguments: list[str]) -> None:
    """Computes, remembers and prints a limit."""
    flags = parse(Floor, arguments, "stmaml floor", config=(tyro.conf.OmitArgPrefixes,))
    if min(flags.tasks, flags.draws) < 1:
        raise SettingError(f"--tasks and --draws must be at least 1; got {flags.tasks} and {flags.draws}.")
    benchmark = flags.task.open()
    tasks = freeze(benchmark.test, flags.tasks, seed=FLOOR_SEED, name=benchmark.test_name)
    console = plain_console(stderr=True)
    with console.status(f"weighing {flags.draws:,} draws a family for {flags.tasks} tasks"):
        scores = bayes_scores(tasks.batch, noise=flags.task.noise, num_draws=flags.draws, key=jr.key(FLOOR_SEED))
    values = {"mse": scores.mse, "mse_clean": scores.mse_clean, "nll": scores.nll}
    family = np.asarray(tasks.batch.family)
    result = {
        "tasks": flags.tasks,
        "draws": flags.draws,
        "effective_draws_5th_percentile": float(np.percentile(scores.effective_draws, 5)),
        "metrics": {name: summarise(v) for name, v in values.items()},
        "families": {
            name: {metric: summarise(v[family == i]) for metric, v in values.items()}
            for i, name in enumerate(benchmark.families)
        },
    }
    path = remember_floor(benchmark.test_name, result)
    if flags.json:
        print(json.dumps({floor_key(benchmark.test_name): result}, indent=1))
        return
    shown = ", ".join(f"{name} {s['mean']:.4f} ± {s['ci95']:.4f}" for name, s in result["metrics"].items())
    console.print(f"{floor_key(benchmark.test_name)}: {shown} (kept in {path})")
