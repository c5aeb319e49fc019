"""`stmaml evaluate --sweep`: one run with several numbers of labelled examples."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stmaml.benchmarks.base import Benchmark
from stmaml.cli.showing import people_console, table_of, without_nan
from stmaml.errors import SettingError
from stmaml.experiments import EvaluateConfig
from stmaml.metric_table import metric


def swept(config: EvaluateConfig, benchmark: Benchmark) -> list[EvaluateConfig]:
    """What to evaluate for each number of examples; that of training stands as if none was given, and has figures."""
    if benchmark.sweep is None or benchmark.labelled:
        raise SettingError("--sweep is for benchmarks that name numbers of labelled examples; use --shots here.")
    if config.shots is not None:
        raise SettingError(f"--sweep goes through several numbers of examples; leave --shots {config.shots} out.")
    own = benchmark.conditions.get("shots")
    return [config if shots == own else replace(config, shots=shots) for shots in benchmark.sweep.shots]


def show_sweep(found: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    """A line for each number of examples, with the best possible scores where they are known."""
    if as_json:
        print(json.dumps(without_nan(list(found)), indent=2, allow_nan=False))
        return
    console, first = people_console(), found[0]
    console.print(
        f"{first['method']} on {first['benchmark']}, {first['tasks']:,} tasks, {first['samples']} samples each"
    )
    names = [name for name in first["metrics"] if all(name in one["metrics"] for one in found)]
    known = [name for name in names if all(name in _limit(one) for one in found)]
    table = table_of("examples", *names, *(f"{name} at best" for name in known))
    for one in found:
        scores = [_cell(name, one["metrics"][name]["mean"]) for name in names]
        limits = [_cell(name, _limit(one)[name]["mean"]) for name in known]
        table.add_row(str(one["conditions"]["tasks"]["shots"]), *scores, *limits)
    console.print(table)
    if known:
        console.print(f"At best: the {first['floor']['name']}, the scores of the optimal predictor.")


def _limit(summary: dict[str, Any]) -> dict[str, Any]:
    return summary.get("floor", {}).get("metrics", {})


def _cell(name: str, value: float) -> str:
    """A score as people read it: a share that should be 90 % says so."""
    return f"{100 * value:.1f} %" if metric(name).nominal is not None else f"{value:.3f}"
