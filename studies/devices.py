"""Loss and gradient of every recipe on two devices: how far apart are they?

JAX_PLATFORMS=cpu python studies/devices.py --save cpu
python studies/devices.py --save gpu --against cpu [--recipes regression2d weather/maml] [--out gaps.json]

Every recipe starts from the same weights and sees the same 25, 100 and 300 tasks of random numbers (pictures: 4, 8 and
16 tasks of 28 x 28 pixels). `exact` has all products in single precision; `usual` has the recipe's own precision and
the device's (TF32 or bfloat16 on a GPU), at the middle number of tasks. A gap is the length of the difference over the
length of the first device's gradient; for losses, the same of two numbers. No files are read."""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
from shares import Share, add_flags, share_of

from stmaml.nets.waves import octaves_for
from stmaml.recipes import RECIPES, Experiment, build_learner
from stmaml.tasks import Scaling, TaskBatch, TaskSpec

TASKS, PICTURE_TASKS = (25, 100, 300), (4, 8, 16)
PICTURE, SIDE, WAYS = (28, 28, 3), 28, 5
PIXELS = 100  # asked of each image to be completed


@dataclass(frozen=True)
class Case:
    """A recipe with so many tasks, in exact or usual numbers."""

    recipe: tuple[str, str, str]
    tasks: int
    exact: bool

    @property
    def name(self) -> str:
        """What its results are saved under."""
        return "|".join([*self.recipe, str(self.tasks), "exact" if self.exact else "usual"])


def cases(chosen: list[str]) -> list[Case]:
    """All cases of the recipes whose names begin with one that is chosen."""
    found = []
    for recipe in RECIPES:
        if any("/".join(recipe).startswith(name) for name in chosen or [""]):
            counts = PICTURE_TASKS if recipe[0] in ("celeba", "plain-multi") else TASKS
            found += [*(Case(recipe, count, True) for count in counts), Case(recipe, counts[1], False)]
    return found


def spec_of(experiment: Experiment) -> TaskSpec:
    """What tasks of the benchmark look like."""
    settings: Any = experiment.benchmark_settings
    inputs = getattr(settings, "inputs", "")
    return {
        "regression2d": TaskSpec((2,), 1),
        "weather": TaskSpec((30 if inputs == "rich" else 16,), 1),
        "completion": TaskSpec(
            (2 + 4 * octaves_for(SIDE) * (inputs == "waves"),), 1, target="binary", lattice=(SIDE, SIDE)
        ),
        "celeba": TaskSpec(PICTURE, 2, target="class"),
        "plain-multi": TaskSpec(PICTURE, WAYS, target="class"),
    }[experiment.benchmark]


