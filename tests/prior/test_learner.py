"""The learner over tables: what order and padding must not change, and what labels must."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.stats import norm

from stmaml.benchmarks.hierarchies import Shape, sample_tables, table_key
from stmaml.errors import RunError
from stmaml.prior.layers import attend
from stmaml.prior.learner import About, Groups, Learner, Said, Sizes, begin
from stmaml.prior.training import STRAY, STRAY_STD, losses
from stmaml.prior.weights import load_weights, save_weights

SMALL = Sizes(64, 1, 64, 1)
TRAIN, NEW, SLOTS, COLUMNS = 4, 2, 5, 3


@pytest.fixture(scope="module")
def learner() -> Learner:
    made = Learner(SMALL, key=jr.key(0))
    return eqx.tree_at(lambda one: one.head.weight, made, 10 * made.head.weight)  # so that the network has a say


@pytest.fixture(scope="module")
def table() -> tuple[Groups, Groups, About]:
    keys = jr.split(jr.key(1), 3)
    x, y = jr.normal(keys[0], (1, TRAIN + NEW, SLOTS, COLUMNS)), jr.normal(keys[1], (1, TRAIN + NEW, SLOTS))
    labelled = jnp.ones_like(y).at[:, TRAIN:, 2:].set(0.0)
    train, new = (
        Groups(*(part[:, there] for part in (x, y, labelled))) for there in (slice(TRAIN), slice(TRAIN, None))
    )
    return train, new, About(jnp.ones((1, COLUMNS)), jnp.array([[0, 1, 2]]), jnp.zeros(1))


@eqx.filter_jit
def ask(learner: Learner, table: tuple[Groups, Groups, About]) -> Said:
    return learner(*table)


@eqx.filter_jit
def ask_later(learner: Learner, table: tuple[Groups, Groups, About]) -> Said:
    train, new, about = table
    return learner.answer(learner.remember(train, about), new)


def same(one: Said, other: Said, rows: slice = slice(None)) -> None:
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(np.asarray(a)[:, :, rows], np.asarray(b)[:, :, rows], rtol=2e-3, atol=2e-3)


def moved(groups: Groups, change) -> Groups:
    return Groups(*(change(part) for part in (groups.x, groups.y, groups.labelled)))


def test_order_of_columns_changes_nothing(learner: Learner, table):
    train, new, about = table
    order = jnp.array([2, 0, 1])
    turned = [Groups(part.x[..., order], part.y, part.labelled) for part in (train, new)]
    other = About(about.column[:, order], about.kind[:, order], about.is_class)
    same(ask(learner, table), ask(learner, (turned[0], turned[1], other)))


def test_order_of_groups_and_rows_to_learn_from_changes_nothing(learner: Learner, table):
    train, new, about = table
    turned = moved(train, lambda part: part[:, ::-1, ::-1])
    same(ask(learner, table), ask(learner, (turned, new, about)))


def test_rows_of_new_groups_answer_in_their_order(learner: Learner, table):
    train, new, about = table
    turned = ask(learner, (train, moved(new, lambda part: part[:, :, ::-1]), about))
    same(ask(learner, table), jax.tree.map(lambda leaf: leaf[:, :, ::-1], turned))


def test_what_is_asked_beside_a_row_changes_nothing(learner: Learner, table):
    train, new, about = table
    other = Groups(new.x.at[:, 0, 4].set(9.0), new.y.at[:, 0, 3:].set(5.0), new.labelled)
    before, after = ask(learner, table), ask(learner, (train, other, about))
    same(before, after, slice(0, 4))


def test_what_is_remembered_answers_the_same(learner: Learner, table):
    same(ask(learner, table), ask_later(learner, table))


def test_padded_rows_and_groups_change_nothing(learner: Learner, table):
    train, new, about = table
    wide = moved(train, lambda part: jnp.pad(part, ((0, 0), (0, 2), (0, 1), *((0, 0),) * (part.ndim - 3))))
    same(ask(learner, table), ask_later(learner, (wide, new, about)))


def test_padded_columns_change_nothing(learner: Learner, table):
    train, new, about = table
    wide = [Groups(jnp.pad(part.x, (*((0, 0),) * 3, (0, 2))), part.y, part.labelled) for part in (train, new)]
    column, kind = (jnp.pad(part, ((0, 0), (0, 2))) for part in (about.column, about.kind))
    other = About(column, kind, about.is_class)
    same(ask(learner, table), ask(learner, (wide[0], wide[1], other)))


def test_groups_are_told_apart_by_their_labels_alone(learner: Learner, table):
    """A labelled row counts in its own group; the other group's answers stay."""
    train, new, about = table
    other = Groups(new.x, new.y.at[:, 0, 0].add(3.0), new.labelled)
    before, after = ask(learner, table).expected, ask(learner, (train, other, about)).expected
    np.testing.assert_allclose(before[:, 1], after[:, 1], atol=1e-4)
    assert np.abs(np.asarray(before - after))[:, 0, 2:].min() > 1e-3


def test_membership_matters(learner: Learner, table):
    """The same rows to learn from, dealt into other groups, say something else."""
    train, new, about = table
    turned = moved(train, lambda part: part.at[:, :2].set(part[:, jnp.array([1, 0])]).at[:, :, 0].set(part[:, ::-1, 0]))
    assert np.abs(np.asarray(ask(learner, table).expected - ask(learner, (turned, new, about)).expected)).max() > 1e-3


