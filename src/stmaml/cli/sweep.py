"""`stmaml evaluate --sweep`: one run with several numbers of labelled examples."""

import json
from collections.abc import Callable, Sequence
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
    columns = _columns(found)
    table = table_of("examples", *(head for head, _ in columns))
    for one in found:
        table.add_row(str(one["conditions"]["tasks"]["shots"]), *(cell(one) for _, cell in columns))
    console.print(table)
    if _limit(first):
        console.print(f"At best: the {first['floor']['name']}, the scores of the optimal predictor.")


def _columns(found: Sequence[dict[str, Any]]) -> list[tuple[str, Callable[[dict[str, Any]], str]]]:
    """Each score that has a limit, that limit, and shares that should be as claimed; else all scores."""
    names = [name for name in found[0]["metrics"] if all(name in one["metrics"] for one in found)]
    known = [name for name in names if all(name in _limit(one) for one in found)]
    columns = []
    for name in [name for name in names if not known or name in known or metric(name).better == "nominal"]:
        columns.append((name, lambda one, name=name: _cell(name, one["metrics"][name]["mean"])))
        if name in known:
            columns.append(("at best", lambda one, name=name: _cell(name, _limit(one)[name]["mean"])))
    return columns


def _limit(summary: dict[str, Any]) -> dict[str, Any]:
    return summary.get("floor", {}).get("metrics", {})


def _cell(name: str, value: float) -> str:
    """A score as people read it: a share that should be as claimed in percent."""
    return f"{100 * value:.1f} %" if metric(name).better == "nominal" else f"{value:.3f}"
