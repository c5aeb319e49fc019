"""Loss and gradient of every recipe on the CPU and on another device: how far apart are they?

python studies/devices.py [--device gpu] [--jobs 14] [--minutes 4] [--recipes regression2d weather/maml] [--out FILE]
python studies/devices.py --device cpu --kept FOLDER   # the CPU's numbers alone, to be read with --kept elsewhere
python studies/devices.py --nudged 3 --recipes celeba  # the CPU beside itself, weights moved by 5e-7
python studies/devices.py --ahead --programs FOLDER    # the GPU's programs, on a machine without one (ahead.py)

Every recipe starts from the same weights, made on the CPU, and sees the same 25, 100 and 300 tasks of random numbers
(pictures: 4, 8 and 16 tasks of 28 x 28 pixels), a part of them at a time. `exact` has all products in single precision
on both; `usual` has the recipe's own precision and the device's (TF32 or bfloat16 on a GPU), beside the CPU's exact
numbers. A gap is the length of the difference over the length of the CPU's gradient; for losses, the same of two
numbers. Of long gradients, 4,096 sums of their numbers with random signs are compared, whose difference is as long as
theirs to a few percent. Processes share the recipes; a program is compiled once for each recipe, device and kind. Inner
steps are the body of a loop, as `--remat` has them, so that one of them is compiled; `--unrolled` has them one after
the other, as most recipes are trained. Where a gradient jumps (at the kinks of ReLU and of the largest of four pixels),
rounding alone moves it by more than rounding: `--nudged` says by how much.

Compiling for a GPU takes most of the time. These make it shorter, and the programs slower:
XLA_FLAGS="--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false --xla_llvm_disable_expensive_passes=true
--xla_gpu_disable_gpuasm_optimizations=true"."""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from ahead import Programs
from shares import Share, add_flags, share_of, spread

from stmaml.border.arrays import pack_arrays
from stmaml.nets.waves import octaves_for
from stmaml.recipes import RECIPES, Experiment, build_learner
from stmaml.tasks import Scaling, Task, TaskBatch, TaskSpec
from stmaml.training.memory import recomputing

TASKS, PICTURE_TASKS = (25, 100, 300), (4, 8, 16)
PICTURES = ("celeba", "plain-multi")
LARGE = ("best", "years", "same-year")
PICTURE, SIDE, WAYS = (28, 28, 3), 28, 5
SUMS = 4096  # that stand for a gradient
PIXELS = 100  # asked of each image to be completed
APART = 1e-3  # gap from which exact numbers are no longer those of rounding

Recipe = tuple[str, str, str]


def chosen(names: list[str]) -> list[Recipe]:
    """The recipes whose names begin with one of these; pictures, and then large ones, last."""
    found = [one for one in RECIPES if any("/".join(one).startswith(name) for name in names or [""])]
    return sorted(found, key=lambda one: (one[2] in LARGE, one[0] in PICTURES))


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


Result = tuple[float, np.ndarray]


