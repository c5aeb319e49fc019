"""Trains the learner of `stmaml.prior` on made-up tables, a piece at a time.

    python studies/prior_training.py --seconds 200 --out weights.npz [--start weights.npz] [--fall 0.6] [--seed 1]

A piece begins with the weights of the last one and leaves the running mean of its own. Prints the loss of ever new
tables on the way and, with --judge, that of fixed validation tables, beside the linear mixed model's (`anchor`)
and, for linear tables, the Bayes limit."""

import argparse
import os
import time
from functools import partial
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from stmaml.benchmarks.hierarchies import Shape, Table, bayes_limit, linear_tables, one_of, sample_tables, table_key
from stmaml.prior.anchor import Anchor, fit_anchor, learn_line
from stmaml.prior.learner import Learner, Sizes
from stmaml.prior.training import SHAPES, Piece, answer, losses, train_piece
from stmaml.prior.weights import load_weights, save_weights

TINY = ((Shape(4, 2, 4, 2), 4), (Shape(3, 2, 5, 3), 4))
VALIDATION = 777


def main() -> None:
    flags = parsed()
    tiny = Sizes(32 * 2, 1, 32 * 2, 2)
    learner = load_weights(flags.start) if flags.start else Learner(tiny if flags.tiny else Sizes(), key=jr.key(0))
    shapes = TINY if flags.tiny else SHAPES
    deadline = float(os.environ.get("DEADLINE", "inf")) - flags.reserve
    judge = Judge(shapes[-1][0], 8 if flags.tiny else 256) if flags.judge else None
    if judge is not None:
        print("before", judge(learner), flush=True)
    piece = Piece(flags.seconds, flags.rate, fall=flags.fall, seed=flags.seed, half=not flags.tiny)
    told, found, step, begun = 0.0, [], 0, time.time()
    for step, spent, loss, mean in train_piece(learner, piece, shapes, time_left=lambda: deadline - time.time()):
        if not found:
            print(f"compiled in {time.time() - begun - spent:.0f} s", flush=True)
        found.append(loss)
        if spent - told > flags.tell:
            told = spent
            print(f"step {step} {spent:.0f} s loss {np.nanmean(found[-50:]):.4f}", flush=True)
            save_weights(mean, flags.out)
        learner = mean
    save_weights(learner, flags.out)
    tables = sum(count for _, count in shapes) / len(shapes) * step
    print(f"{step} steps, about {tables:,.0f} tables", flush=True)
    if judge is not None:
        print("after", judge(load_weights(flags.out)), flush=True)


class Judge:
    """Validation tables, and what is known of them without the learner."""

    def __init__(self, shape: Shape, count: int):
        key, other = jr.split(table_key(VALIDATION))
        self.tables = jax.jit(partial(sample_tables, shape, count))(key=key)
        self.linear, truth = jax.jit(partial(linear_tables, shape, count))(key=other)
        limits = [bayes_limit(one_of(self.linear, i), one_of(truth, i)) for i in range(count)]
        mean, variance = (jnp.asarray(np.stack(part)) for part in zip(*limits, strict=True))
        self.limit = _normal(self.linear, mean, jnp.sqrt(jnp.where(self.linear.asked > 0, variance, 1.0)))
        self.anchors = [_anchor(tables) for tables in (self.tables, self.linear)]

    def __call__(self, learner: Learner) -> dict[str, float]:
        """Mean losses over tables."""
        work = eqx.filter_jit(lambda learner, table: losses(answer(learner, table), table)[0])
        made, line = (np.asarray(work(learner, table)) for table in (self.tables, self.linear))
        classes = np.asarray(self.tables.is_class)
        found = {
            "numbers": made[~classes].mean(),
            "anchor": self.anchors[0][~classes].mean(),
            "classes": made[classes].mean() if classes.any() else np.nan,
            "linear": line.mean(),
            "linear_anchor": self.anchors[1].mean(),
            "linear_limit": self.limit.mean(),
        }
        return {name: round(float(value), 4) for name, value in found.items()}


def _anchor(table: Table) -> np.ndarray:
    def one(x: jax.Array, y: jax.Array, labelled: jax.Array) -> Anchor:
        line = learn_line(*(part[: table.num_train] for part in (x, y, labelled)))
        return fit_anchor(line, x, y, labelled)

    found = jax.jit(jax.vmap(one))(table.x, table.y, table.labelled)
    return _normal(table, found.mean, found.std)


def _normal(table: Table, mean: jax.Array, std: jax.Array) -> np.ndarray:
    nll = 0.5 * jnp.log(2 * jnp.pi) + jnp.log(std) + 0.5 * jnp.square(jnp.clip((table.y - mean) / std, -30, 30))
    return np.asarray((nll * table.asked).sum((1, 2)) / jnp.maximum(table.asked.sum((1, 2)), 1))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--start", type=Path)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--fall", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tell", type=float, default=15.0)
    parser.add_argument("--reserve", type=float, default=30.0, help="seconds before $DEADLINE at which training ends")
    parser.add_argument("--judge", action="store_true", help="validation tables before and after")
    parser.add_argument("--tiny", action="store_true", help="to try the script")
    return parser.parse_args()


if __name__ == "__main__":
    main()
