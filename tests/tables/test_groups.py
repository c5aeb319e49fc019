"""Tasks from groups: distinct rows, ragged groups, fair splits."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import polars as pl
import pytest

from stmaml.benchmarks.sources import check_batch, freeze
from stmaml.errors import SettingError, SourceError
from stmaml.tables.benchmark import Config, TableConfig, open_frame
from stmaml.tables.groups import GroupTasks, Sizes, TaskSizes, draw_distinct, split_groups
from stmaml.tasks import TaskBatch, TaskSpec
from tests.table_data import lines, schema_in

COUNTS = np.array([7, 8, 30, 500])


def source(
    *, training: bool, shots: int = 4, query_size: int = 6, min_query: int = 3, ordered: bool = False
) -> GroupTasks:
    """Groups whose rows tell which they are: x is (group, row), y their sum in hundredths."""
    group = np.repeat(np.arange(len(COUNTS)), COUNTS)
    row = np.concatenate([np.arange(count) for count in COUNTS])
    x = np.stack([group, row], axis=1).astype(np.float32)
    start = np.concatenate([[0], np.cumsum(COUNTS)[:-1]])
    return GroupTasks(
        jnp.asarray(x),
        jnp.asarray(x.sum(1, keepdims=True) / 100),
        jnp.asarray(start, dtype=jnp.int32),
        jnp.asarray(COUNTS, dtype=jnp.int32),
        TaskSpec((2,), 1),
        TaskSizes(shots, query_size, min_query, ordered),
        training,
    )


def draw_many(count: int, num_draws: int, keys):
    return jax.jit(jax.vmap(lambda key: draw_distinct(jnp.array(count, dtype=jnp.int32), num_draws, key=key)))(keys)


@eqx.filter_jit
def sample(tasks: GroupTasks, num_tasks: int, key) -> TaskBatch:
    return tasks.sample(num_tasks, key=key)


def test_drawn_numbers_are_distinct_and_every_ordered_draw_is_as_likely():
    """All 60 ordered draws of 3 out of 5, by a chi-squared statistic against its own spread."""
    num_draws = 12_000
    keys = jr.split(jr.key(1), num_draws)
    drawn, real = draw_many(5, 3, keys)
    drawn = np.asarray(drawn)
    assert bool(real.all())
    assert all(len(set(row)) == 3 for row in drawn[:500].tolist())
    _, counts = np.unique(drawn @ np.array([25, 5, 1]), return_counts=True)
    assert len(counts) == 60
    expected = num_draws / 60
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert abs(statistic - 59) < 5 * np.sqrt(2 * 59)


def test_a_group_smaller_than_the_draw_gives_all_its_rows_once():
    drawn, real = draw_distinct(jnp.array(4, dtype=jnp.int32), 7, key=jr.key(0))
    assert sorted(np.asarray(drawn)[np.asarray(real)].tolist()) == [0, 1, 2, 3]
    assert np.asarray(real).tolist() == [True] * 4 + [False] * 3


def test_large_groups_are_reached_to_their_last_row():
    keys = jr.split(jr.key(0), 200)
    drawn, _ = draw_many(1_000_000, 40, keys)
    drawn = np.asarray(drawn)
    assert drawn.min() >= 0
    assert 999_000 < drawn.max() < 1_000_000
    np.testing.assert_allclose(drawn.mean(), 500_000, rtol=0.02)


@pytest.mark.parametrize("training", [True, False])
def test_tasks_are_rows_of_one_group_and_none_is_in_support_and_query(training):
    batch = sample(source(training=training), 64, jr.key(0))
    check_batch(batch, source(training=training).spec)
    for i in range(64):
        support, query = (
            jax.tree.map(lambda leaf, i=i: np.asarray(leaf[i]), part)
            for part in (batch.tasks.support, batch.tasks.query)
        )
        rows = np.concatenate([support.x[support.weight > 0], query.x[query.weight > 0]])
        assert len(np.unique(rows[:, 0])) == 1
        assert len(np.unique(rows[:, 1])) == len(rows)
        assert rows[:, 1].max() < COUNTS[int(rows[0, 0])]
        np.testing.assert_allclose(query.y[:, 0], query.x.sum(1) / 100, rtol=1e-6)
        assert (query.weight > 0).sum() == min(6, COUNTS[int(rows[0, 0])] - 4)


@pytest.mark.parametrize("training", [True, False])
def test_in_order_the_first_rows_are_labelled_and_later_ones_asked_for(training):
    tasks = sample(source(training=training, ordered=True), 200, jr.key(0)).tasks
    shots, last = set(), 0
    for i in range(200):
        given, asked = (
            np.asarray(part.x[i, :, 1])[np.asarray(part.weight[i]) > 0] for part in (tasks.support, tasks.query)
        )
        assert given.tolist() == list(range(len(given)))
        assert asked.min() >= len(given)
        assert len(set(asked)) == len(asked) == min(6, COUNTS[int(tasks.query.x[i, 0, 0])] - len(given))
        shots.add(len(given))
        last = max(last, asked.max())
    assert shots == (set(range(5)) if training else {4})
    assert last > 400  # any later row, not the next ones alone


def test_training_draws_any_number_of_labelled_rows_and_any_group():
    batch = sample(source(training=True), 2000, jr.key(3))
    shots = np.asarray(batch.tasks.support.weight).sum(1)
    np.testing.assert_allclose(np.bincount(shots.astype(int)) / 2000, 0.2, atol=0.04)
    groups = np.asarray(batch.tasks.query.x)[:, 0, 0].astype(int)
    np.testing.assert_allclose(np.bincount(groups) / 2000, 0.25, atol=0.04)


def test_held_out_groups_come_in_turn_with_all_their_shots():
    batch = sample(source(training=False), 8, jr.key(3))
    assert np.asarray(batch.tasks.query.x)[:, 0, 0].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert (np.asarray(batch.tasks.support.weight) == 1).all()


def test_the_same_key_gives_the_same_tasks():
    first, again = (sample(source(training=True), 5, jr.key(7)) for _ in range(2))
    other = sample(source(training=True), 5, jr.key(8))
    assert all(bool((a == b).all()) for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(again), strict=True))
    assert not bool((first.tasks.query.x == other.tasks.query.x).all())


def test_fewer_shots_keep_queries_and_the_first_labelled_rows():
    tasks = freeze(source(training=False), 4, seed=0)
    two, none = tasks.with_shots(2), tasks.with_shots(0)
    assert np.asarray(two.batch.tasks.support.weight).tolist() == [[1, 1, 0, 0]] * 4
    assert np.asarray(none.batch.tasks.support.weight).sum() == 0
    np.testing.assert_array_equal(two.batch.tasks.query.x, tasks.batch.tasks.query.x)
    assert two.digest == tasks.digest  # of the same test; conditions tell the number of labelled rows


def test_groups_are_split_by_name_whatever_their_order():
    names = [f"station {i}" for i in range(100)]
    counts = np.full(100, 20)
    split = split_groups(names, counts, Sizes().of(counts))
    again = split_groups(names[::-1], counts, Sizes().of(counts))
    assert split == again
    assert [len(part) for part in (split.train, split.val, split.test, split.skipped)] == [70, 15, 15, 0]
    assert len({*split.train, *split.val, *split.test}) == 100


def test_small_groups_are_skipped_and_counted():
    counts = np.array([15] * 10 + [14] * 3)
    split = split_groups([str(i) for i in range(13)], counts, TaskSizes(10, 30, 5))
    assert sorted(split.skipped) == ["10", "11", "12"]
    assert not set(split.skipped) & {*split.train, *split.val, *split.test}


def test_too_few_groups_are_told():
    with pytest.raises(SourceError, match=r"a single group, 'a'; .*--task"):
        split_groups(["a"], np.array([100]), TaskSizes(10, 30, 5))
    with pytest.raises(SourceError, match="3 of 9 groups have the 15 rows that 10 labelled and 5 others take"):
        split_groups([str(i) for i in range(9)], np.array([15] * 3 + [5] * 6), TaskSizes(10, 30, 5))
    with pytest.raises(SettingError, match="--shots must be at least 1; got 0"):
        Sizes(shots=0)


def test_sizes_come_from_those_of_the_groups():
    assert Sizes().of(np.full(18, 10)) == TaskSizes(8, 30, 2)  # lme4's sleepstudy
    assert Sizes().of(np.full(12, 11), ordered=True) == TaskSizes(9, 30, 2, ordered=True)
    assert Sizes().of(np.full(100, 40)) == TaskSizes(10, 30, 5)
    assert Sizes(shots=3).of(np.full(18, 10)) == TaskSizes(3, 30, 5)
    small = np.array([40] * 7 + [6] * 4)  # half have 40 rows, but eight groups are needed
    split_groups([str(i) for i in range(11)], small, Sizes().of(small))


@pytest.mark.parametrize(
    ("rows", "works", "words"), [(10, (5, 5), "--shots 5,"), (4, (3, 1), "--shots 3 --min-query 1,")]
)
def test_a_value_that_works_is_named(rows, works, words):
    names, counts = [str(i) for i in range(9)], np.full(9, rows)
    with pytest.raises(SourceError, match=words):
        split_groups(names, counts, TaskSizes(10, 30, 5))
    shots, least = works
    split_groups(names, counts, TaskSizes(shots, 30, least))


def test_order_sorts_rows_and_labels_the_first():
    frame = lines(20, 10).with_columns(day=pl.Series([9 - i % 10 for i in range(200)]))
    benchmark = open_frame(frame, Config(TableConfig("shop", "y", order="day")))
    settings: Any = benchmark.settings
    assert settings.table.sizes == Sizes(8, 30, 2)
    batch = benchmark.test.sample(2, key=jr.key(0)).tasks
    place = schema_in(benchmark).outputs.index("day")
    support = batch.support.x[:, :, place]
    assert (np.diff(support) > 0).all()
    assert (batch.query.x[:, :2, place].min(1) > support.max(1)).all()
