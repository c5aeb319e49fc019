"""What any weights of a pool's members could reach: those that suit the tested groups themselves best.

    python studies/weight_limits.py FOLDER KEPT [--half reporting] [--kinds random]

Reads what `studies/weighing.py keep` kept. For each table and number of labelled rows it prints the error of these best
weights over that of the best member alone, both picked after the fact. Nobody can know such weights beforehand: they
say how far a rule of weighing could go at all."""

import argparse
from collections import defaultdict
from pathlib import Path

import numpy as np
from jaxtyping import Float
from public_tables import SETS
from weighing import Known, cases_of

from stmaml.pool.crossfit import HeldOut
from stmaml.pool.weights import least_cost, log_score_weights

Pairs = list[tuple[HeldOut, HeldOut]]
"""Of each part of a table: fits of a member that answer together, and the one to all groups alone."""
Losses = Float[np.ndarray, "k n"]


def shares(held: HeldOut) -> Float[np.ndarray, " n"]:
    """What each row counts, 1 in all for each group."""
    group = np.unique(held.tasks.group, return_inverse=True)[1][held.tasks.task]
    return 1 / np.bincount(group)[group]


def best_of_numbers(pairs: Pairs, names: list[str]) -> tuple[float, float]:
    """The squared error of the best weights, and of the best member."""
    share = np.concatenate([shares(one) for one, _ in pairs])
    left, alone = (np.concatenate([_errors(pair[i], names) for pair in pairs], axis=1) for i in (0, 1))
    products = (left * share) @ left.T / share.sum()
    own, count = np.diag(products), len(names)
    apart = own[:, None] + own - 2 * products  # so that w.own - w.apart w / 2 is w.products w
    weights = least_cost(own[None], apart[None], np.full((1, count), 1 / count), np.zeros(1))[0]
    return float(weights @ products @ weights), float((alone**2 @ share).min() / share.sum())


def _errors(held: HeldOut, names: list[str]) -> Losses:
    return held.y - np.stack([held.forecasts[name].mean for name in names])


def best_of_classes(pairs: Pairs, names: list[str]) -> tuple[float, float]:
    """The log-loss of the best weights, and of the best member."""
    share = np.concatenate([shares(one) for one, _ in pairs])
    given, alone = (np.concatenate([_likelihood(pair[i], names) for pair in pairs], axis=1) for i in (0, 1))
    weights = log_score_weights(given, share, np.zeros(len(names)))
    return float(-np.log(weights @ given) @ share / share.sum()), float((-np.log(alone) @ share).min() / share.sum())


def _likelihood(held: HeldOut, names: list[str]) -> Losses:
    rows, truth = np.arange(len(held.y)), held.y.astype(int)
    return np.stack([np.maximum(held.forecasts[name].mean[rows, truth], 1e-12) for name in names])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("kept", type=Path)
    parser.add_argument("--half", choices=("", *SETS), default="reporting")
    parser.add_argument("--kinds", nargs="*", choices=("random", "first", "halved"), default=["random"])
    flags = parser.parse_args()
    found = defaultdict(list)
    for case in cases_of(flags.folder, flags.half, [], flags.kinds):
        if (flags.kept / f"{case.name}.npz").exists():
            known = Known.read(case, flags.kept).usual()
            kind = "classes" if known.table.rows.num_classes else "numbers"
            for shots, pair in known.tests.items():
                found[case.ordered, kind, shots, case.table].append(pair)
    ratios = defaultdict(list)
    for (ordered, kind, shots, table), pairs in sorted(found.items()):
        names = [name for name in pairs[0][0].forecasts if all(name in one.forecasts for one, _ in pairs)]
        weighed, single = (best_of_classes if kind == "classes" else best_of_numbers)(pairs, names)
        ratios[ordered, kind, shots].append(weighed / single)
        print(f"{'first' if ordered else 'random'} {kind} {shots} {table}: {weighed / single:.3f}")
    for (ordered, kind, shots), some in ratios.items():
        ahead = sum(ratio < 1 for ratio in some)
        print(
            f"{'first' if ordered else 'random'} rows, {kind}, {shots} labelled: median {np.median(some):.3f}", end=", "
        )
        print(f"below 1 on {ahead}, below 0.99 on {sum(ratio < 0.99 for ratio in some)} of {len(some)}")


if __name__ == "__main__":
    main()
