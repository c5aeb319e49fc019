"""Trains the learner of `stmaml.prior` on made-up tables, a piece at a time.

    python studies/prior_training.py --seconds 300 --fall-seconds 120 --state STATE --out weights.npz [--judge]
    python studies/prior_training.py --ahead PROGRAMS      compile for an H200 that is not there (see ahead.py)

A piece begins with --start (weights), with the state that the last one left (--resume FOLDER, exactly), or with none.
It trains at a steady rate for --seconds and leaves its state, from which the next piece goes on; then the rate falls to
0 within --fall-seconds, which gives weights that can ship. Prints the loss of ever new tables on the way and, with
--judge, that of fixed validation tables, beside the linear mixed model's (`anchor`) and, for linear tables, the Bayes
limit. $DEADLINE, if set, is the second (since 1970) at which all must be over."""

import argparse
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import jax.random as jr
from ahead import Programs  # sets flags of XLA, so before JAX makes an array

from stmaml.benchmarks.hierarchies import Shape
from stmaml.prior.judging import Judge
from stmaml.prior.learner import Learner, Sizes
from stmaml.prior.pieces import SHAPES, TURNS, Compile, Plan, Rest, compile_here, first_rest, programs_of, train
from stmaml.prior.states import load_rest, save_rest
from stmaml.prior.weights import load_weights, save_weights

TINY = ((Shape(4, 2, 4, 2, most_groups=9, longest=7), 5), (Shape(3, 2, 5, 3), 5))
TINY_SIZES = Sizes(64, 1, 64, 2)
JUDGED = {
    "up to 40 groups, 12 rows, 6 columns": (Shape(40, 8, 12, 6), 192),
    "up to 8 groups, 200 rows, 30 columns": (Shape(8, 4, 48, 30, longest=200), 64),
}
TINY_JUDGED = {"tiny": (Shape(4, 2, 4, 2), 8)}


