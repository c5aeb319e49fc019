"""Gradient boosting with summaries of the labelled days, under the rule of learners for other years: fitted to training
stations of one year with dates moved, chosen on its validation stations, tested in another year.

    python studies/boosted_years.py --data gsod.npz --shots 10 --rows 60000           one setting, minutes
    python studies/boosted_years.py --data gsod.npz --shots 2 5 10 20 40 --full       the grid, an hour of a core

With --full, settings are searched on a grid, and the best is fitted to 400,000 days, as `stmaml reproduce weather
--rows gradient-boosting-summaries --test-years 2022` does."""

import argparse
import json
import time
from dataclasses import replace
from typing import Any

import numpy as np

from stmaml.baselines import BoostingConfig, Pooled, SummaryBoosting, numpy_tasks, score_baseline
from stmaml.benchmarks import weather
from stmaml.benchmarks.sources import freeze

SCORES = ("mse", "nll", "crps", "coverage90")
POOLED = 800_000  # days that simulated tasks are drawn from, about a hundred of each station


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data")
    parser.add_argument("--shots", type=int, nargs="+", default=[10])
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--inputs", default="rich-around")
    parser.add_argument("--full", action="store_true")
    flags = parser.parse_args()
    one = BoostingConfig((0.1,), max_leaf_nodes=(31,), min_samples_leaf=(50,), first_look=100, max_iter=300)
    budget = BoostingConfig() if flags.full else replace(one, max_rows=flags.rows)
    for shots in flags.shots:
        began = time.process_time()
        moved: Any = {"date_shift": weather.OTHER_YEARS_SHIFT, "val_shift": weather.OTHER_YEARS_SHIFT}
        settings = weather.Config(flags.data, (2019,), (2022,), shots=shots, inputs=flags.inputs, **moved)
        benchmark = settings.open()
        train: Any = benchmark.train
        trees = SummaryBoosting(budget, time_input=0)
        trees.fit(Pooled(*train.pooled(POOLED, 0)), numpy_tasks(freeze(benchmark.val, 300, seed=1)))
        summary = score_baseline(trees, benchmark.test_set(flags.tasks)).summary()
        seconds = round(time.process_time() - began)
        means = {name: np.round([summary[name]["mean"], summary[name]["ci95"]], 4).tolist() for name in SCORES}
        print(json.dumps({"trees": shots, "rows": budget.max_rows, "seconds": seconds, **means}), flush=True)


if __name__ == "__main__":
    main()
