"""Auto-encoders over sets, against loops over their rows."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from stmaml.nets.autoencoder import GRUCell, PoolingAutoEncoder, RecurrentAutoEncoder, SampleEmbedding, set_autoencoder
from stmaml.nets.layers import Linear

ROWS, SIZE, CODE = 7, 3, 8
every_kind = pytest.mark.parametrize("kind", ["mean", "rnn"])


def dense(layer: Linear, x: np.ndarray) -> np.ndarray:
    assert layer.bias is not None
    return x @ np.asarray(layer.weight) + np.asarray(layer.bias)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def naive_gru(cell: GRUCell, state: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Element by element from the definition: r, u, then c with r inside, then u h + (1 - u) c."""
    size = state.shape[0]
    joint = [*x, *state]
    gates_w, gates_b = np.asarray(cell.gates.weight), np.asarray(cell.gates.bias)
    cand_w, cand_b = np.asarray(cell.candidate.weight), np.asarray(cell.candidate.bias)
    gates = [sigmoid(sum(joint[i] * gates_w[i, o] for i in range(len(joint))) + gates_b[o]) for o in range(2 * size)]
    r, u = gates[:size], gates[size:]
    inside = [*x, *(r[i] * state[i] for i in range(size))]
    c = [np.tanh(sum(inside[i] * cand_w[i, o] for i in range(len(inside))) + cand_b[o]) for o in range(size)]
    return np.array([u[o] * state[o] + (1 - u[o]) * c[o] for o in range(size)])


def noisy(module, *, key):
    """All parameters moved away from their start, so that no bias hides at zero."""
    leaves, structure = jax.tree.flatten(module)
    moved = [a + 0.3 * jr.normal(k, a.shape) for a, k in zip(leaves, jr.split(key, len(leaves)), strict=True)]
    return jax.tree.unflatten(structure, moved)


@pytest.fixture
def rows(key):
    return jr.normal(key, (ROWS, SIZE))


def test_gru_cell_follows_its_definition(key):
    cell = noisy(GRUCell(SIZE, CODE, key=key), key=key)
    state, x = jr.normal(jr.key(1), (CODE,)), jr.normal(jr.key(2), (SIZE,))
    np.testing.assert_allclose(cell(state, x), naive_gru(cell, np.asarray(state), np.asarray(x)), rtol=1e-4, atol=1e-5)


def test_a_fresh_gru_cell_remembers(key):
    """With gate biases of 1 and no input, a state keeps at least the share sigmoid(1) of a small disturbance."""
    cell = GRUCell(SIZE, CODE, key=key)
    tiny = jnp.full(CODE, 1e-3)
    blind = eqx.tree_at(lambda c: c.candidate.weight, cell, jnp.zeros_like(cell.candidate.weight))
    np.testing.assert_allclose(blind(tiny, jnp.zeros(SIZE)), sigmoid(1) * tiny, rtol=1e-2)


def test_recurrent_auto_encoder_follows_its_definition(key, rows):
    """A loop over the rows that count; the rows of weight 0 are taken out beforehand."""
    coder = noisy(RecurrentAutoEncoder(SIZE, CODE, key=key), key=key)
    weight = jnp.array([1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0])
    kept = [row for row, w in zip(np.asarray(rows), weight, strict=True) if w > 0]
    state, states = np.zeros(CODE), []
    for row in kept:
        state = naive_gru(coder.encoder, state, row)
        states.append(state)
    out, rebuilt = np.zeros(SIZE), []
    for _ in kept:
        state = naive_gru(coder.decoder, state, out)
        out = dense(coder.output, state)
        rebuilt.append(out)
    want_loss = np.mean([(a - b) ** 2 for a, b in zip(rebuilt[::-1], kept, strict=True)])
    code, loss = coder(rows, weight)
    np.testing.assert_allclose(code, np.mean(states, axis=0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(loss, want_loss, rtol=1e-4)


def test_pooling_auto_encoder_follows_its_definition(key, rows):
    coder = noisy(PoolingAutoEncoder(SIZE, CODE, key=key), key=key)
    weight = jnp.array([1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0])
    codes, errors = [], []
    for row, w in zip(np.asarray(rows), weight, strict=True):
        if w > 0:
            codes.append(np.maximum(dense(coder.encoder, row), 0))
            errors.append(np.mean((dense(coder.decoder, codes[-1]) - row) ** 2))
    code, loss = coder(rows, weight)
    want = np.maximum(dense(coder.pooled, np.mean(codes, axis=0)), 0)
    np.testing.assert_allclose(code, want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(loss, np.mean(errors) / 2, rtol=1e-4)


@every_kind
def test_order_matters_to_the_recurrent_kind_alone(kind, key, rows):
    coder = set_autoencoder(kind, SIZE, CODE, key=key)
    forth, back = coder(rows, jnp.ones(ROWS))[0], coder(rows[::-1], jnp.ones(ROWS))[0]
    assert np.allclose(forth, back, atol=1e-5) == (kind == "mean")


@every_kind
def test_an_empty_set_has_a_finite_code_and_no_loss(kind, key, rows):
    coder = set_autoencoder(kind, SIZE, CODE, key=key)

    def total(coder):
        code, loss = coder(rows, jnp.zeros(ROWS))
        return code.sum() + loss, loss

    grads, loss = eqx.filter_grad(total, has_aux=True)(coder)
    assert loss == 0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


@pytest.mark.parametrize("reads_targets", [True, False])
def test_sample_embedding_reads_targets_if_told_to(reads_targets, key, rows):
    embed = SampleEmbedding(SIZE, 2, 8, reads_targets=reads_targets, key=key)
    same = np.allclose(embed(rows, jnp.zeros((ROWS, 2))), embed(rows, jnp.ones((ROWS, 2))))
    assert same != reads_targets
    w = np.asarray(embed.linear.weight)
    np.testing.assert_allclose(embed(rows, jnp.zeros((ROWS, 2))), np.asarray(rows) @ w[:SIZE], rtol=1e-4, atol=1e-5)
