"""`stmaml train`."""

import contextlib
import dataclasses
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from stmaml.benchmarks import BENCHMARKS
from stmaml.benchmarks.base import Benchmark
from stmaml.cli import check_name, fail
from stmaml.cli.parsing import benchmark_first, flags_of, option, parse, value_of
from stmaml.cli.progress import open_benchmark, showing
from stmaml.cli.showing import plain_console
from stmaml.cli.stopping import StopRequest, leave_stopped, stop_requests
from stmaml.cli.tensorboard import EventFiles
from stmaml.cli.together import COORDINATOR, DEVICES, Place, together
from stmaml.cli.together import flags as together_flags
from stmaml.errors import at_least
from stmaml.experiments import create_runs, load_experiment, train_runs
from stmaml.methods import METHODS
from stmaml.pool.kind import refuse_pool
from stmaml.recipes import Experiment, Modelling, presets, recipe
from stmaml.runs import Run, find_runs
from stmaml.training import Diverged, Interrupted, TrainConfig
from stmaml.training.devices import Layout, layout_for
from stmaml.training.hosts import most, shared_runs, writes


def main(arguments: list[str]) -> None:
    """Trains a new run, or goes on with one."""
    arguments = benchmark_first(arguments, BENCHMARKS)
    if value_of("--resume", arguments) is not None:
        _resume(parse(Resume, arguments, "stmaml train"))
    elif arguments and not arguments[0].startswith("-"):
        _begin(arguments)
    elif {"-h", "--help"} & set(arguments):
        print(USAGE)
    else:
        known = ", ".join(BENCHMARKS)
        fail(f"train needs a benchmark: {known}. For example: stmaml train regression2d --method st-maml")


def _resume(flags: "Resume") -> None:
    with together(Place(flags.coordinator, flags.processes, flags.process)) as scratch:
        runs = shared_runs(lambda: _found(flags.resume), scratch)
        experiment = load_experiment(runs[0])
        layout = layout_for(flags.devices, tasks=experiment.training.tasks_per_batch, learners=len(runs))
        benchmark = open_benchmark(experiment.benchmark_settings, _console())
        _train(runs, experiment, benchmark, layout, tensorboard=flags.tensorboard)


def _found(folder: Path) -> list[Run]:
    runs = find_runs(folder)
    refuse_pool(runs[0], f"Go on with 'stmaml fit --resume {folder}'.")
    return runs


def _begin(arguments: list[str]) -> None:
    chosen = _chosen(arguments[0], value_of("--method", arguments) or "st-maml", value_of("--preset", arguments))
    told = f"Meta-train {chosen.method} on {chosen.benchmark}, starting from preset '{chosen.preset}'."
    flags: Any = parse(_flags_for(chosen), arguments, "stmaml train", description=told)
    at_least(1, seeds=flags.seeds)
    groups = {"modelling": flags.modelling, "training": flags.training}
    experiment = dataclasses.replace(chosen, benchmark_settings=flags.tasks, method_settings=flags.learner, **groups)
    folder = flags.run or Path("runs") / f"{chosen.benchmark}-{chosen.method}-{chosen.preset}-{flags.seed}"
    seeds = list(range(flags.seed, flags.seed + flags.seeds))
    with together(Place(flags.coordinator, flags.processes, flags.process)) as scratch:
        layout = layout_for(flags.devices, tasks=experiment.training.tasks_per_batch, learners=len(seeds))
        benchmark = open_benchmark(flags.tasks, _console())
        runs = shared_runs(lambda: create_runs(experiment, benchmark, folder, seeds, force=flags.force), scratch)
        _train(runs, experiment, benchmark, layout, tensorboard=flags.tensorboard)


USAGE = """usage: stmaml train BENCHMARK --method NAME [--preset NAME] [--steps N] [--seed N] [--run DIR] ...
       stmaml train --resume RUN [--devices N|all] [--coordinator HOST:PORT --processes N --process I]

Every setting of the benchmark, the method and the training is a flag; with a benchmark and a method named, --help
lists them all:

  stmaml train regression2d --method st-maml --help
"""


