"""CNP, NP and ANP against their formulas, written out again in plain NumPy and jax.numpy."""

import dataclasses
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest

from stmaml.errors import SettingError
from stmaml.methods.base import predict
from stmaml.methods.neural_processes import ANPConfig, ClassPath, CNPConfig, MeanPath, NPConfig
from stmaml.nets.attention import MultiHeadAttention, weighted_softmax
from stmaml.nets.layers import MLP
from stmaml.tasks import Examples, Task, TaskSpec
from tests.methods.small import small_task

SPEC = TaskSpec((2,), 1)
CNP = CNPConfig(encoder=(8, 5), decoder=(8,))
NP = NPConfig(encoder=(8, 5), decoder=(8,), z_size=3)
ANP = ANPConfig(encoder=(8, 6), keys=(8, 4), num_heads=2, decoder=(8,), z_size=3)


def run_mlp(mlp: Any, row: np.ndarray) -> np.ndarray:
    """An MLP on one row."""
    *hidden, last = [(np.asarray(layer.weight), np.asarray(layer.bias)) for layer in mlp.layers]
    for weight, bias in hidden:
        row = np.maximum(weight.T @ row + bias, 0)
    return last[0].T @ row + last[1]


def codes(mlp: Any, examples: Examples) -> np.ndarray:
    """The code of each pair [x, y]."""
    return np.stack([run_mlp(mlp, np.concatenate([x, y])) for x, y in zip(examples.x, examples.y, strict=True)])


def latent(encoder: Any, examples: Examples) -> Any:
    """N(mu(r), sigma(r)) of the mean code r."""
    r = codes(encoder.pair, examples).mean(0)
    raw = encoder.sigma.weight.T @ r + encoder.sigma.bias
    return dist.Normal(encoder.mu.weight.T @ r + encoder.mu.bias, 0.1 + 0.9 / (1 + np.exp(-raw)))


