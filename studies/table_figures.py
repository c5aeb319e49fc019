"""Tables in Markdown of what `studies/tables.py` and `studies/rivals.py` wrote."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import t as student

RIVALS = ("lme4", "lme4-slopes", "gpboost", "gpboost-slopes")
POOL = "pool"
AVERAGED = "averaged "
Values = dict[tuple[int, int], float]


@dataclass(frozen=True)
class Cell:
    """Scores of all rows on one table with one number of labelled rows: by metric and row, a number for each group."""

    table: str
    ordered: bool
    shots: int
    values: dict[str, dict[str, Values]]

    @property
    def metric(self) -> str:
        """What the table is judged by."""
        return "mse" if "mse" in self.values else "nll"

    def mean(self, row: str, metric: str = "") -> float:
        """Of all groups that the pool was tested on; NaN for a row that was not tested on all of them."""
        scores = self.values[metric or self.metric]
        if row not in scores or not scores[POOL].keys() <= scores[row].keys():
            return float("nan")
        return float(np.mean([scores[row][key] for key in scores[POOL]]))

    def members(self) -> list[str]:
        """All but the pool and what stands outside of it."""
        rows = self.values[self.metric]
        return [row for row in rows if row not in (POOL, *RIVALS) and not row.startswith(AVERAGED)]

    def best(self, rows: Iterable[str]) -> str:
        """The row with the lowest mean, after the fact."""
        known = {row: self.mean(row) for row in rows if np.isfinite(self.mean(row))}
        return min(known, key=lambda row: known[row]) if known else ""

    def against(self, row: str, level: float) -> tuple[float, float]:
        """The pool's error over that of another row, and the half-width of its interval, paired over groups."""
        scores = self.values[self.metric]
        gaps = np.array([scores[POOL][key] - scores[row][key] for key in scores[POOL]])
        error = gaps.std(ddof=1) / len(gaps) ** 0.5 * student.ppf(1 - level / 2, len(gaps) - 1)
        return 1 + float(gaps.mean()) / self.mean(row), float(error) / self.mean(row)


def cells_of(records: Iterable[dict[str, Any]]) -> list[Cell]:
    """All scores, by table and number of labelled rows."""
    found: dict[Any, Any] = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    for record in records:
        place = found[record["ordered"], record["shots"], record["table"]]
        for metric, values in record["scores"].items():
            keys = [(record["split"], group) for group in record["groups"]]
            place[metric][record["row"]].update(zip(keys, values, strict=True))
    cells = [Cell(table, ordered, shots, dict(values)) for (ordered, shots, table), values in sorted(found.items())]
    return [cell for cell in cells if POOL in cell.values[cell.metric]]


def show(records: list[dict[str, Any]]) -> None:
    """Prints a table for each way of labelling and each number of labelled rows, numbers and classes apart."""
    cells = cells_of(records)
    for ordered in (False, True):
        for metric in ("mse", "nll"):
            some = [cell for cell in cells if cell.ordered == ordered and cell.metric == metric]
            for shots in sorted({cell.shots for cell in some}):
                _show([cell for cell in some if cell.shots == shots], len(some))


def _show(cells: list[Cell], comparisons: int) -> None:
    first = cells[0]
    which = "first rows" if first.ordered else "random rows"
    print(f"\n**{first.shots} labelled rows** ({which}; {first.metric}):\n")
    heads = ("table", "groups", "pool", "best member", "pool / it", "best rival", "pool / it", "nll", "90 % holds")
    print(f"| {' | '.join([*heads, 'worst decile'])} |")
    print("|---|--:|--:|---|--:|---|--:|--:|--:|--:|")
    firsts = 0
    for cell in cells:
        member, rival = cell.best(cell.members()), cell.best([*RIVALS, "boosting"])
        firsts += cell.mean(POOL) <= min(cell.mean(member), cell.mean(rival) if rival else np.inf)
        held = cell.values.get("coverage90", {}).get(POOL)
        coverage = (
            f"{np.mean(list(held.values())):.2f} | {np.quantile(list(held.values()), 0.1):.2f}" if held else " | "
        )
        groups = len(cell.values[cell.metric][POOL])
        parts = [cell.table, str(groups), f"{cell.mean(POOL):.4g}"]
        for row in (member, rival):
            ratio, half = cell.against(row, 0.05 / comparisons) if row else (np.nan, np.nan)
            parts += [row, f"{ratio:.3f} ± {half:.3f}"]
        print(f"| {' | '.join(parts)} | {cell.mean(POOL, 'nll'):.3f} | {coverage} |")
    print(f"\nThe pool is first on {firsts} of {len(cells)}.")
