"""`stmaml update`."""

import json
from dataclasses import dataclass
from pathlib import Path

import tyro

from stmaml.cli.folders import check_folder
from stmaml.cli.parsing import parse
from stmaml.cli.showing import plain_console
from stmaml.errors import RunError
from stmaml.locks import locked
from stmaml.pool.store import PoolRun, is_pool
from stmaml.runs import Run
from stmaml.tables.parts import Reading
from stmaml.tables.reading import read_table


@dataclass(frozen=True)
class Update:
    """Add labelled rows to what a pool knows of its groups; later predictions use them, and nothing is trained again.

    Rows may be of groups that the pool knows or of new ones."""

    run: tyro.conf.Positional[Path]
    """Folder of a run of 'stmaml fit'."""
    rows: tyro.conf.Positional[Path]
    """Table of labelled rows with the columns of the training table."""
    delimiter: str | None = None
    """What separates the columns of CSV files; found out if not given."""
    json: bool = False
    """Print one JSON object instead of a sentence."""


def main(arguments: list[str]) -> None:
    """Adds the rows and says how many."""
    flags = parse(Update, arguments, "stmaml update")
    check_folder(flags.run)
    run = Run(flags.run)
    if not is_pool(run):
        raise RunError(f"{flags.run} is the run of a single method, which keeps no rows. Name them with --support.")
    store, notes = PoolRun(run), list[str]()
    with locked([flags.run]):  # of two updates at once, one would undo the other
        model = store.load()
        frame = read_table([flags.rows], Reading(flags.delimiter, known=model.schema.names))
        longer = model.with_rows(frame, notes)
        store.save_known(longer.known)
    added = longer.known.height - model.known.height
    console = plain_console(stderr=True)
    for note in notes:
        console.print(f"note: {note}")
    summary = {"added": added, "rows": longer.known.height, "notes": notes}
    print(json.dumps(summary) if flags.json else f"added {added} rows; {flags.run} now knows {longer.known.height:,}")
