"""Files of a pool that somebody changed who knows how digests are made: refused in a sentence, never believed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtri

from stmaml.border.run_content import check_pool_result, check_search
from stmaml.errors import RunError
from stmaml.pool.averaging import restored, whole_of
from stmaml.pool.base import Column, Draw, Forecast, GroupedRows, Tasks
from stmaml.pool.boosted.trees import Trees
from stmaml.pool.guarded import Guarded, bare
from stmaml.pool.meta import Meta
from stmaml.pool.mixed.numbers import MIXED
from stmaml.pool.pooling import Pooling
from stmaml.pool.scoring import Scored, scored_arrays, scored_from
from stmaml.pool.usual import Usual
from stmaml.run_files import json_bytes
from stmaml.tables.calibration import LEVELS

PATH = Path("members/mixed.npz")


def asked() -> Tasks:
    group = np.repeat(np.arange(3), 4)
    none = np.zeros((12, 0), dtype=int)
    return Draw(2).tasks(GroupedRows(np.ones((12, 1)), np.ones(12), group, none, (Column("x", "number"),)), 2, 1)


class Says:
    """A member that says the same to all."""

    def __init__(self, forecast: Forecast | Exception):
        self.forecast = forecast

    def predict(self, tasks: Tasks) -> Forecast:
        if isinstance(self.forecast, Exception):
            raise self.forecast
        return self.forecast

    def state(self) -> dict[str, np.ndarray]:
        return {}


GOOD = Forecast(np.zeros(6), np.ones(6), np.ones(6))


def test_what_is_whole_comes_through():
    member = Guarded(Says(GOOD), PATH)
    assert member.predict(asked()) is GOOD
    assert whole_of(member).predict(asked()) is GOOD
    assert isinstance(bare(member), Says)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (replace(GOOD, mean=np.full(6, np.nan)), "not numbers"),
        (replace(GOOD, noise_variance=np.full(6, -1.0)), "variance below 0"),
        (Forecast(np.zeros(5), np.ones(5), np.ones(5)), "for 6 rows"),
        (IndexError("index 9 is out of bounds"), "index 9"),
        (np.linalg.LinAlgError("Singular matrix"), "Singular"),
    ],
)
def test_a_member_that_cannot_answer_is_named(said, why):
    with pytest.raises(RunError, match=rf"members/mixed\.npz does not hold a member that can answer .*{why}"):
        Guarded(Says(said), PATH).predict(asked())


def tree(**changes: object) -> dict[str, np.ndarray]:
    """One split at 0.5 in the first column."""
    plain = {"base": [0.0], "roots": [[0]], "feature": [0, 0, 0], "threshold": [0.5, np.inf, np.inf]}
    plain |= {"left": [1, 1, 2], "right": [2, 1, 2], "value": [0.0, -1.0, 1.0], "depth": 1, **changes}
    return {name: np.array(value) for name, value in plain.items()}


def test_a_whole_tree_is_restored():
    said = Trees.restored(tree()).predict(np.array([[0.0], [1.0]]))
    np.testing.assert_array_equal(said[:, 0], [-1.0, 1.0])


@pytest.mark.parametrize(
    "changes",
    [
        {"left": [3, 1, 2]},
        {"right": [-1, 1, 2]},
        {"roots": [[7]]},
        {"depth": 2**60},
        {"depth": -1},
        {"feature": [-1, 0, 0]},
        {"value": [0.0, np.nan, 1.0]},
        {"value": [0.0, 1.0]},
        {"base": [np.inf]},
    ],
)
def test_a_tree_with_a_step_into_nowhere_is_refused(changes):
    with pytest.raises((RunError, TypeError)):  # here shapes are checked by the tests as well
        Trees.restored(tree(**changes))


def test_a_tree_asks_for_columns_that_there_are():
    with pytest.raises(RunError, match="column 4 of 1"):
        Trees.restored(tree(feature=[4, 0, 0])).predict(np.zeros((2, 1)))


def test_as_many_fits_as_there_are_arrays():
    with pytest.raises(RunError, match="fits in"):
        restored(MIXED, {**{f"0:{name}": np.zeros(1) for name in "abc"}, "averaged_fits": np.array(2**60)})


@pytest.mark.parametrize("plan", [{"method": 3}, {"method": "maml", "width": "x"}, {"a": 1}, [], None])
def test_the_plan_of_a_meta_learned_member_is_of_its_types(plan):
    with pytest.raises(RunError):
        Meta("maml").restore({"settings": json_bytes({"plan": plan, "chosen_step": 0})})


def pooling(**changes: object) -> dict[str, object]:
    calibration = {"shots": [0], "temperature": [1.0], "scores": [ndtri(LEVELS).tolist()]}
    plain = {"members": ["mean"], "counts": [0, 2], "spread": [[1.0], [1.0]], "weight": [[1.0], [1.0]]}
    return {**plain, "calibration": calibration, **changes}


@pytest.mark.parametrize(
    "changes",
    [
        {"weight": [[-1.0], [1.0]]},
        {"weight": [[0.0], [1.0]]},
        {"weight": [[1.0]]},
        {"spread": [[0.0], [1.0]]},
        {"spread": [[1e999], [1.0]]},
        {"counts": [2, 0]},
        {"counts": [0, "2"]},
        {"members": []},
        {"members": [3]},
    ],
)
def test_weights_that_are_none_are_refused(changes):
    assert Pooling.from_json(pooling()).counts == (0, 2)
    with pytest.raises(RunError):
        Pooling.from_json(pooling(**changes))


@pytest.mark.parametrize("surprise", [[[2.0, 1.0]], [[]], [[1.0], [1.0]], [["x"]], [[1e999]]])
def test_surprises_rise(surprise):
    assert Usual.from_json({"sizes": [1], "surprise": [[1.0, 2.0]]}).sizes == (1,)
    with pytest.raises(RunError):
        Usual.from_json({"sizes": [1], "surprise": surprise})


def test_scores_have_a_number_for_each_group():
    one = np.ones(3)
    held = {f"{share}% {part}": one for share in (50, 60, 70, 80, 90, 95) for part in ("holds", "size")}
    whole = scored_arrays([Scored(2, np.arange(3), {"pool": {"accuracy": one, "nll": one}}, {"before": one, **held})])
    assert scored_from(whole)[0].shots == 2
    for name, value in (("2|rows|pool|nll", np.ones(2)), ("2|held|a|b", one), ("x", one), ("2|rows|mean|nll", one)):
        with pytest.raises((RunError, ValueError, KeyError)):
            scored_from({**whole, name: value})
    for name in ("2|held|60% size", "2|rows|pool|nll"):
        with pytest.raises(RunError, match="not complete"):
            scored_from({key: value for key, value in whole.items() if key != name})


IMPORTANCE = {"error": 1.0, "groups": 3, "columns": {"x": {"mean": 1.0, "ci95": 0.1}}}


def result() -> dict[str, object]:
    one = {"mean": 1.0, "ci95": 0.1}
    holds = {level: {"before": one, "after": one, "width": one} for level in ("50%", "80%", "90%")}
    return {
        "target": "y",
        "kind": "number",
        "test_groups": 3,
        "scores": {"0": {"pool": {"mse": one}}},
        "calibration": {"0": {**holds, "poorly": one}},
        "weights": {"0": {"mean": 1.0}},
        "verdict": "",
        "notes": ["a note"],
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "x"},
        {"scores": {}},
        {"scores": {"0": {"pool": {}}}},
        {"scores": {"-1": {}}},
        {"calibration": {"0": {}}},
        {"calibration": {}},
        {"verdict": None},
        {"notes": [""]},
        {"worth": "x"},
        {"weights": {"0": []}},
        {"seconds": {"mean": []}},
        {"importance": {"0": {"error": 1.0}}},
        {"importance": {"0": IMPORTANCE, "2": {**IMPORTANCE, "columns": {}}}},
    ],
)
def test_scores_that_cannot_be_shown_are_refused(changes):
    assert check_pool_result(result())["kind"] == "number"
    with pytest.raises(RunError):
        check_pool_result({**result(), **changes})


@pytest.mark.parametrize("changes", [{"trials": {}}, {"trials": [{"seed": 1}]}, {"row": 3}, {"chosen": {"score": 1.0}}])
def test_a_search_that_says_too_little_is_refused(changes):
    trial = {"settings": {}, "seed": 0, "round": 0, "score": 1.0, "test_steps": None}
    whole = {"row": "maml", "trials": [trial], "chosen": {"settings": {}, "score": 1.0}}
    assert check_search(whole) is whole
    with pytest.raises(RunError):
        check_search({**whole, **changes})
