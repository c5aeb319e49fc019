"""ST-MAML's form for images: what its encoder reads, what its gate scales, and the starts beyond the paper."""

import dataclasses
from importlib.resources import files
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stmaml.errors import SettingError
from stmaml.inner import InnerLoop
from stmaml.methods import METHODS, st_maml
from stmaml.methods.base import image_features, predict, settle
from stmaml.methods.st_maml import PROTO_SCALE
from stmaml.nets.conv import Conv, ConvLearner
from stmaml.nets.gate import Gate
from stmaml.runs import Run, from_dict
from stmaml.tasks import Examples, TaskSpec
from tests.changed import changed

SPEC = TaskSpec((8, 8, 2), 3, target="class")
STILL = InnerLoop(inner_steps=0)
CONFIG = changed(
    st_maml.Config(), conv=Conv(channels=4, conv_blocks=1), encoder=(8, 8), z_hidden=(), z_size=4, h_size=3, inner=STILL
)


@pytest.fixture(scope="module")
def support():
    return Examples.of(jr.uniform(jr.key(1), (6, *SPEC.x_shape)), jnp.arange(6) % 3)


def build(**changes) -> st_maml.STMAML:
    return eqx.filter_jit(changed(CONFIG, **changes).build)(SPEC, key=jr.key(0))


def test_sizes_are_those_of_the_paper():
    """Two blocks of 6 channels, 21 by 21, the label appended; a gate on every input of the last layer."""
    spec = TaskSpec((84, 84, 3), 5, target="class")
    config = changed(st_maml.Config(), encoder=(128, 128), z_size=128, h_size=32, z_hidden=())
    learner = eqx.filter_eval_shape(config.build, spec, key=jr.key(0))
    assert learner.image is not None
    assert learner.w is not None
    assert [block.weight.shape for block in learner.image.blocks] == [(3, 3, 3, 6), (3, 3, 6, 6)]
    assert learner.phi.pair.layers[0].weight.shape == (6 * 21 * 21 + 5, 128)
    assert len(learner.phi.pair.layers) == 2
    assert learner.theta.head.weight.shape == (800, 5)
    assert learner.w.layers[-1].weight.shape == (128, 800)
    assert isinstance(learner.theta, ConvLearner)
    assert [by.weight.shape for by in learner.theta.shifts or ()] == [(32, 32)] * 4


def test_the_task_variable_reads_images_beside_their_labels(support):
    learner = build()
    assert learner.image is not None
    features = np.asarray(eqx.filter_jit(learner.image)(support.x), dtype=float)
    features -= features.mean(1, keepdims=True)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    rows = jnp.concatenate([jnp.asarray(features), jax.nn.one_hot(support.y, 3)], axis=1)
    want = learner.phi(rows, support.weight)
    got = eqx.filter_jit(learner.task_distribution)(support)
    np.testing.assert_allclose(got.mu, want.mu, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got.sigma, want.sigma, rtol=1e-4, atol=1e-5)


def test_a_step_that_moves_all_weights_alike_leaves_units_as_they_were(support):
    """The first steps of Adam are of that kind where no feature is below 0, and silence unit after unit."""
    body = build().image
    assert body is not None
    features = eqx.filter_jit(image_features)(body, support.x, support.weight)
    weights = jr.normal(jr.key(3), (features.shape[1], 5))
    np.testing.assert_allclose(features @ (weights - 1), features @ weights, atol=1e-4)
    np.testing.assert_allclose(jnp.linalg.norm(features, axis=1), 1, rtol=1e-4)


def test_an_image_in_one_colour_has_features_and_gradients():
    body = build().image
    assert body is not None
    black = jnp.zeros((2, *SPEC.x_shape))
    slope = eqx.filter_jit(eqx.filter_grad(lambda body: jnp.square(image_features(body, black)).sum()))(body)
    np.testing.assert_allclose(eqx.filter_jit(image_features)(body, black), 0, atol=1e-6)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slope))


def class_mean_features(learner: st_maml.STMAML, support: Examples):
    assert isinstance(learner.theta, ConvLearner)
    features = np.asarray(eqx.filter_jit(learner.theta.body)(support.x), dtype=float)
    return features, np.stack([features[np.asarray(support.y) == k].mean(0) for k in range(3)])