def test_slopes_of_attention_are_those_of_its_definition():
    form = "bgsqhe,bgskhe->bgshqk"
    keys = jr.split(jr.key(3), 4)
    parts = [jr.normal(k, (2, 1, 3, 4, 2, 32)) for k in keys[:3]]
    hidden = jnp.where(jr.bernoulli(keys[3], 0.7, (2, 1, 1, 1, 1, 4)), 0.0, -1e9)

    def plain(query, key, value):
        scores = jnp.einsum(form, query, key) / 32**0.5 + hidden
        return jnp.sum(jnp.sin(jnp.einsum("bgshqk,bgskhe->bgsqhe", jax.nn.softmax(scores, axis=-1), value)))

    wanted = jax.grad(plain, argnums=(0, 1, 2))(*parts)

    def ours(query, key, value):
        return jnp.sum(jnp.sin(attend(form, query, key, value, hidden)))

    found = jax.grad(ours, argnums=(0, 1, 2))(*parts)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_ranks_are_shares_of_the_rows_to_learn_from():
    x, y = jnp.array([[3.0, 1.0], [2.0, 1.0]]).reshape(1, 2, 2, 1), jnp.zeros((1, 2, 2))
    train = Groups(x, y, jnp.array([[[1.0, 1.0], [1.0, 0.0]]]))  # values 3, 1, 2 and padding
    new = Groups(jnp.array([0.0, 2.5, 3.0]).reshape(1, 1, 3, 1), jnp.zeros((1, 1, 3)), jnp.zeros((1, 1, 3)))
    found = begin(
        Groups(*(jnp.pad(part, ((0, 0), (0, 0), (0, 1), *((0, 0),) * (part.ndim - 3))) for part in _parts(train))),
        new,
        About(jnp.ones((1, 1)), jnp.zeros((1, 1), dtype=int), jnp.zeros(1)),
    )
    np.testing.assert_allclose(found.rank[0, 2, :, 0], [-1, 1 / 3, 2 / 3], atol=1e-6)


def _parts(groups: Groups) -> tuple[jax.Array, ...]:
    return groups.x, groups.y, groups.labelled


def test_losses_are_those_of_the_mixture():
    said = Said(
        weight=jnp.array([0.3, 0.7, 0.0]).reshape(1, 1, 1, 3),
        mean=jnp.array([0.0, 1.0, 0.0]).reshape(1, 1, 1, 3),
        std=jnp.array([1.0, 2.0, 1.0]).reshape(1, 1, 1, 3),
        task_std=jnp.full((1, 1, 1), 0.5),
        odds=jnp.full((1, 1, 1), 0.4),
    )
    table = jax.eval_shape(lambda: sample_tables(Shape(3, 1, 2, 1), 1, shots=1, key=table_key(0)))
    table = eqx.tree_at(
        lambda one: (one.y, one.clean, one.is_class, one.row, one.labelled),
        table,
        (
            jnp.full((1, 4, 1), 0.8),
            jnp.full((1, 4, 1), 0.9),
            jnp.zeros(1, dtype=bool),
            jnp.ones((1, 4, 1)),
            jnp.ones((1, 4, 1)).at[:, 3].set(0),
        ),
    )
    main, task = losses(said, table)
    mixture = 0.3 * norm.pdf(0.8, 0.0, 1.0) + 0.7 * norm.pdf(0.8, 1.0, 2.0)
    stray = [STRAY * norm.pdf(value, 0.0, STRAY_STD) for value in (0.8, 0.9 - 0.7)]
    assert float(main[0]) == pytest.approx(-np.log((1 - STRAY) * mixture + stray[0]), rel=1e-4)
    assert float(task[0]) == pytest.approx(-np.log((1 - STRAY) * norm.pdf(0.9 - 0.7, 0.0, 0.5) + stray[1]), rel=1e-4)
    classes = eqx.tree_at(lambda one: (one.is_class, one.y), table, (jnp.ones(1, dtype=bool), jnp.ones((1, 4, 1))))
    assert float(losses(said, classes)[0][0]) == pytest.approx(np.log1p(np.exp(-0.4)), rel=1e-4)


def test_a_narrow_answer_that_is_wrong_loses():
    """Whatever its spread: a loss that bounds targets by the spread of the answer would reward a spread of 0."""
    table = eqx.tree_at(
        lambda one: (one.y, one.clean, one.is_class, one.row, one.labelled),
        jax.eval_shape(lambda: sample_tables(Shape(3, 1, 2, 1), 1, shots=1, key=table_key(0))),
        (
            jnp.ones((1, 4, 1)),
            jnp.ones((1, 4, 1)),
            jnp.zeros(1, dtype=bool),
            jnp.ones((1, 4, 1)),
            jnp.ones((1, 4, 1)).at[:, 3].set(0),
        ),
    )
    found = []
    for spread in (1.0, 0.1, 0.01, 1e-4):
        std = spread * jnp.array([1.0, 1.0, 20.0]).reshape(1, 1, 1, 3)
        task = jnp.full((1, 1, 1), spread)
        said = Said(jnp.full((1, 1, 1, 3), 1 / 3), jnp.zeros((1, 1, 1, 3)), std, task, jnp.zeros((1, 1, 1)))
        found.append([float(part[0]) for part in losses(said, table)])
    main, task = np.array(found).T
    assert (np.diff(main[1:]) > -1e-6).all()
    assert (np.diff(task) > -1e-6).all()
    assert main[-1] > 5  # far worse than at the start, but bounded: a stray row is possible


def test_weights_come_back(learner: Learner, table, tmp_path):
    save_weights(learner, tmp_path / "weights.npz")
    same(ask(learner, table), ask(load_weights(tmp_path / "weights.npz"), table))


def test_weights_of_other_sizes_are_refused(learner: Learner, tmp_path):
    wrong = eqx.tree_at(lambda one: one.head.bias, learner, jnp.zeros(3))
    save_weights(wrong, tmp_path / "weights.npz")
    with pytest.raises(RunError, match="weights"):
        load_weights(tmp_path / "weights.npz")
