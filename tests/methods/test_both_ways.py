"""Images that are seen as they are and turned left to right."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stmaml.errors import SettingError
from stmaml.methods import METHODS
from stmaml.methods.base import predict
from stmaml.methods.both_ways import BothWays, turned
from stmaml.methods.composed import build
from stmaml.recipes import recipe
from stmaml.tasks import Examples, Task, TaskSpec
from tests.methods.test_image_contract import examples, learner_of

SUPPORT, QUERY = examples(6, 0), examples(4, 1)


def turn(given: Examples) -> Examples:
    return eqx.tree_at(lambda one: one.x, given, jnp.asarray(np.asarray(given.x)[:, :, ::-1]))


def probabilities(learner, support: Examples, x) -> np.ndarray:
    return np.asarray(predict(learner, support, x, num_samples=3, key=jr.key(2)).mean)


def test_answers_are_averages_over_both_forms_of_what_is_asked():
    inside = learner_of("maml", "batch")
    doubled = Examples(*(jnp.concatenate(pair) for pair in zip(parts(SUPPORT), parts(turn(SUPPORT)), strict=True)))
    each = [probabilities(inside, doubled, x) for x in (QUERY.x, turn(QUERY).x)]
    assert np.abs(each[0] - each[1]).max() > 1e-4
    np.testing.assert_allclose(probabilities(BothWays(inside), SUPPORT, QUERY.x), (each[0] + each[1]) / 2, rtol=1e-5)


def parts(given: Examples):
    return given.x, given.y, given.weight


@pytest.mark.parametrize("name", ["maml", "st-maml-beyond"])
def test_turning_all_images_changes_no_answer(name):
    inside = learner_of(name, "batch")
    learner = BothWays(inside)
    as_they_are = probabilities(learner, SUPPORT, QUERY.x)
    np.testing.assert_allclose(probabilities(learner, turn(SUPPORT), turn(QUERY).x), as_they_are, rtol=2e-4, atol=1e-6)
    alone = probabilities(inside, turn(SUPPORT), turn(QUERY).x)
    assert np.abs(alone - probabilities(inside, SUPPORT, QUERY.x)).max() > 1e-4


def test_training_is_not_changed():
    inside, task = learner_of("maml", "batch"), Task(SUPPORT, QUERY)
    assert float(BothWays(inside).loss(task, key=jr.key(0))[0]) == float(inside.loss(task, key=jr.key(0))[0])


def test_images_are_turned_left_to_right():
    picture = jnp.arange(12.0).reshape(1, 2, 3, 2)
    assert turned(picture)[0, :, :, 0].tolist() == [[4.0, 2.0, 0.0], [10.0, 8.0, 6.0]]


def test_what_is_no_image_cannot_be_turned():
    with pytest.raises(SettingError, match="--both-ways"):
        build(METHODS["maml"](), TaskSpec((2,), 1), both_ways=True, key=jr.key(0))


def test_the_best_preset_of_pictures_sees_them_both_ways():
    assert recipe("plain-multi", "st-maml", "best").modelling.both_ways
    assert not recipe("plain-multi", "st-maml", "paper").modelling.both_ways
