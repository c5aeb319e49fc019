"""Tails of a pool against SciPy's densities, and what is learnt of them against how targets were made."""

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import integrate, stats
from scipy.special import ndtri

from stmaml.errors import RunError
from stmaml.estimators import FewShotRegressor
from stmaml.pool.base import Arrays, Forecast, GroupedRows, Tasks
from stmaml.pool.crossfit import HeldOut
from stmaml.pool.mixture import Mixture
from stmaml.pool.pooling import Pooling, learn_pooling
from stmaml.pool.result import tails_sentence
from stmaml.pool.tails import FEWEST_GROUPS, Tail, learn_tail, with_tails
from stmaml.tables.calibration import LEVELS, Calibration

ROWS = 10


def normal(mean: np.ndarray, std: float) -> Mixture:
    return Mixture(np.ones((1, len(mean))), mean[None], np.full((1, len(mean)), std))


def targets(groups: int, share: float, width: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise of spread 1, and with some probability `width`, of the rows of each group."""
    random = np.random.default_rng(seed)
    wide = random.uniform(size=groups * ROWS) < share
    y = random.standard_normal(groups * ROWS) * np.where(wide, width, 1.0)
    return y, np.repeat(np.arange(groups), ROWS)


def test_tails_are_a_second_wider_mixture_about_the_same_mean():
    one = Mixture(np.array([[0.3], [0.7]]), np.array([[-1.0], [2.0]]), np.array([[0.5], [1.0]]))
    found, mean = with_tails(one, np.array([0.2]), np.array([3.0])), 1.1
    grid = np.linspace(-40, 40, 80_001)
    usual = 0.3 * stats.norm.pdf(grid, -1, 0.5) + 0.7 * stats.norm.pdf(grid, 2, 1)
    wide = 0.3 * stats.norm.pdf(grid, mean - 6.3, 1.5) + 0.7 * stats.norm.pdf(grid, mean + 2.7, 3)
    each = Mixture(*(np.repeat(part, len(grid), axis=1) for part in (found.weight, found.mean, found.std)))
    np.testing.assert_allclose(np.exp(each.log_prob(grid)), 0.8 * usual + 0.2 * wide, atol=1e-12)
    assert found.expected()[0] == pytest.approx(mean)
    assert integrate.simpson(np.exp(each.log_prob(grid)), x=grid) == pytest.approx(1.0, abs=1e-6)


def test_no_share_is_no_change():
    one = normal(np.zeros(4), 1.0)
    assert with_tails(one, np.zeros(4), np.full(4, 5.0)) is one


@pytest.mark.parametrize(("share", "width"), [(0.05, 8.0), (0.2, 3.0)])
def test_tails_are_found_as_targets_were_made(share: float, width: float):
    y, group = targets(400, share, width, seed=1)
    spread = y.std()  # what squares tell
    found = learn_tail(normal(np.zeros(len(y)), float(spread)), y, group)
    assert found is not None
    temperature, tail = found
    assert temperature * spread == pytest.approx(1.0, rel=0.1)
    assert tail.share == pytest.approx(share, rel=0.55)
    assert tail.width == pytest.approx(width, rel=0.4)
    new, _ = targets(4000, share, width, seed=2)
    truth = np.log((1 - share) * stats.norm.pdf(new) + share * stats.norm.pdf(new, scale=width)).mean()
    every = np.ones(len(new))
    said = with_tails(normal(np.zeros(len(new)), temperature * spread), tail.share * every, tail.width * every)
    before = normal(np.zeros(len(new)), float(spread))
    assert truth - said.log_prob(new).mean() < 0.01 < truth - before.log_prob(new).mean()


def test_the_unit_of_targets_does_not_matter():
    y, group = targets(60, 0.1, 5.0, seed=3)
    one, other = (learn_tail(normal(np.full(len(y), 7.0 * u), 1.5 * u), 7 * u + u * y, group) for u in (1.0, 100.0))
    assert one is not None
    assert other is not None
    assert one[1] == other[1]
    assert one[0] == pytest.approx(other[0], rel=1e-6)


def test_normal_targets_mostly_show_no_tails_and_lose_little_by_those_they_show():
    new, _ = targets(2000, 0.0, 1.0, seed=99)
    every, losses = np.ones(len(new)), []
    for seed in range(40):
        y, group = targets(20, 0.0, 1.0, seed)
        temperature, tail = learn_tail(normal(np.zeros(len(y)), 1.0), y, group) or (1.0, Tail())
        said = with_tails(normal(np.zeros(len(new)), max(temperature, 0.01)), tail.share * every, tail.width * every)
        losses.append(stats.norm.logpdf(new).mean() - said.log_prob(new).mean())
    assert np.mean(np.array(losses) > 0) < 0.35
    assert np.mean(losses) < 0.006


def test_a_pool_far_too_wide_is_narrowed_first():
    """Its best spread is at the end of those tried: a tail would keep it as wide as it is."""
    y, group = targets(200, 0.05, 8.0, seed=0)
    assert learn_tail(normal(np.zeros(len(y)), 12.0), y, group) is None


@pytest.mark.parametrize("groups", [1, FEWEST_GROUPS - 1])
def test_few_groups_show_nothing(groups: int):
    y, group = targets(groups, 0.1, 8.0, seed=0)
    assert learn_tail(normal(np.zeros(len(y)), float(y.std())), y, group) is None
    more, of = targets(30, 0.1, 8.0, seed=0)
    assert learn_tail(normal(np.zeros(len(more)), float(more.std())), more, of) is not None


def held_out(share: float, groups: int = 60) -> HeldOut:
    y, group = targets(groups, share, 8.0, seed=5)
    rows = GroupedRows(np.zeros((len(y), 0)), y, group, np.zeros((len(y), 0), dtype=int), ())
    query = tuple(rows.by_group())
    tasks = Tasks(rows, tuple(np.zeros(0, dtype=int) for _ in query), query)
    said = Forecast(np.zeros(len(y)), np.zeros(len(y)), np.full(len(y), float(y.var())))
    return HeldOut(0, tasks, {"member": said}, np.arange(groups) % 5)


def test_a_pool_with_outliers_is_neither_too_wide_nor_too_sure():
    held = held_out(0.03)
    pooling, shots = learn_pooling([held]), np.zeros(len(held.y), dtype=int)
    without = Pooling(pooling.members, pooling.counts, pooling.spread, pooling.weight, pooling.calibration)
    raw = pooling.mixture(held.forecasts, shots)
    density, old = (one.finished(raw, shots).mixture.log_prob(held.y).mean() for one in (pooling, without))
    assert pooling.tails[0][0] > 0
    assert density > old + 0.1
    low, high = pooling.finished(raw, shots).quantiles([0.25, 0.75])
    assert ((held.y > low) & (held.y < high)).mean() == pytest.approx(0.5, abs=0.03)
    quartile = raw.at_scores(np.full((1, len(shots)), 0.6745))[0].mean()
    assert (high - low).mean() < 0.8 * 2 * quartile  # of the spread that squares tell


def test_pools_without_outliers_stay_as_they_were():
    held = held_out(0.0)
    assert learn_pooling([held]).tails == ((0.0, 1.0),)


def test_tails_are_kept_and_pools_of_old_have_none():
    pooling = learn_pooling([held_out(0.03)])
    content = json.loads(json.dumps(pooling.to_json()))
    assert Pooling.from_json(content) == pooling
    assert Pooling.from_json({k: v for k, v in content.items() if k != "tails"}).tails == ()


def test_between_numbers_of_rows_tails_are_between():
    rough = Calibration((0, 3), (1.0, 1.0))
    pooling = Pooling(("one",), (0, 3), ((1.0,), (1.0,)), ((1.0,), (1.0,)), rough, ((0.0, 1.0), (0.2, 4.0)))
    share, width = pooling.tail_at(np.array([0, 1, 3, 9]))
    np.testing.assert_allclose(share, [0.0, 0.1, 0.2, 0.2])
    np.testing.assert_allclose(width, [1.0, 2.0, 4.0, 4.0])
    narrow = normal(np.zeros(4), 1.0)
    variance = with_tails(narrow, share, width).variance()
    np.testing.assert_allclose(variance, [1.0, 0.9 + 0.1 * 4, 0.8 + 0.2 * 16, 0.8 + 0.2 * 16])


@pytest.mark.parametrize("tails", [[[1.0, 2.0]], [[0.1, 0.5]], [[0.1, 2.0]] * 2, [[0.1]], [[float("nan"), 2.0]]])
def test_tails_that_cannot_be_are_refused(tails: list[list[float]]):
    content = {**learn_pooling([held_out(0.03)]).to_json(), "tails": tails}
    with pytest.raises(RunError):
        Pooling.from_json(json.loads(json.dumps(content)))


def plain(counts: tuple[int, ...], groups: int) -> Calibration:
    """What moves no quantile."""
    scores = tuple(ndtri(np.array(LEVELS)).tolist())
    return Calibration(counts, (1.0,) * len(counts), (scores,) * len(counts), groups)


def test_samples_have_the_tails_that_quantiles_have():
    random = np.random.default_rng(0)
    shop = np.repeat(np.arange(60), 12)
    noise = random.standard_normal(len(shop)) * np.where(random.uniform(size=len(shop)) < 0.05, 8.0, 1.0)
    y = random.standard_normal(60)[shop] + noise
    x = random.standard_normal((len(shop), 1))
    model = FewShotRegressor(members=("mean", "mixed")).fit(x, y, groups=shop)
    drawn = model.sample_y(x[:1], 40_000, random_state=0).ravel()
    levels = [0.05, 0.25, 0.75, 0.95, 0.995]
    said = model.predict_quantiles(x[:1], levels)[0]
    np.testing.assert_allclose(np.quantile(drawn, levels[:4]), said[:4], rtol=0.03)
    assert np.quantile(drawn, 0.995) > 2.5 * np.quantile(drawn, 0.95)  # 1.6 times, were they normal
    fitted: Any = model.meta_model_
    pool = replace(fitted, pooling=replace(fitted.pooling, calibration=plain(fitted.pooling.counts, 60)))
    schema = pool.schema
    query = pl.DataFrame({schema.used[0].name: x[:2, 0], schema.task: ["new", "new"]})
    both, frame = pool.sample(query, None, 40_000), pool.predict(query).frame
    np.testing.assert_allclose(both.std(0), frame["std"], rtol=0.05)
    shared = frame["task_std"].to_numpy()
    assert np.cov(both.T)[0, 1] == pytest.approx(shared[0] * shared[1], rel=0.1), "tails are of rows, not of groups"


@dataclass(frozen=True)
class Says:
    """A member with one answer."""

    answer: float

    def predict(self, tasks: Tasks) -> Forecast:
        every = np.ones(len(tasks.asked))
        return Forecast(self.answer * every, 0.3 * every, 0.7 * every)

    def state(self) -> Arrays:
        return {}


def test_samples_of_members_that_disagree_are_as_wide_as_is_said():
    shop, random = np.repeat(np.arange(30), 6), np.random.default_rng(0)
    x, y = random.standard_normal((180, 1)), random.standard_normal(180)
    fitted = FewShotRegressor(members=("mean",)).fit(x, y, groups=shop).meta_model_
    pooling = Pooling(("a", "b"), (0,), ((1.0, 1.0),), ((0.5, 0.5),), plain((0,), 30), ((0.1, 5.0),))
    model = replace(fitted, pooling=pooling, members={"a": Says(-1.0), "b": Says(1.0)})
    query = pl.DataFrame({fitted.schema.used[0].name: [0.0, 1.0], fitted.schema.task: ["new", "new"]})
    drawn, said = model.sample(query, None, 40_000), model.predict(query).frame
    assert drawn[:, 0].std() == pytest.approx(said["std"][0], rel=0.03)
    assert np.cov(drawn.T)[0, 1] == pytest.approx(said["task_std"][0] ** 2, rel=0.05)


def test_people_are_told_of_tails():
    assert tails_sentence(((0.0, 1.0), (0.0, 1.0))) == tails_sentence(()) == []
    (one,) = tails_sentence(((0.0, 1.0), (0.1, 2.0)))
    assert one.endswith("up to 10 % of them are taken to have 2 times the usual spread")
    (several,) = tails_sentence(((0.3, 2.0), (0.02, 8.0)))
    assert several.endswith("up to 30 % of them are taken to have 2 to 8 times the usual spread")
