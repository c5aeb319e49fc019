"""Few-shot tasks of pictures: what is drawn, against the pictures that were written."""

import dataclasses
import os
import shutil
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from PIL import Image
from scipy.stats import chisquare

from stmaml.benchmarks import plain_multi
from stmaml.benchmarks.class_albums import find_datasets
from stmaml.benchmarks.held_images import HostImages, Images
from stmaml.benchmarks.plain_multi import Config, Draw, FewShot
from stmaml.benchmarks.sources import DrawingSource, check_batch, freeze, measure_scaling
from stmaml.data.pictures import decode_pictures
from stmaml.errors import SettingError, SourceError
from stmaml.tasks import TaskBatch
from tests.picture_files import colours, pack, turned, write_dataset, write_picture

IMAGES = 8
CLASSES = (6, 5, 5)
SIZE = IMAGES * sum(CLASSES)


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """Two data sets: one a folder, one a tar file."""
    folder = tmp_path_factory.mktemp("pictures")
    write_dataset(folder / "bird", classes=CLASSES, images=IMAGES)
    write_dataset(folder / "moss", classes=(7, 5, 6), images=IMAGES, first=SIZE)
    pack(folder / "moss", folder / "moss.tar")
    shutil.rmtree(folder / "moss")
    return folder


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STMAML_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def config(root: Path, **changes) -> Config:
    usual = Config(data=str(root), ways=3, shots=2, query_per_class=4, image_size=8)
    return dataclasses.replace(usual, **changes)


def few_shot(root: Path, split: str = "train", **changes) -> FewShot:
    source = getattr(config(root, **changes).open(), split)
    assert isinstance(source, FewShot)
    return source


@eqx.filter_jit
def draw(source: FewShot, num_tasks: int, key: jax.Array) -> Draw:
    return source.draw(num_tasks, key=key)


@eqx.filter_jit
def sample(source: FewShot, num_tasks: int, key: jax.Array) -> TaskBatch:
    return source.sample(num_tasks, key=key)


def written(first: int, classes: tuple[int, int, int]) -> dict[bytes, tuple[str, int]]:
    """Every picture's bytes with its split and class, as `write_dataset` wrote them."""
    places = [
        (split, number)
        for split, count in zip(("train", "val", "test"), classes, strict=True)
        for number in range(count)
    ]
    return {
        colours(first + IMAGES * i + image).tobytes(): place
        for i, place in enumerate(places)
        for image in range(IMAGES)
    }


KNOWN = {
    **{k: ("bird", *v) for k, v in written(0, CLASSES).items()},
    **{k: ("moss", *v) for k, v in written(SIZE, (7, 5, 6)).items()},
}


def origins(x: jax.Array | np.ndarray) -> list[list[tuple[str, str, int]]]:
    """Data set, split and class of each image of each task, by its pixels."""
    pixels = np.rint(np.asarray(x) * 255).astype(np.uint8)
    return [[KNOWN[image.tobytes()] for image in task] for task in pixels]


def test_the_pictures_of_this_test_are_all_different():
    assert len(KNOWN) == SIZE + IMAGES * 18


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_task_has_classes_of_one_data_set_and_split_numbered_as_they_stand(split, root, key):
    benchmark = config(root).open()
    source = getattr(benchmark, split)
    batch = sample(source, 10, key)
    check_batch(batch, source.spec)
    assert source.spec.x_shape == (8, 8, 3)
    assert (source.spec.y_size, source.spec.target) == (3, "class")
    query = 4 if split == "train" else 2
    assert batch.tasks.support.x.shape == (10, 6, 8, 8, 3)
    assert batch.tasks.query.x.shape == (10, 3 * query, 8, 8, 3)
    for i, family in enumerate(np.asarray(batch.family)):
        both = [origins(part.x[i][None])[0] for part in (batch.tasks.support, batch.tasks.query)]
        labels = [np.asarray(part.y[i]) for part in (batch.tasks.support, batch.tasks.query)]
        assert {(dataset, where) for dataset, where, _ in both[0] + both[1]} == {(benchmark.families[family], split)}
        of_label = {int(label): number for (_, _, number), label in zip(both[0], labels[0], strict=True)}
        assert len(set(of_label.values())) == 3
        assert all(of_label[int(label)] == number for (_, _, number), label in zip(both[1], labels[1], strict=True))
        assert np.bincount(labels[0]).tolist() == [2] * 3
        assert np.bincount(labels[1]).tolist() == [query] * 3


