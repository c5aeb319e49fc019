"""Growing trees by gradient boosting: several fits that leave groups out go side by side and say when to stop."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from stmaml.pool.base import GroupedRows
from stmaml.pool.boosted.objectives import Objective
from stmaml.pool.boosted.trees import Trees, trees_of

FOLDS = 4
MANY_GROUPS = 100
"""From here on three folds tell as much as four."""
LOOK = 5
"""Rounds from one look at held-out groups to the next."""
MAX_ROWS = 300_000
MANY_ROWS = 50_000
VERY_MANY_ROWS = 200_000
FEW_ROWS = 20_000
"""Up to here one thread is as quick as several, which may have to wait for each other; and few bins tell enough."""
FEW_BINS = 64


def usable_cores() -> int:
    """Cores that this process may use, as the system or OMP_NUM_THREADS has it."""
    stated = os.environ.get("OMP_NUM_THREADS", "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, int(stated)) if stated.isdecimal() and int(stated) else cores


@dataclass(frozen=True)
class Rule:
    """How trees are grown."""

    rate: float
    leaves: int
    min_leaf: int
    l2: float = 1.0
    max_rounds: int = 200
    patience: int = 20
    """Rounds without a gain on held-out groups after which growth stops."""


def usual_rule(num_rows: int) -> Rule:
    """Few and large leaves for few rows, more and longer growth for many."""
    leaves = int(np.clip(num_rows / 60, 4, 8) + np.clip(num_rows / 5_000, 0, 55)) + 64 * (num_rows >= VERY_MANY_ROWS)
    min_leaf = int(np.clip(num_rows / 30, 3, 40))
    return Rule(rate=0.1, leaves=leaves, min_leaf=min_leaf, max_rounds=400 if num_rows >= MANY_ROWS else 200)


@dataclass(frozen=True)
class Grown:
    """Trees of all groups, and what trees that had not seen a group say of it."""

    trees: Trees
    held_out: Float[np.ndarray, "n k"]


def limited(rows: GroupedRows, seed: int, most: int = MAX_ROWS) -> GroupedRows:
    """At most so many rows: of some groups all, or of few and large groups some."""
    if len(rows.y) <= most:
        return rows
    random = np.random.default_rng(seed)
    order = random.permutation(rows.num_groups)
    kept = order[np.cumsum(rows.counts[order]) <= most]
    if len(kept) >= min(rows.num_groups, 100):
        return rows.of_groups(kept)
    return rows.at(np.sort(random.choice(len(rows.y), most, replace=False)))


def folds_of(group: Int[np.ndarray, " n"], seed: int, most: int = FOLDS) -> Int[np.ndarray, " n"]:
    """The fold of each row: whole groups, unless there is but one."""
    names, number = np.unique(group, return_inverse=True)
    if len(names) == 1:
        return np.arange(len(group)) % most
    most = min(most - (len(names) >= MANY_GROUPS), len(names))
    fold = np.random.default_rng(seed).permutation(len(names)) % most
    return fold[number]


class Booster:
    """Trees that grow round by round on some rows and are followed on others."""

    def __init__(self, binned: "Binned", seen: Int[np.ndarray, " n"], unseen: Int[np.ndarray, " m"], start: np.ndarray):
        self._binned, self._seen, self._start = binned, np.asfortranarray(binned.x[seen]), start
        self._unseen = np.ascontiguousarray(binned.x[unseen])
        self.rows, self.others = seen, unseen
        self.raw, self.held_out = np.tile(start, (len(seen), 1)), np.tile(start, (len(unseen), 1))
        self._rounds: list[list[Any]] = []

    def grow(self, objective: Objective, rule: Rule) -> None:
        """One round: a tree for each output."""
        gradients, hessians = objective.gradients(self.raw)
        pairs = zip(gradients.T, hessians.T, strict=True)
        self._rounds.append([self._tree(output, g, h, objective, rule) for output, (g, h) in enumerate(pairs)])

    def trees(self, rounds: int) -> Trees:
        """What has grown in the first rounds."""
        return trees_of(self._rounds[:rounds], self._start)

    def _tree(self, output: int, gradient: np.ndarray, hessian: np.ndarray, objective: Objective, rule: Rule) -> Any:
        grower = self._binned.grower(self._seen, gradient, hessian, rule)
        grower.grow()
        leaf = np.empty(len(self.raw), dtype=int)
        for number, node in enumerate(grower.finalized_leaves):
            leaf[node.sample_indices] = number
        values = objective.leaf_values(self.raw, leaf, rule.l2)
        if values is not None:
            for node, value in zip(grower.finalized_leaves, values, strict=True):
                node.value = rule.rate * float(value)
        self.raw[:, output] += np.array([node.value for node in grower.finalized_leaves])[leaf]
        predictor = grower.make_predictor(binning_thresholds=self._binned.mapper.bin_thresholds_)
        if len(self.others):
            self.held_out[:, output] += predictor.predict_binned(
                self._unseen, self._binned.mapper.missing_values_bin_idx_, self._binned.threads
            )
        return predictor


class Binned:
    """Columns as numbers of bins, once for all fits."""

    def __init__(self, x: Float[np.ndarray, "n d"], seed: int):
        # Its parts rather than its estimator: fits that go side by side, with gradients of our own, need them.
        from sklearn.ensemble._hist_gradient_boosting.binning import _BinMapper
        from sklearn.ensemble._hist_gradient_boosting.grower import TreeGrower

        self._make: Callable[..., Any] = TreeGrower
        self.threads = 1 if len(x) <= FEW_ROWS else max(1, usable_cores() // 2)
        self.bins = FEW_BINS if len(x) <= FEW_ROWS else 256
        self.mapper: Any = _BinMapper(n_bins=self.bins, random_state=seed, n_threads=self.threads)
        columns = np.asarray(x, dtype=np.float64) if x.shape[1] else np.zeros((len(x), 1))
        self.x: np.ndarray = self.mapper.fit_transform(columns)

    def grower(self, x: np.ndarray, gradient: np.ndarray, hessian: np.ndarray, rule: Rule) -> Any:
        """A tree about to grow."""
        return self._make(
            X_binned=x,
            gradients=np.ascontiguousarray(gradient, dtype=np.float32),
            hessians=np.ascontiguousarray(hessian, dtype=np.float32),
            n_bins=self.bins,
            n_bins_non_missing=self.mapper.n_bins_non_missing_,
            max_leaf_nodes=rule.leaves,
            min_samples_leaf=rule.min_leaf,
            l2_regularization=rule.l2,
            shrinkage=rule.rate,
            n_threads=self.threads,
        )


def grow(
    x: Float[np.ndarray, "n d"], objective: Objective, group: Int[np.ndarray, " n"], seed: int, rule: Rule | None = None
) -> Grown:
    """As many trees as serve held-out groups best, grown on all rows."""
    rule, fold = usual_rule(len(x)) if rule is None else rule, folds_of(group, seed)
    binned, every = Binned(x, seed), np.arange(len(x))
    start = objective.start()
    boosters = [Booster(binned, every[fold != f], every[fold == f], start) for f in np.unique(fold)]
    found = _side_by_side(boosters, objective, rule)
    last = Booster(binned, every, every[:0], start)
    for number in range(found.rounds):
        last.grow(found.objectives[number // LOOK], rule)
    return Grown(last.trees(found.rounds), found.held_out)


@dataclass(frozen=True)
class _Found:
    """The best number of rounds, and the objectives on the way."""

    rounds: int
    held_out: np.ndarray
    objectives: list[Objective]


def _side_by_side(boosters: list[Booster], objective: Objective, rule: Rule) -> _Found:
    best, rounds, kept = np.inf, 0, np.zeros(0)
    objectives: list[Objective] = []
    for number in range(0, rule.max_rounds + 1, LOOK):
        held_out = _gathered(boosters)
        objective = objective.tuned(held_out, number)
        objectives.append(objective)
        loss = objective.loss(held_out)
        if loss < best:
            best, rounds, kept = loss, number, held_out
        if number - rounds >= rule.patience:
            break
        for one in boosters:
            mine = objective.at(one.rows)
            for _ in range(LOOK):
                one.grow(mine, rule)
    return _Found(rounds, kept, objectives)


def _gathered(boosters: list[Booster]) -> np.ndarray:
    """What is said of each row by trees that have not seen its group."""
    size = sum(len(one.others) for one in boosters)
    held_out = np.zeros((size, boosters[0].held_out.shape[1]))
    for one in boosters:
        held_out[one.others] = one.held_out
    return held_out
