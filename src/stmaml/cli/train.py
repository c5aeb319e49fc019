"""`stmaml train`."""

import argparse
import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from stmaml.benchmarks import BENCHMARKS
from stmaml.cli import fail, nearest
from stmaml.cli.parsing import parse
from stmaml.cli.progress import TrainingBar
from stmaml.cli.showing import plain_console
from stmaml.cli.stopping import StopRequest, stop_requests
from stmaml.cli.telling import open_benchmark
from stmaml.errors import SettingError
from stmaml.experiments import create_runs, load_experiment, train_runs
from stmaml.methods import METHODS
from stmaml.progress import Listener, listening
from stmaml.recipes import Experiment, Modelling, presets, recipe
from stmaml.runs import Run, find_runs
from stmaml.training import Diverged, Interrupted, Observer, TrainConfig


def main(arguments: list[str]) -> None:
    """Trains a new run, or goes on with one."""
    first = _first_words(arguments)
    if first.resume is not None:
        flags = parse(Resume, arguments, "stmaml train")
        runs = find_runs(flags.resume)
        open_benchmark(load_experiment(runs[0]).benchmark_settings, plain_console(stderr=True))
        _train(runs, tensorboard=flags.tensorboard)
        return
    if first.benchmark is None:
        if "-h" in arguments or "--help" in arguments:
            print(USAGE)
            return
        fail(
            f"train needs a benchmark: {', '.join(BENCHMARKS)}. For example: stmaml train regression2d --method st-maml"
        )
    _check_name("benchmark", first.benchmark, list(BENCHMARKS))
    _check_name("method", first.method, list(METHODS))
    known = presets(first.benchmark, first.method)
    if not known:
        able = ", ".join(method for method in METHODS if presets(first.benchmark, method))
        fail(f"{first.method} has no settings for {first.benchmark}. Methods that have: {able}.")
    _check_name("preset", first.preset or known[0], known)
    chosen = recipe(first.benchmark, first.method, first.preset or known[0])
    flags: Any = parse(
        _flags_for(chosen),
        arguments,
        "stmaml train",
        description=f"Meta-train {chosen.method} on {chosen.benchmark}, starting from preset '{chosen.preset}'.",
        config=(tyro.conf.OmitArgPrefixes,),
    )
    if flags.seeds < 1:
        raise SettingError(f"--seeds must be at least 1; got {flags.seeds}.")
    experiment = Experiment(
        chosen.benchmark, chosen.method, chosen.preset, flags.task, flags.learner, flags.modelling, flags.training
    )
    folder = flags.run or Path("runs") / f"{chosen.benchmark}-{chosen.method}-{chosen.preset}-{flags.seed}"
    seeds = list(range(flags.seed, flags.seed + flags.seeds))
    open_benchmark(experiment.benchmark_settings, plain_console(stderr=True))
    _train(create_runs(experiment, folder, seeds, force=flags.force), tensorboard=flags.tensorboard)


USAGE = """usage: stmaml train BENCHMARK --method NAME [--preset NAME] [--steps N] [--seed N] [--run DIR] ...
       stmaml train --resume RUN

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


def _first_words(arguments: list[str]) -> argparse.Namespace:
    """The words that decide which flags there are."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("benchmark", nargs="?")
    parser.add_argument("--method", default="st-maml")
    parser.add_argument("--preset")
    parser.add_argument("--resume")
    head = arguments[:1] if arguments and not arguments[0].startswith("-") else []
    try:
        return parser.parse_known_args(head + _pick(arguments, "--method", "--preset", "--resume"))[0]
    except argparse.ArgumentError as error:
        raise SettingError(f"{error}.") from error


def _pick(arguments: list[str], *names: str) -> list[str]:
    """Only these flags, with their values."""
    picked: list[str] = []
    for i, word in enumerate(arguments):
        if word in names:
            picked += arguments[i : i + 2]
        elif any(word.startswith(f"{name}=") for name in names):
            picked.append(word)
    return picked


def _check_name(kind: str, name: str, known: list[str]) -> None:
    if name not in known:
        fail(f"there is no {kind} '{name}'. {nearest(name, known)}")


def _flags_for(chosen: Experiment) -> type:
    """A dataclass with one field for each group of settings, whose defaults are the recipe's."""

    def option(default: Any, text: str, kind: Any) -> tuple[Any, Any]:
        return Annotated[kind, tyro.conf.arg(help=text)], dataclasses.field(default=default)

    fields = {
        "benchmark": (tyro.conf.Positional[str], dataclasses.field()),
        "method": option(chosen.method, "Method to train.", str),
        "preset": option(chosen.preset, "Settings to start from.", str),
        "run": option(None, "Folder for the run; below runs/ if not given.", Path | None),
        "seed": option(0, "Seed of weights and tasks.", int),
        "seeds": option(1, "Train this many seeds side by side, from --seed on.", int),
        "force": option(False, "Replace a run that is already there.", bool),
        "tensorboard": option(False, "Also write TensorBoard event files.", bool),
        "task": (type(chosen.benchmark_settings), dataclasses.field(default=chosen.benchmark_settings)),
        "learner": (type(chosen.method_settings), dataclasses.field(default=chosen.method_settings)),
        "modelling": (Modelling, dataclasses.field(default=chosen.modelling)),
        "training": (TrainConfig, dataclasses.field(default=chosen.training)),
    }
    return dataclasses.make_dataclass(
        "Train", [(name, kind, spec) for name, (kind, spec) in fields.items()], frozen=True
    )


def _train(runs: list[Run], *, tensorboard: bool) -> None:
    experiment = load_experiment(runs[0])
    console = plain_console(stderr=True)
    folder = runs[0].folder if len(runs) == 1 else runs[0].folder.parent
    where = f"{experiment.method} on {experiment.benchmark} -> {folder}"
    stop = StopRequest()
    training = experiment.training
    if training.rise < training.warmup:
        console.print(
            f"the step size rises over {training.rise:,} steps, a quarter of {training.steps:,}, "
            f"instead of --warmup {training.warmup:,}"
        )
    try:
        bar = TrainingBar(console, training, where)
        with stop_requests(stop), bar, contextlib.ExitStack() as closing:
            events = _event_files(runs, closing) if tensorboard else ()
            closing.enter_context(listening(saying(console)))
            train_runs(runs, observers=(bar, *events), should_stop=stop.requested)
    except Interrupted as error:
        console.print(f"stopped at step {error.step}, state saved. Go on with: stmaml train --resume {folder}")
        sys.exit(128 + stop.signal)
    except Diverged as error:
        saved = runs[error.seed_index].checkpoint_steps()
        last = f"The last good checkpoint is step {saved[-1]}." if saved else "No checkpoint was saved yet."
        fail(
            f"{error} in {runs[error.seed_index].folder}. {last} "
            "Try a smaller --inner-lr or --outer-lr, a smaller --inner-clamp, or --on-divergence rollback.",
            code=3,
        )
    console.print(f"trained. Next: stmaml evaluate {folder}")


def saying(console: Console) -> Listener:
    """A line for each new thing told while a bar of its own shows the training, such as the memory it takes."""
    said: set[str] = set()

    def say(what: str, done: int, total: int) -> None:
        del done, total
        if what not in said:
            console.print(what, highlight=False)
        said.add(what)

    return say


def _event_files(runs: list[Run], closing: contextlib.ExitStack) -> tuple[Observer, ...]:
    from stmaml.cli.tensorboard import EventFiles

    return (closing.enter_context(contextlib.closing(EventFiles(runs))),)