def test_support_and_query_share_no_image_and_neither_has_one_twice(root, key):
    drawn = draw(few_shot(root), 200, key)
    both = np.concatenate([np.asarray(drawn.support), np.asarray(drawn.query)], axis=1)
    assert all(len(set(rows)) == len(rows) for rows in both.tolist())
    assert np.asarray(drawn.weight).min() == 1


def test_no_class_and_no_image_is_in_two_splits(root):
    benchmark = config(root).open()
    seen = {}
    for split in ("train", "val", "test"):
        source = getattr(benchmark, split)
        rows = np.unique(np.asarray(source.table))
        seen[split] = {tuple(origin) for origin in origins(np.asarray(source.images(jnp.asarray(rows)))[None] / 255)[0]}
    assert {split: {where for _, where, _ in found} for split, found in seen.items()} == {s: {s} for s in seen}
    digests = {
        split: {image.tobytes() for image in np.asarray(getattr(benchmark, split).images.pixels)} for split in seen
    }
    assert not digests["train"] & digests["val"]
    assert not digests["train"] & digests["test"]
    assert not digests["val"] & digests["test"]
    assert sum(len(found) for found in digests.values()) == len(KNOWN)


def test_labels_are_permuted_from_task_to_task_without_preference(root, key):
    source = few_shot(root)
    drawn = draw(source, 3000, key)
    bird = np.asarray(drawn.family) == 0
    first = np.asarray(drawn.support)[bird].reshape(bird.sum(), 3, 2)[:, :, 0] // IMAGES  # class under each label
    for label in range(3):
        counts = np.bincount(first[:, label], minlength=6)
        assert counts.shape == (6,)
        assert chisquare(counts).pvalue > 1e-3
    orders = np.array([3 * int(np.argmax(row)) + int(np.argmin(row)) for row in first])
    assert chisquare(np.bincount(orders, minlength=9)[[1, 2, 3, 5, 6, 7]]).pvalue > 1e-3


def test_every_image_of_a_class_is_drawn_equally_often_for_support_and_query(root, key):
    drawn = draw(few_shot(root), 3000, key)
    for rows in (drawn.support, drawn.query):
        counts = np.bincount(np.asarray(rows).reshape(-1), minlength=13 * IMAGES).reshape(13, IMAGES)
        for number in (0, 5, 12):
            # Drawn without replacement, counts vary less than the test supposes: it errs on the safe side.
            assert chisquare(counts[number]).pvalue > 1e-3


def test_training_draws_data_sets_at_random_and_testing_in_turn(root, key):
    benchmark = config(root).open()
    assert isinstance(benchmark.train, FewShot)
    assert isinstance(benchmark.test, FewShot)
    family = np.asarray(draw(benchmark.train, 3000, key).family)
    assert chisquare(np.bincount(family)).pvalue > 1e-3
    assert (family[:-1] == family[1:]).mean() > 0.4
    assert np.asarray(draw(benchmark.test, 7, key).family).tolist() == [0, 1, 0, 1, 0, 1, 0]


def test_the_same_key_gives_the_same_tasks_and_another_key_others(root, key):
    source = few_shot(root)
    one, same, other = (sample(source, 10, k) for k in (key, key, jr.fold_in(key, 1)))
    jax.tree.map(np.testing.assert_array_equal, one, same)
    assert (np.asarray(one.tasks.support.x) != np.asarray(other.tasks.support.x)).any()


