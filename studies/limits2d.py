"""The Bayes limit of 2D regression on the very test tasks that learners are scored on, so that ratios can be paired.

    python studies/limits2d.py OUT [--until UNIX_SECONDS] [--tasks 20000] [--draws 2000000] [--shots 10 2 5]

OUT/RANGE-SHOTS-HOW.npz holds `mse`, `mse_clean`, `nll` and `effective_draws` of the first tasks of the frozen set, for
a predictor that is told the noise (told) and for one that has to infer it (untold): as many as there was time for."""

import argparse
import itertools
import math
import time
from pathlib import Path

import jax
import jax.random as jr
import numpy as np

from stmaml.benchmarks.bayes2d import bayes_scores
from stmaml.benchmarks.regression2d import RANGES, Config

AT_ONCE = 128
HOW = {"told": 0.3, "untold": (0.1, 0.8)}


def main() -> None:
    flags = parsed()
    flags.out.mkdir(parents=True, exist_ok=True)
    cases = list(itertools.product(RANGES, flags.shots, HOW))
    sets = {case[:2]: Config(input_range=case[0], shots=case[1]).open().test_set(flags.tasks) for case in cases}
    found = {case: [] for case in cases}
    for start in range(0, flags.tasks, AT_ONCE):
        for case in cases:
            if time.time() > flags.until:
                return
            batch = jax.tree.map(lambda leaf, s=start: leaf[s : s + AT_ONCE], sets[case[:2]].batch)
            key = jr.key(start)
            found[case].append(
                bayes_scores(batch, noise=HOW[case[2]], num_draws=flags.draws, key=key, tasks_at_once=AT_ONCE // 2)
            )
            keep(flags.out, case, found[case])


def keep(out: Path, case: tuple, parts: list) -> None:
    """All tasks so far, and a line about them."""
    (low, high), shots, how = case
    names = ("mse", "mse_clean", "nll", "effective_draws")
    arrays = {name: np.concatenate([getattr(part, name) for part in parts]).astype(np.float32) for name in names}
    np.savez_compressed(out / f"{low:g}..{high:g}-{shots}-{how}.npz", **arrays)
    half = 1.96 / math.sqrt(len(arrays["mse"]))
    words = " ".join(f"{name} {arrays[name].mean():.4f}±{half * arrays[name].std():.4f}" for name in ("mse", "nll"))
    worth = np.percentile(arrays["effective_draws"], 5)
    print(
        f"{low:g}..{high:g} shots {shots} {how}: {len(arrays['mse'])} tasks {words}, worth {worth:.0f} draws",
        flush=True,
    )


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--until", type=float, default=math.inf)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--draws", type=int, default=2_000_000)
    parser.add_argument("--shots", type=int, nargs="+", default=[10, 2, 5])
    return parser.parse_args()


if __name__ == "__main__":
    main()
