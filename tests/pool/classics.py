"""Small public data sets of the mixed-model literature, as rows of a model."""

import csv
from pathlib import Path

import numpy as np

from stmaml.pool.mixed.sums import Matrices

FOLDER = Path(__file__).parent / "data"


def table(name: str) -> dict[str, np.ndarray]:
    """The columns of a file: text, for the caller to read."""
    with (FOLDER / f"{name}.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    return {key: np.array([row[key] for row in rows]) for key in rows[0]}


def numbered(values: np.ndarray) -> np.ndarray:
    """0, 1, ... in order of first appearance."""
    _, first, codes = np.unique(values, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[codes]


def flags(values: np.ndarray) -> np.ndarray:
    """A column for every value but the first, in alphabetical order."""
    return (values[:, None] == np.unique(values)[None, 1:]).astype(float)


def matrices(y, group, fixed, random=None, levels=None) -> Matrices:
    """A model of a level, with an intercept in front of the fixed columns."""
    n = len(y)
    ones = np.ones((n, 1))
    z = ones if random is None else np.concatenate([ones, random], axis=1)
    codes = np.zeros((n, 0), dtype=int) if levels is None else levels[:, None]
    return Matrices(z, codes, np.concatenate([ones, fixed, y[:, None]], axis=1), group)


def sleepstudy() -> Matrices:
    data = table("sleepstudy")
    days = data["Days"].astype(float)[:, None]
    return matrices(data["Reaction"].astype(float), numbered(data["Subject"]), days, days)


def machines() -> Matrices:
    """Machines within workers are the groups, workers the outer grouping."""
    data = table("machines")
    pair = np.char.add(data["Worker"], data["Machine"])
    y = data["score"].astype(float)
    return matrices(y, numbered(pair), flags(data["Machine"]), levels=numbered(data["Worker"]))


def oats() -> Matrices:
    data = table("oats")
    pair = np.char.add(data["Block"], data["Variety"])
    fixed = np.concatenate([data["nitro"].astype(float)[:, None], flags(data["Variety"])], axis=1)
    return matrices(data["yield"].astype(float), numbered(pair), fixed, levels=numbered(data["Block"]))


def penicillin() -> Matrices:
    """Crossed: every sample on every plate."""
    data = table("penicillin")
    y = data["diameter"].astype(float)
    return matrices(y, numbered(data["plate"]), np.zeros((len(y), 0)), levels=numbered(data["sample"]))