@dataclass(frozen=True)
class Learner:
    """A recipe's learner as it starts, in exact or usual numbers."""

    recipe: Recipe
    exact: bool
    looped: bool = True
    """Whether inner steps are the body of a loop, as with `--remat`: the same numbers, and one step to compile."""

    def build(self) -> Any:
        """The same weights wherever it is called."""
        experiment = RECIPES[self.recipe]
        method, modelling = experiment.method_settings, experiment.modelling
        if self.exact:
            method, modelling = in_single_precision(method), in_single_precision(modelling)
        spec = spec_of(experiment)
        size = spec.x_size
        scaling = Scaling((0.1,) * size, (1.5,) * size, (0.2,) * spec.y_size, (1.2,) * spec.y_size)
        with jax.default_device(jax.devices("cpu")[0]):
            make = eqx.filter_jit(lambda key: build_learner(method, spec, modelling, key=key, scaling=scaling))
            learner = make(jr.key(0))
        return (recomputing(learner) if self.looped else None) or learner

    @property
    def name(self) -> str:
        """Of its program in a folder of them."""
        kinds = ["exact" if self.exact else "usual", *["unrolled"] * (not self.looped)]
        return "-".join([*self.recipe, *kinds])

    def program(
        self, device: jax.Device, programs: Programs | None = None, nudge: tuple[int, float] | None = None
    ) -> Callable[[Task, Any], Result]:
        """The mean loss of some tasks on a device, and its gradient as one long vector; read from a folder of programs
        if it is there. With a nudge of this number and size, of weights that are moved a little."""
        learner = self.build() if nudge is None else nudged(self.build(), *nudge)
        learner = eqx.filter_shard(learner, jax.sharding.SingleDeviceSharding(device))

        def run(tasks: Task, keys: Any) -> Result:
            args = (learner, *jax.device_put((tasks, keys), device))
            with self.precision:
                loss, gradient = compiled_loss(*args) if programs is None else programs(self.name, mean_loss, *args)
            leaves = [np.asarray(leaf.astype(jnp.float32)).ravel() for leaf in gradient]
            return float(loss), summed(np.concatenate(leaves).astype(float))

        return run

    def compile_ahead(self, programs: Programs) -> None:
        """Puts the program for the GPU of `ahead.TARGET` into the folder."""
        spec, count = spec_of(RECIPES[self.recipe]), counts_of(self.recipe)[0]
        with self.precision:
            programs.ahead(self.name, mean_loss, self.build(), batch_of(spec, count).tasks, jr.split(jr.key(1), count))

    @property
    def precision(self) -> Any:
        """That of products, inside a block."""
        return jax.default_matmul_precision("highest" if self.exact else None)


def mean_loss(learner: Any, tasks: Task, keys: Any) -> tuple[Any, list[Any]]:
    """The mean loss of tasks, and the arrays of its gradient."""

    @eqx.filter_value_and_grad
    def mean(learner: Any) -> Any:
        return jax.vmap(lambda task, key: learner.loss(task, key=key)[0])(tasks, keys).mean()

    loss, gradient = mean(learner)
    return loss, jax.tree.leaves(gradient)


compiled_loss = eqx.filter_jit(mean_loss)


def nudged(learner: Any, number: int, by: float) -> Any:
    """The same with each weight moved up or down by this share of it."""
    rng = np.random.default_rng(number)

    def moved(leaf: jax.Array) -> jax.Array:
        return leaf * (1 + by * rng.choice([-1.0, 1.0], leaf.shape)).astype(leaf.dtype)

    with jax.default_device(jax.devices("cpu")[0]):
        return jax.tree.map(lambda leaf: moved(leaf) if eqx.is_inexact_array(leaf) else leaf, learner)


def summed(vector: np.ndarray) -> np.ndarray:
    """A long vector as sums over random parts of it with random signs: of differences, lengths stay as they are
    (Charikar and others, "Finding frequent items in data streams", 2002)."""
    if len(vector) <= SUMS:
        return vector
    rng = np.random.default_rng(len(vector))
    places, signs = rng.integers(0, SUMS, len(vector)), rng.choice([-1.0, 1.0], len(vector))
    return np.bincount(places, signs * vector, minlength=SUMS)


def results(
    run: Callable[[Task, Any], Result], spec: TaskSpec, counts: tuple[int, ...], most: int | None = None
) -> dict[int, Result]:
    """Means over each number of tasks, up to the most, which are read as many at a time as the first of them."""
    part, found = counts[0], {}
    with jax.default_device(jax.devices("cpu")[0]):
        batch, keys = batch_of(spec, counts[-1]), jr.split(jr.key(1), counts[-1])
    loss, gradient = 0.0, np.zeros(1)
    for first in range(0, min(counts[-1], most or counts[-1]), part):
        rows = slice(first, first + part)
        one = run(jax.tree.map(lambda leaf, rows=rows: leaf[rows], batch.tasks), keys[rows])
        loss, gradient = loss + one[0], gradient + one[1]
        if first + part in counts:
            found[first + part] = (loss * part / (first + part), gradient * part / (first + part))
    return found


