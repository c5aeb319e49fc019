"""`stmaml predict`."""

import hashlib
import json
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
import tyro

from stmaml.cli.folders import check_adapted, check_folder, check_out
from stmaml.cli.parsing import parse
from stmaml.cli.predict_large import is_large_question, predict_large
from stmaml.cli.predictions import show_predictions
from stmaml.cli.prior_predict import answer_of_table
from stmaml.cli.progress import showing
from stmaml.cli.showing import people_console, plain_console
from stmaml.errors import SettingError, at_least
from stmaml.pool.store import PoolRun, is_pool
from stmaml.runs import Run, write_bytes
from stmaml.tables.adapted import DEFAULT_LEVELS, Answer, load_adapted
from stmaml.tables.formats import TYPED_ENDINGS
from stmaml.tables.model import load_model
from stmaml.tables.parts import Reading
from stmaml.tables.reading import read_table
from stmaml.tables.schema import Schema
from stmaml.tables.writing import as_csv, check_writable, form_of, with_numbers, writer_of

NAME_BYTES = 120  # of a group's name in that of its file, which may have 255 with what is added while it is written


@dataclass(frozen=True)
class Predict:
    """Predict the rows of new groups from a few labelled rows of each, or from none.

    The query's rows come back in their order, with their columns, followed by the predictions."""

    query: Path
    """Table of the rows to predict."""
    run: tyro.conf.Positional[Path | None] = None
    """Folder of a run of 'stmaml fit', or the file of an adapted group; none with --train."""
    train: Path | None = None
    """Table of many groups to predict from without a fit, by a learner that ships with the package."""
    task: str | None = None
    """With --train: column that names the group of a row."""
    target: str | None = None
    """With --train: column to predict."""
    drop: tuple[str, ...] = ()
    """With --train: columns to leave out."""
    missing: tuple[str, ...] = ()
    """With --train: values that stand for a missing one, such as 9999.9, beside empty cells and NA."""
    order: str | None = None
    """With --train: column that orders the rows of a group; labelled rows are then the first ones."""
    steps: int = 0
    """With --train: steps in which the learner is trained further on the table first; worth it for many groups."""
    support: Path | None = None
    """Table of labelled rows of the same groups; predicted without any if not given."""
    out: Path | None = None
    """File for the predictions (.csv, .csv.gz, .tsv, .parquet, .feather, .jsonl, .xlsx); else a terminal shows a table
    of what matters, and a pipe gets CSV."""
    samples: int = 20
    """Predictors sampled for each group."""
    quantiles: tuple[float, ...] = DEFAULT_LEVELS
    """Levels of the quantiles to give."""
    coverage: float = 0.9
    """For classes: how likely the set of classes given for a row is to hold the true one."""
    guarantee: bool = False
    """Add the interval that holds 90 % of a group's rows in nine new groups of ten; for pools of numbers."""
    suggest: int = 0
    """Rank this many rows of each group by how much their labels would reduce the uncertainty."""
    save_adapted: Path | None = None
    """Folder for one file a group, which predicts later without its labelled rows; for runs of a single method."""
    delimiter: str | None = None
    """What separates the columns of CSV files; found out if not given."""
    sheet: str | None = None
    """Sheet of Excel files; the first if not given."""
    seed: int = 0
    """Seed of the sampled predictors."""
    json: bool = False
    """Print one JSON object a row instead of CSV."""


def main(arguments: list[str]) -> None:
    """Predicts and writes."""
    flags = parse(Predict, arguments, "stmaml predict")
    _check(flags)
    console = plain_console(stderr=True)
    if is_large_question(flags):
        predict_large(flags, _levels(flags), console)
        return
    with showing(console, "reading"):
        schema, answer = _answer(flags)
    for note in answer.notes:
        console.print(f"note: {note}")
    if flags.out is None and not flags.json and sys.stdout.isatty():
        show_predictions(answer.frame, schema, _levels(flags), people_console())
    else:
        _write(flags, schema, answer)


def _answer(flags: Predict) -> tuple[Schema, Answer]:
    if flags.train is not None:
        return answer_of_table(flags, _levels(flags), _form(flags))
    if flags.run is None:
        raise SettingError("predict needs the folder of a run of 'stmaml fit', or a table to predict from: --train.")
    return _answer_of_file(flags, flags.run) if flags.run.is_file() else _answer_of_run(flags, flags.run)


def _answer_of_file(flags: Predict, path: Path) -> tuple[Schema, Answer]:
    _refuse_support(flags)
    check_adapted(path)
    adapted = load_adapted(path)
    query = read_table([flags.query], _reading(flags, adapted.schema))
    check_writable(query, _form(flags))
    return adapted.schema, adapted.predict(query, levels=_levels(flags), coverage=flags.coverage)


