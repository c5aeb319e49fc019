import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from PIL import Image

from stmaml.benchmarks.altered import cropped, mirrored, tinted
from stmaml.tasks import Examples, Task, TaskBatch

SIZE = 24


@pytest.fixture
def batch() -> TaskBatch:
    """Two tasks of five pictures each, whose numbers are their places: rows in one channel, columns in another."""
    place = np.arange(SIZE) / (2 * SIZE)
    image = np.stack([*np.meshgrid(place, place, indexing="ij"), np.full((SIZE, SIZE), 0.3)], -1)
    x = jnp.asarray(np.broadcast_to(image, (2, 5, SIZE, SIZE, 3)))
    examples = jax.vmap(Examples.of, in_axes=(0, None))(x, jnp.arange(5))
    return TaskBatch(Task(examples, examples), jnp.zeros(2, dtype=int))


def pictures(batch: TaskBatch) -> np.ndarray:
    tasks = batch.tasks
    return np.concatenate([np.asarray(part.x).reshape(-1, SIZE, SIZE, 3) for part in (tasks.support, tasks.query)])


def test_a_window_is_what_another_library_cuts_out_and_scales(batch):
    """Inside, where no border is near: the picture is linear, so a window's slope is the picture's times its side."""
    found = pictures(cropped(batch, 0.4, key=jr.key(1)))
    sides = []
    for one in found:
        slope, across = np.diff(one[2:-2, 12, 0]) * 2 * SIZE, np.diff(one[12, 2:-2, 1]) * 2 * SIZE
        assert np.allclose(slope, slope[0], atol=1e-4)
        assert np.allclose(across, slope[0], atol=1e-4)  # both sides by the same share
        side = float(slope[0])
        sides.append(side)
        # where the window begins, in pixels: the first value asked lies half a (scaled) pixel inside
        top, left = (one[2, 2, axis] * 2 * SIZE + 0.5 - 2.5 * side for axis in (0, 1))
        assert -1e-3 <= top <= SIZE * (1 - side) + 1e-3
        assert -1e-3 <= left <= SIZE * (1 - side) + 1e-3
        box = (left, top, left + SIZE * side, top + SIZE * side)
        rows = Image.fromarray(np.float32(pictures(batch)[0][..., 0]), mode="F")
        oracle = np.asarray(rows.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box))
        np.testing.assert_allclose(one[2:-2, 2:-2, 0], oracle[2:-2, 2:-2], atol=1e-4)
    assert 0.4 <= min(sides) < 0.6
    assert 0.8 < max(sides) <= 1
    assert len(set(np.round(sides, 5))) == len(sides)


def test_borders_of_a_window_stay_within_the_picture(batch):
    found = pictures(cropped(batch, 0.3, key=jr.key(2)))
    assert np.allclose(found[..., 2], 0.3, atol=1e-5)  # level, so nothing from outside came in
    assert found.min() >= 0
    assert found.max() <= pictures(batch).max() + 1e-5


def test_a_tint_changes_each_picture_by_factors_within_bounds(batch):
    before, after = pictures(batch), pictures(tinted(batch, 0.2, key=jr.key(3)))
    seen = []
    for one, other in zip(before, after, strict=True):
        mean = one.mean()
        slopes = [np.polyfit(one[..., axis].ravel(), other[..., axis].ravel(), 1) for axis in (0, 1)]
        level = other[..., 2].mean()
        for slope, start in slopes:  # contrast * brightness * colour, and (1 - contrast) * mean * brightness * colour
            contrast = slope * mean / (start + slope * mean)
            product = start + slope * mean
            assert 0.8 - 1e-4 <= contrast <= 1.2 + 1e-4
            assert 0.8**2 * mean - 1e-4 <= product <= 1.2**2 * mean + 1e-4
            seen.append((contrast, product / mean))
        assert 0 <= level <= 1
    assert np.isclose(seen[0][0], seen[1][0], atol=1e-3)  # contrast is one number for all colours
    assert not np.isclose(seen[0][1], seen[1][1], atol=1e-3)  # colours have factors of their own
    assert np.std([one for one, _ in seen]) > 0.05


def test_tints_of_white_stay_white_at_most(batch):
    white = eqx.tree_at(lambda b: (b.tasks.support.x, b.tasks.query.x), batch, replace_fn=jnp.ones_like)
    assert pictures(tinted(white, 0.5, key=jr.key(4))).max() == 1


def test_pictures_of_support_and_query_are_altered_by_keys_of_their_own(batch):
    for altered in (
        mirrored(batch, key=jr.key(5)),
        cropped(batch, 0.5, key=jr.key(5)),
        tinted(batch, 0.3, key=jr.key(5)),
    ):
        assert (np.asarray(altered.tasks.support.x) != np.asarray(altered.tasks.query.x)).any()
        np.testing.assert_array_equal(altered.tasks.support.y, batch.tasks.support.y)
