"""Commands in tiny settings, for the studies that disturb them: signals.py and kills.py."""

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

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
}
"""Flags that make each method that has a recipe for 2D regression small."""


@dataclass(frozen=True)
class Shell:
    """Where commands run: a folder of their own, and a compilation cache they share, or none."""

    folder: Path
    cache: Path | None
    variables: dict[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """What a command sees: quick compilation, the CPU, the cache."""
        quick = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
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
        errors = self.folder / "errors.txt"
        if self.start(*words, errors=errors).wait():
            raise SystemExit(f"stmaml {' '.join(map(str, words))} failed: {errors.read_text()}")


def training(method: str, run: object, steps: int = 60) -> list[object]:
    """The command that trains a small method on 2D regression."""
    sizes = SIZES[method].split()
    return ["train", "regression2d", "--method", method, *sizes, *TASKS, *TRAINING, "--steps", steps, "--run", run]


def fitting(table: Path, run: object, steps: int = 60) -> list[object]:
    """The command that fits a small table."""
    sizes = ["--shots", "6", "--query-size", "6", "--min-query", "2", "--method", "cnp", "--no-baselines"]
    return ["fit", table, "--task", "shop", "--target", "y", *sizes, "--steps", steps, "--run", run]


def write_table(path: Path, groups: int = 40, rows: int = 12) -> Path:
    """A table of groups with a level and a slope of their own."""
    rng = np.random.default_rng(0)
    level, slope = rng.normal(size=(2, groups))
    x, noise = rng.uniform(-2, 2, size=(groups, rows)), rng.normal(size=(groups, rows))
    y = 20 + 3 * level[:, None] + slope[:, None] * x + 0.3 * noise
    lines = [f"shop {i},{x[i, j]:.6f},{y[i, j]:.6f}" for i in range(groups) for j in range(rows)]
    path.write_text("\n".join(["shop,x,y", *lines]) + "\n")
    return path