def _answer_of_run(flags: Predict, folder: Path) -> tuple[Schema, Answer]:
    check_folder(folder)
    run = Run(folder)
    model = PoolRun(run).load() if is_pool(run) else load_model(folder)
    if flags.save_adapted is not None and is_pool(run):
        raise SettingError(
            f"{folder} is a pool, which keeps no files of single groups. Add labelled rows to what it knows with "
            f"'stmaml update {folder} ROWS', then predict without --support."
        )
    if flags.guarantee and not is_pool(run):
        raise SettingError(
            f"--guarantee is for pools, and {flags.run} is a run of a single method. Fit a pool: leave out --method."
        )
    reading = _reading(flags, model.schema)
    query = read_table([flags.query], reading)
    check_writable(query, _form(flags))
    support = None if flags.support is None else read_table([flags.support], replace(reading, may_be_empty=True))
    answer = model.predict(
        query,
        support,
        num_samples=flags.samples,
        levels=_levels(flags),
        coverage=flags.coverage,
        suggest=flags.suggest,
        seed=flags.seed,
        **({"guarantee": True} if flags.guarantee else {}),
    )
    if flags.save_adapted is None or support is None:
        return model.schema, answer
    saved = _save_adapted(flags.save_adapted, model, support, flags)
    nothing = [] if saved else [f"no group has a labelled row, so nothing is saved in {flags.save_adapted}"]
    return model.schema, replace(answer, notes=[*answer.notes, *nothing])


def _reading(flags: Predict, schema: Schema) -> Reading:
    """How to read tables of which some columns are known: one of them alone makes a table."""
    return Reading(flags.delimiter, known=schema.names, sheet=flags.sheet)


def _levels(flags: Predict) -> tuple[float, ...]:
    return tuple(sorted(flags.quantiles))


def _check(flags: Predict) -> None:
    at_least(1, samples=flags.samples)
    at_least(0, suggest=flags.suggest, steps=flags.steps)
    if not flags.quantiles:
        raise SettingError("--quantiles needs at least one level, such as 0.05 0.5 0.95.")
    if not all(0 < level < 1 for level in flags.quantiles):
        raise SettingError(f"--quantiles must lie between 0 and 1; got {', '.join(map(str, flags.quantiles))}.")
    if not 0 < flags.coverage < 1:
        raise SettingError(f"--coverage must lie between 0 and 1; got {flags.coverage:g}.")
    if flags.out is not None:
        writer_of(flags.out)
        _refuse_inputs(flags, flags.out)
        check_out(flags.out)
    for name in ("task", "target", "drop", "missing", "order", "steps"):
        if getattr(flags, name) and flags.train is None:
            raise SettingError(f"--{name} goes with --train; a run of 'stmaml fit' has settled it. Leave it out.")
    if flags.save_adapted is not None and flags.support is None:
        raise SettingError("--save-adapted needs labelled rows to adapt to; name them with --support.")


def _refuse_inputs(flags: Predict, out: Path) -> None:
    """Predictions do not replace what they are made from."""
    for name in ("query", "support", "train", "run"):
        read = getattr(flags, name)
        if read is not None and out.exists() and read.exists() and out.samefile(read):
            raise SettingError(f"--out {out} is the file that --{name} reads, which would be lost. Name another.")


def _refuse_support(flags: Predict) -> None:
    given = [name for name in ("support", "suggest", "guarantee") if getattr(flags, name)]
    if given:
        raise SettingError(
            f"{flags.run} is a group already adapted, so --{given[0].replace('_', '-')} cannot change it. Name the run "
            "folder instead."
        )


def _save_adapted(folder: Path, model: Any, support: pl.DataFrame, flags: Predict) -> int:
    """Writes a file for each group and says how many."""
    saved = 0
    for adapted in model.adapt(support, num_samples=flags.samples, seed=flags.seed):
        adapted.save(folder / f"{file_name(adapted.group)}.npz")
        saved += 1
    return saved


def file_name(group: str) -> str:
    """A name for a group's file: its own, or with a digest where it holds what file names should not."""
    plain = re.sub(r"[^\w.-]+", "_", group).strip(".").encode()[:NAME_BYTES].decode(errors="ignore")
    return plain if plain == group and plain else f"{plain}-{hashlib.sha256(group.encode()).hexdigest()[:8]}"


def _form(flags: Predict) -> str:
    """What the predictions are written as."""
    return form_of(flags.out) if flags.out is not None else "JSON" if flags.json else "CSV"


def _write(flags: Predict, schema: Schema, answer: Answer) -> None:
    frame = answer.frame
    if _form(flags) != "CSV" and not flags.query.name.lower().endswith(TYPED_ENDINGS):
        frame = with_numbers(frame, schema.task, schema.numbers)
    if flags.out is None:
        text = frame.write_ndjson() if flags.json else as_csv(frame)
        sys.stdout.write(text)
        return
    write_bytes(flags.out, writer_of(flags.out)(frame))
    summary = {"rows": frame.height, "out": str(flags.out), "notes": answer.notes}
    print(json.dumps(summary) if flags.json else f"wrote {frame.height} predictions to {flags.out}")
