"""`stmaml evaluate`."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from rich.box import SIMPLE
from rich.progress import Progress
from rich.table import Table

from stmaml.benchmarks.floors import find_floor
from stmaml.cli.parsing import parse
from stmaml.cli.showing import plain_console
from stmaml.cli.telling import open_benchmark
from stmaml.experiments import EvaluateConfig, evaluate_run, test_task
from stmaml.metrics import summarise_seeds
from stmaml.runs import find_runs


@dataclass(frozen=True)
class Evaluate:
    """Score a run on frozen test tasks, and save the scores of each task in the run folder."""

    run: tyro.conf.Positional[Path]
    """Folder of a run, or of several seeds."""
    config: EvaluateConfig = field(default_factory=EvaluateConfig)
    json: bool = False
    """Print one JSON object instead of tables."""


def main(arguments: list[str]) -> None:
    """Evaluates and prints."""
    flags = parse(Evaluate, arguments, "stmaml evaluate", config=(tyro.conf.OmitArgPrefixes,))
    runs = find_runs(flags.run)
    console = plain_console(stderr=True)
    open_benchmark(test_task(runs[0], flags.config), console)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("evaluating", total=len(runs) * flags.config.tasks)
        summaries = []
        for i, run in enumerate(runs):
            start = i * flags.config.tasks
            summaries.append(
                evaluate_run(
                    run, flags.config, on_progress=lambda n, start=start: bar.update(task, completed=start + n)
                )
            )
    result = summaries[0] if len(summaries) == 1 else _over_seeds(summaries)
    if flags.json:
        print(json.dumps(without_nan(result), indent=2, allow_nan=False))
    else:
        _show(result)


def without_nan(content: Any) -> Any:
    """The same with null for numbers that JSON cannot hold, such as the interval of a single task."""
    if isinstance(content, dict):
        return {name: without_nan(value) for name, value in content.items()}
    return None if isinstance(content, float) and not math.isfinite(content) else content


def _over_seeds(summaries: list[dict[str, Any]]) -> dict[str, Any]:
    """One summary of several seeds, with intervals over seeds."""

    def pool(parts: list[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
        return {name: summarise_seeds(np.array([part[name]["mean"] for part in parts])) for name in parts[0]}

    families = {f: pool([s["families"][f] for s in summaries]) for f in summaries[0]["families"]}
    seeds = [summary["seed"] for summary in summaries]
    shared = {name: value for name, value in summaries[0].items() if name not in ("seed", "metrics", "families")}
    return {**shared, "seeds": seeds, "metrics": pool([s["metrics"] for s in summaries]), "families": families}


def _cell(summary: dict[str, float], interval: bool) -> str:
    return f"{summary['mean']:.3f}" + (f" ± {summary['ci95']:.3f}" if interval else "")


def _show(result: dict[str, Any]) -> None:
    console = plain_console()
    title = (
        f"{result['method']} on {result['task_set']}, {result['samples']} samples a task (digest {result['digest']})"
    )
    if "norm" in result:
        title += f", normalised by statistics of: {result['norm']}"
    console.print(title)
    names = list(result["metrics"])
    table = Table("", *names, box=SIMPLE, padding=(0, 1))
    for family, metrics in result["families"].items():
        table.add_row(family, *(_cell(metrics[name], name == "accuracy") for name in names))
    table.add_section()
    table.add_row("all", *(f"{result['metrics'][name]['mean']:.3f}" for name in names))
    table.add_row("  ± 95 %", *(f"{result['metrics'][name]['ci95']:.3f}" for name in names))
    if (floor := find_floor(result["task_set"])) is not None:
        known = floor["metrics"]
        table.add_row("Bayes limit", *(f"{known[name]['mean']:.3f}" if name in known else "" for name in names))
    console.print(table)
    console.print(f"± is the half-width of the 95 % interval over {'seeds' if 'seeds' in result else 'tasks'}.")
