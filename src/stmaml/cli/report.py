"""`stmaml report`."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from stmaml.cli.folders import refuse_table
from stmaml.cli.parsing import parse
from stmaml.errors import SettingError
from stmaml.reports import write_report


@dataclass(frozen=True)
class Report:
    """Write tables (Markdown) and figures (PNG) of one or more evaluated runs, from what their folders hold."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of runs, or of several seeds. The others are compared with the first."""
    out: Path | None = None
    """Folder for the report; `report` in the first run's folder if not given."""


def main(arguments: list[str]) -> None:
    """Writes a report and says where."""
    flags = parse(Report, arguments, "stmaml report")
    if not flags.runs:
        raise SettingError("report needs at least one run folder. For example: stmaml report runs/first")
    for folder in flags.runs:
        refuse_table(folder)
    report, *pictures = write_report(list(flags.runs), flags.out or flags.runs[0] / "report")
    print(f"wrote {report} and {len(pictures)} figure{'s' * (len(pictures) != 1)} beside it")