@dataclasses.dataclass(frozen=True)
class Resume:
    """Go on with a run from its newest checkpoint, to the same end as if it had never stopped."""

    resume: Path
    """Folder of the run, or of several seeds."""
    tensorboard: bool = False
    """Also write TensorBoard event files."""
    devices: Annotated[str | None, tyro.conf.arg(help=DEVICES)] = None
    coordinator: Annotated[str | None, tyro.conf.arg(help=COORDINATOR)] = None
    processes: int | None = None
    """Processes of the job, with --coordinator HOST:PORT."""
    process: int | None = None
    """Which of them this is, from 0 on."""


def _chosen(benchmark: str, method: str, preset: str | None) -> Experiment:
    check_name("benchmark", benchmark, BENCHMARKS)
    check_name("method", method, METHODS)
    known = presets(benchmark, method)
    if not known:
        able = ", ".join(method for method in METHODS if presets(benchmark, method))
        fail(f"{method} has no settings for {benchmark}. Methods that have: {able}.")
    check_name("preset", preset or known[0], known)
    return recipe(benchmark, method, preset or known[0])


def _flags_for(chosen: Experiment) -> type:
    """A dataclass with one field for each group of settings, whose defaults are the recipe's."""
    return flags_of(
        method=option(chosen.method, "Method to train.", str),
        preset=option(chosen.preset, "Settings to start from.", str),
        run=option(None, "Folder for the run; below runs/ if not given.", Path | None),
        seed=option(0, "Seed of weights and tasks.", int),
        seeds=option(1, "Train this many seeds side by side, from --seed on.", int),
        force=option(False, "Replace a run that is already there.", bool),
        tensorboard=option(False, "Also write TensorBoard event files.", bool),
        **together_flags(),
        tasks=(type(chosen.benchmark_settings), dataclasses.field(default=chosen.benchmark_settings)),
        learner=(type(chosen.method_settings), dataclasses.field(default=chosen.method_settings)),
        modelling=(Modelling, dataclasses.field(default=chosen.modelling)),
        training=(TrainConfig, dataclasses.field(default=chosen.training)),
    )


def _console() -> Console:
    """Where progress is shown; of several processes, the one that writes shows it."""
    return plain_console(stderr=True) if writes() else Console(quiet=True)


def _train(runs: list[Run], experiment: Experiment, benchmark: Benchmark, layout: Layout, *, tensorboard: bool) -> None:
    console = _console()
    folder = runs[0].folder if len(runs) == 1 else runs[0].folder.parent
    console.print(f"{experiment.method} on {experiment.benchmark} -> {folder}")
    stop = StopRequest(f"stmaml train --resume {folder}")
    training = experiment.training
    if training.rise < training.warmup:
        rise = f"{training.rise:,} steps, a quarter of {training.steps:,}"
        console.print(f"the step size rises over {rise}, instead of --warmup {training.warmup:,}")
    try:
        with stop_requests(stop), showing(console, "compiling"), contextlib.ExitStack() as closing:
            events = [closing.enter_context(contextlib.closing(EventFiles(runs)))] if tensorboard and writes() else ()
            seen, asked = (*events, stop), partial(_asked_to_stop, stop)
            train_runs(runs, experiment, benchmark, observers=seen, should_stop=asked, layout=layout)
        if stop.requested():  # while the last steps ran
            leave_stopped(stop, quiet=console.quiet)
    except Interrupted:
        leave_stopped(stop, quiet=console.quiet)
    except Diverged as error:
        saved = runs[error.seed_index].checkpoint_steps()
        last = f"The last good checkpoint is step {saved[-1]}." if saved else "No checkpoint was saved yet."
        advice = "Try a smaller --inner-lr or --outer-lr, a smaller --inner-clamp, or --on-divergence rollback."
        fail(f"{error} in {runs[error.seed_index].folder}. {last} {advice}", code=3)
    console.print(f"trained. Next: stmaml evaluate {folder}")


def _asked_to_stop(stop: StopRequest) -> bool:
    """Whether any process was asked to stop; all then stop at the same step."""
    stop.signal = most(stop.signal)
    return stop.requested()
