"""Scores and traces of version 0.1.0 get the conditions and labels that stood in their names."""

import pytest

from stmaml.conditions import Conditions
from stmaml.legacy.scores import about_trace, split_tables, upgrade_summary
from stmaml.legacy.settings import upgrade


@pytest.mark.parametrize(
    ("name", "tasks"),
    [
        (
            "regression2d/range-5..5/noise0.3/shots10/query40",
            {"input_range": [-5, 5], "noise": 0.3, "shots": 10, "query": 40},
        ),
        ("weather/by-station/shots10/query100", {"split": "station", "shots": 10, "query": 100}),
        ("weather/by-file/split1/shots5/query40", {"split": "file", "split_seed": 1, "shots": 5, "query": 40}),
        ("completion/mnist+fashion-mnist/shots40", {"families": ["mnist", "fashion-mnist"], "shots": 40}),
        (
            "plain-multi/bird+size8/ways3/shots2/query2/size8/grey",
            {"datasets": ["bird", "size8"], "ways": 3, "shots": 2, "query": 2, "image_size": 8, "grey": True},
        ),
        ("celeba/pictures90/shots2/query2", {"pictures": 90, "shots": 2, "query": 2}),
        ("sines/easy/shots3", {"easy": True, "shots": 3}),
    ],
)
def test_conditions_are_read_from_the_name_of_the_test_set(name, tasks):
    old = {"task_set": f"{name}/seed-2/tasks-1000", "samples": 20, "inner_steps": 3}
    found = Conditions.from_json(upgrade_summary(old)["conditions"])
    assert found == Conditions(name.split("/")[0], tasks, samples=20, inner_steps=3)


def test_conditions_that_came_with_a_summary_stay():
    stated = Conditions("own", {"shots": 3}, 1).to_json()
    summary = {"task_set": "own/shots5/seed-2/tasks-9", "samples": 1, "conditions": stated}
    assert upgrade_summary(summary) == summary


@pytest.mark.parametrize(
    ("name", "about"),
    [
        ("sinusoid-shots10-noise0.3", {"figure": "curves", "family": "sinusoid", "shots": 10, "noise": 0.3}),
        ("cubic-shots2-noise0.3", {"figure": "ambiguity", "family": "cubic", "shots": 2, "noise": 0.3}),
        ("line-shots2-noise0.3", {"figure": "", "family": "line", "shots": 2, "noise": 0.3}),
        ("fashion-mnist-pixels8", {"figure": "completion", "family": "fashion-mnist", "pixels": 8}),
        ("rules-2", {"figure": "rules", "number": 2}),
        ("unknown-x-y", {"figure": "years", "band": "unknown", "station": "x-y"}),
        ("anything", {"figure": ""}),
    ],
)
def test_traces_are_labelled_by_their_names(name, about):
    assert about_trace(name) == about


def test_the_scores_of_a_table_become_one_summary_for_each_model_and_number_of_rows():
    metrics = {"mse": {"mean": 1.0, "ci95": 0.1}}
    old = {
        **{"test_groups": 6, "samples": 20, "digest": "d", "verdict": "it helps."},
        "scores": {"0": {"cnp": metrics}, "4": {"cnp": metrics, "ridge": metrics}},
    }
    config = {
        **{"kind": "table", "files": ["a/lines.csv.gz"], "table": {"target": "y"}, "schema": {}},
        "settings": {"seed": 3, "method": "cnp", "learner": {}, "noise_model": "predicted", "training": {"steps": 5}},
    }
    found = split_tables({"test-groups": old}, upgrade(config))
    assert list(found) == ["test-groups-shots0-cnp", "test-groups-shots4-cnp", "test-groups-shots4-ridge"]
    assert [summary.get("row") for summary in found.values()] == [None, None, "ridge"]
    tasks = {"table": "lines.csv.gz", "target": "y", "groups": 6, "shots": 4}
    assert Conditions.from_json(found["test-groups-shots4-ridge"]["conditions"]) == Conditions("table", tasks, 20)
    assert [summary.get("note") for summary in found.values()] == [None, "it helps.", "it helps."]
