"""Attention over sets, and the task encoder that uses it, against the formulas in NumPy."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stmaml.errors import SettingError
from stmaml.methods import st_maml
from stmaml.nets.attention import AttentionBlock, MultiHeadAttention, in_precision
from stmaml.nets.layers import MLP
from stmaml.nets.set_encoder import DiagonalNormal, Encoding, TaskEncoder
from stmaml.tasks import TaskSpec
from tests.changed import changed

WEIGHT = jnp.array([1.0, 0.5, 0.0, 2.0, 1.0])
assert_close = partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-6)


def moved(module):
    """The module away from its start, where biases are zero and norms are plain."""
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda a: jnp.asarray(a + 0.3 * rng.normal(size=a.shape), dtype=a.dtype), module)


# Compiled: operation by operation these take seconds.
@eqx.filter_jit
def revise(block: AttentionBlock, rows, weight) -> jax.Array:
    return block(rows, weight)


@eqx.filter_jit
def encode(encoder: TaskEncoder, xy, weight) -> DiagonalNormal:
    return encoder(xy, weight)


@eqx.filter_jit
def new_encoder(attention: int, key) -> TaskEncoder:
    settings = Encoding((8, 6), attention=attention, num_heads=2, z_hidden=(7,), z_size=4)
    return TaskEncoder(3, settings, key=key)


def double(array) -> np.ndarray:
    return np.asarray(array, dtype=float)


def run_norm(norm: eqx.nn.LayerNorm, rows: np.ndarray) -> np.ndarray:
    centred = rows - rows.mean(1, keepdims=True)
    return centred / np.sqrt(np.square(centred).mean(1, keepdims=True) + 1e-5) * double(norm.weight) + double(norm.bias)


def run_mlp(mlp: MLP, rows: np.ndarray) -> np.ndarray:
    for i, layer in enumerate(mlp.layers):
        rows = (np.maximum(rows, 0) if i else rows) @ double(layer.weight) + double(layer.bias)
    return rows


def run_attention(attention: MultiHeadAttention, rows: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Row by row and head by head."""
    q, k, v = (rows @ double(part.weight) for part in (attention.query, attention.key, attention.value))
    size = rows.shape[1] // attention.num_heads
    answers = np.zeros_like(rows)
    for i in range(len(rows)):
        for start in range(0, rows.shape[1], size):
            head = slice(start, start + size)
            scores = np.array([weight[j] * np.exp(q[i, head] @ k[j, head] / np.sqrt(size)) for j in range(len(rows))])
            if weight.any():
                answers[i, head] = scores / scores.sum() @ v[:, head]
    return answers @ double(attention.out.weight)


def run_block(block: AttentionBlock, rows: np.ndarray, weight: np.ndarray) -> np.ndarray:
    rows = rows + run_attention(block.attention, run_norm(block.norms[0], rows), weight)
    return rows + run_mlp(block.revise, run_norm(block.norms[1], rows))


