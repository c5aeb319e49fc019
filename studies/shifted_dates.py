"""How much a weather run relies on knowing the days of the years it was trained on.

python studies/shifted_dates.py RUN [RUN ...] [--data 2019.tar.xz] [--days 0 1 3 7 20] [--tasks 300] [--samples 8]

Scores a run on validation stations whose dates, of labelled and of asked days alike, are all moved by some days. A
learner that knows the seasons loses little by a move of a few days. One that has learnt what the weather was like on
each day of its years, from thousands of other stations, loses nearly all it had gained by that.
"""

import argparse

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr

from stmaml.benchmarks.base import VAL_SEED
from stmaml.benchmarks.sources import freeze
from stmaml.benchmarks.weather_tasks import Weather
from stmaml.errors import SourceError, StmamlError
from stmaml.evaluation import evaluate
from stmaml.experiments import EvaluateConfig, load_run

METRICS = ("mse", "nll", "coverage90")


def shifted(source: Weather, days: int) -> Weather:
    """The same tasks with all dates moved, over the end of the year to its beginning; years are taken as 365 days."""
    day = source.days.day
    moved = ((day.astype(jnp.int32) + days) % 365).astype(day.dtype)
    return eqx.tree_at(lambda weather: weather.days.day, source, moved)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--data")
    parser.add_argument("--days", type=int, nargs="+", default=[0, 1, 3, 7, 20])
    parser.add_argument("--tasks", type=int, default=300)
    parser.add_argument("--samples", type=int, default=8)
    asked = parser.parse_args()
    print(f"{'run':40}{'days':>6}" + "".join(f"{name:>22}" for name in METRICS))
    try:
        for folder in asked.runs:
            score(folder, asked)
    except StmamlError as error:
        parser.error(str(error))


def score(folder: str, asked: argparse.Namespace) -> None:
    experiment, learner = load_run(folder, data=asked.data)
    source = EvaluateConfig(data=asked.data).of(experiment).open().val
    if not isinstance(source, Weather):
        raise SourceError(f"{folder} is no run of the weather benchmark.")
    for days in asked.days:
        tasks = freeze(shifted(source, days), asked.tasks, seed=VAL_SEED)
        summary = evaluate(learner, tasks, num_samples=asked.samples, key=jr.key(0)).summary()
        cells = (f"{summary[name]['mean']:.3f} ± {summary[name]['ci95']:.3f}" for name in METRICS)
        print(f"{folder[-39:]:40}{days:>6}" + "".join(f"{cell:>22}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
