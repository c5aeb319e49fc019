"""Commands in tiny settings, for the studies that disturb them: signals.py and kills.py."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.face_files import faces
from tests.idx_files import write_digits
from tests.noaa_files import write_year
from tests.picture_files import write_dataset

from stmaml.compiled import quick_compilation

TASKS = ["--shots", "5", "--query-size", "5"]
TRAINING = [
    "--tasks-per-batch",
    "4",
    "--val-tasks",
    "4",
    "--val-every",
    "20",
    "--checkpoint-every",
    "20",
    "--steps-per-call",
    "10",
]
SIZES = {
    "anp": "--encoder 8 8 --keys 8 8 --num-heads 2 --decoder 8 8 --z-size 4",
    "arml": "--hidden 8 8 --sample-size 8 --code-size 8 --inner-steps 1",
    "bmaml": "--hidden 8 8 --num-particles 3 --inner-steps 1",
    "cnp": "--encoder 8 8 --decoder 8 8",
    "hsml": "--hidden 8 8 --sample-size 8 --code-size 8 --inner-steps 1",
    "maml": "--hidden 8 8 --inner-steps 1",
    "meta-sgd": "--hidden 8 8 --inner-steps 1",
    "mmaml": "--hidden 8 8 --encoder 8 8 --inner-steps 1",
    "np": "--encoder 8 8 --decoder 8 8 --z-size 4",
    "platipus": "--hidden 8 8 --inner-steps 1",
    "st-maml": "--hidden 8 8 --encoder 8 8 --z-size 4 --h-size 3 --inner-steps 1",
    "tnp": "--width 8 --layers 2 --num-heads 2",
}
"""Flags that make each method that has a recipe for 2D regression small."""
CONV = "--channels 4 --conv-blocks 2 --inner-steps 1"
ELSEWHERE = {
    "completion": "--method np --shots 8 --query-size 8 --encoder 8 8 --decoder 8 8 --z-size 4",
    "weather": f"--method st-maml {SIZES['st-maml']} --shots 5 --query-size 5 --test-query-size 10",
    "plain-multi": "--method protonet --ways 3 --shots 1 --query-per-class 2 --image-size 8 --channels 4 "
    "--conv-blocks 2",
    "celeba": f"--method maml --shots 2 --query-per-class 2 --image-size 8 {CONV}",
}
"""A small method on small tasks of each benchmark that reads files."""
MEMBERS = ["mean", "mixed", "boosting", "boosting-summaries"]


@dataclass(frozen=True)
class Shell:
    """Where commands run: a folder of their own, and a compilation cache they share, or none."""

    folder: Path
    cache: Path | None
    variables: dict[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """What a command sees: quick compilation, the CPU, the cache."""
        quick = os.environ.get("XLA_FLAGS", quick_compilation())
        cached = {
            "JAX_COMPILATION_CACHE_DIR": str(self.cache),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
        }
        kept = {name: value for name, value in os.environ.items() if name not in cached}
        own = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": quick, **(cached if self.cache else {}), **self.variables}
        return {**kept, **own}

    def start(self, *words: object, errors: Path) -> subprocess.Popen[bytes]:
        """Begins a command; what it says about itself goes to a file."""
        with errors.open("wb") as err:
            command = [sys.executable, "-m", "stmaml", *map(str, words)]
            return subprocess.Popen(
                command, cwd=self.folder, env=self.environment(), stdout=subprocess.DEVNULL, stderr=err
            )

    def run(self, *words: object) -> None:
        """Runs a command to its end, which must be a good one."""
        self.end(self.start(*words, errors=self.folder / "errors.txt"), *words)

    def end(self, process: subprocess.Popen[bytes], *words: object) -> None:
        """Waits for the end of a command that was started so, which must be a good one."""
        if process.wait():
            said = (self.folder / "errors.txt").read_text()
            raise SystemExit(f"stmaml {' '.join(map(str, words))} failed: {said}")


def training(method: str, run: object, steps: int = 60) -> list[object]:
    """The command that trains a small method on 2D regression."""
    sizes = SIZES[method].split()
    return ["train", "regression2d", "--method", method, *sizes, *TASKS, *TRAINING, "--steps", steps, "--run", run]


def fitting(table: Path, run: object, steps: int = 60) -> list[object]:
    """The command that fits a small table."""
    sizes = ["--shots", "6", "--query-size", "6", "--min-query", "2", "--method", "cnp", "--no-baselines"]
    return ["fit", table, "--task", "shop", "--target", "y", *sizes, "--steps", steps, "--run", run]


def training_on(benchmark: str, folder: Path, run: object) -> list[object]:
    """The command that trains a small method on a benchmark that reads files, which are made where they are not."""
    data = folder / f"{benchmark}-data"
    if not data.exists():
        WRITE[benchmark](data)
    words = ELSEWHERE[benchmark].split()
    return ["train", benchmark, *words, *TRAINING, "--steps", 60, "--data", data, "--run", run]


def _write_sets(folder: Path) -> None:
    for i, name in enumerate(("bird", "moss")):
        write_dataset(folder / name, images=8, first=200 * i)


WRITE: dict[str, Callable[[Path], object]] = {
    "completion": lambda folder: write_digits(folder, height=6, width=6),
    "weather": lambda folder: write_year(folder, 60, num_days=130),
    "plain-multi": _write_sets,
    "celeba": lambda folder: faces((200, 150, 200)).write(folder),
}


def pooling(table: Path, run: object) -> list[object]:
    """The command that fits a pool to a small table."""
    return ["fit", table, "--task", "shop", "--target", "y", "--members", *MEMBERS, "--run", run]


def reproducing(out: object) -> list[object]:
    """The command that fills two rows of a table of the paper."""
    return [
        "reproduce",
        "regression2d",
        "--rows",
        "cnp",
        "maml",
        "--steps",
        40,
        "--seeds",
        1,
        "--samples",
        1,
        "--out",
        out,
    ]


def write_table(path: Path, groups: int = 40, rows: int = 12) -> Path:
    """A table of groups with a level and a slope of their own."""
    rng = np.random.default_rng(0)
    level, slope = rng.normal(size=(2, groups))
    x, noise = rng.uniform(-2, 2, size=(groups, rows)), rng.normal(size=(groups, rows))
    y = 20 + 3 * level[:, None] + slope[:, None] * x + 0.3 * noise
    lines = [f"shop {i},{x[i, j]:.6f},{y[i, j]:.6f}" for i in range(groups) for j in range(rows)]
    path.write_text("\n".join(["shop,x,y", *lines]) + "\n")
    return path