def attend(attention: MultiHeadAttention, query: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Attention for one query, head by head and example by example."""
    q, k, v = query @ attention.query.weight, keys @ attention.key.weight, values @ attention.value.weight
    dk, dv = len(q) // attention.num_heads, v.shape[1] // attention.num_heads
    answers = []
    for head in range(attention.num_heads):
        part = slice(head * dk, (head + 1) * dk)
        likeness = np.array([np.exp(q[part] @ row[part] / np.sqrt(dk)) for row in k])
        shares = likeness / likeness.sum()
        answers.append(sum(share * row[head * dv : (head + 1) * dv] for share, row in zip(shares, v, strict=True)))
    return np.concatenate(answers) @ np.asarray(attention.out.weight)


def squared_error(decoder: Any, known: list[np.ndarray], query: Examples) -> float:
    """Mean squared error of the decoder that reads [known, x], with a row of `known` for each query."""
    each = [
        np.square(run_mlp(decoder, np.concatenate([row, x])) - y)
        for row, x, y in zip(known, query.x, query.y, strict=True)
    ]
    return float(np.mean(each))


def test_cnp_loss_is_the_error_of_a_decoder_that_reads_the_mean_code(key):
    learner, task = CNP.build(SPEC, key=key), small_task(SPEC, key=key)
    r = codes(cast(MeanPath, learner.deterministic).pair, task.support).mean(0)
    want = squared_error(learner.decoder, [r] * 6, task.query)
    np.testing.assert_allclose(learner.loss(task, key=key)[0], want, rtol=1e-5)
    mean = predict(learner, task.support, task.query.x, num_samples=4, key=key).mean
    np.testing.assert_allclose(np.square(mean - task.query.y).mean(), want, rtol=1e-5)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(("kl_weight", "kl_mean"), [(None, False), (0.3, False), (0.3, True)])
def test_np_loss_is_minus_the_elbo(deterministic, kl_weight, kl_mean, key):
    """Fit with z from q(z | support + query), plus the weighted KL(q || p); unweighted it is the sum over 6 queries."""
    weighed = {"deterministic": deterministic, "kl_weight": kl_weight, "kl_mean": kl_mean}
    config = dataclasses.replace(NP, **weighed)
    learner, task = config.build(SPEC, key=key), small_task(SPEC, key=key)
    q_z = latent(learner.latent, task.support + task.query)
    p_z = latent(learner.latent, task.support)
    z = q_z.loc + q_z.scale * jr.normal(key, (3,))
    known = np.asarray(z)
    if learner.deterministic is not None:
        known = np.concatenate([codes(learner.deterministic.pair, task.support).mean(0), known])
    fit = squared_error(learner.decoder, [known] * 6, task.query)
    each = np.asarray(dist.kl_divergence(q_z, p_z))
    kl = each.mean() if kl_mean else each.sum()
    loss, parts = learner.loss(task, key=key)
    np.testing.assert_allclose(parts["fit"], fit, rtol=1e-5)
    np.testing.assert_allclose(parts["kl"], kl, rtol=1e-4)
    np.testing.assert_allclose(loss, fit + (kl_weight or 1 / 6) * kl, rtol=1e-5)


def test_default_kl_weight_counts_real_queries_only(key):
    learner, task = NP.build(SPEC, key=key), small_task(SPEC, key=key)
    half = Task(task.support, Examples(task.query.x, task.query.y, jnp.array([1.0, 1, 1, 0, 0, 0])))
    loss, parts = learner.loss(half, key=key)
    np.testing.assert_allclose(loss, parts["fit"] + parts["kl"] / 3, rtol=1e-6)


def test_anp_loss_looks_up_the_support_at_each_query(key):
    learner, task = ANP.build(SPEC, key=key), small_task(SPEC, key=key)
    path: Any = learner.deterministic
    keys = np.stack([run_mlp(path.embed, x) for x in task.support.x])
    values = codes(path.pair, task.support)
    q_z, p_z = latent(learner.latent, task.support + task.query), latent(learner.latent, task.support)
    z = q_z.loc + q_z.scale * jr.normal(key, (3,))
    known = [np.concatenate([attend(path.attention, run_mlp(path.embed, x), keys, values), z]) for x in task.query.x]
    want = squared_error(learner.decoder, known, task.query) + np.sum(dist.kl_divergence(q_z, p_z)) / 6
    np.testing.assert_allclose(learner.loss(task, key=key)[0], want, rtol=1e-5)


@pytest.mark.parametrize("config", [NP, ANP])
def test_adapt_draws_z_from_what_the_support_says(config, key):
    learner, task = config.build(SPEC, key=key), small_task(SPEC, key=key)
    learner = eqx.tree_at(lambda learner: learner.latent.sigma.bias, learner, jnp.array([-2.0, 0.0, 2.0]))
    p_z = latent(learner.latent, task.support)
    decoding: Any = learner.adapt(task.support, num_samples=4000, key=key).net
    z = decoding.z
    np.testing.assert_allclose(z.mean(0), p_z.loc, atol=4 * float(p_z.scale.max()) / 4000**0.5)
    np.testing.assert_allclose(z.std(0), p_z.scale, rtol=0.05)


@pytest.mark.parametrize("target", ["binary", "class"])
def test_labels_are_read_and_predicted_through_the_likelihood(target, key):
    """The loss is the cross-entropy of the drawn prediction, and other labels give another prediction."""
    spec = TaskSpec((2,), 3 if target == "class" else 1, target=target)
    learner, task = CNP.build(spec, key=key), small_task(spec, key=key)
    prediction = predict(learner, task.support, task.query.x, key=key)
    np.testing.assert_allclose(learner.loss(task, key=key)[0], -prediction.log_prob(task.query.y).mean(), rtol=1e-5)
    flipped = Examples.of(task.support.x, (task.support.y + 1) % 2 if target == "binary" else 2 - task.support.y)
    assert not np.allclose(predict(learner, flipped, task.query.x, key=key).mean, prediction.mean, atol=1e-4)


def test_attention_is_a_softmax_mean_of_values(key):
    attention = MultiHeadAttention(4, 6, num_heads=2, key=key)
    q_key, k_key, v_key = jr.split(key, 3)
    queries, keys, values = jr.normal(q_key, (3, 4)), jr.normal(k_key, (5, 4)), jr.normal(v_key, (5, 6))
    want = [attend(attention, np.asarray(q), np.asarray(keys), np.asarray(values)) for q in queries]
    np.testing.assert_allclose(attention(queries, keys, values, jnp.ones(5)), np.stack(want), rtol=1e-4, atol=1e-6)


def test_a_row_of_weight_two_is_two_rows():
    """And a row of weight 0 is none, whatever its logit."""
    logits = jnp.array([0.3, -1.0, 0.7, 80.0])
    shares = weighted_softmax(logits, jnp.array([1.0, 2.0, 0.5, 0.0]))
    parts = np.array([1.0, 2.0, 0.5]) * np.exp(np.array([0.3, -1.0, 0.7]))
    np.testing.assert_allclose(shares, [*(parts / parts.sum()), 0.0], rtol=1e-5)


def test_attention_to_an_empty_set_is_zero_with_finite_gradients(key):
    attention = MultiHeadAttention(4, 6, num_heads=2, key=key)
    rows = jr.normal(key, (3, 4))

    def total(attention: MultiHeadAttention, rows):
        return attention(rows, rows, jnp.ones((3, 6)), jnp.zeros(3)).sum()

    value, grads = jax.value_and_grad(total)(attention, rows)
    assert value == 0
    assert all(np.all(np.asarray(leaf) == 0) for leaf in jax.tree.leaves(grads))


def test_heads_must_divide_the_sizes(key):
    with pytest.raises(ValueError, match="3 heads must divide the sizes of keys and values, which are 4 and 6"):
        MultiHeadAttention(4, 6, num_heads=3, key=key)


def test_parts_that_are_the_same_for_every_row_are_as_good_as_repeated():
    net = MLP((7, 5, 3), key=jr.key(0))
    r, x, z = jr.normal(jr.key(1), (4,)), jr.normal(jr.key(2), (6, 2)), jr.normal(jr.key(3), (1,))
    repeated = jnp.concatenate([jnp.broadcast_to(r, (6, 4)), x, jnp.broadcast_to(z, (6, 1))], axis=1)
    assert jnp.allclose(net.joined([r, x, z]), net(repeated), atol=1e-6)


CLASSES = TaskSpec((2,), 3, target="class")
BY_CLASS = CNPConfig(encoder=(8, 5), decoder=(8,), pooled="class")


def test_cnp_by_classes_scores_each_class_from_its_own_mean_code(key):
    learner = BY_CLASS.build(CLASSES, key=key)
    support = Examples.of(jr.normal(key, (5, 2)), jnp.array([0, 1, 1, 0, 0]))
    x = jr.normal(jr.key(5), (4, 2))
    rows = np.stack([run_mlp(cast(ClassPath, learner.deterministic).code, row) for row in np.asarray(support.x)])
    means = [rows[[0, 3, 4]].mean(0), rows[[1, 2]].mean(0), np.zeros(5)]  # nobody is of class 2
    logits = np.array([[run_mlp(learner.decoder, np.concatenate([r, row]))[0] for r in means] for row in x])
    want = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(predict(learner, support, x, key=key).mean, want, rtol=2e-5)


def test_cnp_by_classes_does_not_heed_how_they_are_numbered(key):
    learner = BY_CLASS.build(CLASSES, key=key)
    x, y, renumbered = jr.normal(key, (6, 2)), jnp.arange(6) % 3, jnp.array([2, 0, 1])
    before, after = (predict(learner, Examples.of(x, labels), x, key=key).mean for labels in (y, renumbered[y]))
    np.testing.assert_allclose(after[:, renumbered], before, rtol=1e-5)
    assert np.abs(np.asarray(before - after)).max() > 1e-3  # or the first line would say nothing


def test_cnp_by_classes_needs_classes(key):
    with pytest.raises(SettingError, match="needs class targets; these are real"):
        BY_CLASS.build(SPEC, key=key)