def on_cpu(recipe: Recipe, kept: Path | None, looped: bool) -> dict[int, Result]:
    """The CPU's exact numbers; from a folder where they are kept, and kept there where they are not yet."""
    path = None if kept is None else kept / f"{'-'.join(recipe)}.npz"
    if path is not None and path.exists():
        with np.load(path) as file:
            return {count: (float(file[f"loss{count}"]), file[f"gradient{count}"]) for count in counts_of(recipe)}
    run = Learner(recipe, True, looped).program(jax.devices("cpu")[0])
    found = results(run, spec_of(RECIPES[recipe]), counts_of(recipe))
    if path is not None:
        arrays = {f"loss{count}": np.asarray(one[0]) for count, one in found.items()}
        arrays |= {f"gradient{count}": one[1].astype(np.float32) for count, one in found.items()}
        path.write_bytes(pack_arrays(arrays))
    return found


def compared(
    recipe: Recipe, exact: bool, want: dict[int, Result], device: jax.Device, flags: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """For each number of tasks, how far the device's numbers are from those wanted."""
    programs = None if flags.programs is None else Programs(flags.programs)
    for nudge in range(flags.nudged) if flags.nudged else (None,):
        run = Learner(recipe, exact, not flags.unrolled).program(
            device, programs, None if nudge is None else (nudge, flags.by)
        )
        got = results(run, spec_of(RECIPES[recipe]), counts_of(recipe), flags.most)
        for count in got:
            pairs = zip(want[count], got[count], strict=True)
            gaps = dict(zip(("loss", "gradient"), (gap(*pair) for pair in pairs), strict=True))
            yield {"tasks": count, "nudge": nudge, **gaps, "value": want[count][0]}


def counts_of(recipe: Recipe) -> tuple[int, ...]:
    """Numbers of tasks."""
    return PICTURE_TASKS if recipe[0] in PICTURES else TASKS


def gap(one: Any, other: Any) -> float:
    """The length of the difference over that of the first."""
    one, other = np.asarray(one, dtype=float), np.asarray(other, dtype=float)
    return float(np.linalg.norm(one - other) / max(float(np.linalg.norm(one)), 1e-30))


def table_of(rows: list[dict[str, Any]]) -> str:
    """A row a recipe: the largest gap of all numbers of tasks."""
    lines = ["| recipe | loss, exact | gradient, exact | loss, usual | gradient, usual |", "|---|" + "--:|" * 4]
    for recipe in sorted({row["recipe"] for row in rows}):
        cells = []
        for exact in (True, False):
            mine = [row for row in rows if row["recipe"] == recipe and row["exact"] == exact]
            cells += [f"{max(row[what] for row in mine):.1e}" if mine else "" for what in ("loss", "gradient")]
        lines.append(f"| {recipe} | " + " | ".join(cells) + " |")
    apart = sorted({row["recipe"] for row in rows if row["exact"] and not max(row["loss"], row["gradient"]) < APART})
    count = len({row["recipe"] for row in rows})
    return "\n".join([*lines, f"{count} recipes; exact numbers apart by {APART:g} or more in {len(apart)}: {apart}"])


def work(recipes: list[Recipe], share: Share, flags: argparse.Namespace, done: set[tuple[str, bool]]) -> None:
    """What nobody has taken yet, a line for each row: exact numbers of all recipes first. On a CPU there is nothing to
    compare: its numbers are kept."""
    device = jax.devices("cpu" if flags.ahead or flags.nudged else flags.device)[0]
    for exact in (True,) if flags.device == "cpu" or flags.nudged else (True, False):
        for recipe in recipes:
            name = "/".join(recipe)
            if (name, exact) in done or share.over or not share.takes(f"{name}-{exact}"):
                continue
            try:
                for row in work_on(recipe, exact, device, flags):
                    share.tell({"recipe": name, "exact": exact, **row})
            except Exception as error:  # others go on: a device may lack memory, a compiler may fail
                share.tell({"recipe": name, "exact": exact, "failed": f"{type(error).__name__}: {str(error)[:500]}"})
            jax.clear_caches()


def work_on(recipe: Recipe, exact: bool, device: jax.Device, flags: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What is said of a recipe: gaps, or how long the part took that was asked for."""
    began = time.monotonic()
    if flags.ahead:
        Learner(recipe, exact, not flags.unrolled).compile_ahead(Programs(flags.programs))
        yield {"seconds": round(time.monotonic() - began, 1)}
        return
    want, had = on_cpu(recipe, flags.kept, not flags.unrolled), time.monotonic()
    if flags.device == "cpu" and not flags.nudged:
        yield {"seconds": round(had - began, 1)}
        return
    for row in compared(recipe, exact, want, device, flags):
        yield {**row, "cpu_seconds": round(had - began, 1), "seconds": round(time.monotonic() - had, 1)}


def main() -> None:
    """Prints a table of gaps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="gpu", help="what is compared with the CPU")
    parser.add_argument("--recipes", nargs="*", default=[], help="beginnings of BENCHMARK/METHOD/PRESET")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--minutes", type=float, default=60.0, help="after which no recipe is begun")
    parser.add_argument("--out", type=Path, help="file for the gaps")
    parser.add_argument("--most", type=int, help="tasks at most on the device, where fewer will do")
    parser.add_argument("--kept", type=Path, help="folder of the CPU's numbers, filled where they are missing")
    parser.add_argument(
        "--programs", type=Path, help="folder of programs for the device, filled where they are missing"
    )
    parser.add_argument("--nudged", type=int, default=0, help="compare the CPU with itself, so many times")
    parser.add_argument("--by", type=float, default=5e-7, help="share of each weight by which --nudged moves it")
    parser.add_argument("--unrolled", action="store_true", help="inner steps one after the other, not in a loop")
    parser.add_argument("--ahead", action="store_true", help="only fill --programs, for a GPU that is not there")
    parser.add_argument("--again", type=Path, help="gaps of an earlier call, to go on with those that are missing")
    add_flags(parser)
    flags = parser.parse_args()
    recipes, before = chosen(flags.recipes), []
    if flags.again is not None:
        before = json.loads(flags.again.read_text())["rows"]
    if flags.kept is not None:
        flags.kept.mkdir(exist_ok=True, parents=True)
    if flags.lines is not None:
        done = {(row["recipe"], row["exact"]) for row in before}
        return work(recipes, share_of(flags), flags, done)
    words = ["devices.py", "--device", flags.device, "--recipes", *("/".join(one) for one in recipes)]
    words += [
        word
        for name in ("kept", "again", "most", "programs", "nudged", "by")
        if (path := getattr(flags, name))
        for word in (f"--{name}", str(path))
    ]
    words += ["--ahead"] * flags.ahead + ["--unrolled"] * flags.unrolled
    found = spread(words, flags.jobs, flags.minutes)
    failed = [row for row in found.records if "failed" in row]
    rows = [*before, *(row for row in found.records if "failed" not in row)]
    if flags.out is not None:
        flags.out.write_text(json.dumps({"rows": rows, "failed": failed, "broken": found.broken}, indent=1))
    if (flags.device != "cpu" or flags.nudged) and not flags.ahead:
        print(table_of(rows))
    for one in failed:
        print(f"{one['recipe']}: {one['failed']}")
    for one in found.broken:
        print(f"process {one['share']} ended with {one['exit']}: {one['said'][-600:]}")
    return None


if __name__ == "__main__":
    main()