def test_half_of_the_training_images_are_turned_and_no_test_image(root, key):
    one, other = sample(few_shot(root), 40, key), sample(few_shot(root, mirror=True), 40, key)
    for before, after in ((one.tasks.support, other.tasks.support), (one.tasks.query, other.tasks.query)):
        mirrored = turned(np.asarray(before.x), np.asarray(after.x))
        assert 0.4 < mirrored.mean() < 0.6
        np.testing.assert_array_equal(before.y, after.y)
        by_task_keys = [jr.bernoulli(k, shape=mirrored.shape) for k in jr.split(jr.split(key)[1])]
        assert not any((mirrored == np.asarray(each)).all() for each in by_task_keys)  # those the images are drawn by
    tested = [sample(few_shot(root, "test", mirror=mirror), 6, key) for mirror in (False, True)]
    jax.tree.map(np.testing.assert_array_equal, *tested)


@pytest.mark.parametrize("changes", [{"crop": 0.5}, {"tint": 0.3}])
def test_training_images_are_altered_and_no_test_image(root, key, changes):
    one, other = sample(few_shot(root), 4, key), sample(few_shot(root, **changes), 4, key)
    for before, after in ((one.tasks.support, other.tasks.support), (one.tasks.query, other.tasks.query)):
        assert (np.asarray(before.x) != np.asarray(after.x)).any((2, 3, 4)).all()
        np.testing.assert_array_equal(before.y, after.y)
    tested = [sample(few_shot(root, "test", **some), 6, key) for some in ({}, changes)]
    jax.tree.map(np.testing.assert_array_equal, *tested)


@pytest.mark.parametrize(
    ("changes", "words"), [({"crop": 0.0}, "--crop"), ({"crop": 1.5}, "--crop"), ({"tint": 1.0}, "--tint")]
)
def test_shares_that_make_no_sense_are_refused(changes, words):
    with pytest.raises(SettingError, match=words):
        Config(**changes)


def test_the_first_tasks_do_not_depend_on_how_many_are_asked_for(root, key):
    source = few_shot(root)
    few, many = draw(source, 3, key), draw(source, 200, key)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b[:3]), few, many)


def test_more_shots_extend_fewer_and_leave_the_queries(root, key):
    one, three = (draw(few_shot(root, "test", shots=shots, test_query_per_class=2), 20, key) for shots in (1, 3))
    np.testing.assert_array_equal(one.query, three.query)
    np.testing.assert_array_equal(
        np.asarray(one.support).reshape(20, 3, 1)[..., 0], np.asarray(three.support).reshape(20, 3, 3)[..., 0]
    )


def test_tests_ask_as_many_queries_as_there_are_shots_unless_told(root):
    assert few_shot(root, "test", shots=3).query_per_class == 3
    assert few_shot(root, "test", shots=3, test_query_per_class=5).query_per_class == 5
    assert few_shot(root, "train", shots=3).query_per_class == 4


def test_a_training_class_with_few_images_gives_the_queries_it_has(tmp_path, key):
    write_dataset(tmp_path / "bird", images=4)
    source = few_shot(tmp_path, query_per_class=5)
    drawn = draw(source, 50, key)
    weight = np.asarray(drawn.weight).reshape(50, 3, 5)
    np.testing.assert_array_equal(weight, np.broadcast_to([1, 1, 0, 0, 0], weight.shape))
    real = np.where(weight > 0, np.asarray(drawn.query).reshape(weight.shape), -1)
    for support, query in zip(np.asarray(drawn.support), real, strict=True):
        asked = query[query >= 0].tolist()
        assert len(set(asked)) == len(asked) == 6
        assert not set(asked) & set(support.tolist())
    check_batch(sample(source, 4, key), source.spec)


def test_images_on_the_host_make_the_same_tasks(root, key):
    device, host = (few_shot(root, images_on=place) for place in ("device", "host"))
    assert isinstance(device.images, Images)
    assert isinstance(host.images, HostImages)
    jax.tree.map(np.testing.assert_array_equal, sample(device, 6, key), sample(host, 6, key))
    seeds = [eqx.filter_vmap(lambda k, s=s: sample(s, 2, k))(jr.split(key, 3)) for s in (device, host)]
    jax.tree.map(np.testing.assert_array_equal, *seeds)
    assert device.content_digest == host.content_digest


