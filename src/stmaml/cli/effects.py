"""`stmaml effects`."""

import json
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import tyro
from rich.console import Console

from stmaml.cli.folders import check_folder
from stmaml.cli.parsing import parse
from stmaml.cli.showing import people_console, table_of, without_nan
from stmaml.errors import RunError
from stmaml.numbers import plain, share, to_place
from stmaml.pool.group_effects import GroupEffects
from stmaml.pool.kind import is_pool
from stmaml.pool.reopening import effects_again
from stmaml.pool.store import PoolRun
from stmaml.runs import Run, write_bytes
from stmaml.tables.writing import writer_of

SHOWN = 20
NO_SLOPES = "  no slopes differ by more than chance, as far as rows tell; --slopes COLUMN shows them all the same"


@dataclass(frozen=True)
class ShowEffects:
    """Show how the groups of a table differ: variance between and within groups, effects of columns, and the level and
    slopes of each group, by a linear mixed model."""

    run: tyro.conf.Positional[Path]
    """Folder of a run of 'stmaml fit'."""
    slopes: tuple[str, ...] | None = None
    """Columns whose slopes differ between groups; if not given, up to three that do so by more than chance. Without a
    name, levels alone differ."""
    out: Path | None = None
    """File for the effects of all groups (.csv, .parquet, .xlsx and others); else the first 20 are printed."""
    json: bool = False
    """Print one JSON object instead of tables."""


def main(arguments: list[str]) -> None:
    """Prints the effects, or writes those of groups."""
    flags = parse(ShowEffects, arguments, "stmaml effects")
    check_folder(flags.run)
    run = Run(flags.run)
    if not is_pool(run):
        raise RunError(f"{flags.run} is the run of a single method, which keeps no effects. Fit without --method.")
    store = PoolRun(run)
    effects = store.effects() if flags.slopes is None else effects_again(store, flags.slopes)
    if flags.out is not None:
        write_bytes(flags.out, writer_of(flags.out)(_all(effects)))
    if flags.json:
        print(json.dumps(without_nan(effects.summary()), indent=2, allow_nan=False))
        return
    console = people_console()
    _show_variances(effects, store.result()["target"], console)
    if flags.slopes is None and effects.effects.own_names == ("level",) and len(effects.effects.fixed_names) > 1:
        console.print(NO_SLOPES, style="dim")
    _show_fixed(effects, console)
    _show_groups(effects, flags.out, console)


def _all(effects: GroupEffects) -> pl.DataFrame:
    """Groups, then levels of further groupings, in one table."""
    groups = effects.groups()
    if not effects.groupings:
        return groups
    levels = effects.levels().rename({"name": "group"})
    return pl.concat([groups.with_columns(grouping=pl.lit("")), levels], how="diagonal")


def _show_variances(effects: GroupEffects, target: str, console: Console) -> None:
    own = effects.effects
    console.print(
        f"{share(own.share_of_rows)} of the variance of '{target}' that columns do not explain lies between groups, "
        f"{share(1 - own.share_of_rows)} within."
    )
    table = table_of("standard deviation", "", "correlations")
    for i, name in enumerate(own.own_names):
        words = "between groups: level" if i == 0 else f"between groups: slope of {name}"
        related = [f"{own.correlation[i, j]:+.2f} with {own.own_names[j]}" for j in range(i)]
        table.add_row(words, plain(float(own.spread[i]), 4), ", ".join(related) if own.spread[i] > 0 else "")
    for name, spread in zip(effects.groupings, own.level_spread, strict=True):
        table.add_row(f"between levels of {name}", plain(float(spread), 4), "")
    table.add_row("within groups", plain(own.noise, 4), "")
    console.print(table)


def _show_fixed(effects: GroupEffects, console: Console) -> None:
    own = effects.effects
    table = table_of("all groups", "effect", "standard error", "effect / error")
    for name, value, error in zip(own.fixed_names, own.fixed, own.fixed_error, strict=True):
        ratio = "" if error <= 0 else f"{value / error:.1f}"
        table.add_row(name, to_place(float(value), float(error), 3), plain(float(error)), ratio)
    zero = "level: what is expected where all columns are 0; others: what one more of a column adds"
    console.print(table)
    for line in (zero, *effects.notes):
        console.print(f"  {line}", style="dim")


def _show_groups(effects: GroupEffects, out: Path | None, console: Console) -> None:
    frame, names = effects.groups(), effects.effects.own_names
    table = table_of("group", *("level" if i == 0 else f"slope of {n}" for i, n in enumerate(names)))
    for row in frame.head(SHOWN).iter_rows(named=True):
        table.add_row(row["group"], *(_cell(row[name], row[f"{name} error"]) for name in names))
    console.print(table)
    console.print("  how each group departs from all, ± the 95 % interval", style="dim")
    if out is not None:
        console.print(f"wrote the effects of {frame.height:,} groups to {out}")
    elif frame.height > SHOWN:
        console.print(f"{SHOWN} of {frame.height:,} groups; all of them with --out FILE.csv")


def _cell(value: float, error: float) -> str:
    return f"{to_place(value, error, 3)} ± {to_place(1.96 * error, error, 3)}"
