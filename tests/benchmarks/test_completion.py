"""Image completion: tasks from tiny IDX files against their definition, splits, balance, floors and bad input."""

import dataclasses
import hashlib
import os
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.ndimage import map_coordinates
from scipy.stats import bernoulli
from sklearn.metrics import log_loss

from stmaml.benchmarks.completion import SHOWCASE_PIXELS, Completion, Config, choose, linearly_mapped
from stmaml.benchmarks.grey_albums import _entropies, find_families
from stmaml.benchmarks.sources import TaskSet, check_batch, freeze
from stmaml.data.idx import PUBLISHED_MD5
from stmaml.errors import SettingError, SourceError
from stmaml.evaluation import among, evaluate
from stmaml.inner import InnerLoop
from stmaml.methods import st_maml
from stmaml.methods.base import AbstractMetaLearner, predict
from stmaml.progress import Told, listening
from stmaml.recipes import recipe
from stmaml.tasks import TaskBatch
from stmaml.training import TrainConfig, train_learners
from tests.changed import changed
from tests.idx_files import grey, idx_bytes, write_digits, write_family, write_idx

SMALL = changed(
    st_maml.Config(),
    hidden=(8, 8),
    encoder=(8,),
    z_hidden=(),
    z_size=4,
    h_size=4,
    inner=InnerLoop(inner_lr=0.1, inner_steps=2),
)


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> Path:
    """Families of 40, 30 and 20 training and 12, 9 and 6 test images of 5 x 4 pixels, known by their first byte."""
    return write_digits(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="module")
def config(digits) -> Config:
    return Config(data=str(digits), shots=6, val_share=0.1)


@pytest.fixture(scope="module")
def learner(config) -> AbstractMetaLearner:
    return SMALL.build(config.open().train.spec, key=jr.key(0))


@eqx.filter_jit
def draw(source, num_tasks: int, key) -> TaskBatch:
    return source.sample(num_tasks, key=key)


@pytest.fixture(scope="module")
def many(config) -> TaskBatch:
    """4,000 training tasks of each family."""
    return draw(config.open().train, 12_000, jr.key(0))


def firsts(batch: TaskBatch) -> np.ndarray:
    """The top left byte of each image asked for, which tells images apart."""
    return np.rint(np.asarray(batch.tasks.query.y)[:, 0, 0] * 255).astype(int)


def observed(batch: TaskBatch) -> np.ndarray:
    """The raster index of each observed pixel."""
    x = np.asarray(batch.tasks.support.x)
    return np.rint(x[..., 0] * 4 * 4 + x[..., 1] * 3).astype(int)


def test_tasks_fit_their_spec(config, key):
    benchmark = config.open()
    for source in (benchmark.train, benchmark.val, benchmark.test):
        batch = draw(source, 9, key)
        check_batch(batch, source.spec)
        assert batch.tasks.support.x.shape == (9, 6, 2)
        assert batch.tasks.query.y.shape == (9, 20, 1)
    assert benchmark.train.spec.target == "binary"
    assert benchmark.families == ("mnist", "fashion-mnist", "kmnist")
    assert benchmark.conditions == {"families": ("mnist", "fashion-mnist", "kmnist"), "shots": 6}


def test_a_task_is_its_image(config, key):
    """Against the file: coordinates are row / 4 and column / 3, targets are bytes / 255, in raster order."""
    batch = draw(config.open().test, 9, key)
    rows, columns = np.divmod(np.arange(20), 4)
    for i, first in enumerate(firsts(batch)):
        image = grey(1, first=first)[0]
        np.testing.assert_allclose(batch.tasks.query.x[i], np.stack([rows / 4, columns / 3], 1), atol=1e-6)
        np.testing.assert_allclose(batch.tasks.query.y[i, :, 0], image.reshape(-1) / 255, atol=1e-6)
        seen = observed(batch)[i]
        np.testing.assert_allclose(batch.tasks.support.y[i, :, 0], image.reshape(-1)[seen] / 255, atol=1e-6)
    assert (np.asarray(batch.tasks.query.weight) == 1).all()


def test_the_same_key_gives_the_same_tasks_and_another_key_others(config, key):
    source = config.open().train
    first, again, other = (draw(source, 9, k) for k in (key, key, jr.key(1)))
    np.testing.assert_array_equal(first.tasks.support.x, again.tasks.support.x)
    np.testing.assert_array_equal(firsts(first), firsts(again))
    assert (firsts(first) != firsts(other)).any()
    assert (observed(first) != observed(other)).any()


