"""The page docs/performance.md and its figure, from what studies/bench.py has measured."""

import json
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("agg")
import matplotlib.pyplot as plt

FIGURE = "figures/growth.png"
WORDS = Path(__file__).parent / "bench_words.md"
"""What no machine writes: counts, limits and comparisons with earlier versions."""
UNITS = {"draws": "ms a prediction"}


def write_page(files: Iterable[Path], page: Path) -> None:
    parts = [json.loads(file.read_text()) for file in files]
    growths = [part for part in parts if "growth" in part]
    if growths:
        draw_growth(growths, page.parent / FIGURE)
    pieces = [WORDS.read_text().rstrip()]
    for title, section, table in SECTIONS:
        found = [part for part in parts if section in part]
        if found:
            pieces.append(f"## {title}")
            pieces += [
                piece for part in found for piece in (about(part[section]["about"]), table(part[section]["found"]))
            ]
    if growths:
        pieces.append(f"![How the cost of a step grows]({FIGURE})")
    page.write_text("\n\n".join(pieces) + "\n")


def about(found: dict[str, Any]) -> str:
    """On what, with what and how it was measured."""
    torch = f", torch {found['torch']}" if found.get("torch") else ""
    cores = f"{found['threads']} CPU cores" if found["backend"] == "cpu" else found["device"]
    without = f" Not installed: {', '.join(found['left_out'])}." if found.get("left_out") else ""
    where = f"{cores}, JAX {found['jax']}{torch}, Python {found['python']}, {found['date'][:10]}"
    text = f"{where}, load {found['load']:.1f} at the end (`{found['command']}`).{without}"
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def table(head: list[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: float | None, digits: int = 3) -> str:
    if value is None or value != value:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{float(f'{value:.{digits}g}'):g}"


def training(rows: list[dict[str, Any]]) -> str:
    cells = [
        [
            row["name"],
            f"{number(row['steps_per_s'])} ({number(row['slowest'])}-{number(row['fastest'])})",
            number(row["ratio"]),
            number(row.get("processor_ms")),
            number(row["compile_s"]),
        ]
        for row in rows
    ]
    return table(["", "meta-steps/s", "speed over plain JAX", "processor ms a step", "first call, s"], cells)


def images(found: dict[str, Any]) -> str:
    cells = []
    for tasks, rows in found.items():
        for row in rows if tasks != "kernels" else []:
            share = row.get("bytes_share")
            moved = "-" if share is None or share != share else f"{number(row['tb_per_s'])} TB/s, {100 * share:.0f} %"
            spread = f"{number(row['slowest'])}-{number(row['fastest'])}"
            rate, memory = f"{number(row['tasks_per_s'])} ({spread})", number(row.get("memory_gb"))
            cells.append([row["name"], tasks, rate, moved, memory, number(row["first_call_s"])])
    head = ["", "tasks in a step", "tasks/s", "moved, of the limit", "memory, GB", "first call, s"]
    return "\n\n".join([table(head, cells), *kernels(found.get("kernels", []))])


def kernels(rows: list[dict[str, Any]]) -> list[str]:
    """Where the time of one step goes."""
    top = [*rows[:12], *rows[-1:]] if len(rows) > 13 else rows
    cells = [
        [f"`{row['name'][:60]}`", str(row["launches"]), number(1e3 * row["seconds"]), f"{100 * row['share']:.1f} %"]
        for row in top
    ]
    return [table(["kernel", "launches", "ms", "share"], cells)] if cells else []


def recipes(rows: list[dict[str, Any]]) -> str:
    ordered = sorted(rows, key=lambda row: -row["ratio"])
    cells = [
        [
            row["name"],
            number(row["steps_per_s"]),
            number(1 / row["ratio"]),
            number(row["compile_s"]),
            f"{row['parameters']:,}",
        ]
        for row in ordered
    ]
    return table(["", "meta-steps/s", "time over MAML's", "first call, s", "parameters"], cells)


def use(rows: list[dict[str, Any]]) -> str:
    cells = [[row["name"], number(row["adapt_ms"]), number(row["evaluated_per_s"])] for row in rows]
    return table(["", "one new task, ms", "tasks scored a second"], cells)


def growth(found: dict[str, list[list[float]]]) -> str:
    cells = []
    for what, pairs in found.items():
        each = ", ".join(f"{value}: {number(cost)}" for value, cost in pairs)
        cells.append([what, each, number(power(pairs)), UNITS.get(what, "ms a step")])
    return table(["", "cost at each size", "last power", ""], cells)


def power(pairs: list[list[float]]) -> float:
    """Of the size that the cost grows with, between the last two: 1 is in proportion."""
    (before, low), (after, high) = pairs[-2:]
    return float(np.log(high / low) / np.log(after / before))


def start(rows: list[dict[str, Any]]) -> str:
    cells = [
        [row["name"], *(number(row[turn][unit]) for turn in ("first", "again") for unit in ("seconds", "processor_s"))]
        for row in rows
    ]
    return table(["", "first start, s", "of processors", "second start, s", "of processors"], cells)


def tables(rows: list[dict[str, Any]]) -> str:
    cells = [
        [
            row["name"],
            f"{row['rows']:,}",
            *(number(row[what][unit]) for what in ("fit", "predict") for unit in ("seconds", "memory_gb")),
            number(row["error"]),
        ]
        for row in rows
    ]
    return table(["", "rows", "fit, s", "memory, GB", "predict, s", "memory, GB", "error on new groups"], cells)


SECTIONS = (
    ("A small network", "training", training),
    ("Images", "images", images),
    ("Recipes", "recipes", recipes),
    ("A trained learner", "use", use),
    ("Starting", "start", start),
    ("Tables", "tables", tables),
    ("How cost grows", "growth", growth),
)


def draw_growth(parts: list[dict[str, Any]], path: Path) -> None:
    """One panel for each thing that is changed, one line for each device, both axes logarithmic."""
    names = list(parts[0]["growth"]["found"])
    figure, axes = plt.subplots(1, len(names), figsize=(3 * len(names), 2.8), constrained_layout=True)
    for axis, name in zip(np.atleast_1d(axes), names, strict=True):
        for part in parts:
            pairs = np.array(part["growth"]["found"][name])
            axis.loglog(*pairs.T, "o-", label=part["part"].upper())
        axis.loglog(pairs[:, 0], pairs[0, 1] * pairs[:, 0] / pairs[0, 0], ":", color="grey", label="in proportion")
        axis.set_xlabel(name)
        axis.set_ylabel(UNITS.get(name, "ms a step"))
    np.atleast_1d(axes)[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)
