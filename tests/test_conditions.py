import json
import shutil
from pathlib import Path

import pytest

from stmaml.conditions import Conditions
from stmaml.runs import Run
from tests.idx_files import grey, write_digits, write_family

REGRESSION = Conditions("regression2d", {"input_range": (0.0, 5.0), "noise": 0.3, "shots": 10, "query": 40}, samples=20)


def test_conditions_read_as_a_title():
    assert REGRESSION.words() == "regression2d: range 0..5, noise 0.3, shots 10, query 40, 20 samples a task"
    steps = Conditions("weather", {"split": "station", "shots": 1}, samples=1, inner_steps=3)
    assert steps.words() == "weather: split station, shots 1, 1 sample a task, inner steps 3"


def test_settings_within_settings_differ_in_words():
    nested, none = Conditions("", {"table": {"task": "shop"}, "files": ["a", "b"]}), Conditions("", {"table": None})
    assert "shop" in nested.differences(none)


def test_conditions_survive_the_journey_through_a_file():
    again = Conditions.from_json(json.loads(json.dumps(REGRESSION.to_json())))
    assert again == REGRESSION
    assert hash(again) == hash(REGRESSION)
    assert REGRESSION.to_json()["tasks"]["input_range"] == [0.0, 5.0]


@pytest.mark.parametrize(
    ("tasks", "samples", "inner_steps"),
    [
        ({"shots": 5}, 20, None),
        ({"shots": 10, "noise": 0.3}, 20, None),
        ({"shots": 10}, 1, None),
        ({"shots": 10}, 20, 5),
    ],
)
def test_other_conditions_have_another_slug_and_title(tasks, samples, inner_steps):
    base = Conditions("regression2d", {"shots": 10}, samples=20)
    other = Conditions("regression2d", tasks, samples, inner_steps)
    assert other != base
    assert other.slug() != base.slug()
    assert other.words() != base.words()
    assert other.differences(base)


def test_the_order_and_the_kind_of_a_number_are_no_difference():
    first, second = Conditions("b", {"shots": 5, "noise": 1}, 1), Conditions("b", {"noise": 1.0, "shots": 5}, 1)
    assert first == second
    assert hash(first) == hash(second)
    assert first.differences(second) == ""


def test_differences_in_words():
    other = Conditions("regression2d", {**REGRESSION.tasks, "shots": 5, "noise": 0.8}, samples=20)
    assert other.differences(REGRESSION) == "noise 0.8 instead of 0.3, shots 5 instead of 10"


def test_without_a_setting_conditions_that_differ_in_it_are_equal():
    other = Conditions("regression2d", {**REGRESSION.tasks, "shots": 5}, samples=20)
    assert other.without("shots") == REGRESSION.without("shots")
    assert "shots" not in REGRESSION.without("shots").words()


def test_switches_are_named_only_when_on_and_long_slugs_are_cut():
    pictures = Conditions("plain-multi", {"datasets": ["bird", "car"], "grey": False, "image_size": 32}, 1)
    assert pictures.words() == "plain-multi: datasets bird+car, image size 32, 1 sample a task"
    assert "grey" in Conditions("plain-multi", {"grey": True}, 1).words()
    many = [Conditions("completion", {"families": [f"family{i}" for i in range(50 + extra)]}, 1) for extra in (0, 1)]
    assert len(many[0].slug()) < 140
    assert many[0].slug() != many[1].slug()


# Through the command line.

TINY = ("--steps", "2", "--tasks-per-batch", "2", "--val-tasks", "2")
CURVES = ("regression2d", "--method", "maml", "--hidden", "4", "--inner-steps", "1", *TINY)


def test_a_report_never_ranks_runs_of_different_test_tasks(stmaml, tmp_path):
    """A run scored on 20 tasks and one scored on 30: two tables, no best, no difference between them."""
    one, other, out = tmp_path / "one", tmp_path / "other", tmp_path / "report"
    code, _, err = stmaml("train", *CURVES, "--run", one)
    assert code == 0, err
    shutil.copytree(one, other)
    for folder, tasks in ((one, 20), (other, 30)):
        code, _, err = stmaml("evaluate", folder, "--tasks", tasks, "--samples", "1")
        assert code == 0, err
    code, _, err = stmaml("report", one, other, "--out", out)
    assert code == 0, err
    more, fewer = (out / "report.md").read_text().split("## Figures")[0].split("\n## ")[1:]
    assert "(30 tasks)\n" in more
    assert "(20 tasks)\n" in fewer
    assert "The same settings on other tasks: 20 instead of 30 tasks. Scores here do not compare with" in fewer
    assert all("[other]" in line for line in rows(more))
    assert all("[one]" in line for line in rows(fewer))
    assert rows(more)
    assert rows(fewer)
    assert "**" not in more + fewer
    assert "Difference to" not in more + fewer


def rows(section: str) -> list[str]:
    """The lines of its tables that are of a run."""
    lines = [line for line in section.splitlines() if line.startswith("| ") and not line.startswith("| method ")]
    return [line for line in lines if "Bayes limit" not in line]


def other_digits(folder: Path) -> Path:
    """Families of the same names and sizes, of other images."""
    for i, name in enumerate(("mnist", "fashion-mnist", "kmnist")):
        train, test = (grey(n, first=80 * i + start, height=6, width=6) for n, start in ((20, 7), (6, 50)))
        write_family(folder / name, train=train, test=test)
    return folder


def test_scores_on_other_data_leave_the_earlier_ones_as_they_were(stmaml, tmp_path):
    here, there = write_digits(tmp_path / "here", height=6, width=6), other_digits(tmp_path / "there")
    run = tmp_path / "run"
    words = ("train", "completion", "--method", "cnp", "--data", here, "--shots", "10", *TINY, "--run", run)
    code, _, err = stmaml(*words)
    assert code == 0, err
    test = ("evaluate", run, "--tasks", "6", "--samples", "1")
    assert stmaml(*test)[0] == 0
    before = {path: path.read_bytes() for path in (run / "scores").iterdir()}
    code, _, err = stmaml(*test, "--data", there)
    assert code == 0, err
    assert {path: path.read_bytes() for path in before} == before
    first, second = Run(run).scores().values()
    assert first["digest"] != second["digest"]
    assert first["conditions"] == second["conditions"]
    assert stmaml("report", run)[0] == 0
    text = (run / "report" / "report.md").read_text()
    assert text.count("## completion: ") == 2
    assert "The same settings on other data: digest " in text
    assert "settings that differ: data " in text