def test_observed_pixels_are_distinct_and_uniform(many):
    """12,000 tasks of 6 pixels of 20: each pixel 3,600 times, within five standard deviations."""
    seen = observed(many)
    assert all(len(set(row)) == 6 for row in seen[:500].tolist())
    counts = np.bincount(seen.reshape(-1), minlength=20)
    assert len(counts) == 20
    assert np.abs(counts - 3600).max() < 5 * np.sqrt(12_000 * 0.3 * 0.7)
    first = np.bincount(seen[:, 0], minlength=20)
    assert np.abs(first - 600).max() < 5 * np.sqrt(12_000 * 0.05 * 0.95)


def test_chosen_numbers_are_a_permutation_whose_beginning_does_not_depend_on_its_length(key):
    np.testing.assert_array_equal(np.sort(choose(50, 50, key=key)), np.arange(50))
    np.testing.assert_array_equal(choose(50, 8, key=key), choose(50, 50, key=key)[:8])


def test_fewer_shots_are_the_first_of_the_same_pixels_of_the_same_images(config, key):
    few, many = (dataclasses.replace(config, shots=shots).open().test for shots in (2, 15))
    small, large = (freeze(source, 12, seed=2).batch for source in (few, many))
    np.testing.assert_array_equal(firsts(small), firsts(large))
    np.testing.assert_array_equal(observed(small), observed(large)[:, :2])


def test_all_pixels_may_be_observed(config, key):
    seen = observed(draw(dataclasses.replace(config, shots=20).open().test, 3, key))
    np.testing.assert_array_equal(np.sort(seen, axis=1), np.tile(np.arange(20), (3, 1)))


