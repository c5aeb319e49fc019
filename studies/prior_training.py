"""Trains the learner of `stmaml.prior` on made-up tables, a piece at a time.

    python studies/prior_training.py --seconds 200 --out weights.npz [--start weights.npz] [--fall 0.6] [--seed 1]

A piece begins with the weights of the last one and leaves the running mean of its own. Prints the loss of ever new
tables on the way and, with --judge, that of fixed validation tables, beside the linear mixed model's (`anchor`)
and, for linear tables, the Bayes limit. $DEADLINE, if set, is the second (since 1970) at which all must be over."""

import argparse
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import jax.random as jr
import numpy as np

from stmaml.benchmarks.hierarchies import Shape
from stmaml.prior.judging import Judge
from stmaml.prior.learner import Learner, Sizes
from stmaml.prior.training import SHAPES, Piece, train_piece
from stmaml.prior.weights import load_weights, save_weights

TINY = ((Shape(4, 2, 4, 2), 4), (Shape(3, 2, 5, 3), 4))
TINY_SIZES = Sizes(64, 1, 64, 2)
JUDGED = 192


def main() -> None:
    flags = parsed()
    begun = time.time()
    sizes = TINY_SIZES if flags.tiny else Sizes()
    learner = load_weights(flags.start) if flags.start else Learner(sizes, key=jr.key(flags.seed))
    shapes = TINY if flags.tiny else SHAPES
    deadline = float(os.environ.get("DEADLINE", "inf")) - flags.reserve
    piece = Piece(flags.seconds, flags.rate, fall=flags.fall, keep=flags.keep, seed=flags.seed, half=not flags.tiny)
    look = Looks(shapes[0][0], 8 if flags.tiny else JUDGED) if flags.judge else None
    told, judged, found, step = 0.0, 0.0, [], 0
    for step, spent, loss, mean in train_piece(learner, piece, shapes, time_left=lambda: deadline - time.time()):
        if not found:
            print(f"first steps {time.time() - begun:.0f} s after the start", flush=True)
            if look:
                look(0, learner)
        found.append(loss)
        learner = mean
        if spent - told > flags.tell:
            told = spent
            print(f"step {step} {spent:.0f} s loss {np.nanmean(found[-50:]):.4f}", flush=True)
            save_weights(mean, flags.out)
        if look and spent - judged > flags.judge_every:
            judged = spent
            look(step, mean)
    save_weights(learner, flags.out)
    tables = sum(count for _, count in shapes) / len(shapes) * step
    print(f"{step} steps, about {tables:,.0f} tables", flush=True)
    if look:
        look(step, load_weights(flags.out))
        look.close()


class Looks:
    """Looks at validation tables beside training, one after the other."""

    def __init__(self, shape: Shape, count: int):
        self.pool = ThreadPoolExecutor(1)
        self.make, self.judge = partial(Judge, shape, count), None

    def __call__(self, step: int, learner: Learner) -> None:
        """Says what `learner` reaches, soon."""
        self.pool.submit(self._look, step, learner)

    def _look(self, step: int, learner: Learner) -> None:
        try:
            self.judge = self.judge or self.make()
            print(f"judged at step {step}:", json.dumps(self.judge(learner)), flush=True)
        except Exception as error:  # training must go on
            print(f"not judged: {type(error).__name__}: {error}", flush=True)

    def close(self) -> None:
        """Waits for the last look."""
        self.pool.shutdown()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--start", type=Path)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--fall", type=float, default=0.0)
    parser.add_argument("--keep", type=float, default=0.998)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tell", type=float, default=15.0)
    parser.add_argument("--reserve", type=float, default=30.0, help="seconds before $DEADLINE at which training ends")
    parser.add_argument("--judge", action="store_true", help="look at validation tables on the way")
    parser.add_argument("--judge-every", type=float, default=30.0, help="seconds")
    parser.add_argument("--tiny", action="store_true", help="to try the script")
    return parser.parse_args()


if __name__ == "__main__":
    main()