def batch_of(spec: TaskSpec, count: int) -> TaskBatch:
    """Tasks of random numbers, the same everywhere."""
    rng = np.random.default_rng(count)
    classes = spec.y_size if spec.target == "class" else 0
    sizes = (5 * classes, 3 * classes) if classes else (10, 40)
    parts = []
    for size in (*sizes,) if spec.lattice is None else (40, PIXELS):
        x = rng.uniform(
            0 if classes or spec.lattice else -3, 1 if classes or spec.lattice else 3, (count, size, *spec.x_shape)
        )
        if spec.lattice is not None:
            x[..., :2] = rng.integers(0, SIDE, (count, size, 2)) / (SIDE - 1)
        signal = np.sin(x.reshape(count, size, -1)[..., :1]) + 0.3 * rng.normal(size=(count, size, 1))
        y = {"real": signal, "binary": 1 / (1 + np.exp(-signal))}.get(spec.target)
        labels = np.tile(np.arange(max(classes, 1)), (count, size // max(classes, 1)))
        parts += [x.astype(np.float32), labels.astype(np.int32) if y is None else y.astype(np.float32)]
    return TaskBatch.of(*parts)


def in_single_precision(settings: Any) -> Any:
    """Settings with every bfloat16 taken out."""
    if not is_dataclass(settings) or isinstance(settings, type):
        return "float32" if isinstance(settings, str) and settings == "bfloat16" else settings
    changed = {
        field.name: in_single_precision(getattr(settings, field.name)) for field in fields(settings) if field.init
    }
    return replace(settings, **changed)


def result_of(case: Case) -> tuple[float, np.ndarray]:
    """The mean loss of all tasks, and its gradient as one long vector."""
    experiment = RECIPES[case.recipe]
    method, modelling = experiment.method_settings, experiment.modelling
    if case.exact:
        method, modelling = in_single_precision(method), in_single_precision(modelling)
    spec = spec_of(experiment)
    size = spec.x_size
    scaling = Scaling((0.1,) * size, (1.5,) * size, (0.2,) * spec.y_size, (1.2,) * spec.y_size)
    batch = batch_of(spec, case.tasks)

    @eqx.filter_jit
    def build(key: Any) -> Any:
        return build_learner(method, spec, modelling, key=key, scaling=scaling)

    @eqx.filter_jit
    @eqx.filter_value_and_grad
    def mean_loss(learner: Any, tasks: Any, keys: Any) -> Any:
        return jax.vmap(lambda task, key: learner.loss(task, key=key)[0])(tasks, keys).mean()

    with jax.default_matmul_precision("highest" if case.exact else None):
        learner = build(jr.key(0))
        loss, gradient = mean_loss(learner, batch.tasks, jr.split(jr.key(1), case.tasks))
    leaves = [np.asarray(leaf, dtype=np.float32).ravel() for leaf in jax.tree.leaves(gradient)]
    return float(loss), np.concatenate(leaves)


def results(mine: list[Case], share: Share) -> Iterator[tuple[Case, float, np.ndarray]]:
    """Each case in turn, until time is up."""
    for case in mine:
        if share.over:
            return
        began = time.monotonic()
        loss, gradient = result_of(case)
        jax.clear_caches()
        print(f"{time.monotonic() - began:6.1f} s  {case.name}  {loss:.6f}", flush=True)
        yield case, loss, gradient


def gap(one: Any, other: Any) -> float:
    """The length of the difference over that of the first."""
    one, other = np.asarray(one, dtype=float), np.asarray(other, dtype=float)
    return float(np.linalg.norm(one - other) / max(float(np.linalg.norm(one)), 1e-30))


def saved(folder: Path) -> dict[str, np.ndarray]:
    """The results in a folder."""
    found = {}
    for path in sorted(folder.glob("*.npz")):
        if ".partial" not in path.name:
            with np.load(path) as file:
                found |= {name: file[name] for name in file.files}
    return found


def table_of(rows: list[dict[str, Any]]) -> str:
    """A row a recipe: the largest gap of all numbers of tasks."""
    lines = ["| recipe | loss, exact | gradient, exact | loss, usual | gradient, usual |", "|---|" + "--:|" * 4]
    for recipe in dict.fromkeys(row["recipe"] for row in rows):
        cells = []
        for exact in (True, False):
            mine = [row for row in rows if row["recipe"] == recipe and row["exact"] == exact]
            cells += [f"{max(row[what] for row in mine):.1e}" if mine else "" for what in ("loss", "gradient")]
        lines.append(f"| {recipe} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Saves results of this device, and compares them with those of another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", type=Path, required=True, help="folder for this device's results")
    parser.add_argument("--against", type=Path, help="folder of another device's results, to compare with")
    parser.add_argument("--only-compare", action="store_true", help="compute nothing")
    parser.add_argument("--recipes", nargs="*", default=[], help="beginnings of BENCHMARK/METHOD/PRESET")
    parser.add_argument("--out", type=Path, help="file for the gaps")
    add_flags(parser)
    flags = parser.parse_args()
    share = share_of(flags)
    flags.save.mkdir(parents=True, exist_ok=True)
    mine = [] if flags.only_compare else cases(flags.recipes)[share.place :: share.of]
    for case, loss, gradient in results(mine, share):
        path = flags.save / f"{case.name.replace('|', '-')}.npz"
        np.savez(
            path.with_suffix(".partial.npz"), **{f"{case.name}|loss": np.array(loss), f"{case.name}|gradient": gradient}
        )
        path.with_suffix(".partial.npz").rename(path)
    if flags.against is not None:
        rows = compared(saved(flags.save), saved(flags.against))
        print(table_of(rows))
        if flags.out is not None:
            flags.out.write_text(json.dumps({"rows": rows}, indent=1))


def compared(here: dict[str, np.ndarray], there: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """A row for each case that both devices have."""
    rows = []
    for name in sorted(name for name in here.keys() & there.keys() if name.endswith("|loss")):
        *recipe, count, how, _ = name.split("|")
        vectors = (there[name.removesuffix("loss") + "gradient"], here[name.removesuffix("loss") + "gradient"])
        row = {"recipe": "/".join(recipe), "tasks": int(count), "exact": how == "exact"}
        rows.append({**row, "loss": gap(there[name], here[name]), "gradient": gap(*vectors)})
    return rows


if __name__ == "__main__":
    main()
