"""Makes a learner that ships with the package out of a run: weights, settings, and a card filled from its scores.

    stmaml evaluate runs/best-completion --data digits
    python studies/ship.py runs/best-completion completion --data digits --half

Weights in half precision (--half) are refused where they move an answer by more than a hundredth of its spread."""

import argparse
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from stmaml.benchmarks.sources import freeze
from stmaml.experiments import EvaluateConfig, load_experiment, load_learner
from stmaml.methods.base import AbstractMetaLearner, predict
from stmaml.metric_table import in_order, metric
from stmaml.run_files import read_arrays
from stmaml.runs import Run
from stmaml.shipped import load_shipped, pretrained_folder, ship
from stmaml.tasks import Task

DATA = {
    "regression2d": "Synthetic curves and surfaces of six families, drawn while training. No data, no licence.",
    "completion": (
        "Training images of MNIST (LeCun, Cortes, Burges; CC BY-SA 3.0), Fashion-MNIST (Zalando; MIT) and KMNIST "
        "(ROIS-DS Center for Open Data in the Humanities; CC BY-SA 4.0). No image is in the package."
    ),
    "weather": (
        "NOAA's Global Summary of the Day, free to use; what stations outside the United States report is exchanged "
        "under WMO Resolution 40, which has terms for commercial redistribution. No measurement is in the package."
    ),
}
LIMITS = {
    "regression2d": "Two inputs, both from 0 to 5, and one real target. Curves ignore the second input.",
    "completion": "Grey pictures of 28 x 28 like those of its training, with the inputs of `benchmarks/completion.py`.",
    "weather": "Daily values of a station in the columns of GSOD. Stations unlike any in training are guesses.",
}
MOST_MOVED = 0.01


def main() -> None:
    flags = parsed()
    run = Run(flags.run)
    experiment = load_experiment(run)
    benchmark = EvaluateConfig(data=flags.data).of(experiment).open()
    spec = benchmark.train.spec
    learner = load_learner(run, experiment, spec, benchmark.own_scaling)
    folder = (flags.into or pretrained_folder()) / flags.name
    ship(run, spec, folder, card=card_of(flags.name, run, flags.half), half=flags.half)
    shipped = load_shipped(folder)
    moved = apart(
        learner, shipped, jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], freeze(benchmark.val, 1, seed=1).batch.tasks)
    )
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder}: {size / 1e6:.2f} MB; answers moved by at most {moved:.1e} of their spread")
    if moved > MOST_MOVED:
        raise SystemExit("that is too much: leave --half out.")


def parsed() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    parser.add_argument("--data", help="where the files of the run's benchmark lie")
    parser.add_argument("--half", action="store_true", help="weights in float16")
    parser.add_argument("--into", type=Path, help="folder of shipped learners, if not the package's")
    return parser.parse_args()


def apart(one: AbstractMetaLearner, other: AbstractMetaLearner, task: Task) -> float:
    """How far the answers of two learners lie apart on a task, in their own spreads."""

    @eqx.filter_jit
    def answer(learner: AbstractMetaLearner) -> tuple[jax.Array, jax.Array]:
        found = predict(learner, task.support, task.query.x, num_samples=20, key=jr.key(0))
        return found.mean, found.std

    (mean, std), (moved, _) = answer(one), answer(other)
    return float(jnp.max(jnp.abs(mean - moved) / std))


def card_of(name: str, run: Run, half: bool) -> str:
    """The card, from the run's settings, provenance and scores."""
    config = run.config()
    benchmark, method = config["benchmark"]["name"], config["method"]["name"]
    count = sum(array.size for array in read_arrays(run.learner_path).values())
    kind = "float16" if half else "float32"
    when, device = str(config.get("created", "unknown"))[:10], config.get("device", "unknown")
    lines = [
        f"# {name}",
        "",
        f"{method} on the benchmark {benchmark}, preset `{config['method']['preset']}`, seed {config['seed']}.",
        f"{count:,} weights in {kind}. Trained for {config['training']['steps']:,} steps on {when} ({device}).",
        "",
        f'    learner = stmaml.load_pretrained("{name}")',
        "",
        "## Data",
        "",
        DATA.get(benchmark, "See the page of the benchmark."),
        "",
        "## Scores",
        "",
        *scores_of(run),
        "## Limits",
        "",
        LIMITS.get(benchmark, "Tasks like those of its benchmark."),
        "Scores hold for tasks drawn like those above. On others, look at a few answers first.",
    ]
    return "\n".join(lines) + "\n"


def scores_of(run: Run) -> list[str]:
    """A table for each test, with 95 % intervals over tasks."""
    lines: list[str] = []
    for summary in run.scores().values():
        if summary.get("row"):
            continue
        lines += [f"{summary['task_set']}, {summary['tasks']:,} test tasks, {summary['samples']} samples a task:", ""]
        lines += ["| score | mean | ± 95 % |", "|---|---|---|"]
        for each in in_order(summary["metrics"]):
            value = summary["metrics"][each]
            lines.append(f"| {metric(each).name} | {value['mean']:.4g} | {_interval(value)} |")
        lines.append("")
    return lines or ["None were saved with the run.", ""]


def _interval(value: dict[str, Any]) -> str:
    half = value.get("ci95")
    return "" if half is None or not np.isfinite(half) else f"{half:.2g}"


if __name__ == "__main__":
    main()
