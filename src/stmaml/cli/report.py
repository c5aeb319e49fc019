"""`stmaml report`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from stmaml.border.writing import check_writable
from stmaml.cli.parsing import parse
from stmaml.cli.progress import showing
from stmaml.cli.showing import plain_console
from stmaml.errors import SettingError
from stmaml.pool.kind import is_pool
from stmaml.reports import PAGE, TEXT, write_report
from stmaml.runs import Run, find_runs, held_runs


@dataclass(frozen=True)
class Report:
    """Write one page (HTML) with tables and figures of one or more evaluated runs, and the same as Markdown with PNG
    beside it, from what their folders hold."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of runs, or of several seeds. The others are compared with the first."""
    out: Path | None = None
    """Folder for the report; `report` in the first run's folder if not given."""


def main(arguments: list[str]) -> None:
    """Writes a report and says where."""
    flags = parse(Report, arguments, "stmaml report")
    if not flags.runs:
        raise SettingError("report needs at least one run folder. For example: stmaml report runs/first")
    folders = _with_runs(flags.runs)
    if any(is_pool(run) for folder in folders for run in held_runs(folder)):
        _report_pool(folders, flags.out)
        return
    out = flags.out or folders[0] / "report"
    find_runs(folders[0])[0].config()  # a report of no run makes no folder
    check_writable(out)
    with showing(plain_console(stderr=True), "drawing"):
        _, *pictures = write_report(folders, out)
    _say_written(out, len(pictures))


def _report_pool(folders: Sequence[Path], out: Path | None) -> None:
    if len(folders) > 1:
        raise SettingError(
            "a report of a pool is of one run; name one folder, and the others in commands of their own."
        )
    from stmaml.reports.pools import write_pool_report  # polars comes with it

    out = out or folders[0] / "report"
    check_writable(out)
    with showing(plain_console(stderr=True), "drawing"):
        _, *pictures = write_pool_report(Run(folders[0]), out)
    _say_written(out, len(pictures))


def _say_written(out: Path, pictures: int) -> None:
    figures = f"{pictures} figure{'s' * (pictures != 1)}"
    print(f"wrote {out / PAGE}, and {TEXT} with {figures} beside it")


def _with_runs(folders: Sequence[Path]) -> list[Path]:
    """The folders that hold runs, as among all of a folder; the others are named, unless no run is left."""
    held = [folder for folder in folders if held_runs(folder) or not folder.exists()]
    for folder in folders if held else ():
        if folder not in held:
            plain_console(stderr=True).print(f"left out {folder}: it holds no run", soft_wrap=True)
    return held or list(folders)
