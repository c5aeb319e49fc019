"""A meta-learned member: a linear model at first, then only what helps held-out groups."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from stmaml.errors import SettingError
from stmaml.likelihoods import Rising
from stmaml.methods import METHODS
from stmaml.methods.classes_on_linear import LEAST, ShiftedClasses, with_shift
from stmaml.methods.on_linear import GAIN, MIN_NOISE
from stmaml.pool import meta_answers
from stmaml.pool.base import Column, Draw, Forecast, GroupedRows, Tasks
from stmaml.pool.meta import FittedMeta, Meta, start_training
from stmaml.pool.meta_answers import Weights
from stmaml.pool.meta_heldout import Looks, held_out, row_scores
from stmaml.pool.meta_start import linear_start
from stmaml.pool.meta_tasks import Listed, distinct
from stmaml.pool.meta_training import Places, first_state, first_weights, run_steps
from stmaml.pool.registry import usual_members
from stmaml.tasks import Examples

DRAW = Draw(shots=3, max_query=4)


def table(num_groups: int = 8, num_rows: int = 6, num_classes: int = 0, seed: int = 0) -> GroupedRows:
    """Groups that differ by level and slope; the first is small."""
    random = np.random.default_rng(seed)
    group = np.repeat(np.arange(num_groups), num_rows)[num_rows - 2 :]
    x = random.normal(size=(len(group), 2))
    level, slope = random.normal(size=(2, num_groups))
    y = level[group] + (1 + 0.5 * slope[group]) * x[:, 0] + 0.3 * random.normal(size=len(group))
    y = (y > 0).astype(float) if num_classes else y
    columns = (Column("a", "number"), Column("b", "number"))
    return GroupedRows(x, y, group, np.zeros((len(group), 0), dtype=int), columns, num_classes)


def halves(rows: GroupedRows) -> list[np.ndarray]:
    every = np.arange(rows.num_groups)
    return [every[::2], every[1::2], every]


def small(rows: GroupedRows, method: str = "st-maml"):
    plan = replace(Meta(method).plan(rows, DRAW), width=8, num_samples=4, tasks=2, steps=4, every=2)
    return plan, start_training(plan, rows, halves(rows), DRAW)


def fitted(training, weights, number: int, step: int = 1) -> FittedMeta:
    return FittedMeta(training.plan, weights.at(np.array([number])), step, np.array([0]), np.array([0.0]))


@pytest.fixture(scope="module")
def trained():
    rows = table()
    training = small(rows)[1]
    return rows, training, training.advance(training.first(), 0)


def test_the_linear_start_is_found_again_from_many_groups():
    random = np.random.default_rng(0)
    group = np.repeat(np.arange(400), 10)
    x = random.normal(size=(4000, 2))
    own = np.array([0.2, 0.5, -0.4]) + random.normal(size=(400, 3)) * np.array([0.8, 0.3, 0.02])
    y = own[group, 0] + (own[group, 1:] * x).sum(1) + 0.4 * random.normal(size=4000)
    found = linear_start(x, y[:, None], group)
    np.testing.assert_allclose(found.mean[:, 0], own.mean(0), atol=0.05)
    np.testing.assert_allclose(found.std[:2], [0.8, 0.3], rtol=0.1)
    assert found.std[2] < 0.1
    np.testing.assert_allclose(found.noise, 0.4, rtol=0.05)


def test_before_training_predictions_are_those_of_the_linear_model(trained):
    """Against the normal distribution of asked rows given labelled ones, written out."""
    rows, training, _ = trained
    tasks = DRAW.tasks(rows, 3, 1)
    found = fitted(training, training.start, 2).predict(tasks)
    start = jax.tree.map(lambda leaf: np.asarray(leaf[2], dtype=float), training.start)
    mean, spread = GAIN * start.mean[:3, 0], np.exp(2 * GAIN * start.log_std[:3])
    noise = MIN_NOISE**2 + np.exp(2 * GAIN * start.log_noise)
    support, query = tasks.support[-1], tasks.query[-1]
    s, q = (np.concatenate([np.ones((len(at), 1)), rows.x[at]], axis=1) for at in (support, query))
    inverse = np.linalg.inv((s * spread) @ s.T + noise * np.eye(len(s)))
    cross = (q * spread) @ s.T
    expected = q @ mean + cross @ inverse @ (rows.y[support] - s @ mean)
    doubt = np.diag((q * spread) @ q.T - cross @ inverse @ cross.T)
    np.testing.assert_allclose(found.mean[-len(query) :], expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found.task_variance[-len(query) :], doubt, rtol=1e-2, atol=1e-4)
    np.testing.assert_allclose(found.noise_variance, noise, rtol=1e-3)


def test_the_linear_model_alone_is_asked_where_no_training_was_kept(trained):
    rows, training, _ = trained
    tasks = DRAW.tasks(rows, 3, 1)
    whole, line = (fitted(training, training.start, 2, step).predict(tasks) for step in (1, 0))
    for name in ("mean", "task_variance", "noise_variance"):
        np.testing.assert_allclose(vars(line)[name], vars(whole)[name], rtol=1e-4, atol=1e-5)


def test_many_rows_are_padded_less_and_answered_alike(trained, monkeypatch: pytest.MonkeyPatch):
    rows, training, _ = trained
    tasks = Tasks(rows, (np.arange(2), np.arange(3)), (np.arange(40) % len(rows.y), np.arange(4, 9)))
    few = fitted(training, training.start, 2).predict(tasks)
    monkeypatch.setattr(meta_answers, "MANY", 1)
    many = fitted(training, training.start, 2).predict(tasks)
    np.testing.assert_allclose(many.mean, few.mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(many.variance, few.variance, rtol=1e-4)


def test_before_training_classes_are_as_likely_as_the_linear_model_says():
    rows = table(num_classes=2)
    training = small(rows)[1]
    tasks = DRAW.tasks(rows, 3, 1).only(np.arange(7) == 6)
    found = fitted(training, training.start, 2).predict(tasks)
    (support,), (query,) = tasks.support, tasks.query
    start = jax.tree.map(lambda leaf: np.asarray(leaf[2], dtype=float), training.start)
    mean, spread = GAIN * start.mean[:3], np.exp(2 * GAIN * start.log_std[:3])
    noise = MIN_NOISE**2 + np.exp(2 * GAIN * start.log_noise)
    s, q = (np.concatenate([np.ones((len(at), 1)), rows.x[at]], axis=1) for at in (support, query))
    inverse = np.linalg.inv((s * spread) @ s.T + noise * np.eye(len(s)))
    said = q @ mean + (q * spread) @ s.T @ inverse @ (np.eye(2)[rows.y[support].astype(int)] - s @ mean)
    said = np.maximum(said, LEAST)
    np.testing.assert_allclose(found.mean, said / said.sum(1, keepdims=True), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("number", "method"), list(enumerate(sorted(METHODS))))
def test_any_method_can_be_a_member(number, method):
    """Traced only, every second one for classes: weights of the right size come out of a training step."""
    num_classes = 3 * (number % 2 == 0 or method == "protonet")
    draw = replace(DRAW, shots=2, max_query=2)
    plan = replace(Meta(method).plan(table(num_classes=num_classes), draw), width=8, tasks=1)
    vector = eqx.filter_eval_shape(first_weights, plan)
    shapes = ((2, vector.size), (2, 5, num_classes or 1), (2, 5), (2,))
    weights = Weights(*(jnp.zeros(shape) for shape in shapes))
    places = [jnp.zeros((1, 2, 1, 2), dtype) for dtype in (int, float, int, float)]
    targets = jnp.zeros(4, dtype=int) if num_classes else jnp.zeros((4, 1))
    rows = Examples(jnp.zeros((4, 4)), targets, jnp.ones(4))
    state = eqx.filter_eval_shape(first_state, plan, weights)
    after = eqx.filter_eval_shape(run_steps, plan, state, rows, Places(*places), jnp.arange(1))
    assert after.average.shape == weights.vector.shape


def test_a_class_is_as_likely_as_both_together_say():
    share, logits = np.array([0.7, 0.2, 0.1]), np.array([0.5, -1.0, 2.0])
    both = share * np.exp(logits)
    y = with_shift(jnp.array([2]), jnp.asarray(share)[None])
    raw = jnp.asarray(logits)[None]
    expected = -np.log(both[2] / both.sum())
    np.testing.assert_allclose(ShiftedClasses(3).objective(raw, y), [expected], rtol=1e-5)
    np.testing.assert_allclose(-ShiftedClasses(3).outcome(raw).log_prob(y), [expected], rtol=1e-5)
    rising = Rising(ShiftedClasses(3), jnp.zeros(3), jnp.array([2.0, 2.0, 2.0]))
    np.testing.assert_allclose(rising.objective(raw / 2, y), [expected], rtol=1e-5)


def test_parts_trained_side_by_side_are_as_if_alone(trained):
    rows, together, state = trained
    alone = start_training(together.plan, rows, halves(rows)[1:2], DRAW)
    single = alone.advance(alone.first(), 0)
    assert not np.allclose(single.average[0], together.start.vector[1])
    np.testing.assert_allclose(single.average[0], state.average[1], rtol=1e-4, atol=1e-6)


def test_targets_of_held_out_groups_change_nothing_that_is_learnt(trained):
    rows, training, state = trained
    held = np.isin(rows.group, halves(rows)[1])
    poisoned = start_training(training.plan, replace(rows, y=np.where(held, 1e3, rows.y)), halves(rows), DRAW)
    after = poisoned.advance(poisoned.first(), 0)
    for mine, other in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(mine[0], other[0])
    assert not np.allclose(after.average[1], state.average[1])


def test_labels_of_asked_rows_are_not_read_and_labelled_ones_are(trained):
    rows, training, state = trained
    weights = replace(training.start, vector=state.average)
    tasks = DRAW.tasks(rows, 2, 1)
    y = np.full_like(rows.y, np.nan)
    labelled = np.concatenate(tasks.support)
    y[labelled] = rows.y[labelled]
    member = fitted(training, weights, 2)
    plain, blind = member.predict(tasks), member.predict(replace(tasks, rows=replace(rows, y=y)))
    np.testing.assert_array_equal(plain.mean, blind.mean)
    other = member.predict(replace(tasks, rows=replace(rows, y=rows.y + 1)))
    assert (other.mean > plain.mean).all()


def test_a_member_comes_back_from_its_arrays(trained):
    rows, training, state = trained
    member = fitted(training, replace(training.start, vector=state.average), 0)
    arrays = {name: value.copy() for name, value in member.state().items()}
    again = Meta().restore(arrays)
    tasks = DRAW.tasks(rows, 2, 1)
    for name in ("mean", "task_variance", "noise_variance"):
        np.testing.assert_array_equal(getattr(again.predict(tasks), name), getattr(member.predict(tasks), name))
    assert (again.plan, again.chosen_step) == (member.plan, member.chosen_step)
    assert all(value.dtype != object for value in arrays.values())


def test_tasks_of_all_sizes_are_answered_one_by_one_as_together(trained):
    rows, training, state = trained
    member = fitted(training, replace(training.start, vector=state.average), 1)
    sizes = Tasks(rows, (np.arange(0), np.arange(2, 5)), (np.array([1, 0]), np.array([6, 5, 7])))
    both = member.predict(sizes)
    single = [member.predict(sizes.only(np.arange(2) == task)) for task in range(2)]
    np.testing.assert_allclose(both.mean, Forecast.joined(single).mean, rtol=1e-5, atol=1e-6)
    assert np.isfinite(both.variance).all()


def test_fits_stop_together_where_held_out_groups_gain_no_more():
    looks = Looks()
    for step, score in ((0, 0.5), (100, 0.3), (200, 0.4)):
        looks.add(step, score + np.array([0.0, 0.01, -0.01]))
    assert (looks.steps[looks.best], looks.since_lowest) == (100, 1)
    doubtful = Looks([0, 100], [np.array([0.5, 0.5, 0.5]), np.array([0.1, 0.6, 0.7])])
    assert doubtful.best == 0  # the mean is lower, by one group alone


@pytest.mark.parametrize("ordered", [True, False])
def test_training_tasks_are_of_their_part_and_leave_something_to_ask(ordered):
    rows, draw = table(), replace(DRAW, ordered=ordered)
    parts = halves(rows)[:2]
    drawn = Listed.of(rows).draw(parts, draw, range(50), 4)
    for number, part in enumerate(parts):
        pick = (slice(None), number)
        every = zip(*(a[pick].reshape(200, -1) for a in vars(drawn).values()), strict=True)
        shots = set()
        for support, given, query, asked in every:
            support, query = support[given > 0], query[asked > 0]
            group = rows.group[query[0]]
            both = np.concatenate([support, query])
            assert (rows.group[both] == group).all()
            assert group in part
            assert len(set(both)) == len(both)
            assert len(query) == min(4, rows.counts[group] - len(support))
            assert not ordered or support.max(initial=-1) < query.min()
            shots.add(len(support))
        assert shots == {0, 1, 2, 3}


def test_distinct_numbers_are_drawn_evenly():
    random = np.random.default_rng(0)
    drawn, real = distinct(np.full(6000, 4), random.random((6000, 3)), random.random((6000, 3)))
    assert real.all()
    _, counts = np.unique(drawn @ np.array([16, 4, 1]), return_counts=True)
    assert len(counts) == 24
    assert abs(((counts - 250) ** 2 / 250).sum() - 23) < 5 * np.sqrt(46)


def test_held_out_tasks_are_of_groups_a_part_has_not_and_ordered_if_asked_for():
    rows, parts = table(), halves(table())
    found = held_out(rows, parts, replace(DRAW, ordered=True))
    assert found is not None
    assert set(zip(found.part, found.group, strict=True)) == {(p, g) for p in (0, 1) for g in parts[1 - p]}
    for support, query in zip(found.tasks.support, found.tasks.query, strict=True):
        assert support.max(initial=-1) < query.min()
    assert held_out(rows, [parts[2]], DRAW) is None


def test_the_score_of_rows_is_the_crps():
    """Against the integral of the squared difference of distribution functions."""
    found = Forecast(np.array([0.3]), np.array([0.5]), np.array([0.19]))
    grid = np.linspace(-15, 15, 300_001)
    squared = np.square(stats.norm(0.3, np.sqrt(0.69)).cdf(grid) - (grid >= 1.2))
    np.testing.assert_allclose(row_scores(found, np.array([1.2]), 0), np.trapezoid(squared, grid), rtol=1e-4)


def test_which_tables_suit():
    assert Meta("maml").suits(table())
    assert not Meta("protonet").suits(table())
    assert Meta("protonet").suits(table(num_classes=2))
    assert not Meta().suits(table(num_groups=3))
    with pytest.raises(SettingError, match="no method 'mamal'"):
        Meta("mamal")


def test_networks_are_large_for_many_rows_on_an_accelerator_alone(monkeypatch: pytest.MonkeyPatch):
    group = np.repeat(np.arange(1000), 50)
    empty = np.zeros((len(group), 0), dtype=int)
    rows = GroupedRows(np.zeros((len(group), 1)), np.zeros(len(group)), group, empty, (Column("x", "number"),))
    assert Meta().plan(rows, Draw(10)).width == 128
    assert [Meta(minutes=time).plan(rows, Draw(10)).lookup for time in (None, 1.0, 10.0)] == [0, 0, 128]
    assert "tnp" not in [member.name for member in usual_members(rows)]
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    assert Meta().plan(rows, Draw(10)).width == 256
    assert Meta().plan(rows.of_groups(np.arange(10)), Draw(10)).width == 32
    assert Meta().plan(rows, Draw(10)).lookup == 256
    assert [member.name for member in usual_members(rows)][-2:] == ["st-maml", "tnp"]


@pytest.mark.parametrize("method", ["st-maml", "tnp"])
def test_rows_may_look_labelled_ones_up(method):
    """A learner of the form it has on an accelerator: the linear model at first, then moved by Muon."""
    rows = table()
    large = {"lookup": 8, "waves": 1, "optimizer": "muon", "warmup": 1, "steps": 4, "rate": 0.01}
    training = start_training(replace(small(rows, method)[0], **large), rows, halves(rows), DRAW)
    tasks, last = DRAW.tasks(rows, 3, 1), training.advance(training.first(), 0)
    before, line = (fitted(training, training.start, 2, step).predict(tasks) for step in (1, 0))
    np.testing.assert_allclose(before.mean, line.mean, atol=1e-4)
    np.testing.assert_allclose(before.variance, line.variance, rtol=1e-3)
    after = fitted(training, last.weights, 2)
    assert np.abs(after.predict(tasks).mean - before.mean).max() > 1e-4
    again = Meta(method).restore(after.state())
    assert again.plan == training.plan
    np.testing.assert_array_equal(again.predict(tasks).mean, after.predict(tasks).mean)


def test_one_learner_answers_for_all_groups_of_a_huge_table(monkeypatch: pytest.MonkeyPatch):
    rows = table(num_groups=20)
    every, most = np.arange(20), np.arange(4, 20)
    member = Meta(steps=0, minutes=0.0)
    apart = member.fit_each(rows, [most, every], DRAW)
    assert not np.array_equal(apart[0].state()["mean"], apart[1].state()["mean"])
    monkeypatch.setattr("stmaml.pool.meta.HUGE", 1)
    held, whole = member.fit_each(rows, [most, every], DRAW)
    np.testing.assert_array_equal(held.state()["mean"], whole.state()["mean"])
    np.testing.assert_array_equal(held.state()["mean"], apart[0].state()["mean"])
    few, _ = member.fit_each(rows, [every[10:], every], DRAW)
    assert not np.array_equal(few.state()["mean"], held.state()["mean"])
