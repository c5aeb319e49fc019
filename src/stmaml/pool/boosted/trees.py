"""Boosted trees as plain arrays: what scikit-learn has grown, read without it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from stmaml.border.shapes import check_arrays
from stmaml.errors import RunError
from stmaml.pool.base import Arrays

AT_ONCE = 1 << 18
"""Pairs of a row and a tree that are walked together: few enough to stay in the processor's cache."""


@dataclass(frozen=True)
class Trees:
    """A sum of trees for each output. A leaf is its own child, so that every walk may take as many steps."""

    base: Float[np.ndarray, " k"]
    """What each output is without a tree."""
    roots: Int[np.ndarray, "trees k"]
    """Where each tree begins."""
    feature: Int[np.ndarray, " m"]
    threshold: Float[np.ndarray, " m"]
    left: Int[np.ndarray, " m"]
    """The next node of a row that has at most the threshold; all others go right."""
    right: Int[np.ndarray, " m"]
    value: Float[np.ndarray, " m"]
    """What a leaf adds."""
    depth: Int[np.ndarray, ""]
    """Steps from a root to the furthest leaf."""

    def predict(self, x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n k"]:
        """The outputs of each row."""
        if self.feature.max(initial=-1) >= x.shape[1]:
            raise RunError(f"a tree asks for column {self.feature.max()} of {x.shape[1]}")
        if not self.roots.size:
            return np.tile(self.base, (len(x), 1))
        step = max(AT_ONCE // self.roots.size, 1)
        parts = [self._sum(x[start : start + step]) for start in range(0, max(len(x), 1), step)]
        return self.base + np.concatenate(parts)

    def _sum(self, x: np.ndarray) -> np.ndarray:
        flat, first = np.ascontiguousarray(x).ravel(), (np.arange(len(x)) * x.shape[1])[:, None]
        node = np.tile(self.roots.ravel(), (len(x), 1))
        for _ in range(int(self.depth)):
            lower = flat[first + self.feature[node]] <= self.threshold[node]
            node = np.where(lower, self.left[node], self.right[node])
        return self.value[node].reshape(len(x), *self.roots.shape).sum(1)

    def state(self) -> Arrays:
        """All of it, as arrays."""
        return {field.name: np.asarray(getattr(self, field.name)) for field in fields(self)}

    @staticmethod
    def restored(state: Arrays) -> "Trees":
        """Trees from their arrays, of which every step leads to a node."""
        trees = check_arrays(Trees(**state), infinite=("threshold",))
        size = len(trees.feature)
        steps = [part.ravel() for part in (trees.roots, trees.left, trees.right)]
        inside = all(part.min() >= 0 and part.max() < size for part in steps if part.size)
        if not inside or not 0 <= trees.depth <= size or trees.feature.min(initial=0) < 0:
            raise RunError("a tree has a step to a node that it has not")
        return trees


def trees_of(predictors: Sequence[Sequence[Any]], base: Float[np.ndarray, " k"]) -> Trees:
    """Trees from scikit-learn's, which come round by round, one for each output; all columns must be numbers."""
    nodes = [one.nodes for outputs in predictors for one in outputs]
    sizes = np.array([len(one) for one in nodes], dtype=int)
    roots = (np.cumsum(sizes) - sizes).reshape(len(predictors), len(base))
    if not nodes:
        none, no_number = np.zeros(0, dtype=np.int32), np.zeros(0)
        return Trees(base, roots, none, no_number, none, none, no_number, np.array(0))
    joined, shift = np.concatenate(nodes), np.repeat(roots.ravel(), sizes)
    leaf, own = joined["is_leaf"].astype(bool), np.arange(len(joined))
    return Trees(
        base=np.asarray(base, dtype=float),
        roots=roots,
        feature=np.where(leaf, 0, joined["feature_idx"]).astype(np.int32),
        threshold=np.where(leaf, np.inf, joined["num_threshold"]),
        left=np.where(leaf, own, joined["left"] + shift).astype(np.int32),
        right=np.where(leaf, own, joined["right"] + shift).astype(np.int32),
        value=np.where(leaf, joined["value"], 0.0),
        depth=np.array(max(int(joined["depth"].max()), 0)),
    )


def prefixed(state: Arrays, name: str) -> Arrays:
    """Arrays of a part, under names that tell it from other parts."""
    return {f"{name}/{key}": value for key, value in state.items()}


def part(state: Arrays, name: str) -> Arrays:
    """The arrays of a part, under their own names."""
    return dict(_under(state, f"{name}/"))


def _under(state: Arrays, start: str) -> Iterator[tuple[str, np.ndarray]]:
    return ((key.removeprefix(start), value) for key, value in state.items() if key.startswith(start))
