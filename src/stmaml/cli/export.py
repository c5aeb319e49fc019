"""`stmaml export`."""

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from stmaml.benchmarks.base import TABLE
from stmaml.cli.folders import check_adapted
from stmaml.cli.parsing import parse
from stmaml.cli.showing import plain_console
from stmaml.errors import SettingError, at_least
from stmaml.experiments import load_experiment, load_run
from stmaml.methods import METHODS
from stmaml.pool.kind import is_pool
from stmaml.runs import Run
from stmaml.tables.adapted import DEFAULT_LEVELS, load_adapted
from stmaml.tables.model import load_model

if TYPE_CHECKING:
    from stmaml.exporting.files import Written
    from stmaml.exporting.programs import Exportable, Wanted


@dataclass(frozen=True)
class Export:
    """Write a learner as a graph of ONNX that adapts and predicts without JAX, with a reader of some 60 lines.

    Beside FILE.onnx come FILE.json, which says what its columns mean, and read_export.py, which reads both."""

    run: tyro.conf.Positional[Path]
    """Folder of a run, or the file of an adapted group."""
    out: Path
    """File for the graph (.onnx)."""
    adapted: Path | None = None
    """File of one group, as 'stmaml predict --save-adapted' writes it: the graph then needs no labelled rows."""
    member: str | None = None
    """Of a pool: the meta-learned member to write, which answers alone."""
    labelled: int = 64
    """Most labelled rows of a group; the reader thins out more."""
    asked: int = 256
    """Rows answered at once; the reader asks for more in turns."""
    samples: int = 20
    """Predictors sampled for each group."""
    quantiles: tuple[float, ...] = DEFAULT_LEVELS
    """Levels of the quantiles to give."""
    coverage: float = 0.9
    """For classes: how likely the set of classes given for a row is to hold the true one."""
    data: str | None = None
    """Where the files of the run's benchmark lie, if not where they lay in training."""
    json: bool = False
    """Print one JSON object instead of sentences."""


def main(arguments: list[str]) -> None:
    """Writes the files and says how far graph and package differ."""
    flags = parse(Export, arguments, "stmaml export")
    _check(flags)
    from stmaml.exporting.files import write_export

    what, method = _exportable(flags)
    written = write_export(what, flags.out, method)
    if flags.json:
        print(json.dumps(_summary(written, what)))
        return
    console = plain_console(stderr=True)
    for note in what.notes:
        console.print(f"note: {note}")
    print(_said(written))


def _check(flags: Export) -> None:
    at_least(1, labelled=flags.labelled, asked=flags.asked, samples=flags.samples)
    if not flags.quantiles or not all(0 < level < 1 for level in flags.quantiles):
        raise SettingError(
            f"--quantiles must lie between 0 and 1; got {', '.join(map(str, flags.quantiles)) or 'none'}."
        )
    if not 0 < flags.coverage < 1:
        raise SettingError(f"--coverage must lie between 0 and 1; got {flags.coverage:g}.")
    if importlib.util.find_spec("onnx") is None:
        raise SettingError(
            "stmaml export needs the package onnx: pip install '.[export]' in the folder of the package."
        )


def _wanted(flags: Export) -> "Wanted":
    from stmaml.exporting.programs import Wanted

    return Wanted(flags.labelled, flags.asked, flags.samples, tuple(sorted(flags.quantiles)), flags.coverage)


def _exportable(flags: Export) -> "tuple[Exportable, str]":
    """What the flags name, and the method it is of."""
    from stmaml.exporting import programs

    path = flags.adapted or (flags.run if flags.run.is_file() else None)
    if path is not None:
        check_adapted(path)
        adapted = load_adapted(path)
        return programs.of_adapted(adapted, _wanted(flags)), adapted.experiment.method
    run = Run(flags.run)
    if is_pool(run):
        return _member(flags, run)
    if flags.member is not None:
        raise SettingError(f"--member is for pools, and {flags.run} is the run of a single method. Leave it out.")
    experiment = load_experiment(run)
    if experiment.benchmark == TABLE:
        return programs.of_table(load_model(flags.run), _wanted(flags)), experiment.method
    experiment, learner = load_run(flags.run, data=flags.data)
    spec = experiment.benchmark_settings.open().train.spec
    return programs.of_learner(learner, spec, _wanted(flags)), experiment.method


def _member(flags: Export, run: Run) -> "tuple[Exportable, str]":
    from stmaml.exporting.members import of_member
    from stmaml.pool.averaging import whole_of
    from stmaml.pool.guarded import bare
    from stmaml.pool.store import PoolRun

    model = PoolRun(run).load()
    learnt = [name for name in model.members if name in METHODS]
    if flags.member not in learnt:
        raise SettingError(_refusal(flags, list(model.members), learnt))
    fitted: Any = bare(whole_of(model.members[flags.member]))  # a member of a method's name is meta-learned
    return of_member(fitted, model.schema, _wanted(flags)), flags.member


def _refusal(flags: Export, members: list[str], learnt: list[str]) -> str:
    """Why a pool is no graph, and what is."""
    alone = f"Export its member alone with --member {learnt[0]}, or " if learnt else ""
    if flags.member is not None:
        why = f"--member {flags.member} is no meta-learned member of this pool ({', '.join(members)})"
    else:
        why = f"{flags.run} is a pool, whose trees and mixed models ({', '.join(members)}) are no graph"
    return f"{why}. {alone}fit one method with 'stmaml fit ... --method st-maml' and export that."


def _summary(written: "Written", what: "Exportable") -> dict:
    return {
        "out": str(written.graph),
        "bytes": written.size,
        "noise": written.noise,
        "difference": written.difference,
        "notes": list(what.notes),
    }


def _said(written: "Written") -> str:
    beside = f"{written.graph.with_suffix('.json').name} and read_export.py beside it"
    parity = "not compared with the package: onnxruntime is not installed"
    if written.difference is not None:
        parity = f"differs from the package by at most {written.difference:.1e}"
    return f"wrote {written.graph} ({written.size / 1000:,.0f} kB), {beside}; {parity}"
