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
        return self._beside(self.values[self.metric][row], level)

    def against_picked(self, rows: Iterable[str], level: float) -> tuple[float, float]:
        """The same against a row that is picked without knowing: in each part, what was best in the other parts."""
        scores, picked = self.values[self.metric], dict[tuple[int, int], float]()
        whole = [row for row in rows if np.isfinite(self.mean(row))]
        for part in {part for part, _ in scores[POOL]}:
            others = [key for key in scores[POOL] if key[0] != part] or [*scores[POOL]]
            best = min(whole, key=lambda row: np.mean([scores[row][key] for key in others]))
            picked |= {key: scores[best][key] for key in scores[POOL] if key[0] == part}
        return self._beside(picked, level)

    def _beside(self, other: Values, level: float) -> tuple[float, float]:
        pool = self.values[self.metric][POOL]
        gaps, mean = np.array([pool[key] - other[key] for key in pool]), float(np.mean([other[key] for key in pool]))
        error = gaps.std(ddof=1) / len(gaps) ** 0.5 * student.ppf(1 - level / 2, len(gaps) - 1)
        return 1 + float(gaps.mean()) / mean, float(error) / mean


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


def summarise(records: list[dict[str, Any]]) -> None:
    """Prints what all tables of a kind say together."""
    cells = cells_of(records)
    for ordered in (False, True):
        for metric in ("mse", "nll"):
            some = [cell for cell in cells if cell.ordered == ordered and cell.metric == metric]
            if some:
                print(f"\n**{'first' if ordered else 'random'} rows, {metric}** ({len(some)} comparisons)\n")
                _summarise(some)
    seconds = {(r["table"], r["split"]): (r["seconds"], r["megabytes"]) for r in records if r["row"] == POOL}
    for table in sorted({name for name, _ in seconds}):
        spent, memory = zip(*(value for (name, _), value in seconds.items() if name == table), strict=True)
        print(f"{table}: median {np.median(spent):.1f} s, at most {max(spent):.1f} s, {max(memory)} MB")


def _summarise(cells: list[Cell]) -> None:
    rows = sorted({row for cell in cells for row in cell.values[cell.metric]} - {POOL})
    for row in rows:
        logs = [np.log(cell.mean(row) / cell.mean(POOL)) for cell in cells if np.isfinite(cell.mean(row))]
        print(f"- {row}: {np.exp(np.mean(logs)):.3f} times the pool's error in {len(logs)}, behind it in", end=" ")
        print(f"{sum(value > 0 for value in logs)}")
    level = 0.05 / len(cells)
    for name, others in (("member", None), ("averaged member", AVERAGED), ("rival", RIVALS)):
        best = [(cell, cell.best(_rows_of(cell, others))) for cell in cells]
        pairs = [(cell, cell.against(row, level)) for cell, row in best if row]
        if not pairs:
            continue
        within = sum(ratio - half <= 1.02 for _, (ratio, half) in pairs)
        behind = [f"{cell.table} {cell.shots}" for cell, (ratio, half) in pairs if ratio - half > 1]
        print(
            f"- best {name}: median ratio {np.median([ratio for _, (ratio, _) in pairs]):.3f}, within 2 % or", end=" "
        )
        print(f"not clearly beyond in {within} of {len(pairs)}; clearly behind: {', '.join(behind) or 'nowhere'}")
    picked = [cell.against_picked([*cell.members(), *RIVALS], level)[0] for cell in cells]
    print(f"- what the other parts would pick: median ratio {np.median(picked):.3f}, geometric mean", end=" ")
    print(
        f"{np.exp(np.mean(np.log(picked))):.3f}; ahead of it in {sum(ratio < 1 for ratio in picked)} of {len(picked)}"
    )
    held = [np.mean(list(cell.values["coverage90"][POOL].values())) for cell in cells if "coverage90" in cell.values]
    if held:
        print(f"- 90 % intervals hold {np.mean(held):.3f}, {min(held):.2f} to {max(held):.2f}")


def _rows_of(cell: Cell, others: str | tuple[str, ...] | None) -> list[str]:
    if others is None:
        return cell.members()
    if isinstance(others, str):
        return [row for row in cell.values[cell.metric] if row.startswith(others)]
    return [*others, "boosting"]


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
