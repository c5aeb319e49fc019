"""Coverage against accuracy on ambiguous faces: one learner, its z drawn narrower or wider than it was trained.

    python studies/trade_off.py runs/celeba/seed-0 runs/celeba/seed-1 --data faces --tasks 500

Every line is JSON: the factor on sigma of p(z | support), and the scores of test tasks. Nothing is chosen by them."""

import argparse
import json
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from stmaml.benchmarks.base import TEST_SEED
from stmaml.evaluation import evaluate
from stmaml.experiments import EvaluateConfig, load_experiment, load_learner
from stmaml.nets.set_encoder import DiagonalNormal, TaskEncoder
from stmaml.runs import Run
from stmaml.tasks import Weight

FACTORS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
SCORES = ("accuracy", "accuracy_all", "nll", "nll_served", "coverage")


class Wider(eqx.Module):
    """A task encoder whose z spreads by a factor more."""

    encoder: TaskEncoder
    factor: Float[Array, ""]

    def __call__(self, xy: Float[Array, "n p"], weight: Weight) -> DiagonalNormal:
        """The same mean."""
        found = self.encoder(xy, weight)
        return DiagonalNormal(found.mu, self.factor * found.sigma)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--data")
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--factors", type=float, nargs="*", default=FACTORS)
    flags = parser.parse_args()
    benchmark, tasks = None, None
    for folder in flags.runs:
        run = Run(folder)
        experiment = load_experiment(run)
        if benchmark is None:
            benchmark = EvaluateConfig(data=flags.data).of(experiment).open()
            tasks = benchmark.test_set(flags.tasks)
        learner: Any = load_learner(run, experiment, benchmark.train.spec, benchmark.own_scaling)
        for factor in flags.factors if hasattr(learner, "phi") else (1.0,):
            hotter = wider(learner, factor)
            scores = evaluate(hotter, tasks, num_samples=flags.samples, key=jr.key(TEST_SEED)).summary()
            means = {name: [round(scores[name]["mean"], 4), round(scores[name]["ci95"], 4)] for name in SCORES}
            print(json.dumps({"run": folder.name, "factor": factor, **means}), flush=True)


def wider(learner: Any, factor: float) -> Any:
    """The learner with a wider z, of one shape for all factors; itself where it has no z."""
    if not hasattr(learner, "phi"):
        return learner
    return eqx.tree_at(lambda one: one.phi, learner, Wider(learner.phi, jnp.asarray(factor)))


if __name__ == "__main__":
    main()
