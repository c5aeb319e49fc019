"""`stmaml evaluate`."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import tyro
from jaxtyping import Bool
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from stmaml.border.files import read_file
from stmaml.border.writing import NotWritten, check_writable
from stmaml.cli.parsing import parse
from stmaml.cli.progress import open_benchmark, showing
from stmaml.cli.showing import plain_console, without_nan
from stmaml.cli.sweep import show_sweep, swept
from stmaml.errors import SettingError
from stmaml.experiments import EvaluateConfig, Scored, load_experiment, score_run, score_together
from stmaml.metric_table import metric
from stmaml.metrics import of_each_task, summarise_crossed
from stmaml.pool.kind import is_pool
from stmaml.runs import AFTERCARE, Run, find_runs, write_bytes


@dataclass(frozen=True)
class Evaluate:
    """Score a run on frozen test tasks, and save the scores of each task in the run folder."""

    run: tyro.conf.Positional[Path]
    """Folder of a run, or of several seeds."""
    with_: Annotated[tuple[Path, ...], tyro.conf.arg(name="with", metavar="RUN ...")] = ()
    """Other runs on the same tasks: score what the learners of all say together, as one. Nothing is saved."""
    config: EvaluateConfig = field(default_factory=EvaluateConfig)
    sweep: bool = False
    """Score with each number of labelled examples that the benchmark names, in one table beside the best possible."""
    json: bool = False
    """Print one JSON object instead of tables."""


def main(arguments: list[str]) -> None:
    """Evaluates and prints."""
    flags = parse(Evaluate, arguments, "stmaml evaluate")
    runs = find_runs(flags.run)
    console = plain_console(stderr=True)
    if is_pool(runs[0]):
        from stmaml.cli.pool_evaluate import evaluate_pool  # a table, for which polars and scikit-learn are imported

        evaluate_pool(runs[0], flags.config, console, as_json=flags.json)
        return
    experiment = load_experiment(runs[0])
    benchmark = open_benchmark(flags.config.of(experiment), console)
    if flags.with_:
        with showing(console, "compiling"):
            together = score_together([*runs, *_others(flags)], flags.config, benchmark)
        _tell(together.summary, flags, _show)
        return
    if flags.sweep:
        each = [(one, benchmark.vary(one.of(experiment))) for one in swept(flags.config, benchmark)]
        with kept_or_not(runs, console) as runs, showing(console, "compiling"):
            tested = [_over_seeds([score_run(run, one, varied) for run in runs]) for one, varied in each]
        show_sweep(tested, as_json=flags.json)
        return
    with kept_or_not(runs, console) as runs, showing(console, "compiling"):
        if benchmark.labelled:  # a table, for which polars and scikit-learn are imported
            from stmaml.cli.results import show_result as show
            from stmaml.tables.scoring import score_table

            found = score_table(runs[0], benchmark, config=flags.config, baselines=())
        else:
            show, found = _show, _over_seeds([score_run(run, flags.config, benchmark) for run in runs])
    _tell(found, flags, show)


def _others(flags: Evaluate) -> list[Run]:
    """The runs of --with, all seeds of each."""
    if flags.sweep:
        raise SettingError("--sweep scores single runs; leave it out, or --with.")
    return [run for folder in flags.with_ for run in find_runs(folder)]


def _tell(found: dict[str, Any], flags: Evaluate, show: Callable[[dict[str, Any]], None]) -> None:
    if flags.json:
        print(json.dumps(without_nan(found), indent=2, allow_nan=False))
    else:
        show(found)


@contextmanager
def kept_or_not(runs: list[Run], console: Console) -> Iterator[list[Run]]:
    """The runs; where their folders cannot be written to, copies of them that last as long as the block."""
    refused = next(filter(None, (_refusal(run.folder) for run in runs)), None)
    if refused is None:
        yield runs
        return
    with TemporaryDirectory() as folder:
        yield [_copied(run, Path(folder) / run.folder.name) for run in runs]
    console.print(f"note: these scores are not kept: {refused}", highlight=False, soft_wrap=True)


def _refusal(folder: Path) -> NotWritten | None:
    """Why nothing can be written to a folder, if so."""
    try:
        check_writable(folder)
    except NotWritten as error:
        return error
    return None


def _copied(run: Run, folder: Path) -> Run:
    """The run without its checkpoints, log and scores, in another folder. Whatever else there is stays where it is: a
    link to a device would be copied without end."""
    for name in ("config.json", "learner.npz", *AFTERCARE):
        with suppress(FileNotFoundError):
            write_bytes(folder / name, read_file(run.folder / name))
    return Run(folder)


def _over_seeds(tested: list[list[Scored]]) -> dict[str, Any]:
    """One summary of several seeds, with intervals over seeds and tasks."""
    scored = [one for (one,) in tested]
    summaries = [one.summary for one in scored]
    if len(summaries) == 1:
        return summaries[0]

    def pool(chosen: Bool[np.ndarray, " m"]) -> dict[str, dict[str, float]]:
        each = {name: [of_each_task(one.scores.values[name])[chosen] for one in scored] for name in shared_names}
        return {name: summarise_crossed(np.stack(values)) for name, values in each.items()}

    family, shared_names = scored[0].scores.family, list(summaries[0]["metrics"])
    numbers = zip(summaries[0]["families"], np.unique(family), strict=True)
    families = {name: pool(family == number) for name, number in numbers}
    seeds = [summary["seed"] for summary in summaries]
    shared = {name: value for name, value in summaries[0].items() if name not in ("seed", "metrics", "families")}
    return {**shared, "seeds": seeds, "metrics": pool(np.full(len(family), True)), "families": families}


def _cell(name: str, summary: dict[str, float]) -> str:
    return f"{summary['mean']:.3f}" + (f" ± {summary['ci95']:.3f}" if metric(name).better == "higher" else "")


def _show(result: dict[str, Any]) -> None:
    console = plain_console()
    size = f"{result['tasks']:,} tasks, {result['samples']} samples a task (digest {result['digest']})"
    norm = f", normalised by statistics of: {result['norm']}" if "norm" in result else ""
    console.print(f"{result['method']} on {result['task_set']}, {size}{norm}")
    overall = result["metrics"]
    table = Table("", *overall, box=SIMPLE, padding=(0, 1))
    for family, metrics in result["families"].items():
        table.add_row(family, *(_cell(name, metrics[name]) for name in overall))
    table.add_section()
    table.add_row("all", *(f"{summary['mean']:.3f}" for summary in overall.values()))
    table.add_row("  ± 95 %", *(f"{summary['ci95']:.3f}" for summary in overall.values()))
    if (floor := result.get("floor")) is not None:
        known = floor["metrics"]
        table.add_row(floor["name"], *(f"{known[name]['mean']:.3f}" if name in known else "" for name in overall))
    console.print(table)
    console.print(f"± is the half-width of the 95 % interval over {'seeds and ' if 'seeds' in result else ''}tasks.")
