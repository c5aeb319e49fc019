"""Training further on one table: it helps where groups say so, and is left out where they do not."""

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
import pytest

from stmaml.pool.base import Draw
from stmaml.pool.prior import TUNED, FittedPrior, Prior
from stmaml.prior.learner import Learner, Sizes
from stmaml.prior.reading import Kept, keep_rows
from stmaml.prior.tuning import LEARN, Tuned, _Draws, tune
from stmaml.prior.weights import save_weights
from tests.pool.test_prior import made_rows

STEPS = 8


@pytest.fixture(scope="module")
def learner() -> Learner:
    return Learner(Sizes(64, 1, 64, 1), key=jr.key(0))


@pytest.fixture(scope="module")
def kept() -> Kept:
    """A target that no linear model follows."""
    rows = made_rows(40, 12, columns=2)
    y = rows.y + 2 * np.abs(rows.x[:, 1])
    return keep_rows(rows.x, y, rows.group, np.zeros(2, dtype=int), most_rows=10_000)


@pytest.fixture(scope="module")
def tuned(learner: Learner, kept: Kept) -> Tuned:
    return tune(learner, kept, STEPS, rate=3e-3)


def weights(learner: Learner) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(eqx.filter(learner, eqx.is_array))]


def test_steps_lower_the_loss_of_groups_that_were_held_out(learner: Learner, tuned: Tuned):
    assert len(tuned.looks) == 5
    assert min(tuned.looks) < tuned.looks[0] - 0.02
    assert tuned.helped
    assert not np.array_equal(weights(tuned.learner)[0], weights(learner)[0])


def test_the_same_seed_gives_the_same_weights(learner: Learner, kept: Kept, tuned: Tuned):
    again = tune(learner, kept, STEPS, rate=3e-3)
    assert again.looks == tuned.looks
    assert all(map(np.array_equal, weights(again.learner), weights(tuned.learner)))


def test_where_no_step_helps_nothing_changes(learner: Learner, kept: Kept):
    """With a rate that throws all weights about."""
    found = tune(learner, kept, 2, rate=30.0)
    assert not found.helped
    for one, other in zip(weights(found.learner), weights(learner), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-6)  # but for half precision


def test_tables_of_a_step_hold_rows_of_the_groups_they_are_made_of(kept: Kept):
    learn, ask = np.arange(30), np.arange(30, 40)
    table = _Draws(kept).tables(learn, ask, np.random.default_rng(0))
    y, row, labelled = (np.asarray(part) for part in (table.y, table.row, table.labelled))
    scaled = kept.targets(kept.y)[0]
    for place in range(row.shape[1]):
        mine = y[0, place][row[0, place] > 0]
        if place >= LEARN + 5:  # half of the groups to ask are asked
            assert not len(mine)
            continue
        groups = np.unique(kept.group[np.isin(scaled.astype(np.float32), mine)])
        assert len(groups) == 1
        assert (groups[0] in learn) == (place < LEARN)
    np.testing.assert_array_equal(labelled[:, :LEARN], row[:, :LEARN])
    assert (np.asarray(table.asked)[:, LEARN:].sum(2)[row[:, LEARN:, 0] > 0] >= 1).all()


def test_a_member_keeps_the_weights_it_was_trained_to(learner: Learner, tmp_path, monkeypatch):
    """And answers with them once it is read back."""
    monkeypatch.setattr(
        "stmaml.pool.prior.tune", lambda learner, kept, steps, *, seed: tune(learner, kept, steps, rate=3e-3)
    )
    save_weights(learner, tmp_path / "weights.npz")
    rows = made_rows(40, 12)
    rows.y[:] += 2 * np.abs(rows.x[:, 1])
    member = Prior(tmp_path / "weights.npz", steps=STEPS)
    fitted, few = member.fit_each(rows, [np.arange(40), np.arange(10)], Draw(4))
    assert isinstance(fitted, FittedPrior)
    assert isinstance(few, FittedPrior)
    assert (fitted.tuned, few.tuned) == (True, False)
    state = {name: np.asarray(value) for name, value in fitted.state().items()}
    assert any(name.startswith(TUNED) for name in state)
    assert not any(name.startswith(TUNED) for name in few.state())
    tasks = Draw(4).tasks(rows, 2, 1)
    back = member.restore(state)
    np.testing.assert_array_equal(back.predict(tasks).mean, fitted.predict(tasks).mean)
    plain = FittedPrior(fitted.kept, learner, fitted.room)
    assert not np.allclose(plain.predict(tasks).mean, fitted.predict(tasks).mean)
