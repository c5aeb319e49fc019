"""Figures of image completion: what is drawn where, looked up in the figure before it becomes a picture."""

import io

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from stmaml.reports import images
from stmaml.reports.figures import BLUE
from stmaml.reports.images import completion_grid, observed_image, pixels_figure
from stmaml.reports.sections import Sweep
from stmaml.runs import Trace

HEIGHT, WIDTH = 4, 3


def traces(found: dict[tuple[str, int], dict]) -> list[Trace]:
    """Arrays by family and number of pixels, as a run gives them."""
    return [
        Trace(arrays, {"figure": "completion", "family": family, "pixels": pixels})
        for (family, pixels), arrays in found.items()
    ]


def sweep(points: dict, *, metric: str = "bce", floor: float | None = None) -> Sweep:
    floors = {} if floor is None else {4: {metric: {"mean": floor, "ci95": 0.0}}}
    return Sweep("t", metric, points, floors, "entropy of the grey values", "pixels", "observed pixels")


def trace(level: float, *, samples: int = 6, seen: tuple[tuple[int, int], ...] = ((0, 2), (3, 1))) -> dict:
    """An image that rises from `level` in steps of 1/100, and samples that are each 1/10 brighter than the last."""
    truth = level + np.arange(HEIGHT * WIDTH)[:, None] / 100
    cells = np.array(seen)
    return {
        "axis": np.arange(HEIGHT * WIDTH) % WIDTH,
        "truth": truth,
        "support_x": cells / [HEIGHT - 1, WIDTH - 1],
        "support_y": truth[cells[:, 0] * WIDTH + cells[:, 1]],
        "curves": np.stack([truth + 0.1 * (i + 1) for i in range(samples)]),
    }


@pytest.fixture
def figures(monkeypatch) -> list[Figure]:
    """The figures drawn, caught on their way to a file."""
    caught: list[Figure] = []
    to_png = images.png
    monkeypatch.setattr(images, "png", lambda figure: caught.append(figure) or to_png(figure))
    return caught


def drawn(figure: Figure) -> list[np.ndarray]:
    return [np.asarray(ax.get_images()[0].get_array()) for ax in figure.axes]


def size_of(png: bytes | None) -> tuple[int, int]:
    assert png is not None
    return Image.open(io.BytesIO(png)).size


def test_observed_pixels_keep_their_grey_and_others_are_blue():
    picture = observed_image(trace(0.2))
    assert picture.shape == (HEIGHT, WIDTH, 3)
    np.testing.assert_allclose(picture[0, 2], 0.22)
    np.testing.assert_allclose(picture[3, 1], 0.30)
    blue = np.all(np.isclose(picture, to_rgb(BLUE)), axis=-1)
    assert blue.sum() == HEIGHT * WIDTH - 2
    assert not blue[0, 2]
    assert not blue[3, 1]


def test_waves_beside_the_coordinates_do_not_move_the_observed_pixels():
    plain = trace(0.2)
    waved = {**plain, "support_x": np.concatenate([plain["support_x"], np.full((2, 5), -0.7)], axis=1)}
    np.testing.assert_array_equal(observed_image(waved), observed_image(plain))


def test_the_grid_shows_original_observed_four_samples_and_mean_for_each_number_of_pixels(figures):
    found = {("b", 8): trace(0.1), ("b", 40): trace(0.1, seen=((1, 1),)), ("a", 8): trace(0.3), ("a", 40): trace(0.3)}
    assert size_of(completion_grid(traces(found), "st-maml"))[0] > 1000
    (figure,) = figures
    pictures = drawn(figure)
    assert len(pictures) == 2 * (1 + 2 * 6)
    for row, level in enumerate((0.1, 0.3)):
        truth = level + np.arange(12).reshape(HEIGHT, WIDTH) / 100
        original, *others = pictures[13 * row : 13 * (row + 1)]
        np.testing.assert_allclose(original, truth)
        for block, pixels in enumerate((8, 40)):
            observed, *samples, mean = others[6 * block : 6 * (block + 1)]
            np.testing.assert_allclose(observed, observed_image(found["ba"[row], pixels]))
            for i, sample in enumerate(samples, start=1):
                np.testing.assert_allclose(sample, truth + 0.1 * i)
            np.testing.assert_allclose(mean, truth + 0.35)  # of all six, not of the four shown
    titles = [ax.get_title() for ax in figure.axes[:13]]
    block = ["sample 1", "sample 2", "sample 3", "sample 4", "mean"]
    assert titles == ["original", "8 pixels", *block, "40 pixels", *block]
    assert [figure.axes[i].get_ylabel() for i in (0, 13)] == ["b", "a"]