def test_images_stay_on_the_host_if_they_would_fill_the_device(root, monkeypatch):
    used = len(KNOWN) * 8 * 8 * 3
    monkeypatch.setattr(plain_multi, "device_bytes", lambda: 4 * used)
    assert isinstance(few_shot(root).images, Images)
    monkeypatch.setattr(plain_multi, "device_bytes", lambda: 4 * used - 1)
    assert isinstance(few_shot(root).images, HostImages)
    assert isinstance(few_shot(root, images_on="device").images, Images)


def test_settings_that_use_the_same_images_share_them(root):
    benchmark = config(root).open()
    one, other = benchmark.test, benchmark.vary(config(root, shots=1)).test
    assert isinstance(one, FewShot)
    assert isinstance(other, FewShot)
    assert one.images is other.images
    assert one.settings != other.settings


def test_a_frozen_set_holds_places_and_makes_images_a_few_tasks_at_a_time(root):
    source = few_shot(root, "test")
    assert isinstance(source, DrawingSource)
    tasks = freeze(source, 10, seed=2)
    assert tasks.num_tasks == 10
    assert tasks.family.tolist() == [0, 1] * 5
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(tasks.stored)) < 2000
    chunks = list(tasks.chunks(4))
    assert [chunk.tasks.support.x.shape for chunk in chunks] == [(4, 6, 8, 8, 3)] * 3
    np.testing.assert_array_equal(np.asarray(chunks[1].tasks.query.x), np.asarray(tasks.batch.tasks.query.x)[4:8])
    np.testing.assert_array_equal(np.asarray(chunks[2].tasks.query.x[3]), np.asarray(tasks.batch.tasks.query.x)[9])
    assert tasks.task_bytes == sum(leaf.nbytes for leaf in jax.tree.leaves(chunks[0])) // 4


def test_the_digest_of_a_frozen_set_is_that_of_its_tasks_and_images(root, tmp_path):
    digest = freeze(few_shot(root, "test"), 10, seed=2).digest
    assert digest == "e1390be7057b7bb9"
    assert digest != freeze(few_shot(root, "test"), 10, seed=3).digest
    other = tmp_path / "other"
    shutil.copytree(root, other)
    write_picture(other / "bird" / "test" / "test0" / "000.png", colours(9999))
    assert digest != freeze(few_shot(other, "test"), 10, seed=2).digest


def test_folders_and_archives_of_the_same_pictures_give_the_same_tasks(root, tmp_path):
    pack(root / "bird", tmp_path / "bird.tar.gz", mode="w:gz")
    folder, archive = (few_shot(where, "test", datasets=("bird",)) for where in (root, tmp_path))
    one, other = (freeze(source, 6, seed=0) for source in (folder, archive))
    assert one.digest == other.digest
    np.testing.assert_array_equal(np.asarray(one.batch.tasks.query.x), np.asarray(other.batch.tasks.query.x))


def test_the_scaling_of_images_is_measured_on_some_of_them(root):
    scaling = measure_scaling(few_shot(root), num_tasks=10)
    assert len(scaling.x_mean) == 8 * 8 * 3
    assert 0.3 < np.mean(scaling.x_mean) < 0.7


def test_a_file_of_decoded_pictures_is_enough(root, tmp_path):
    sources = [path for path in sorted(root.iterdir())]
    kept = decode_pictures(sources, 8).path
    assert kept is not None
    copy = shutil.copy(kept, tmp_path / "elsewhere.npz")
    here, there = (config(root, data=str(data)).open() for data in (root, copy))
    assert here.conditions == there.conditions
    assert freeze(here.test, 6, seed=0).digest == freeze(there.test, 6, seed=0).digest
    assert config(root, data=str(copy), datasets=("moss",)).open().families == ("moss",)
    with pytest.raises(
        SourceError,
        match=r"holds pictures of 8 x 8 in 3 channels; these settings need 84 x 84 in 3. Use --image-size 8,",
    ):
        config(root, data=str(copy), image_size=84).open()
    with pytest.raises(SourceError, match=r"in 3 channels; these settings need 8 x 8 in 1"):
        config(root, data=str(copy), grey=True).open()
    with pytest.raises(SettingError, match=r"has no data set 'sea'; it has: bird, moss"):
        config(root, data=str(copy), datasets=("sea",)).open()


