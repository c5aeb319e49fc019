"""What the scores of a pool look like in the terminal."""

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from stmaml.cli.showing import FILE_WIDTH, people_console, table_of
from stmaml.numbers import plain, share, with_interval

LEVELS = ("50%", "80%", "90%")
WIDEST, FEWEST = 6, 3  # numbers of labelled rows that are shown beside names of members


def show_pool(result: dict[str, Any]) -> None:
    """Prints errors by number of labelled rows, what each member counts and is worth, and whether intervals hold."""
    console = people_console()
    main, name = ("nll", "log-loss") if result["kind"] == "class" else ("mse", "squared error")
    _show_errors(result, main, name, console)
    _show_weights(result, console)
    if result["kind"] == "class":
        _show_sets(result["calibration"], console)
    else:
        _show_intervals(result["calibration"], console)
    console.print("  groups below 80 %: those in which 90 % intervals or sets hold less than that", style="dim")
    console.print(f"\n{result['verdict']}".rstrip())
    for note in result["notes"]:
        console.print(f"{note[0].upper()}{note[1:]}.")


def _rows(shots: str) -> str:
    return "1 row" if shots == "1" else f"{shots} rows"


def _some(counts: list[str], most: int) -> list[str]:
    """So many numbers of labelled rows: the first and the last of more."""
    return counts if len(counts) <= most else [*counts[: most - 2], *counts[-2:]]


def _fitting(table_with: Callable[[list[str]], Table], counts: list[str], console: Console) -> Table:
    """The table with as many numbers of labelled rows as leave every name and number of it whole."""
    free = console.options.update(max_width=10 * FILE_WIDTH)

    def with_most(most: int) -> Table:
        table = table_with(_some(counts, most))
        table.columns[0].no_wrap = True  # two members may begin alike
        return table

    fits = (
        m for m in range(WIDEST, FEWEST, -1) if console.measure(with_most(m), options=free).minimum <= console.width
    )
    return with_most(next(fits, FEWEST))


def _show_errors(result: dict[str, Any], main: str, name: str, console: Console) -> None:
    def table_with(counts: list[str]) -> Table:
        table = table_of(f"{name} with", *(_rows(shots) for shots in counts))
        for row in result["scores"][counts[0]]:
            cells = [with_interval(result["scores"][shots][row][main]) for shots in counts]
            table.add_row(row, *cells, style="bold" if row == "pool" else None)
        return table

    console.print(_fitting(table_with, list(result["scores"]), console))
    console.print(
        f"  means over {result['test_groups']:,} groups (those with rows enough), ± the 95 % interval", style="dim"
    )


def _show_weights(result: dict[str, Any], console: Console) -> None:
    def table_with(counts: list[str]) -> Table:
        table = table_of("weight (worth)", *(_rows(shots) for shots in counts))
        for member in result["weights"][counts[0]]:
            weights = [result["weights"][shots][member] for shots in counts]
            worth = [result["worth"].get(shots, {}).get(member) for shots in counts]
            table.add_row(member, *(_weight(*both) for both in zip(weights, worth, strict=True)))
        return table

    counts = [shots for shots in result["weights"] if shots in result["scores"]]
    console.print(_fitting(table_with, counts, console))
    if result["worth"]:
        console.print("  in brackets: by how much the error (CRPS or log-loss) would rise without it", style="dim")


def _weight(weight: float, worth: dict[str, float] | None) -> str:
    if worth is None or not worth["mean"] >= 0.0005:
        return share(weight)
    rise = 100 * worth["mean"]
    return f"{share(weight)} (+{rise:,.0f} %)" if rise >= 10 else f"{share(weight)} (+{rise:.1f} %)"


def _show_intervals(rows: dict[str, Any], console: Console) -> None:
    heads = [f"{level[:-1]} % hold" for level in LEVELS]
    table = table_of("intervals", *heads, "width of 90 %", "groups below 80 %")
    for shots, row in rows.items():
        holds = [share(row[level]["after"]["mean"]) for level in LEVELS]
        table.add_row(f"with {_rows(shots)}", *holds, plain(row["90%"]["width"]["mean"]), share(row["poorly"]["mean"]))
    console.print(table)


def _show_sets(rows: dict[str, Any], console: Console) -> None:
    heads = [f"{level[:-1]} % hold" for level in LEVELS[1:]]
    table = table_of("sets of classes", *heads, "classes in 90 %", "groups below 80 %")
    for shots, row in rows.items():
        holds = [share(row["sets"][level]["holds"]["mean"]) for level in LEVELS[1:]]
        size = plain(row["sets"]["90%"]["size"]["mean"])
        table.add_row(f"with {_rows(shots)}", *holds, size, share(row["poorly"]["mean"]))
    console.print(table)
