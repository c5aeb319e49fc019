"""Whether calibration on few groups does more good than harm: simulated pools whose spread is right or wrong."""

import numpy as np
import pytest
from scipy.special import expit, ndtri

from stmaml.pool.steady import steady_best_temperature, steady_scores, steady_temperature
from stmaml.tables.calibration import LEVELS, TEMPERATURES

NOMINAL = (0.5, 0.8, 0.9)
ROWS = 10


def scores(groups: int, factor: float, shared: float, random: np.random.Generator) -> np.ndarray:
    """Normal scores of groups under a pool that states its spread too small by `factor`; rows of a group err alike by
    a share of their variance."""
    whole, own = random.standard_normal((groups, 1)), random.standard_normal((groups, ROWS))
    return factor * (np.sqrt(shared) * whole + np.sqrt(1 - shared) * own)


def errors(groups: int, factor: float, shared: float, repeats: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How far coverage is from nominal before and after, and what it is after on average, for each of NOMINAL."""
    random = np.random.default_rng(groups)
    new, known = scores(20_000, factor, shared, random), ndtri(np.array(LEVELS))
    before, after = np.zeros((2, repeats, len(NOMINAL)))
    for i in range(repeats):
        values = scores(groups, factor, shared, random)
        weight = np.ones_like(values)
        temperature = steady_temperature(values, weight, groups)
        moved = np.array(steady_scores(values / temperature, weight, groups))
        for j, nominal in enumerate(NOMINAL):
            ends = np.interp(ndtri([(1 - nominal) / 2, (1 + nominal) / 2]), known, moved) * temperature
            before[i, j] = (np.abs(new) <= ndtri((1 + nominal) / 2)).mean()
            after[i, j] = ((new >= ends[0]) & (new <= ends[1])).mean()
    aim = np.array(NOMINAL)
    return np.abs(before - aim).mean(0), np.abs(after - aim).mean(0), after.mean(0)


@pytest.mark.parametrize("groups", [5, 10, 20, 30])
@pytest.mark.parametrize("shared", [0.0, 0.5])
def test_calibration_on_few_groups_mends_more_than_it_breaks(groups: int, shared: float):
    wrong = [errors(groups, factor, shared, 40) for factor in (0.75, 1.4)]
    for before, after, _ in wrong:
        assert (after < 0.75 * before).all(), (before, after)
    right, costs, mean = errors(groups, 1.0, shared, 40)
    assert (right < 0.01).all()
    assert costs.max() < 0.06 if groups < 10 else costs.max() < 0.045
    np.testing.assert_allclose(mean, NOMINAL, atol=0.025)


def test_one_group_changes_nothing():
    values = np.full((3, 4), 2.5)
    weight = np.ones_like(values)
    assert steady_temperature(values, weight, 1) == 1.0
    np.testing.assert_allclose(steady_scores(values, weight, 1), ndtri(np.array(LEVELS)))


def test_many_groups_are_believed():
    values = scores(2000, 1.4, 0.3, np.random.default_rng(0))
    assert steady_temperature(values, np.ones_like(values), 2000) == pytest.approx(1.4, rel=0.03)


def class_losses(groups: int, temperature: float, random: np.random.Generator) -> np.ndarray:
    """The log-loss of each group at each temperature under log-odds that are too large by a factor; rows of a group
    have a level of their own."""
    odds = random.standard_normal((groups, ROWS))
    y = random.uniform(size=odds.shape) < expit(odds + 0.5 * random.standard_normal((groups, 1)))
    signed = np.where(y, odds, -odds)[:, :, None] * temperature / TEMPERATURES
    return np.logaddexp(0, -signed).mean(1)


@pytest.mark.parametrize("groups", [5, 10, 20, 30])
def test_temperatures_of_classes_mend_more_than_they_break(groups: int):
    random = np.random.default_rng(groups)
    plain = int(np.abs(np.log(TEMPERATURES)).argmin())
    for temperature, gain in ((1.0, -0.004), (3.0, 0.05)):
        new = class_losses(20_000, temperature, random).mean(0)
        found = [steady_best_temperature(class_losses(groups, temperature, random)) for _ in range(100)]
        after = np.interp(np.log(found), np.log(TEMPERATURES), new).mean()
        assert new[plain] - after > gain


def test_temperatures_of_many_groups_are_believed():
    losses = class_losses(20_000, 2.0, np.random.default_rng(0))
    best = TEMPERATURES[losses.mean(0).argmin()]
    assert steady_best_temperature(losses) == pytest.approx(best, rel=0.02)
    assert steady_best_temperature(losses[:1]) == 1.0
