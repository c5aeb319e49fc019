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
from matplotlib.ticker import FuncFormatter, LogLocator

FIGURE = "figures/growth.png"
WORDS = Path(__file__).parent / "bench_words.md"
"""What no machine writes: counts, limits and what they mean."""
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
        pieces.append(f"![How the cost grows; on a CPU that of processors]({FIGURE})")
        pieces.append("CPU: processor time. Dotted: in proportion to the size, from the largest on.")
    page.write_text("\n\n".join(pieces) + "\n")


def about(found: dict[str, Any]) -> str:
    """On what, with what and how it was measured."""
    torch = f", torch {found['torch']}" if found.get("torch") else ""
    cores = (
        f"{found['threads']} CPU core{'s' * (found['threads'] > 1)}" if found["backend"] == "cpu" else found["device"]
    )
    without = f" Not installed: {', '.join(found['left_out'])}." if found.get("left_out") else ""
    flags = f", XLA_FLAGS={found['xla_flags']}" if found.get("xla_flags") else ""
    where = f"{cores}, JAX {found['jax']}{torch}, Python {found['python']}, {found['date'][:10]}{flags}"
    without += f" Not timed: {', '.join(found['without'])}." if found.get("without") else ""
    without += f" {found['remark']}" if found.get("remark") else ""
    text = f"{where}, load {found['load']:.1f} at the start (`{found['command']}`).{without}"
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def table(head: list[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: float | None, digits: int = 3) -> str:
    if value is None or value != value:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{float(f'{value:.{digits}g}'):g}"


def training(rows: list[dict[str, Any]]) -> str:
    base = next(row for row in rows if row["ratio"] == 1)  # the reference
    cells = [
        [
            row["name"],
            f"{number(row['steps_per_s'])} ({number(row['slowest'])}-{number(row['fastest'])})",
            number(row["ratio"]),
            number(row["processor_ms"]),
            number(row["processor_ms"] / base["processor_ms"]),
            number(row["compile_s"]),
        ]
        for row in rows
    ]
    head = ["", "meta-steps/s", "over plain JAX's", "processor ms a step", "over plain JAX's", "first call, s"]
    return table(head, cells)


def images(found: dict[str, Any]) -> str:
    cells = []
    for tasks, rows in found.items():
        for row in rows if tasks != "kernels" else []:
            share = row.get("bytes_share")
            moved = "-" if share is None or share != share else f"{number(row['tb_per_s'])} TB/s, {100 * share:.0f} %"
            spread = f"{number(row['slowest'])}-{number(row['fastest'])}"
            rate, memory = f"{number(row['tasks_per_s'])} ({spread})", number(row.get("memory_gb"))
            processor = number(row["processor_s"]) if share is None else "-"
            cells.append([row["name"], tasks, rate, processor, moved, memory, number(row["first_call_s"])])
    head = [
        "",
        "tasks in a step",
        "tasks/s",
        "processor s a task",
        "moved, of the limit",
        "arrays, GB",
        "first call, s",
    ]
    return "\n\n".join([table(head, cells), *kernels(found.get("kernels", []))])


def kernels(rows: list[dict[str, Any]]) -> list[str]:
    """Where the time of one step goes."""
    top = [*rows[:12], *rows[-1:]] if len(rows) > 13 else rows
    cells = [
        [f"`{row['name'][:60]}`", str(row["launches"]), number(1e3 * row["seconds"]), f"{100 * row['share']:.1f} %"]
        for row in top
    ]
    return [table(["kernel", "launches", "ms", "share"], cells)] if cells else []


def recipes(found: dict[str, list[dict[str, Any]]]) -> str:
    ordered = sorted(found["regression2d"], key=lambda row: -row["ratio"])
    cells = [
        [row["name"], number(row["steps_per_s"]), number(1 / row["ratio"]), f"{row['parameters']:,}"] for row in ordered
    ]
    pieces = [table(["", "meta-steps/s", "time over MAML's", "parameters"], cells)]
    for row in found.get("completion", []):
        rate = f"{number(row['tasks_per_s'])} tasks/s in steps of {row['tasks']}"
        pieces.append(f"Image completion, {row['name']}: {rate}, first call {number(row['first_call_s'])} s.")
    return "\n\n".join(pieces)


def use(rows: list[dict[str, Any]]) -> str:
    names = ("adapt_ms", "evaluated_per_s", "adapt_first_s", "score_first_s")
    cells = [[row["name"], *(number(row[name]) for name in names)] for row in rows]
    head = ["", "one new task, ms", "tasks scored a second", "first task, s", "first scores, s"]
    return table(head, cells)


def adapting(found: dict[str, list[dict[str, Any]]]) -> str:
    cells = [
        [
            row["name"],
            case,
            f"{number(row['ms_per_step'] / row['tasks'])}",
            number(row["ratio"]),
            number(row["processor_ms"] / row["tasks"]),
            number(row["compile_s"]),
        ]
        for case, rows in found.items()
        for row in rows
    ]
    head = ["", "tasks at once", "ms a task", "speed over stmaml's", "processor ms a task", "first call, s"]
    return table(head, cells)


def memory(rows: list[dict[str, Any]]) -> str:
    return table(["", "largest memory of the process, GB"], [[row["name"], number(row["memory_gb"])] for row in rows])


def growth(found: dict[str, list[list[float | None]]]) -> str:
    cells = []
    for what, pairs in found.items():
        each = ", ".join(": ".join([number(size), _costs(clock, processor)]) for size, clock, processor in pairs)
        cells.append([what, each, number(power(pairs)), UNITS.get(what, "ms a step")])
    on_cpu = all(pair[2] is not None for pairs in found.values() for pair in pairs)
    return table(["", f"size: cost by the clock{', of processors' if on_cpu else ''}", "last power", ""], cells)


def _costs(clock: float | None, processor: float | None) -> str:
    return number(clock) if processor is None else f"{number(clock)}, {number(processor)}"


def costs(pairs: list[list[float | None]]) -> np.ndarray:
    """Sizes, and the time of processors, which a busy machine leaves as it is; by the clock on a GPU."""
    found = [[size, clock if processor is None else processor] for size, clock, processor in pairs]
    return np.array(found, float).reshape(-1, 2)


def power(pairs: list[list[float | None]]) -> float:
    """Of the size that the cost grows with, between the last two: 1 is in proportion."""
    (before, low), (after, high) = costs(pairs)[-2:]
    return float(np.log(high / low) / np.log(after / before))


def caches(found: dict[str, list[dict[str, Any]]]) -> str:
    """A table for each thing that grows: a line for each number of tasks."""
    pieces = []
    for what, rows in found.items():
        if what == "counted":
            continue
        sizes = sorted({row["size"] for row in rows})
        lines: dict[str, dict[float, float]] = {}
        for row in rows:
            turns = f", {row['at_a_time']} at a time" if row["at_a_time"] else ""
            lines.setdefault(f"{row['tasks']}{turns}", {})[row["size"]] = row["us_per_task"]
        cells = [
            [name, *(number(line.get(size)) for size in sizes), _times(line, sizes[-2:])]
            for name, line in lines.items()
        ]
        pieces.append(
            table(["tasks in a step", *(f"{what} {size:g}" for size in sizes), "last over the one before"], cells)
        )
    counts = [
        [f"{row['inner_steps']}", number(row["mflop"]), number(row["mbytes"])] for row in found.get("counted", [])
    ]
    head = ["inner steps", "million operations", "million bytes"]
    words = "What the compiler counts for a task of a step, of 5 tasks:"
    more = [words, table(head, counts)] if counts else []
    return "\n\n".join(["Microseconds of processors for a task of a step:", *pieces, *more])


def _times(line: dict[float, float], sizes: list[float]) -> str:
    return number(line[sizes[-1]] / line[sizes[0]]) if all(size in line for size in sizes) else "-"


def start(rows: list[dict[str, Any]]) -> str:
    units = ("seconds", "processor_s", "step_s")
    cells = [
        [row["name"], *(number(row[turn].get(unit)) for turn in ("first", "again") for unit in units)] for row in rows
    ]
    head = [
        word for turn in ("first", "second") for word in (f"{turn} start, s", "of processors", "to the first step, s")
    ]
    return table(["", *head], cells)


def tables(rows: list[dict[str, Any]]) -> str:
    units = ("seconds", "processor_s", "memory_gb")
    cells = [
        [
            row["name"],
            f"{row['rows']:,}",
            *(number(row[what].get(unit)) for what in ("fit", "predict") for unit in units),
            number(row["error"]),
        ]
        for row in rows
    ]
    head = [word for what in ("fit", "predict") for word in (f"{what}, s", "of processors", "memory, GB")]
    return table(["", "rows", *head, "error on new groups"], cells)


SECTIONS = (
    ("A small network", "training", training),
    ("Images", "images", images),
    ("Recipes", "recipes", recipes),
    ("A trained learner", "use", use),
    ("A new task", "adapting", adapting),
    ("Memory of training", "memory", memory),
    ("Starting", "start", start),
    ("Tables", "tables", tables),
    ("How cost grows", "growth", growth),
    ("Growth and caches", "caches", caches),
)


def draw_growth(parts: list[dict[str, Any]], path: Path) -> None:
    """One panel for each thing that is changed, one line for each device, both axes logarithmic."""
    names = list(parts[0]["growth"]["found"])
    figure, axes = plt.subplots(1, len(names), figsize=(2.9 * len(names), 3.0), constrained_layout=True)
    for axis, name in zip(np.atleast_1d(axes), names, strict=True):
        _draw_one(axis, name, parts)
    np.atleast_1d(axes)[0].legend(frameon=False, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _ends(values: list[float]) -> tuple[float, float]:
    return 0.6 * min(values), 1.6 * max(values)


def _draw_one(axis: Any, name: str, parts: list[dict[str, Any]]) -> None:
    """A dotted line of each device's colour is in proportion to the size."""
    sizes: set[float] = set()
    for part in parts:
        found = part["growth"]["found"].get(name)
        if not found:
            continue
        size, cost = costs(found).T
        (line,) = axis.loglog(size, cost, "o-", label=part["part"].upper())
        axis.loglog(size, cost[-1] * size / size[-1], ":", color=line.get_color(), alpha=0.7)
        sizes |= set(size.tolist())
    axis.set_ylim(
        *_ends([cost for part in parts for cost in costs(part["growth"]["found"].get(name, []))[:, 1:].ravel()])
    )
    apart = list[float]()
    for size in sorted(sizes):  # labels that have room
        if not apart or size >= 1.9 * apart[-1]:
            apart.append(size)
    axis.set_xticks(apart, [f"{size:g}" for size in apart], fontsize=8)
    axis.minorticks_off()
    axis.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_xlabel(name)
    axis.set_ylabel(UNITS.get(name, "ms a step"))
    axis.grid(alpha=0.3)