def main() -> None:
    flags = parsed()
    if flags.ahead:
        compile_ahead(flags)
        return
    looks = Looks(TINY_JUDGED if flags.tiny else JUDGED) if flags.judge else None
    rest, plan = begin(flags)
    training = Training(flags, looks)
    rest, pace = training.steady(rest, plan)
    save_rest(rest, plan, flags.state)
    if flags.check:
        training.check(rest, plan)
    left = min(flags.fall_seconds, training.until - time.time())
    steps = max(int(left / pace) // plan.rest, 1) * plan.rest
    print(f"state of step {rest.step} kept; {1000 * pace:.0f} ms a step; the rate falls for {steps} steps", flush=True)
    rest = training.fall(rest, replace(plan, fall_from=rest.step, fall_steps=steps))
    if looks:
        looks(rest.step, load_weights(flags.out), whole=True)
        looks.close()


class Training:
    """Both parts of a piece, within their time."""

    def __init__(self, flags: argparse.Namespace, looks: "Looks | None"):
        self.flags, self.looks = flags, looks
        self.begun, self.until = time.time(), float(os.environ.get("DEADLINE", "inf")) - flags.reserve
        self.compiled, self.programs = reading(flags.programs) if flags.programs else compile_here, {}
        self.shapes, self.turns = (TINY, (0, 1)) if flags.tiny else (SHAPES, TURNS)

    def rests(self, rest: Rest, plan: Plan) -> Iterator[Rest]:
        for found in train(rest, plan, self.shapes, self.turns, compiled=self._once):
            print(f"step {found.step} {time.time() - self.begun:.0f} s loss {found.loss:.4f}", flush=True)
            yield found

    def _once(self, functions: dict) -> dict:
        if not self.programs:
            self.programs.update(self.compiled(functions))
            print(f"programs after {time.time() - self.begun:.0f} s", flush=True)
            if self.looks:  # not before: they would compile at the same time
                self.looks(0, begin(self.flags)[0].learner, whole=True)
        return self.programs

    def steady(self, rest: Rest, plan: Plan) -> tuple[Rest, float]:
        """The last rest before time is up, and seconds a step."""
        ends, clock, first, judged, pace = 0.0, 0.0, 0, time.time(), 0.2
        for found in self.rests(rest, plan):
            rest, now = found, time.time()
            if not clock:
                clock, first = now, rest.step
                ends = min(now + self.flags.seconds, self.until - self.flags.fall_seconds)
            else:
                pace = (now - clock) / (rest.step - first)
            if self.looks and now - judged > self.flags.judge_every:
                judged = now
                self.looks(rest.step, rest.learner)
            if now + pace * plan.rest > ends:
                break
        return rest, pace

    def check(self, rest: Rest, plan: Plan) -> None:
        """Says whether what was kept is what there is, and whether 32 steps from it end with the same bits twice."""
        back, again = load_rest(self.flags.state)[0], replace(plan, rest=32)
        ends = [next(train(one, again, self.shapes, self.turns, compiled=self._once)) for one in (rest, back)]
        for what, pair in (("files", (rest, back)), ("32 steps from them", tuple(ends))):
            leaves = zip(*(jax.tree.leaves(one.state) for one in pair), strict=True)
            print(f"{what}, the same bits: {all(bool((a == b).all()) for a, b in leaves)}", flush=True)

    def fall(self, rest: Rest, plan: Plan) -> Rest:
        for found in self.rests(rest, plan):
            rest = found
            save_weights(rest.learner, self.flags.out)
            if time.time() > self.until:
                print("out of time before the rate was 0", flush=True)
                break
        return rest


def compile_ahead(flags: argparse.Namespace) -> None:
    for name, (function, like) in programs_of(*begin(flags), TINY if flags.tiny else SHAPES).items():
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
        Programs(flags.ahead).ahead(name, function, *zeros)


def begin(flags: argparse.Namespace) -> tuple[Rest, Plan]:
    if flags.resume:
        return load_rest(flags.resume)
    sizes = TINY_SIZES if flags.tiny else Sizes()
    learner = load_weights(flags.start) if flags.start else Learner(sizes, key=jr.key(flags.seed))
    rest = 8 if flags.tiny else 128
    return first_rest(learner), Plan(flags.rate, keep=flags.keep, seed=flags.seed, rest=rest, half=not flags.tiny)


def reading(folder: Path) -> Compile:
    """Programs that were compiled ahead; what is not there is compiled."""

    def compiled(functions: dict) -> dict:
        programs = Programs(folder)
        with ThreadPoolExecutor(len(functions)) as pool:
            found = {name: pool.submit(programs.prepared, name, *item) for name, item in functions.items()}
            return {name: one.result() for name, one in found.items()}

    return compiled


class Looks:
    """Looks at validation tables beside training, one after the other."""

    def __init__(self, judged: dict[str, tuple[Shape, int]]):
        self.pool = ThreadPoolExecutor(1)
        self.judged, self.judges = judged, {}

    def __call__(self, step: int, learner: Learner, *, whole: bool = False) -> None:
        """Says soon what `learner` reaches: on all tables, or on those of the first kind."""
        for name in self.judged if whole else list(self.judged)[:1]:
            self.pool.submit(self._look, name, step, learner)

    def _look(self, name: str, step: int, learner: Learner) -> None:
        try:
            if name not in self.judges:
                self.judges[name] = Judge(*self.judged[name])
            print(f"{name}, step {step}:", json.dumps(self.judges[name](learner)), flush=True)
        except Exception as error:  # training must go on
            print(f"not judged: {type(error).__name__}: {error}", flush=True)

    def close(self) -> None:
        """Waits for the last look."""
        self.pool.shutdown()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--fall-seconds", type=float, default=120.0)
    parser.add_argument("--out", type=Path, default=Path("weights.npz"))
    parser.add_argument("--state", type=Path, default=Path("state"))
    parser.add_argument("--start", type=Path)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--programs", type=Path, help="folder of programs compiled ahead")
    parser.add_argument("--ahead", type=Path, help="compile ahead into this folder, and no more")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--keep", type=float, default=0.99)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reserve", type=float, default=30.0, help="seconds before $DEADLINE at which training ends")
    parser.add_argument("--judge", action="store_true", help="look at validation tables on the way")
    parser.add_argument("--judge-every", type=float, default=60.0, help="seconds")
    parser.add_argument("--check", action="store_true", help="see that the state that is kept is exact")
    parser.add_argument("--tiny", action="store_true", help="to try the script")
    return parser.parse_args()


if __name__ == "__main__":
    main()