def test_prototypes_are_read_without_regard_to_which_class_is_which(support):
    learner = build(reads="prototypes")
    assert learner.image is None
    _, means = class_mean_features(learner, support)
    encode = eqx.filter_jit(learner.task_distribution)
    want = learner.phi(jnp.asarray(means, dtype=jnp.float32), jnp.ones(3))
    np.testing.assert_allclose(encode(support).mu, want.mu, rtol=1e-3, atol=1e-5)
    renamed = Examples(support.x, (support.y + 1) % 3, support.weight)
    np.testing.assert_allclose(encode(renamed).mu, want.mu, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("tailor", [True, False])
def test_a_head_of_prototypes_compares_distances_under_the_gate(tailor, support):
    """Logits differ by the learned layer's own and by minus scaled squared distances, as written out in NumPy."""
    learner = build(proto_head=True, augment=False, tailor=tailor, stochastic=False)
    features, means = class_mean_features(learner, support)
    gate = np.ones(features.shape[1])
    if learner.w is not None:
        gate = 1 / (1 + np.exp(-np.asarray(learner.w(learner.task_distribution(support).mu), dtype=float)))
    own = features @ (gate[:, None] * np.asarray(learner.theta.head.weight)) + np.asarray(learner.theta.head.bias)
    gaps = (gate * np.square(features[:, None] - means)).sum(-1)
    want = own - PROTO_SCALE * gaps
    got = np.log(np.asarray(eqx.filter_jit(predict)(learner, support, support.x, num_samples=1, key=jr.key(0)).mean))
    want = want - want.mean(1, keepdims=True)
    np.testing.assert_allclose(got - got.mean(1, keepdims=True), want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("changes", "spec", "match"),
    [
        ({"proto_head": True}, TaskSpec((2,), 3, target="class"), "need images with class labels"),
        ({"reads": "prototypes"}, TaskSpec((8, 8, 1), 1), "need images with class labels"),
        ({"proto_head": True, "adapted": "codes"}, SPEC, "needs --adapted knowledge"),
        ({"reads": "prototypes", "gate": "set-mlp"}, SPEC, "choose another --gate"),
        ({"h_layer": 1}, SPEC, "so --h-layer must be 0; got 1"),
        ({"gate_hidden": (8,)}, SPEC, "--gate-hidden is for --gate set-mlp; got affine"),
    ],
)
def test_settings_that_do_not_go_together(changes, spec, match):
    with pytest.raises(SettingError, match=match):
        changed(CONFIG, **changes).build(spec, key=jr.key(0))


def test_gates_leave_scale_and_shift_alone(key):
    theta = ConvLearner(SPEC.x_shape, Conv(channels=4, conv_blocks=1), 3, key=key)
    gate = jax.tree.map(jnp.zeros_like, Gate(5, theta, key=key))
    gated = gate(theta, jnp.ones(5))
    assert len(gate.layers) == 3  # the convolution, the head's weight and bias
    assert eqx.tree_equal(gated.body.blocks[0].norm, theta.body.blocks[0].norm)
    np.testing.assert_allclose(gated.body.blocks[0].weight, theta.body.blocks[0].weight / 2)
    np.testing.assert_allclose(gated.head.weight, theta.head.weight / 2)


def test_settling_is_for_the_fine_tuned_weights(support):
    """Mode `support`: statistics are those of the network after its inner steps, on the support alone."""
    learner = build(conv=Conv(channels=4, conv_blocks=1, norm="support"), inner=InnerLoop(0.1, 1), stochastic=False)
    knowledge, _ = eqx.filter_jit(learner._fine_tune)(learner.task_distribution(support), support, key=jr.key(0))
    forgotten = eqx.tree_at(lambda k: k.theta.body.blocks[0].norm.moments, knowledge, None)
    again = eqx.filter_jit(settle)(forgotten, support)
    for ours, theirs in zip(jax.tree.leaves(knowledge), jax.tree.leaves(again), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_settings_saved_before_there_were_images_still_load(name):
    saved = dataclasses.asdict(METHODS[name]())  # type: ignore[call-overload]
    for new in ("conv", "reads", "proto_head"):
        saved.pop(new, None)
    assert from_dict(METHODS[name], saved) == METHODS[name]()


def test_the_settings_of_the_pretrained_weights_still_load():
    config = Run(Path(str(files("stmaml") / "pretrained/regression2d"))).config()
    settings = from_dict(METHODS[config["method"]["name"]], config["method"]["settings"])
    assert isinstance(settings, st_maml.Config)
    assert settings.conv == Conv()