def test_grey_values_are_drawn_on_the_same_scale_in_every_image(figures):
    completion_grid(traces({("a", 8): trace(0.3)}), "t")
    assert {ax.get_images()[0].get_clim() for ax in figures[0].axes} == {(0, 1)}


def test_families_come_in_the_order_they_are_given(figures):
    names = ("mnist", "fashion-mnist", "kmnist", "alpha")
    completion_grid(traces({(name, 8): trace(0.1, samples=1) for name in names}), "t")
    assert [ax.get_ylabel() for ax in figures[0].axes if ax.get_ylabel()] == list(names)


def test_a_method_with_one_answer_gets_one_column(figures):
    completion_grid(traces({("a", 8): trace(0.3, samples=1), ("a", 40): trace(0.3, samples=1)}), "cnp")
    assert [ax.get_title() for ax in figures[0].axes] == ["original", "8 pixels", "answer", "40 pixels", "answer"]


def test_there_is_no_grid_without_all_its_images():
    assert completion_grid([], "t") is None
    assert completion_grid(traces({("a", 8): trace(0.1), ("b", 40): trace(0.1)}), "t") is None


def scores(error: float, diversity: float | None) -> dict[str, dict[str, float]]:
    found = {"bce": {"mean": error, "ci95": 0.01}}
    return found if diversity is None else {**found, "diversity": {"mean": diversity, "ci95": 0.0}}


def test_errors_are_drawn_in_the_order_of_pixels_and_diversity_against_them(figures):
    points = {
        "st-maml": {40: scores(0.3, 0.1), 4: scores(0.5, 0.2), 200: scores(0.2, 0.05)},
        "cnp": {4: scores(0.6, None), 40: scores(0.4, None)},
    }
    assert size_of(pixels_figure(sweep(points, floor=0.135)))[0] > 1000
    left, right = figures[0].axes
    lines = {str(line.get_label()): line for line in left.get_lines()}
    np.testing.assert_array_equal(lines["st-maml"].get_xydata(), [(4, 0.5), (40, 0.3), (200, 0.2)])
    np.testing.assert_array_equal(lines["cnp"].get_xydata(), [(4, 0.6), (40, 0.4)])
    np.testing.assert_allclose(lines["floor: entropy of the grey values"].get_ydata(), 0.135)
    assert [tick.get_text() for tick in left.get_xticklabels()] == ["4", "40", "200"]
    np.testing.assert_array_equal(right.get_lines()[0].get_xydata(), [(0.5, 0.2), (0.3, 0.1), (0.2, 0.05)])
    assert [text.get_text() for text in right.texts] == ["4", "200"]


def test_another_metric_may_be_drawn_and_floors_may_be_unknown(figures):
    points = {"np": {n: {"mse": {"mean": 1 / n, "ci95": float("nan")}} for n in (4, 8)}}
    assert pixels_figure(sweep(points, metric="mse")) is not None
    left = figures[0].axes[0]
    assert left.get_ylabel() == "mean squared error"
    assert len(left.get_lines()) == 1


def test_there_is_no_figure_of_a_single_number_of_pixels():
    assert pixels_figure(sweep({})) is None
    assert pixels_figure(sweep({"np": {40: scores(0.3, 0.1)}})) is None
    assert pixels_figure(sweep({"np": {4: scores(0.3, 0.1), 8: {}}})) is None
