"""Which rows of a group, once labelled, would tell most about the others."""

from dataclasses import replace

import numpy as np
from jaxtyping import Float, Int

from stmaml.pool.averaging import whole_of
from stmaml.pool.base import Fitted, Tasks, evenly

MOST = 60  # rows of a group that are thought through


def suggested(members: dict[str, Fitted], tasks: Tasks, wanted: int) -> Float[np.ndarray, " n"]:
    """The rank of each asked row that should be labelled first, second and so on in its group; NaN for others.

    Each candidate is tried: labelled as usual, how unsure would the members be of the group in all its rows? What the
    label says does not change that for members that know how unsure they are."""
    ranks = np.full(len(tasks.asked), np.nan)
    starts = np.concatenate([[0], np.cumsum([len(rows) for rows in tasks.query])])
    for i in range(len(tasks)):
        for rank, place in enumerate(_best_rows(members, tasks, i, wanted), start=1):
            ranks[starts[i] + place] = rank
    return ranks


def _best_rows(members: dict[str, Fitted], tasks: Tasks, number: int, wanted: int) -> list[int]:
    places = evenly(np.arange(len(tasks.query[number])), MOST)
    rows, support = tasks.query[number][places], tasks.support[number]
    chosen: list[int] = []
    for _ in range(min(wanted, len(rows))):
        left = [j for j in range(len(rows)) if j not in chosen]
        tried = tuple(np.concatenate([support, rows[[*chosen, j]]]) for j in left)
        chosen.append(left[int(np.argmin(_doubt(members, tasks, rows, tried)))])
    return [int(places[j]) for j in chosen]


def _doubt(
    members: dict[str, Fitted], tasks: Tasks, rows: Int[np.ndarray, " q"], tried: tuple[Int[np.ndarray, " k"], ...]
) -> Float[np.ndarray, " t"]:
    """For each set of labelled rows, the variance that not knowing the group leaves in all rows, over all members."""
    labelled = replace(tasks.rows, y=np.nan_to_num(tasks.rows.y))
    trial = Tasks(labelled, tried, (rows,) * len(tried))
    whole = np.sum([whole_of(member).predict(trial).task_variance for member in members.values()], axis=0)
    return np.bincount(trial.task, whole)
