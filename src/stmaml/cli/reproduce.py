"""`stmaml reproduce`."""

import dataclasses
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import jax
import tyro
from rich.console import Console

from stmaml.benchmarks import BENCHMARKS
from stmaml.cli import fail, nearest
from stmaml.cli.parsing import parse
from stmaml.cli.progress import TrainingBar
from stmaml.cli.showing import plain_console
from stmaml.cli.stopping import StopRequest, stop_requests
from stmaml.cli.telling import open_benchmark, telling
from stmaml.cli.train import saying
from stmaml.progress import listening
from stmaml.reports import write_report
from stmaml.reproduction import BUDGETS, BaselineCell, Budget, BudgetName, Cell, cells, run_baseline, run_cell
from stmaml.training import Diverged, Interrupted

PICTURES = ("plain-multi", "celeba")
USAGE = """usage: stmaml reproduce BENCHMARK [--budget smoke|cpu|paper] [--rows NAME ...] [--out DIR] ...

Train and evaluate every method of a table of the paper, and write the table beside the paper's figures. Stops and goes
on: finished rows are skipped, an unfinished one continues from its checkpoint.

Benchmarks: {benchmarks}. With one named, --help lists its settings too, which then hold for every row.
"""


def main(arguments: list[str]) -> None:
    """Fills the table and writes the report."""
    name = arguments[0] if arguments and not arguments[0].startswith("-") else None
    if name is None:
        print(USAGE.format(benchmarks=", ".join(BUDGETS)))
        if not {"-h", "--help"} & set(arguments):
            sys.exit(2)
        return
    if name not in BUDGETS:
        fail(f"there is no benchmark '{name}'. {nearest(name, list(BUDGETS))}")
    flags: Any = parse(
        _flags_for(name),
        arguments,
        "stmaml reproduce",
        description=f"Train and evaluate every method of the paper's table for {name}.",
        config=(tyro.conf.OmitArgPrefixes,),
    )
    if flags.budget == "smoke" and name not in PICTURES:
        os.environ.setdefault("XLA_FLAGS", _quick_compilation())  # read when the first program is compiled
    changes = _given(flags.task, arguments)
    out = flags.out or Path("runs") / "-".join([name, flags.budget, *(_short(*change) for change in changes.items())])
    wanted = {"steps": flags.steps, "memory": flags.memory}
    training = {name: value for name, value in wanted.items() if value is not None}
    budget = _budget(flags)
    table = [_trained_by(cell, training) for cell in cells(name, budget, task=changes, only=flags.rows)]
    console = plain_console(stderr=True)
    tasks = [cell.task if isinstance(cell, BaselineCell) else cell.experiment.benchmark_settings for cell in table]
    open_benchmark(tasks[0], console)  # files are read, or found missing, before anything is trained
    for task in dict.fromkeys(tasks):
        task.open()
    stop = StopRequest()
    diverged = []
    with stop_requests(stop):
        for number, cell in enumerate(table, start=1):
            console.print(f"row {number} of {len(table)}: {cell.name}")
            try:
                _run(cell, out, budget, console, stop)
            except Interrupted as error:
                console.print(f"stopped at step {error.step} of {cell.name}; the same command goes on from there")
                sys.exit(128 + stop.signal)
            except Diverged as error:
                console.print(f"{cell.name}: {error}; left out of the table")
                diverged.append(cell)
            if stop.requested():
                console.print(f"stopped after {cell.name}; the same command goes on from there")
                sys.exit(128 + stop.signal)
    if len(diverged) == len(table):
        fail("every row diverged, so there is no table.", code=3)
    report, *pictures = write_report([out / cell.name for cell in table if cell not in diverged], out / "report")
    print(f"wrote {report} and {len(pictures)} figures beside it")


def _flags_for(benchmark: str) -> type:
    """A dataclass of the command's flags, with the benchmark's own settings among them."""

    def option(default: Any, text: str, kind: Any) -> tuple[Any, Any]:
        return Annotated[kind, tyro.conf.arg(help=text)], dataclasses.field(default=default)

    task: Any = BENCHMARKS[benchmark]
    fields = {
        "benchmark": (tyro.conf.Positional[str], dataclasses.field()),
        "budget": option(
            "smoke",
            "How much: a few minutes to see it work, under an hour on two cores, or the full training, for a GPU.",
            BudgetName,
        ),
        "rows": option((), "Only these rows; a wrong name lists all there are.", tuple[str, ...]),
        "steps": option(None, "Meta-steps of each row; as the budget says if not given.", int | None),
        "seeds": option(None, "Seeds of each row; as the budget says if not given.", int | None),
        "samples": option(None, "Predictors sampled for each test task; as the budget says if not given.", int | None),
        "memory": option(
            None, "Memory that a training step may take, such as 8GB, or auto; see stmaml train --help.", str | None
        ),
        "out": option(None, "Folder for runs and report; below runs/ if not given.", Path | None),
        "task": (task, dataclasses.field(default=task())),
    }
    return dataclasses.make_dataclass(
        "Reproduce", [(name, kind, spec) for name, (kind, spec) in fields.items()], frozen=True
    )


def _given(task: Any, arguments: list[str]) -> dict[str, Any]:
    """The benchmark's settings that the command names; those of the others differ from row to row."""
    words = {word.split("=", 1)[0] for word in arguments if word.startswith("--")}
    names = [field.name for field in dataclasses.fields(task)]
    flags = {name: {f"--{name.replace('_', '-')}", f"--no-{name.replace('_', '-')}", f"--{name}"} for name in names}
    return {name: getattr(task, name) for name in names if flags[name] & words}


def _quick_compilation() -> str:
    """XLA's flags for a smoke run, which compiles much and runs little: not for pictures, whose convolutions would then
    take minutes. XLA dies of a flag it does not know, so the second is for versions that are known to know it."""
    flags = "--xla_backend_optimization_level=0"
    return f"{flags} --xla_cpu_use_fusion_emitters=false" if jax.__version_info__ < (0, 13) else flags


def _short(name: str, value: Any) -> str:
    """A changed setting as part of a folder's name."""
    if name == "data":
        return Path(value).name.split(".")[0]
    parts = value if isinstance(value, tuple) else (value,)
    return name + "..".join(f"{part:g}" if isinstance(part, float) else str(part) for part in parts)


def _trained_by(cell: Cell | BaselineCell, changes: dict[str, Any]) -> Cell | BaselineCell:
    """The row with these settings of its training; a baseline has none."""
    if isinstance(cell, BaselineCell) or not changes:
        return cell
    training = dataclasses.replace(cell.experiment.training, **changes)
    return dataclasses.replace(cell, experiment=dataclasses.replace(cell.experiment, training=training))


def _budget(flags: Any) -> Budget:
    budget = BUDGETS[flags.benchmark][flags.budget]
    wanted = {"seeds": flags.seeds, "samples": flags.samples}
    for name, value in wanted.items():
        if value is not None and value < 1:
            fail(f"--{name} must be at least 1; got {value}.")
    return dataclasses.replace(budget, **{name: value for name, value in wanted.items() if value is not None})


def _run(cell: Cell | BaselineCell, out: Path, budget: Budget, console: Console, stop: StopRequest) -> None:
    if isinstance(cell, BaselineCell):
        with telling(console, f"fitting {cell.name}"):
            run_baseline(cell, out / cell.name, budget)
        return
    with TrainingBar(console, cell.experiment.training, str(out / cell.name)) as bar, listening(saying(console)):
        run_cell(cell, out / cell.name, budget, observers=lambda: (bar,), should_stop=stop.requested)
