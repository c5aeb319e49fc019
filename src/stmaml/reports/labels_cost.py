"""What a new group costs in labels: how far some labelled rows bring the error down."""

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
from jaxtyping import Bool

from stmaml.numbers import plain, share
from stmaml.pool.scoring import POOL, Scored
from stmaml.reports.content import Block, Cell, Figure, Part, Table, Text, amount, count, part_of_one

ENOUGH = 0.8  # of all that the most labelled rows bring: what is named as a good number of them


def cost_sentence(result: Mapping[str, Any], scored: Sequence[Scored]) -> str:
    """`5 labelled rows take the error from 60 to 28`; empty where a single number of rows was tried."""
    found = _by_rows(in_same_groups(scored))
    if len(found) < 2:
        return ""
    (none, before), *others = found.items()
    most, after = others[-1]
    few = good_number(found)
    rows = "1 labelled row takes" if few == 1 else f"{few} labelled rows take"
    said = f"{rows} {_measure(result)} from {_said(result, before)} to {_said(result, found[few])}"
    if few != most:
        said += f"; {most} take it to {_said(result, after)}"
    return f"{said}." if none == 0 else f"From {none} labelled rows on: {said}."


def good_number(found: Mapping[int, float]) -> int:
    """The fewest labelled rows that bring most of what the most of them bring."""
    (_, first), *others = found.items()
    gain = abs(first - others[-1][1])
    return next(rows for rows, error in others if abs(first - error) >= ENOUGH * gain)


def _measure(result: Mapping[str, Any]) -> str:
    return "the share of right answers" if result["kind"] == "class" else f"the typical error of '{result['target']}'"


def _said(result: Mapping[str, Any], value: float) -> str:
    return share(value) if result["kind"] == "class" else plain(value)


def in_same_groups(scored: Sequence[Scored]) -> list[Scored]:
    """Scores of the groups that have rows enough for every number of labelled ones: else other groups would be
    compared, not other numbers of rows."""
    same = reduce(np.intersect1d, [one.groups for one in scored])
    return [_of_groups(one, np.isin(one.groups, same)) for one in scored] if len(same) else list(scored)


def _of_groups(one: Scored, chosen: Bool[np.ndarray, " g"]) -> Scored:
    rows = {row: {name: values[chosen] for name, values in each.items()} for row, each in one.rows.items()}
    return Scored(one.shots, one.groups[chosen], rows, {name: values[chosen] for name, values in one.held.items()})


def _by_rows(scored: Sequence[Scored]) -> dict[int, float]:
    """The pool's typical error (the root of the mean squared one), or its share of right answers."""
    own = {one.shots: one.rows[POOL] for one in scored}
    if "accuracy" in scored[0].rows[POOL]:
        return {shots: float(each["accuracy"].mean()) for shots, each in own.items()}
    return {shots: math.sqrt(each["mse"].mean()) for shots, each in own.items()}


def cost_part(result: Mapping[str, Any], scored: Sequence[Scored], figure: Figure | None) -> Part:
    """The error against labelled rows, beside every other model."""
    scored = in_same_groups(scored)
    found = _by_rows(scored)
    first = next(iter(found.values()))
    rows = [
        {"labelled rows": count(one.shots), **_value(result, found[one.shots], first), **_width(one)} for one in scored
    ]
    table = Table(tuple(rows[0]), tuple(rows), "What labelled rows bring")
    groups = f"{len(scored[0].groups):,} groups that have rows enough for all of these"
    said = f"What the pool makes of a new group, by the labelled rows that it brings along (means over {groups}):"
    blocks: list[Block] = [Text(said), table]
    if figure is not None:
        blocks.append(figure)
    return Part("What a new group costs in labels", tuple(blocks))


def _value(result: Mapping[str, Any], value: float, first: float) -> dict[str, Cell]:
    if result["kind"] == "class":
        return {"right answers": part_of_one(value)}
    return {"typical error": amount(value), "of that without labels": part_of_one(value / first if first else 1.0)}


def _width(one: Scored) -> dict[str, Cell]:
    if "90% width" in one.held:
        return {"width of the 90 % interval": amount(float(one.held["90% width"].mean()))}
    return {"classes in a 90 % set": amount(float(one.held["90% size"].mean()))}