def test_no_image_is_in_two_splits(config, many, key):
    """Drawn until all were seen: test images are the test files', the rest is split without overlap."""
    benchmark = config.open()
    train, val, test = (
        set(firsts(batch).tolist()) for batch in (many, draw(benchmark.val, 36, key), draw(benchmark.test, 36, key))
    )
    starts = {0: 40, 80: 30, 160: 20}
    assert test == {first + n + i for first, n in starts.items() for i in range(3 * n // 10)}
    assert train | val == {first + i for first, n in starts.items() for i in range(n)}
    assert not train & val
    assert [len([v for v in val if first <= v < first + 80]) for first in starts] == [4, 3, 2]


def test_validation_images_are_spread_over_the_file(config, key):
    val = sorted(v for v in set(firsts(draw(config.open().val, 36, key)).tolist()) if v < 80)
    np.testing.assert_array_equal(np.diff(val), 10)


@pytest.mark.parametrize("num_tasks", [3, 36])
def test_training_batches_have_every_family_equally_often(num_tasks, config, key):
    for i in range(4):
        batch = draw(config.open().train, num_tasks, jr.fold_in(key, i))
        np.testing.assert_array_equal(np.bincount(batch.family, minlength=3), np.full(3, num_tasks // 3))
        np.testing.assert_array_equal(firsts(batch) // 80, batch.family)


def test_training_batches_begin_with_any_family(config, key):
    source = config.open().train
    assert {int(draw(source, 1, jr.fold_in(key, i)).family[0]) for i in range(30)} == {0, 1, 2}


def test_unbalanced_batches_draw_the_family_at_random(config, key):
    batch = draw(dataclasses.replace(config, balanced=False).open().train, 3000, key)
    counts = np.bincount(batch.family, minlength=3)
    assert (counts != 1000).any()
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(1000 * 2 / 3)


def test_training_images_are_uniform_within_their_family(many):
    """18 of the 20 images of the third family are for training: 4,000 draws, 222 of each."""
    counts = np.bincount(firsts(many)[np.asarray(many.family) == 2] - 160, minlength=20)
    used = counts[counts > 0]
    assert len(used) == 18
    assert np.abs(used - 4000 / 18).max() < 5 * np.sqrt(4000 / 18)


def test_test_images_come_once_before_any_comes_twice(config, key):
    """6 images in the smallest family: 18 tasks have them all once, 27 repeat some."""
    source = config.open().test
    batch = draw(source, 18, key)
    np.testing.assert_array_equal(batch.family, np.arange(18) % 3)
    assert len(set(firsts(batch).tolist())) == 18
    more = draw(source, 27, key)
    counts = np.unique(firsts(more)[np.asarray(more.family) == 2], return_counts=True)[1]
    np.testing.assert_array_equal(np.sort(counts), [1, 1, 1, 2, 2, 2])
    np.testing.assert_array_equal(more.tasks.support.x[:18], batch.tasks.support.x)


def test_repeated_images_have_other_pixels_observed(config, key):
    batch = draw(config.open().test, 36, key)
    same = np.flatnonzero(firsts(batch) == firsts(batch)[2])
    assert len(same) == 2
    assert set(observed(batch)[same[0]].tolist()) != set(observed(batch)[same[1]].tolist())


def test_a_part_of_the_pixels_may_be_asked_in_training_alone(config, key):
    benchmark = dataclasses.replace(config, query_size=5).open()
    query = draw(benchmark.train, 2000, key).tasks.query
    assert query.x.shape == (2000, 5, 2)
    index = np.rint(np.asarray(query.x)[..., 0] * 16 + np.asarray(query.x)[..., 1] * 3).astype(int)
    assert all(len(set(row)) == 5 for row in index[:300].tolist())
    counts = np.bincount(index.reshape(-1), minlength=20)
    assert np.abs(counts - 500).max() < 5 * np.sqrt(2000 * 0.25 * 0.75)
    base = (np.asarray(query.y)[..., 0] * 255 - 7 * index) % 256  # every pixel of an image gives its first byte
    np.testing.assert_allclose(np.rint(base) % 256, np.rint(base[:, :1]) % 256 @ np.ones((1, 5)))
    assert eqx.filter_eval_shape(draw, benchmark.test, 2, key).tasks.query.x.shape == (2, 20, 2)


def test_waves_stand_beside_the_coordinates_of_the_same_tasks(config, key):
    """Images of 5 x 4 pixels have three octaves: two coordinates, six sines, six cosines."""
    plain, waved = config.open(), dataclasses.replace(config, inputs="waves").open()
    assert waved.train.spec.x_shape == (14,)
    assert waved.conditions == plain.conditions
    for name in ("train", "test"):
        one, other = (draw(getattr(benchmark, name), 3, key).tasks for benchmark in (plain, waved))
        for part in ("support", "query"):
            x, y = (np.asarray(values) for values in (getattr(one, part).x, getattr(one, part).y))
            np.testing.assert_array_equal(getattr(other, part).y, y)
            waves = np.asarray(getattr(other, part).x)
            np.testing.assert_array_equal(waves[..., :2], x)
            np.testing.assert_allclose(waves[..., 2:5], np.sin(np.pi * x[..., :1] * [1, 2, 4]), atol=1e-5)
            np.testing.assert_allclose(waves[..., 11:], np.cos(np.pi * x[..., 1:] * [1, 2, 4]), atol=1e-5)


def test_observed_pixels_are_known_among_all_by_their_waves(config, key):
    """Unobserved pixels are scored apart: their inputs are compared number by number."""
    tasks = freeze(dataclasses.replace(config, inputs="waves").open().test, 3, seed=2).batch.tasks
    for i, seen in enumerate(observed(TaskBatch(tasks, jnp.zeros(3, dtype=int)))):
        support = jax.tree.map(lambda leaf, i=i: jnp.asarray(leaf)[i], tasks.support)
        expected = np.isin(np.arange(20), seen)
        np.testing.assert_array_equal(among(jnp.asarray(tasks.query.x)[i], support), expected)


def test_training_images_are_moved_by_whole_pixels(config, key):
    """Images count on from their first byte in steps of 7: each moved one is looked for among the 25 moves by hand."""
    benchmark = dataclasses.replace(config, shift=2).open()
    batch = draw(benchmark.train, 600, key)
    still = draw(config.open().train, 600, key)
    moves = [(down, right) for down in range(-2, 3) for right in range(-2, 3)]
    rows, columns = np.arange(5), np.arange(4)
    found = []
    for image, first in zip(np.asarray(batch.tasks.query.y), firsts(still), strict=True):
        original = grey(1, first=first)[0]
        candidates = [
            original[np.clip(rows - down, 0, 4)][:, np.clip(columns - right, 0, 3)].reshape(-1) for down, right in moves
        ]
        errors = [np.abs(image[:, 0] * 255 - candidate).max() for candidate in candidates]
        assert min(errors) < 0.01
        found.append(int(np.argmin(errors)))
    counts = np.bincount(found, minlength=25)
    assert np.abs(counts - 24).max() < 5 * np.sqrt(24), "every move equally often"
    np.testing.assert_array_equal(batch.tasks.support.x, still.tasks.support.x)
    seen = observed(batch)
    np.testing.assert_allclose(
        batch.tasks.support.y[:, :, 0], np.take_along_axis(np.asarray(batch.tasks.query.y)[..., 0], seen, axis=1)
    )


@pytest.mark.parametrize("matrix", [[[0.9, 0.2], [-0.1, 1.1]], [[1.3, 0.0], [0.4, 0.7]], [[1.0, 0.0], [0.0, 1.0]]])
def test_an_image_under_a_linear_map_is_that_of_scipy(matrix, key):
    image = np.asarray(jr.uniform(key, (6, 5)))
    middle = np.array([2.5, 2.0])
    away = np.stack(np.meshgrid(np.arange(6), np.arange(5), indexing="ij")) - middle[:, None, None]
    source = np.einsum("ij,jrc->irc", np.array(matrix), away) + middle[:, None, None]
    want = map_coordinates(image, source, order=1, mode="nearest")
    got = jax.jit(linearly_mapped, static_argnums=1)(jnp.asarray(image).reshape(-1, 1), (6, 5), jnp.array(matrix))
    np.testing.assert_allclose(got.reshape(6, 5), want, atol=1e-5)


def test_half_of_the_training_images_are_distorted(config, key):
    bent = draw(dataclasses.replace(config, distort=0.2).open().train, 600, key)
    still = draw(config.open().train, 600, key)
    change = np.abs(np.asarray(bent.tasks.query.y) - np.asarray(still.tasks.query.y)).max(axis=(1, 2))
    assert abs((change > 0).sum() - 300) < 5 * np.sqrt(150)
    np.testing.assert_array_equal(bent.tasks.support.x, still.tasks.support.x)
    seen = observed(bent)
    np.testing.assert_allclose(
        bent.tasks.support.y[:, :, 0], np.take_along_axis(np.asarray(bent.tasks.query.y)[..., 0], seen, axis=1)
    )


@pytest.mark.parametrize("setting", [{"shift": 2}, {"distort": 0.2}])
def test_test_images_are_never_moved(setting, config, key):
    moved, still = (each.open() for each in (dataclasses.replace(config, **setting), config))
    for name in ("val", "test"):
        one, other = (draw(getattr(benchmark, name), 9, key) for benchmark in (moved, still))
        np.testing.assert_array_equal(one.tasks.query.y, other.tasks.query.y)


def test_no_more_pixels_are_asked_than_there_are(config, key):
    few, all_asked = (dataclasses.replace(config, query_size=size).open().train for size in (784, None))
    np.testing.assert_array_equal(draw(few, 3, key).tasks.query.x, draw(all_asked, 3, key).tasks.query.x)


def test_random_shots_lie_between_their_bounds_in_training_alone(config, key):
    benchmark = dataclasses.replace(config, min_shots=2).open()
    weight = np.asarray(draw(benchmark.train, 1000, key).tasks.support.weight)
    counts = np.bincount(weight.sum(1).astype(int), minlength=7)
    assert counts[:2].sum() == 0
    assert np.abs(counts[2:] - 200).max() < 5 * np.sqrt(200)
    assert (np.diff(weight, axis=1) <= 0).all()
    assert np.asarray(draw(benchmark.test, 50, key).tasks.support.weight).min() == 1


def test_images_stay_bytes_and_are_read_once(config):
    benchmark = config.open()
    train = benchmark.train
    assert isinstance(train, Completion)
    assert train.album.pixels.dtype == jnp.uint8
    other = benchmark.vary(dataclasses.replace(config, shots=3)).train
    assert isinstance(other, Completion)
    assert other.album is train.album


def test_progress_is_told(tmp_path):
    told: list[Told] = []
    with listening(told.append):
        Config(data=str(write_digits(tmp_path)), shots=2).open()
    assert told == [Told("reading families", i, 3) for i in (1, 2, 3)]


def test_the_frozen_test_set_stays_the_same(config):
    """Scores of years apart are only comparable on the same tasks."""
    assert freeze(config.open().test, 9, seed=2).digest == "6458add7093c065a"


# Which families there are.


def test_the_papers_families_come_first_and_others_by_name(tmp_path):
    for name in ("zebra", "kmnist", "alpha", "mnist"):
        write_family(tmp_path / name, train=grey(4), test=grey(2))
    (tmp_path / "empty").mkdir()
    assert list(find_families(tmp_path)) == ["mnist", "kmnist", "alpha", "zebra"]
    assert Config(data=str(tmp_path), families=("zebra", "mnist"), shots=2).open().families == ("zebra", "mnist")


def test_a_folder_of_images_is_a_family_by_itself(tmp_path):
    write_family(tmp_path / "mine", train=grey(4), test=grey(2))
    assert Config(data=str(tmp_path / "mine"), shots=2).open().conditions["families"] == ("mine",)


def test_the_data_are_found_below_the_folder_in_the_environment(digits, tmp_path, monkeypatch):
    (tmp_path / "digits").symlink_to(digits)
    monkeypatch.setenv("STMAML_DATA", str(tmp_path))
    assert Config(shots=2).open().families == ("mnist", "fashion-mnist", "kmnist")


# Recipes.


def test_the_released_preset_is_that_of_the_authors():
    """What the preset `paper` has beyond their code, it does not have."""
    experiment: Any = recipe("completion", "st-maml", "released")
    released = experiment.method_settings
    assert released.encoder.z_hidden == ()
    assert released.encoder.std_start is None
    assert released.codes.code_clamp is None
    assert released.inner == InnerLoop(inner_lr=5e-3, inner_steps=3, inner_clamp=10.0)
    assert not experiment.modelling.standardise
    assert experiment.training.warmup == 0


# Nothing leaks.


def with_targets(batch: TaskBatch, y) -> TaskBatch:
    return eqx.tree_at(lambda b: b.tasks.query.y, batch, y)


def test_shuffled_query_targets_leave_predictions_unchanged(config, learner, key):
    """The released code handed query targets to the encoder at test; here z comes from the support alone."""
    batch = draw(config.open().test, 9, key)
    other = with_targets(batch, jr.permutation(jr.key(5), batch.tasks.query.y, axis=1))
    assert (np.asarray(other.tasks.query.y) != np.asarray(batch.tasks.query.y)).any()

    @jax.jit
    @jax.vmap
    def means(task):
        return predict(learner, task.support, task.query.x, num_samples=3, key=key).mean

    np.testing.assert_array_equal(means(batch.tasks), means(other.tasks))


def test_scores_are_those_of_predictions_that_do_not_know_the_targets(config, learner, key):
    """With targets all c, the squared error of fixed predictions is a parabola in c of leading coefficient 1."""
    batch = freeze(config.open().test, 6, seed=2).batch

    def error(level: float) -> np.ndarray:
        tasks = TaskSet(with_targets(batch, np.full((6, 20, 1), level, dtype=np.float32)), "")
        return evaluate(learner, tasks, num_samples=2, key=key).values["mse"]

    np.testing.assert_allclose(error(0.5), (error(0.0) + error(1.0)) / 2 - 0.25, atol=1e-6)


def test_tasks_are_drawn_inside_the_compiled_training_step(config, learner, key):
    training = TrainConfig(steps=2, tasks_per_batch=3, steps_per_call=2, val_every=2, val_tasks=3, val_metric="bce")
    benchmark = config.open()
    assert isinstance(benchmark.train, Completion)
    assert issubclass(Completion, eqx.Module)
    val = freeze(benchmark.val, 3, seed=1)
    (trained,) = train_learners([learner], benchmark.train, val, training, keys=[key])
    before, after = jax.tree.leaves(learner), jax.tree.leaves(trained)
    assert all(np.isfinite(leaf).all() for leaf in after)
    assert any((old != new).any() for old, new in zip(before, after, strict=True))


# The floor.


def entropy_floor(images: np.ndarray) -> float:
    return float(_entropies(images.reshape(1, -1))[0])


def test_the_entropy_floor_is_the_cross_entropy_of_the_truth_with_itself():
    images = grey(3)
    p = images.reshape(-1) / 255
    np.testing.assert_allclose(entropy_floor(images), bernoulli.entropy(p).mean(), rtol=1e-12)
    grey_half = np.full((2, 3, 3), 51, dtype=np.uint8)  # a fifth white: as many ones and zeros as that
    np.testing.assert_allclose(entropy_floor(grey_half), log_loss([1, 0, 0, 0, 0], [0.2] * 5), rtol=1e-9)
    assert entropy_floor(np.array([[[0, 255]]], dtype=np.uint8)) == 0


def test_the_floor_of_a_benchmark_counts_every_family_the_same(config):
    floor = config.open().floor()
    assert floor is not None
    means = [entropy_floor(grey(3 * n // 10, first=80 * i + n)) for i, n in enumerate((40, 30, 20))]
    assert floor["tasks"] == 27
    for metric in ("bce", "bce_unseen"):
        np.testing.assert_allclose([floor["families"][f][metric]["mean"] for f in floor["families"]], means, rtol=1e-9)
        np.testing.assert_allclose(floor["metrics"][metric]["mean"], np.mean(means), rtol=1e-9)
    halves = [floor["families"][f]["bce"]["ci95"] for f in floor["families"]]
    np.testing.assert_allclose(floor["metrics"]["bce"]["ci95"], np.sqrt(np.square(halves).sum()) / 3)


def test_the_floor_of_the_real_digits_is_the_known_one():
    root = os.environ.get("STMAML_DATA") or Path(__file__).parents[2].parent / "shared" / "data"
    folder = Path(root) / "digits"
    if not folder.is_dir():
        pytest.skip("the real digits are not there: set STMAML_DATA to the folder with 'digits'")
    floor = Config(data=str(folder), families=("mnist", "fashion-mnist", "kmnist")).open().floor()
    assert floor is not None
    got = [floor["families"][name]["bce"]["mean"] for name in ("mnist", "fashion-mnist", "kmnist")]
    np.testing.assert_allclose(got, [0.058, 0.242, 0.104], atol=6e-4)
    np.testing.assert_allclose(floor["metrics"]["bce"]["mean"], 0.135, atol=6e-4)


# Figures.


def test_showcases_show_an_image_of_each_family_through_few_pixels_and_more(tmp_path):
    benchmark = Config(data=str(write_digits(tmp_path, height=8, width=7)), shots=2).open()
    shown = {showcase.name: showcase for showcase in benchmark.showcases()}
    assert list(shown) == [f"{family}-pixels{n}" for family in benchmark.families for n in SHOWCASE_PIXELS]
    few, many = shown["fashion-mnist-pixels8"], shown["fashion-mnist-pixels40"]
    np.testing.assert_allclose(few.truth[:, 0] * 255, grey(1, first=110, height=8, width=7).reshape(-1), atol=1e-4)
    np.testing.assert_array_equal(few.truth, many.truth)
    np.testing.assert_array_equal(few.axis, np.arange(56) % 7)
    np.testing.assert_array_equal(few.support.x[:8], many.support.x[:8])
    assert few.support.x.shape == many.support.x.shape == (40, 2)
    assert (few.support.weight.sum(), many.support.weight.sum()) == (8, 40)
    index = np.rint(np.asarray(many.support.x) @ [7 * 7, 6]).astype(int)
    np.testing.assert_array_equal(many.support.y[:, 0], many.truth[index, 0])


def test_showcases_are_told_as_the_method_was(tmp_path):
    folder = str(write_digits(tmp_path, height=8, width=7))
    plain, waved = (
        Config(data=folder, shots=2, inputs=inputs).open().showcases() for inputs in ("coordinates", "waves")
    )
    assert waved[0].x.shape == (56, 2 + 4 * 3)
    np.testing.assert_array_equal(waved[0].support.x[:8, :2], plain[0].support.x[:8])
    np.testing.assert_array_equal(waved[0].support.y, plain[0].support.y)


def test_images_smaller_than_the_showcases_show_all_their_pixels(config):
    weights = [float(showcase.support.weight.sum()) for showcase in config.open().showcases()]
    assert weights == [8, 20] * 3


# Bad input.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shots": 0}, "--shots must be at least 1; got 0"),
        ({"query_size": 0}, "--query-size must be at least 1; got 0"),
        ({"min_shots": 41}, r"--min-shots must lie between 0 and --shots \(40\); got 41"),
        ({"min_shots": -1}, r"--min-shots must lie between 0 and --shots \(40\); got -1"),
        ({"shift": -1}, "--shift must be at least 0; got -1"),
        ({"distort": -0.1}, "--distort must be at least 0 and below 1; got -0.1"),
        ({"distort": 1.0}, "--distort must be at least 0 and below 1; got 1.0"),
        ({"val_share": 0.0}, "--val-share must lie between 0 and 1; got 0.0"),
        ({"val_share": 1.0}, "--val-share must lie between 0 and 1; got 1.0"),
        ({"families": ("mnist", "mnist")}, "--families names one twice: mnist mnist"),
    ],
)
def test_settings_that_make_no_sense_are_refused(change, message):
    with pytest.raises(SettingError, match=message):
        Config(**change)


def test_more_observed_pixels_than_there_are_are_refused(config):
    with pytest.raises(SettingError, match="--shots must be at most 20, as the images have 5 x 4 pixels; got 21"):
        dataclasses.replace(config, shots=21).open()


def test_images_are_not_moved_out_of_themselves(config):
    with pytest.raises(SettingError, match="--shift must be below 4, as the images have 5 x 4 pixels; got 4"):
        dataclasses.replace(config, shift=4).open()


def test_images_of_a_published_name_without_its_checksum_are_named(tmp_path, monkeypatch):
    for name in ("mnist", "own"):
        write_family(tmp_path / name, train=grey(4), test=grey(2))
    told = "images without the checksum of the published files: mnist "
    assert Config(data=str(tmp_path), shots=2).open().notes == (f"{told}train, mnist t10k",)
    content = (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").read_bytes()
    monkeypatch.setitem(PUBLISHED_MD5, hashlib.md5(content).hexdigest(), "made up")
    assert Config(data=str(tmp_path), shots=2, val_share=0.3).open().notes == (f"{told}t10k",)
    assert Config(data=str(tmp_path), shots=2, families=("own",)).open().notes == ()


def test_a_family_that_is_not_there_is_refused_with_those_that_are(config):
    with pytest.raises(SettingError, match="no images of a family 'emnist'; it has: mnist, fashion-mnist, kmnist"):
        dataclasses.replace(config, families=("emnist",)).open()


def test_a_folder_without_images_says_what_to_put_there(tmp_path):
    with pytest.raises(SourceError, match=r"holds no images: expected sub-folders such as mnist.*pictures in train/"):
        Config(data=str(tmp_path)).open()


def test_a_file_in_place_of_the_folder_is_refused(digits):
    path = digits / "mnist" / "train-images-idx3-ubyte.gz"
    with pytest.raises(SourceError, match="is a file; expected a folder with images"):
        Config(data=str(path)).open()


def test_families_of_different_sizes_are_refused(tmp_path):
    write_family(tmp_path / "mnist", train=grey(4), test=grey(2))
    write_family(tmp_path / "other", train=grey(4, height=6), test=grey(2, height=6))
    with pytest.raises(
        SourceError, match="images of other have 6 x 4 pixels, those of mnist 5 x 4; families must have"
    ):
        Config(data=str(tmp_path), shots=2).open()


def test_test_images_of_another_size_are_refused(tmp_path):
    write_family(tmp_path / "mnist", train=grey(4), test=grey(2, width=5))
    with pytest.raises(SourceError, match=r"training images of mnist have 5 x 4 pixels, its test images 5 x 5. Scale"):
        Config(data=str(tmp_path), shots=2).open()


@pytest.mark.parametrize(("count", "share"), [(1, 0.05), (3, 0.9)])
def test_too_few_images_for_a_validation_set_are_refused(count, share, tmp_path):
    write_family(tmp_path / "mnist", train=grey(count), test=grey(2))
    with pytest.raises(SourceError, match=rf"has {count} training image\(s\), too few to keep . of them"):
        Config(data=str(tmp_path), shots=2, val_share=share).open()


def test_a_family_without_test_images_is_refused(tmp_path):
    write_idx(tmp_path / "mnist" / "train-images-idx3-ubyte", grey(4))
    with pytest.raises(SourceError, match=r"has no t10k-images-idx3-ubyte.gz"):
        Config(data=str(tmp_path), shots=2).open()


def test_a_damaged_file_is_named(tmp_path):
    write_family(tmp_path / "mnist", train=grey(4), test=grey(2), ending="")
    (tmp_path / "mnist" / "t10k-images-idx3-ubyte").write_bytes(idx_bytes(grey(2))[:-1])
    with pytest.raises(SourceError, match="t10k-images-idx3-ubyte promises 2 x 5 x 4 = 40 bytes of data but has 39"):
        Config(data=str(tmp_path), shots=2).open()