def test_grey_pictures_have_one_channel(root, key):
    source = few_shot(root, grey=True)
    assert source.spec.x_shape == (8, 8, 1)
    check_batch(sample(source, 2, key), source.spec)


def test_names_say_what_is_tested(root):
    benchmark = config(root).open()
    assert benchmark.families == ("bird", "moss")
    sizes = {"ways": 3, "shots": 2, "query": 2, "image_size": 8}
    assert benchmark.conditions == {"datasets": ("bird", "moss"), **sizes, "grey": False}
    moss = config(root, grey=True, datasets=("moss",)).open()
    assert moss.conditions == {"datasets": ("moss",), **sizes, "grey": True}
    assert benchmark.notes == ()


def test_one_data_set_may_be_named_itself(root):
    assert config(root / "bird").open().families == ("bird",)
    assert config(root / "moss.tar").open().families == ("moss",)
    assert list(find_datasets(root)) == ["bird", "moss"]


def test_data_are_found_by_the_environment(root, tmp_path, monkeypatch):
    (tmp_path / "plain-multi").symlink_to(root)
    monkeypatch.setenv("STMAML_DATA", str(tmp_path))
    assert config(root, data=None).open().families == ("bird", "moss")


# What users get wrong.


def test_bad_pictures_are_named_counted_and_left_out(tmp_path, key):
    bird = write_dataset(tmp_path / "bird")
    (bird / "train" / "train0" / "broken.jpg").write_bytes(b"not a picture")
    Image.new("L", (8, 8), 7).save(bird / "train" / "train1" / "grey.png")
    Image.new("CMYK", (8, 8), 7).save(bird / "train" / "train1" / "ink.jpg")
    write_picture(bird / "train" / "train2" / "twice.png", colours(16))  # the class's own first picture
    write_picture(bird / "train" / "train3" / "seen.png", colours(11 * 8))  # a test class's first picture
    write_picture(bird / "stray.png", colours(5000))
    write_picture(bird / "train" / "train9" / "alone.png", colours(5001))
    benchmark = config(tmp_path).open()
    notes = "\n".join(benchmark.notes)
    for note in (
        "unreadable picture, left out: 1, such as bird/train/train0/broken.jpg",
        "grey picture, made colour: 1, such as bird/train/train1/grey.png",
        "CMYK picture, made RGB: 1, such as bird/train/train1/ink.jpg",
        "picture that its class has already, left out: 1, such as bird/train/train2/twice.png",
        "picture that validation or test has too, left out: 1, such as bird/train/train3/seen.png",
        "picture outside train/, val/ and test/, passed over: 1, such as bird/stray.png",
        "class with too few pictures, left out: 1, such as bird/train/train9, which has 1 of 3",
    ):
        assert note in notes
    assert len(benchmark.notes) == 7
    assert isinstance(benchmark.train, FewShot)
    assert benchmark.train.counts.tolist() == [8, 10, 8, 8, 8, 8]
    check_batch(sample(benchmark.train, 3, key), benchmark.train.spec)


def test_too_few_classes_are_an_error_that_says_what_to_do(root, tmp_path):
    with pytest.raises(
        SourceError, match=r"^bird/val has 5 classes; --ways 6 needs as many. Use fewer ways, or leave the set"
    ):
        config(root, ways=6).open()
    bird = write_dataset(tmp_path / "bird")
    for path in list((bird / "test").glob("test[012]/00[4-7].png")):
        path.unlink()
    with pytest.raises(
        SourceError, match=r"bird/test has 2 classes \(3 more have fewer than 6 pictures\); --ways 3 needs"
    ):
        config(tmp_path, shots=3).open()


