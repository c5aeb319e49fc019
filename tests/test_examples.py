"""The scripts under examples/ do what they say, and the tutorial shows one of them."""

import re
import runpy
from pathlib import Path

import jax.random as jr
import numpy as np
import pytest

import stmaml
from stmaml.benchmarks import regression2d
from stmaml.errors import SettingError
from stmaml.tasks import Examples

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_own_tasks_learns_the_waves_it_is_shown(capsys):
    """2 sin(x + 1) at 0, 1, ..., 6 from five labelled points."""
    made = runpy.run_path(str(ROOT / "examples" / "own_tasks.py"))
    truth = 2 * np.sin(np.arange(7) + 1)
    prediction = made["prediction"]
    assert np.abs(prediction.mean[:, 0] - truth).max() < 0.6
    assert (np.abs(prediction.mean[:, 0] - truth) < 3 * prediction.std[:, 0]).all()
    assert len(capsys.readouterr().out.splitlines()) == 7


def test_the_tutorial_shows_that_example():
    page = ROOT / "docs" / "tutorials" / "own-tasks.md"
    code = re.search(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert code is not None
    script = (ROOT / "examples" / "own_tasks.py").read_text()
    assert code.group(1).strip() in script


def test_pretrained_weights_load_with_one_call_and_predict():
    learner = stmaml.load_pretrained("regression2d")
    case = regression2d.showcase(regression2d.Config(), 1)
    prediction = stmaml.predict(learner, case.support, case.x, num_samples=20, key=jr.key(1))
    line_error = np.square(prediction.mean - case.truth).mean()
    spread = np.square(case.truth - case.truth.mean()).mean()
    assert line_error < 0.1 * spread


def test_pretrained_weights_of_an_unknown_benchmark_name_those_there_are():
    with pytest.raises(SettingError, match="regression2d"):
        stmaml.load_pretrained("chess")


def test_the_public_names_are_all_there():
    assert stmaml.Examples is Examples
    for name in stmaml.__all__:
        assert getattr(stmaml, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = stmaml.no_such_name
