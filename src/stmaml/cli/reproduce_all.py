"""`stmaml reproduce all`: every table of the paper, after a plan of what that takes."""

import math
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from stmaml.benchmarks import BENCHMARKS
from stmaml.benchmarks.base import BudgetName
from stmaml.cli import fail
from stmaml.cli.parsing import parse
from stmaml.data.catalogue import COLLECTIONS
from stmaml.data.checking import missing
from stmaml.errors import RunError
from stmaml.numbers import plain
from stmaml.reproduction import method_cells
from stmaml.runs import Run

ALL = "all"
SPEEDS = {"regression2d": 2600.0, "completion": 104.0, "weather": 870.0, "plain-multi": 0.1, "celeba": 0.5}
"""Tasks a second of ST-MAML's preset `paper`, compiling left out, measured on two CPU cores that had other work too."""


@dataclass(frozen=True)
class All:
    """Train and evaluate every method of every table of the paper. First says what that takes."""

    name: str = ALL
    """All benchmarks."""
    budget: BudgetName = "smoke"
    """How much: minutes to see it work, hours on two cores, or the full training, for a GPU."""
    plan: bool = False
    """Only say what it takes."""
    yes: bool = False
    """Do not ask before beginning."""
    runs: Path = Path("runs")
    """Folder of the tables; runs there tell how fast this machine is."""


@dataclass(frozen=True)
class Table:
    """What one table takes."""

    benchmark: str
    rows: int
    tasks: int
    """Tasks to train on, over all rows and seeds."""
    speed: float
    """Tasks a second."""
    here: bool
    """Whether the speed is of runs on this machine."""
    lacking: dict[str, str]
    """Data sets that are not there, with how to get them."""
    blocked: bool
    """Whether none is there that it could do with."""

    def words(self) -> str:
        """A line of the plan."""
        source = "measured in runs here" if self.here else "as on 2 busy CPU cores"
        time = f"{_duration(self.tasks / self.speed)} of training ({plain(self.speed, 2)} tasks/s, {source})"
        return f"{self.benchmark:13} {self.rows:>2} rows, {self.tasks:,} tasks\n{'':13} {time}"


def reproduce_all(arguments: list[str], reproduce: Callable[[list[str]], None]) -> None:
    """Shows the plan, and fills table after table; those whose data are missing are passed over."""
    flags = parse(All, ["--name", *arguments], "stmaml reproduce")
    tables = [plan_table(name, flags.budget, flags.runs) for name in BENCHMARKS]
    print("\n".join(_lines(tables, flags.budget)))
    if flags.plan:
        return
    if not flags.yes and sys.stdin.isatty() and input("Begin? [y/N] ").strip().lower() not in ("y", "yes"):
        fail("nothing was begun.", code=1)
    for table in (table for table in tables if not table.blocked):
        print(f"\n{table.benchmark}", flush=True)
        reproduce([table.benchmark, "--budget", flags.budget, "--out", str(_folder(flags.runs, table, flags.budget))])


def _folder(runs: Path, table: Table, budget: str) -> Path:
    return runs / f"{table.benchmark}-{budget}"


def plan_table(name: str, budget_name: BudgetName, runs: Path) -> Table:
    """What the table of a benchmark takes; nothing is opened or trained."""
    budget = BENCHMARKS[name].budgets.named(budget_name)
    usual, large = method_cells(name, budget)
    cells = [*usual, *(large if budget.own_pace else ())]
    trainings = [cell.experiment.training for cell in cells]
    tasks = budget.seeds * sum(training.steps * training.tasks_per_batch for training in trainings)
    found = sorted(_speeds(name, runs))
    root = os.environ.get("STMAML_DATA")
    lacking = missing(name, Path(root).expanduser() if root else None)
    blocked = bool(lacking) and len(lacking) == sum(one.benchmark == name for one in COLLECTIONS.values())
    return Table(name, len(cells), tasks, median(found) if found else SPEEDS[name], bool(found), lacking, blocked)


def _speeds(benchmark: str, runs: Path) -> Iterator[float]:
    """Tasks a second of each run of a benchmark that lies in the folder, from the last two lines of its log."""
    for path in sorted(runs.glob("**/log.jsonl")):
        run = Run(path.parent)
        try:
            config = run.config()
            timed = [line for line in run.log() if "seconds" in line]
            steps, seconds = (timed[-1][key] - timed[-2][key] for key in ("step", "seconds"))
            if config["benchmark"]["name"] == benchmark and seconds > 0:
                yield steps * config["training"]["tasks_per_batch"] / seconds
        except (OSError, RunError, KeyError, TypeError, IndexError):
            continue  # not a run that was trained, or one that is being written


def _lines(tables: list[Table], budget: str) -> Iterator[str]:
    yield f"plan: the tables of {len(tables)} benchmarks, budget {budget}"
    yield "scoring, baselines and MAML with attention come on top"
    for table in tables:
        yield table.words()
        for name, how in table.lacking.items():
            yield f"{'':13} lacks {name}: {how}"
    able = [table for table in tables if not table.blocked]
    total = sum(table.tasks / table.speed for table in able)
    yield f"together {_duration(total)} for the {len(able)} of {len(tables)} whose data are there"


def _duration(seconds: float) -> str:
    """A time as people say it."""
    minutes = math.ceil(seconds / 60)
    if minutes <= 1:
        return "less than a minute"
    return f"about {minutes} min" if minutes < 120 else f"about {seconds / 3600:,.1f} h"