def run_encoder(encoder: TaskEncoder, xy: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of z."""
    rows = run_mlp(encoder.pair, xy)
    for block in encoder.blocks:
        rows = run_block(block, rows, weight)
    r = weight @ rows / weight.sum()
    for layer in encoder.post:
        r = np.maximum(r @ double(layer.weight) + double(layer.bias), 0)
    assert encoder.sigma is not None
    mu, raw = (r @ double(head.weight) + double(head.bias) for head in (encoder.mu, encoder.sigma))
    return mu, 0.1 + 0.9 * np.log1p(np.exp(raw))


@pytest.fixture
def block(key) -> AttentionBlock:
    return moved(eqx.filter_jit(AttentionBlock)(6, num_heads=3, key=key))


@pytest.fixture
def rows(key):
    return 2 * jr.normal(key, (5, 6)) + 0.5


@pytest.mark.parametrize("weight", [jnp.ones(5), WEIGHT, jnp.zeros(5)], ids=["plain", "weighted", "empty"])
def test_a_block_is_attention_and_revision_each_added_to_the_normalised_rows(block, rows, weight):
    want = run_block(block, double(rows), double(weight))
    assert_close(revise(block, rows, weight), want)


def test_a_row_of_weight_zero_changes_no_other_row(block, rows):
    other = rows.at[2].set(jnp.array([50.0, -50.0, 3.0, 0.0, 7.0, -1.0]))
    real = np.array([0, 1, 3, 4])
    got, again, alone = (
        revise(block, rows, WEIGHT),
        revise(block, other, WEIGHT),
        revise(block, rows[real], WEIGHT[real]),
    )
    np.testing.assert_array_equal(got[real], again[real])
    assert_close(got[real], alone)
    assert not np.allclose(got[2], again[2], atol=0.1)


def test_a_row_of_weight_one_changes_every_row(block, rows):
    other = revise(block, rows.at[0].add(jnp.array([3.0, -3.0, 0.0, 2.0, 0.0, -1.0])), WEIGHT)
    assert (np.abs(other - revise(block, rows, WEIGHT)).max(1) > 1e-3).all()


def test_a_row_of_weight_two_is_two_rows(block, rows):
    got = revise(block, rows, jnp.array([1.0, 1.0, 1.0, 2.0, 1.0]))
    twice = revise(block, jnp.concatenate([rows, rows[3:4]]), jnp.ones(6))
    assert_close(got, twice[:5])


def test_permuted_rows_give_permuted_answers(block, rows):
    order = np.array([3, 0, 4, 2, 1])
    assert_close(revise(block, rows[order], WEIGHT[order]), revise(block, rows, WEIGHT)[order])


@pytest.fixture
def encoder(key) -> TaskEncoder:
    return moved(new_encoder(2, key))


@pytest.fixture
def xy(key):
    return jr.normal(key, (5, 3))


def assert_same(got: DiagonalNormal, want: DiagonalNormal):
    assert_close(got.mu, want.mu)
    assert_close(got.sigma, want.sigma)


@pytest.mark.parametrize("attention", [0, 2])
def test_an_encoder_is_its_formula(attention, xy, key):
    """The mean of the pairs' codes, then the heads; with attention, its blocks in turn before the mean."""
    fresh = new_encoder(attention, key)
    assert len(fresh.blocks) == attention
    encoder = moved(fresh)
    mu, sigma = run_encoder(encoder, double(xy), double(WEIGHT))
    got = encode(encoder, xy, WEIGHT)
    assert_close(got.mu, mu)
    assert_close(got.sigma, sigma)


def test_attention_leaves_the_start_of_all_other_layers_as_it_was(key):
    plain, attentive = (new_encoder(attention, key) for attention in (0, 2))
    assert plain.blocks == ()
    without = eqx.tree_at(lambda e: e.blocks, attentive, ())
    for got, want in zip(jax.tree.leaves(without), jax.tree.leaves(plain), strict=True):
        np.testing.assert_array_equal(got, want)


def test_blocks_start_apart(key):
    first, second = new_encoder(2, key).blocks
    assert not np.allclose(first.attention.query.weight, second.attention.query.weight)
    assert not np.allclose(first.revise.layers[0].weight, second.revise.layers[0].weight)


def test_the_order_of_pairs_is_irrelevant_to_z(encoder, xy):
    order = np.array([3, 0, 4, 2, 1])
    assert_same(encode(encoder, xy[order], WEIGHT[order]), encode(encoder, xy, WEIGHT))


def test_padding_is_irrelevant_to_z(encoder, xy):
    zeros, garbage = (jnp.concatenate([xy, filling]) for filling in (jnp.zeros((3, 3)), jnp.full((3, 3), -40.0)))
    weight = jnp.concatenate([WEIGHT, jnp.zeros(3)])
    for padded in (zeros, garbage):
        assert_same(encode(encoder, padded, weight), encode(encoder, xy, WEIGHT))


def test_padding_is_irrelevant_to_the_gradient(xy, key):
    """At the start, where biases are zero, a row of zeros has a code without spread, by which its norm divides."""

    @eqx.filter_jit
    @eqx.filter_grad
    def gradient(encoder: TaskEncoder, xy, weight):
        z = encoder(xy, weight)
        return (z.mu + jnp.log(z.sigma)).sum()

    fresh = new_encoder(2, key)
    got, want = (gradient(fresh, xy.at[2].set(filling), WEIGHT) for filling in (0.0, 1.0))
    for got_leaf, want_leaf in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert np.isfinite(want_leaf).all()
        assert_close(got_leaf, want_leaf)


def test_pairs_meet_only_by_attention(encoder, xy):
    """Without it, r of a set is the mean of what each pair gives on its own."""
    embed = eqx.filter_jit(lambda encoder, weight: encoder.embed(xy, weight))
    plain = eqx.tree_at(lambda e: e.blocks, encoder, ())
    for one, meets in ((plain, False), (encoder, True)):
        apart = np.stack([embed(one, alone) for alone in jnp.eye(5)]).mean(0)
        assert np.allclose(embed(one, jnp.ones(5)), apart, rtol=1e-4, atol=1e-5) is not meets


def test_heads_that_do_not_divide_the_codes_are_refused(key):
    config = changed(st_maml.Config(), encoder=(8, 6), attention=1, num_heads=4)
    with pytest.raises(SettingError, match="4 heads must divide the sizes of keys and values, which are 6 and 6"):
        eqx.filter_jit(config.build)(TaskSpec((2,), 1), key=key)


def test_half_as_many_bits_change_little_and_neither_weights_nor_what_comes_out(block, rows):
    low = in_precision(block, "bfloat16")
    got, want = revise(low, rows, WEIGHT), revise(block, rows, WEIGHT)
    assert got.dtype == want.dtype == rows.dtype
    scale = float(jnp.abs(want).max())
    np.testing.assert_allclose(got, want, atol=0.03 * scale)
    assert np.abs(np.asarray(got - want)).max() > 1e-5 * scale  # it was computed so
    for mine, its in zip(jax.tree.leaves(low), jax.tree.leaves(block), strict=True):
        np.testing.assert_array_equal(mine, its)
    slopes = eqx.filter_jit(eqx.filter_grad(lambda block: revise(block, rows, WEIGHT).sum()))(low)
    assert {leaf.dtype for leaf in jax.tree.leaves(slopes)} == {rows.dtype}
