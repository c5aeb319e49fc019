"""Is a learner of 2D regression as sure as it should be, where the noise differs between tasks as in its training?

    python studies/spread2d.py [RUN] [--shots 2 5 10] [--factors 0.9 0.95 1.05 1.1] [--tasks 2000] [--samples 20]

Prints by how much minus the log-density of test tasks changes when the spread of each predictor is multiplied by each
factor, paired by task. The frozen tests have one noise, which a learner that has to infer it cannot know: there bands
are rightly wider than that noise needs. Here they would be wrong. RUN is a run folder; the learner that comes with the
package if not given."""

import argparse
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from stmaml import load_pretrained
from stmaml.benchmarks.base import TEST_SEED
from stmaml.benchmarks.regression2d import RANGES, Config, Curves
from stmaml.benchmarks.sources import TaskSet, freeze
from stmaml.evaluation import Judge, evaluate
from stmaml.experiments import load_run
from stmaml.metrics import summarise
from stmaml.prediction import Prediction
from stmaml.tasks import Examples, weighted_mean

NOISE = (0.1, 0.8)


def main() -> None:
    flags = parsed()
    learner = load_pretrained() if flags.run is None else load_run(flags.run)[1]
    factors = jnp.array([*flags.factors, 1.0])
    for extent in RANGES:
        for shots in flags.shots:
            tasks = varied(Config(input_range=extent, shots=shots), flags.tasks)
            found = evaluate(learner, tasks, num_samples=flags.samples, key=jr.key(TEST_SEED), judge=densities(factors))
            *others, plain = found.extra["nll_at"].T
            apart = [summarise(column - plain) for column in others]
            words = ", ".join(
                f"{factor:g}: {gap['mean']:+.4f} ± {gap['ci95']:.4f}"
                for factor, gap in zip(flags.factors, apart, strict=True)
            )
            print(f"{extent[0]:g}..{extent[1]:g}, {shots} examples: {words}", flush=True)


def varied(settings: Config, count: int) -> TaskSet:
    """Tasks whose noise is drawn as in training, of which none was trained on."""
    told = replace(settings, noise_range=NOISE, query_size=settings.test_query_size)
    return freeze(Curves(told, random_shots=True), count, seed=TEST_SEED)


def densities(factors: Float[Array, " f"]) -> Judge:
    """Minus the log-density with each factor on the spread of each predictor about its own mean."""

    def judge(prediction: Prediction, query: Examples) -> dict[str, Float[Array, " f"]]:
        each = prediction.components

        def at(factor: Float[Array, ""]) -> Float[Array, ""]:
            wider = Prediction(each.tempered(factor, each.mean()))
            return weighted_mean(-wider.log_prob(query.y), query.weight)

        return {"nll_at": jax.vmap(at)(factors)}

    return judge


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--shots", type=int, nargs="+", default=[2, 5, 10])
    parser.add_argument("--factors", type=float, nargs="+", default=[0.9, 0.95, 1.05, 1.1])
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--samples", type=int, default=20)
    return parser.parse_args()


if __name__ == "__main__":
    main()
