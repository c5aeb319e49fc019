"""Prototypical networks against scikit-learn's nearest centroids and the definition."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from sklearn.neighbors import NearestCentroid

from stmaml.errors import SettingError
from stmaml.methods import protonet
from stmaml.methods.base import predict
from stmaml.nets.conv import Conv
from stmaml.tasks import Examples, TaskSpec, pad

SPEC = TaskSpec((2,), 3, target="class")


@pytest.fixture
def support(key):
    return Examples.of(jr.normal(key, (9, 2)), jnp.arange(9) % 3)


@pytest.fixture
def learner(key):
    return protonet.Config(hidden=(8, 5)).build(SPEC, key=key)


def test_the_most_likely_class_has_the_nearest_centroid(learner, support, key):
    x = jr.normal(jr.key(5), (20, 2))
    nearest = NearestCentroid().fit(np.asarray(learner.embed(support.x)), np.asarray(support.y))
    probabilities = predict(learner, support, x, key=key).mean
    np.testing.assert_array_equal(probabilities.argmax(1), nearest.predict(np.asarray(learner.embed(x))))


def test_probabilities_are_a_softmax_of_minus_squared_distances(learner, support, key):
    x = jr.normal(jr.key(5), (4, 2))
    rows, queries = np.asarray(learner.embed(support.x), dtype=float), np.asarray(learner.embed(x), dtype=float)
    centres = np.stack([rows[np.asarray(support.y) == k].mean(0) for k in range(3)])
    weight = np.exp(-np.square(queries[:, None] - centres).sum(-1))
    want = weight / weight.sum(1, keepdims=True)
    np.testing.assert_allclose(predict(learner, support, x, key=key).mean, want, rtol=1e-3, atol=1e-6)


def test_without_examples_all_classes_are_alike(learner, key):
    empty = pad(Examples.of(jnp.zeros((0, 2)), jnp.zeros(0, dtype=int)), 3)
    np.testing.assert_allclose(predict(learner, empty, jr.normal(key, (4, 2)), key=key).mean, 1 / 3, rtol=1e-5)


def test_images_are_compared_as_convolutional_features(key):
    spec = TaskSpec((6, 6, 1), 2, target="class")
    learner = protonet.Config(conv=Conv(3, 1, norm="group")).build(spec, key=key)
    x, y = jr.uniform(key, (4, *spec.x_shape)), jnp.array([0, 0, 1, 1])
    features = np.asarray(eqx.filter_jit(learner.embed)(x))
    gap = np.square(features[:, None] - features.reshape(2, 2, -1).mean(1)).sum(-1)
    got = eqx.filter_jit(predict)(learner, Examples.of(x, y), x, key=key).mean
    np.testing.assert_allclose(np.log(got[:, 0] / got[:, 1]), gap[:, 1] - gap[:, 0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("target", ["real", "binary"])
def test_other_targets_are_refused_in_one_sentence(target, key):
    with pytest.raises(SettingError, match=f"needs class targets; these are {target}"):
        protonet.Config().build(TaskSpec((2,), 1, target=target), key=key)
