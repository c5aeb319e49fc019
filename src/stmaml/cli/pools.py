"""What the scores of a pool look like in the terminal."""

from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from stmaml.cli.showing import plain_console

LEVELS = ("50%", "80%", "90%")


def show_pool(result: dict[str, Any]) -> None:
    """Prints errors by number of labelled rows, what each member counts and is worth, and whether intervals hold."""
    console = plain_console()
    main, name = (
        ("nll", "log-loss") if "sets" in next(iter(result["calibration"].values())) else ("mse", "squared error")
    )
    console.print(_errors(result, main, name))
    console.print(_weights(result))
    _show_intervals(result, console)
    console.print(f"Scores are means over {result['test_groups']} groups, ± the 95 % interval. {result['verdict']}")
    for note in result["notes"]:
        console.print(f"{note[0].upper()}{note[1:]}.")


def _errors(result: dict[str, Any], main: str, name: str) -> Table:
    counts = list(result["scores"])
    table = Table(f"{name} with", *(_rows(shots) for shots in counts), box=SIMPLE, padding=(0, 1))
    for row in result["scores"][counts[0]]:
        cells = [_cell(result["scores"][shots][row][main]) for shots in counts]
        table.add_row(row, *cells, style="bold" if row == "pool" else None)
    return table


def _rows(shots: str) -> str:
    return "1 row" if shots == "1" else f"{shots} rows"


def _cell(summary: dict[str, float]) -> str:
    return f"{_number(summary['mean'], 3)} ± {_number(summary['ci95'], 2)}"


def _number(value: float, digits: int) -> str:
    """So many digits, without an exponent where that is readable."""
    return f"{float(f'{value:.{digits}g}'):,.0f}" if 100 <= abs(value) < 1e7 else f"{value:.{digits}g}"


def _weights(result: dict[str, Any]) -> Table:
    counts = list(result["weights"])
    table = Table("what members count", *(_rows(shots) for shots in counts), box=SIMPLE, padding=(0, 1))
    for member in result["weights"][counts[0]]:
        cells = []
        for shots in counts:
            worth = result["worth"][shots].get(member)
            lost = "" if worth is None or worth["mean"] < 0.0005 else f" ({100 * worth['mean']:+.1f} %)"
            cells.append(f"{100 * result['weights'][shots][member]:.0f} %{lost}")
        table.add_row(member, *cells)
    table.caption = "in brackets: by how much the error of predictions (CRPS or log-loss) would rise without it"
    return table


def _show_intervals(result: dict[str, Any], console: Console) -> None:
    rows = result["calibration"]
    if "sets" in next(iter(rows.values())):
        heads = [f"{level} sets hold" for level in LEVELS[1:]]
        table = Table("labelled rows", *heads, "classes in a 90% set", "groups below 80 %", box=SIMPLE, padding=(0, 1))
        for shots, row in rows.items():
            holds = [f"{100 * row['sets'][level]['holds']['mean']:.0f} %" for level in LEVELS[1:]]
            size = f"{row['sets']['90%']['size']['mean']:.2f}"
            table.add_row(shots, *holds, size, f"{100 * row['poorly']['mean']:.0f} %")
    else:
        heads = [f"{level} intervals hold" for level in LEVELS]
        table = Table("labelled rows", *heads, "width of 90%", "groups below 80 %", box=SIMPLE, padding=(0, 1))
        for shots, row in rows.items():
            holds = [f"{100 * row[level]['after']['mean']:.0f} %" for level in LEVELS]
            table.add_row(shots, *holds, f"{row['90%']['width']['mean']:.3g}", f"{100 * row['poorly']['mean']:.0f} %")
    table.caption = "groups below 80 %: those in which the 90 % intervals or sets hold less than that"
    console.print(table)
