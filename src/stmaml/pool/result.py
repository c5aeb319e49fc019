"""What the scores of a pool say, as people and programs read it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import ndtri

from stmaml.comparison import compare
from stmaml.methods import METHODS
from stmaml.metrics import Summary, summarise, summarise_share
from stmaml.numbers import plain
from stmaml.pool.crossfit import HeldOut
from stmaml.pool.opening import PoolTable
from stmaml.pool.pooling import Pooling
from stmaml.pool.scoring import NOMINAL, POOL, Scored
from stmaml.pool.worth import worth_of
from stmaml.tables.target import Target

ERRORS = {"mse": "squared error", "nll": "log-loss"}
_VERDICTS = {"better": "ahead of every member", "worse": "behind a member", "unclear": "level with its best member"}
POORLY_HELD = 0.8  # a group whose 90 % intervals hold less than this is ill served


def result_of(table: PoolTable, pooling: Pooling, held: Sequence[HeldOut], scored: Sequence[Scored]) -> dict[str, Any]:
    """Scores by number of labelled rows, weights, what each member is worth, and sentences."""
    worth = worth_of(held, pooling)
    found = result_on(table.schema.target, pooling, scored)
    notes = [meta_sentence(worth, pooling.members), *tails_sentence(pooling.tails)]
    return {**found, "worth": worth, "notes": notes}


def result_on(target: Target, pooling: Pooling, scored: Sequence[Scored]) -> dict[str, Any]:
    """What the scores of any groups say, beside the weights."""
    return {
        "target": target.name,
        "kind": "class" if target.is_class else "number",
        "test_groups": len(scored[0].groups),
        "scores": {str(one.shots): _summaries(one) for one in scored},
        "calibration": {str(one.shots): _held(one, target.is_class) for one in scored},
        "weights": _by_member(pooling, pooling.weight),
        "verdict": verdict(scored, "nll" if target.is_class else "mse"),
    }


def _summaries(scored: Scored) -> dict[str, dict[str, dict[str, float]]]:
    return {row: {name: summarise(v) for name, v in values.items()} for row, values in scored.rows.items()}


def _held(scored: Scored, is_class: bool) -> dict[str, Any]:
    """How often intervals or sets hold, and in how many groups they do so too rarely."""
    each = {name: summarise(values) for name, values in scored.held.items()}
    if is_class:
        sets = {f"{n:.0%}": {"holds": each[f"{n:.0%} holds"], "size": each[f"{n:.0%} size"]} for n in NOMINAL[1:]}
        poorly = summarise_share((scored.held["90% holds"] < POORLY_HELD).astype(float))
        after = summarise(scored.rows[POOL]["nll"])["mean"]
        return {"before": each["before"]["mean"], "after": after, "sets": sets, "poorly": poorly}
    parts = ("before", "after", "width")
    levels = {f"{n:.0%}": {part: each[f"{n:.0%} {part}"] for part in parts} for n in NOMINAL}
    return {**levels, "poorly": summarise_share((scored.held["90% after"] < POORLY_HELD).astype(float))}


def _by_member(pooling: Pooling, rows: Sequence[Sequence[float]]) -> dict[str, dict[str, float]]:
    return {
        str(shots): dict(zip(pooling.members, (float(value) for value in row), strict=True))
        for shots, row in zip(pooling.counts, rows, strict=True)
    }


def verdict(scored: Sequence[Scored], metric: str) -> str:
    """One sentence on the pool beside its members, with most labelled rows: by the differences on the same groups from
    all of them, for the best is chosen by the groups that then judge it."""
    last = scored[-1]
    others = {name: values[metric] for name, values in last.rows.items() if name != POOL}
    if not others:
        return ""
    best = min(others, key=lambda name: others[name].mean())
    own = last.rows[POOL][metric]
    words = _VERDICTS[compare(own, np.stack(list(others.values())))]
    rows = "1 labelled row" if last.shots == 1 else f"{last.shots} labelled rows"
    return (
        f"With {rows} the pool is {words}: {ERRORS[metric]} {plain(own.mean(), 4)} against "
        f"{plain(others[best].mean(), 4)} of {best}, the best of {len(others)} after the fact ({len(own)} groups)."
    )


def meta_sentence(worth: Mapping[str, Mapping[str, Summary]], members: Sequence[str]) -> str:
    """Whether the meta-learned members earn their place."""
    rows = list(worth.values())
    meta = [name for name in members if name in METHODS]
    if not meta:
        return "no meta-learned member is in the pool"
    if len(members) == 1:
        return f"{meta[0]} is the only member: what others would add is not known"
    gains = [by_member[name] for by_member in rows for name in meta]
    several = ndtri(1 - 0.025 / len(gains)) / ndtri(0.975)  # the level is shared by all numbers of labelled rows
    clear = [one for one in gains if one["mean"] > several * one["ci95"] > 0]
    most = max(gains, key=lambda one: one["mean"])
    if clear:
        return (
            f"meta-learning helps on this table: without {meta[0]} the pool's error would be up to "
            f"{100 * most['mean']:.1f} % higher"
        )
    return f"meta-learning ({meta[0]}) adds nothing clear on this table; the pool leans on the other members"


def tails_sentence(tails: Sequence[tuple[float, float]]) -> list[str]:
    """What outliers among held-out targets have led to, if there are any."""
    heavy = [(share, width) for share, width in tails if share > 0]
    if not heavy:
        return []
    shares, widths = zip(*heavy, strict=True)
    times = f"{min(widths):.0f}" + (f" to {max(widths):.0f}" if max(widths) > min(widths) else "")
    return [
        f"targets lie far off more often than normal ones would: up to {100 * max(shares):.0f} % of them are taken to "
        f"have {times} times the usual spread"
    ]
