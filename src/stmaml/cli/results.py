"""What scores of a table look like in the terminal."""

from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from stmaml.cli.showing import plain_console
from stmaml.numbers import plain, with_interval
from stmaml.tables.aftercare import NOMINAL

SHOWN = ("accuracy", "mse", "nll", "crps", "missed90", "width90")  # coverage has a table of its own


def show_result(result: dict[str, Any]) -> None:
    """Prints a table of scores for each number of labelled rows, and whether intervals hold."""
    console = plain_console()
    for shots, rows in result["scores"].items():
        names = [name for name in SHOWN if name in next(iter(rows.values()))]
        head = "1 labelled row" if shots == "1" else f"{shots} labelled rows"
        table = Table(head, *names, box=SIMPLE, padding=(0, 1))
        for row, metrics in rows.items():
            others = [plain(metrics[name]["mean"]) for name in names[1:]]
            table.add_row(row, with_interval(metrics[names[0]]), *others)
        console.print(table)
    console.print(_calibration_table(result["calibration"]))
    console.print(
        f"Scores are means over {result['test_groups']} test groups, ± the 95 % interval. {result['verdict']}".rstrip()
    )


def _calibration_table(calibration: dict[str, Any]) -> Table:
    """Before and after, by number of labelled rows."""
    levels = [f"{nominal:.0%}" for nominal in NOMINAL]
    if levels[0] not in next(iter(calibration.values())):
        heads = [f"{level} set holds (classes)" for level in levels[1:]]
        table = Table("labelled rows", "temperature", "nll before -> after", *heads, box=SIMPLE, padding=(0, 1))
        for shots, row in calibration.items():
            sets = [row["sets"][level] for level in levels[1:]]
            cells = [f"{100 * one['holds']['mean']:.0f} % ({one['size']['mean']:.2f})" for one in sets]
            table.add_row(shots, f"{row['temperature']:.2f}", f"{row['before']:.4g} -> {row['after']:.4g}", *cells)
        return table
    table = Table("labelled rows", *(f"{level} interval holds" for level in levels), box=SIMPLE, padding=(0, 1))
    for shots, row in calibration.items():
        cells = [f"{100 * row[le]['before']['mean']:.0f} -> {100 * row[le]['after']['mean']:.0f} %" for le in levels]
        table.add_row(shots, *cells)
    table.caption = "before -> after recalibration on validation groups; the truth of test groups"
    return table
