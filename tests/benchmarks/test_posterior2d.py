"""What can be known of one function, against integration on a grid; and limits of those who are not told the noise."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import scipy.special
import scipy.stats

from stmaml.benchmarks import bayes2d, posterior2d
from stmaml.benchmarks.bayes2d import DRAWS_AT_ONCE, bayes_scores
from stmaml.benchmarks.families2d import FAMILIES
from stmaml.benchmarks.floors import UNTOLD_LIMIT, find_floor, floor_key, remember_floor
from stmaml.benchmarks.posterior2d import drawn_beside
from stmaml.benchmarks.regression2d import Config
from stmaml.conditions import Conditions
from stmaml.errors import SettingError
from stmaml.tasks import Examples, Task, TaskBatch

LINE = next(family for family in FAMILIES if family.name == "line")
X, Y = np.array([0.5, 2.0, 4.5]), np.array([-1.9, 1.1, 5.2])
ASKED = np.array([1.0, 5.0])
NOISE = (0.2, 0.9)


@pytest.fixture
def only_lines(monkeypatch):
    monkeypatch.setattr(bayes2d, "FAMILIES", (LINE,))
    monkeypatch.setattr(posterior2d, "FAMILIES", (LINE,))


def inputs(x1: np.ndarray) -> jnp.ndarray:
    return jnp.stack([jnp.asarray(x1, dtype=float), jnp.ones(len(x1))], axis=1)


def support() -> Examples:
    """Three labelled points and a row of padding."""
    x, y = inputs(np.append(X, 9.0)), jnp.asarray(np.append(Y, 50.0), dtype=float)[:, None]
    return Examples(x, y, jnp.array([1.0, 1.0, 1.0, 0.0]))


def grid(noise: tuple[float, float]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lines at the asked inputs, their noise and their posterior weights, over slope, offset and noise."""
    axis, levels = np.linspace(-3, 3, 301)[:-1] + 0.01, np.linspace(*noise, 41)
    slope, offset, sigma = (a.ravel() for a in np.meshgrid(axis, axis, levels, indexing="ij"))
    each = sum(scipy.stats.norm.logpdf(y, slope * x + offset, sigma) for x, y in zip(X, Y, strict=True))
    return slope * ASKED[:, None] + offset, sigma, scipy.special.softmax(np.asarray(each))


def quantile(levels: np.ndarray, cdf: np.ndarray, share: float) -> float:
    return float(np.interp(share, cdf, levels))


def test_the_band_is_that_of_integration_on_a_grid(only_lines, key):
    """Slope, offset and noise all unknown."""
    values, sigma, weight = grid(NOISE)
    found = drawn_beside(support(), inputs(ASKED), noise=NOISE, key=key)
    heavy = weight > weight.max() * 1e-7
    for place, line in enumerate(values):
        levels = np.linspace(line.min(), line.max(), 200)
        density = weight[heavy]
        cdf = np.array([density @ scipy.stats.norm.cdf(y, line[heavy], sigma[heavy]) for y in levels])
        for name, share in (("low", 0.05), ("high", 0.95)):
            np.testing.assert_allclose(found[name][place, 0], quantile(levels, cdf, share), atol=0.2)


def test_sampled_functions_are_those_of_the_posterior(only_lines, key):
    """As far as ten of them tell: through the support within the noise, and not one function."""
    found = drawn_beside(support(), inputs(np.append(X, ASKED)), noise=0.3, key=key)["curves"][..., 0]
    assert found.shape == (10, 5)
    assert np.abs(found[:, :3] - Y).max() < 1.2
    assert found[:, 4].std() > 0.05


def test_who_is_not_told_the_noise_has_the_density_of_integration_over_it(only_lines, key):
    values, sigma, weight = grid(NOISE)
    targets = np.array([0.3, 5.5])
    density = np.array([weight @ scipy.stats.norm.pdf(y, line, sigma) for y, line in zip(targets, values, strict=True)])
    query = Examples.of(inputs(ASKED), jnp.asarray(targets)[:, None])
    task = jax.tree.map(lambda leaf: leaf[None], Task(support(), query))
    batch = TaskBatch(task, jnp.zeros(1, dtype=int), jnp.asarray(targets)[None, :, None])
    scores = bayes_scores(batch, noise=NOISE, num_draws=60 * DRAWS_AT_ONCE, key=key, tasks_at_once=1)
    np.testing.assert_allclose(scores.nll[0], -np.log(density).mean(), rtol=0.02)
    np.testing.assert_allclose(scores.mse[0], np.square(values @ weight - targets).mean(), rtol=0.05, atol=0.005)


def test_limits_with_and_without_being_told_are_kept_apart(monkeypatch, tmp_path):
    monkeypatch.setenv("STMAML_CACHE", str(tmp_path))
    told = Conditions("regression2d", {"input_range": [0, 9], "noise": 0.3, "shots": 10})
    untold = Conditions("regression2d", {**told.tasks, "noise_range": [0.1, 0.8]})
    assert floor_key(untold) != floor_key(told)
    remember_floor(untold, {"metrics": {"nll": {"mean": 0.4, "ci95": 0.01}}})
    assert find_floor(told) is None
    found = Config(input_range=(0.0, 9.0), noise_range=(0.1, 0.8)).at_test("regression2d").open().floor()
    assert found is not None
    assert found["name"] == UNTOLD_LIMIT


def test_noise_and_shots_differ_between_training_tasks_alone():
    benchmark = Config(query_size=200, min_shots=1, most_shots=6, shots=4, noise_range=(0.1, 0.8)).open()
    train, test = (source.sample(400, key=jr.key(0)) for source in (benchmark.train, benchmark.test))
    counts = np.asarray(train.tasks.support.weight).sum(1)
    assert sorted(set(counts.tolist())) == [1, 2, 3, 4, 5, 6]
    assert train.clean is not None
    spread = np.asarray(train.tasks.query.y - train.clean).std((1, 2))
    assert 0.08 < spread.min() < 0.14
    assert 0.75 < spread.max() < 0.9
    np.testing.assert_allclose(spread.mean(), 0.45, atol=0.04)
    assert test.clean is not None
    np.testing.assert_allclose(np.asarray(test.tasks.query.y - test.clean).std(), 0.3, rtol=0.05)
    assert test.tasks.support.weight.shape == (400, 4)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"noise_range": (0.8, 0.1)}, "--noise-range needs two rising numbers above 0; got 0.8 and 0.1"),
        ({"most_shots": 20}, "--most-shots goes with --min-shots"),
        ({"most_shots": 5, "min_shots": 1}, "--most-shots .* is at least --shots; got 5, with --shots 10"),
    ],
)
def test_ranges_that_make_no_sense_are_refused(settings, words):
    with pytest.raises(SettingError, match=words):
        Config(**settings)