@pytest.mark.parametrize("gone", ["empty", "missing", "unreadable"])
def test_an_empty_split_is_an_error_that_says_what_to_do(gone, tmp_path):
    bird = write_dataset(tmp_path / "bird")
    shutil.rmtree(bird / "val")
    if gone != "missing":
        (bird / "val" / "finch").mkdir(parents=True)
    if gone == "unreadable":
        (bird / "val" / "finch" / "a.png").write_bytes(b"")
    why = r" \(of all, 1 could not be read, such as bird/val/finch/a.png \(not a picture\)\)"
    with pytest.raises(
        SourceError,
        match=f"^bird/val has no pictures{why if gone == 'unreadable' else ''}; expected bird/val/<class>/ with some.",
    ):
        config(tmp_path).open()


def test_several_sets_in_one_archive_are_not_taken_for_one(tmp_path):
    for i, name in enumerate(("bird", "moss")):
        write_dataset(tmp_path / "all" / name, first=SIZE * i)
    with pytest.raises(
        SourceError, match=r"^all holds more than one data set: there are .* in all/bird and in all/moss. Make each"
    ):
        config(pack(tmp_path / "all", tmp_path / "all.tar")).open()


def test_classes_in_two_splits_are_an_error(tmp_path):
    bird = write_dataset(tmp_path / "bird")
    (bird / "test" / "test1").rename(bird / "test" / "train4")
    with pytest.raises(
        SourceError, match=r"bird/train and bird/test share 1 of their classes, such as train4; classes to be"
    ):
        config(tmp_path).open()


def test_folders_without_data_sets_are_named(tmp_path):
    with pytest.raises(
        SourceError, match=r"holds no data set: expected <data set>/\{train,val,test\}/<class>/ of pictures"
    ):
        config(tmp_path).open()
    (tmp_path / "a.zip").write_bytes(b"")
    with pytest.raises(SourceError, match=r"a.zip is neither a folder nor a tar file"):
        config(tmp_path / "a.zip").open()
    with pytest.raises(SourceError, match=r"--data .*gone does not exist"):
        config(tmp_path / "gone").open()


def test_an_unknown_data_set_is_named(root):
    with pytest.raises(SettingError, match=r"has no data set 'fungi'; it has: bird, moss."):
        config(root, datasets=("bird", "fungi")).open()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ways": 1}, "--ways must be at least 2; got 1"),
        ({"shots": 0}, "--shots must be at least 1; got 0"),
        ({"query_per_class": 0}, "--query-per-class must be at least 1; got 0"),
        ({"test_query_per_class": 0}, "--test-query-per-class must be at least 1; got 0"),
        ({"image_size": 0}, "--image-size must be at least 1; got 0"),
        ({"datasets": ("a", "a")}, "--datasets names one twice: a a"),
    ],
)
def test_settings_without_sense_are_refused(changes, message):
    with pytest.raises(SettingError, match=message):
        Config(**changes)


@pytest.mark.slow
def test_the_real_sets_have_the_classes_their_readme_counts(key):
    folder = Path(os.environ.get("STMAML_DATA") or Path(__file__).parents[2].parent / "shared" / "data") / "plain-multi"
    if not folder.is_dir():
        pytest.skip("the real pictures are not there: set STMAML_DATA to the folder with 'plain-multi'")
    benchmark = Config(data=str(folder), images_on="host").open()
    assert benchmark.families == ("CUB_Bird", "DTD_Texture", "FGVC_Aircraft", "VGG_Flower")
    found = [getattr(benchmark, split).num_classes for split in ("train", "val", "test")]
    assert found == [(64, 30, 47, 64), (16, 7, 30, 16), (20, 10, 70, 22)]
    assert any("its class has already, left out: 17, such as DTD_Texture" in note for note in benchmark.notes)
    tasks = freeze(benchmark.test, 8, seed=2)
    assert tasks.batch.tasks.query.x.shape == (8, 25, 84, 84, 3)
