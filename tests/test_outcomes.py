"""Outcomes of real targets, one by one and mixed, against SciPy, numerical integration and draws."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats

from stmaml.methods.base import AbstractMetaLearner, AbstractPredictor, predict
from stmaml.methods.standardised import Standardised
from stmaml.outcomes import (
    AbstractRealOutcome,
    BernoulliOutcome,
    CategoricalOutcome,
    NormalMixtureOutcome,
    NormalOutcome,
    StudentOutcome,
)
from stmaml.prediction import Prediction, Recalibrated
from stmaml.quantiles import student_at, student_density, student_tail
from stmaml.tasks import Examples, Scaling

# Three predictors, two inputs, one target; the mixture has three normals.
LOC = np.array([[0.0, 2.0], [1.5, -3.0], [-1.0, 2.5]])
SCALE = np.array([[0.5, 0.1], [1.0, 2.0], [0.2, 0.7]])
FREEDOM = np.array([[2.5, 10.0], [4.0, 3.0], [30.0, 6.0]])
WEIGHT = np.array([0.5, 0.2, 0.3])
PLACES = np.array([-1.0, 0.4, 3.0])
WIDTHS = np.array([0.5, 1.0, 0.25])


class Frozen:
    """One element in SciPy."""

    def __init__(self, parts: list, weights: np.ndarray):
        self.parts, self.weights = parts, weights

    def each(self, name: str, *arguments) -> Any:
        return sum(w * getattr(part, name)(*arguments) for w, part in zip(self.weights, self.parts, strict=True))

    def variance(self) -> float:
        return self.each("var") + sum(
            w * (part.mean() - self.each("mean")) ** 2 for w, part in zip(self.weights, self.parts, strict=True)
        )


def array(values) -> jnp.ndarray:
    return jnp.asarray(values, dtype=jnp.float32)[..., None]


def normals() -> tuple[AbstractRealOutcome, Callable]:
    return NormalOutcome(array(LOC), array(SCALE)), lambda s, i: Frozen(
        [scipy.stats.norm(LOC[s, i], SCALE[s, i])], np.ones(1)
    )


def students() -> tuple[AbstractRealOutcome, Callable]:
    return StudentOutcome(array(LOC), array(SCALE), array(FREEDOM)), lambda s, i: Frozen(
        [scipy.stats.t(FREEDOM[s, i], LOC[s, i], SCALE[s, i])], np.ones(1)
    )


def mixtures() -> tuple[AbstractRealOutcome, Callable]:
    shape = (3, 2, 1, 3)
    loc, scale = LOC[..., None, None] + PLACES, SCALE[..., None, None] * WIDTHS
    outcome = NormalMixtureOutcome(
        jnp.broadcast_to(jnp.log(jnp.asarray(WEIGHT, dtype=jnp.float32)), shape),
        jnp.asarray(loc, dtype=jnp.float32),
        jnp.asarray(scale, dtype=jnp.float32),
    )
    return outcome, lambda s, i: Frozen(
        [scipy.stats.norm(loc[s, i, 0, k], scale[s, i, 0, k]) for k in range(3)], WEIGHT
    )


every_kind = pytest.mark.parametrize("kind", [normals, students, mixtures])


def over(of: Callable[[Frozen], float], frozen: Callable) -> np.ndarray:
    """A number of each element."""
    return np.array([[[of(frozen(s, i))] for i in range(2)] for s in range(3)])


@every_kind
def test_moments_and_log_density_are_scipys(kind):
    outcome, frozen = kind()
    np.testing.assert_allclose(outcome.mean(), over(lambda one: one.each("mean"), frozen), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(outcome.variance(), over(lambda one: one.variance(), frozen), rtol=1e-5)
    for y in (-4.0, 0.3, 9.0):
        want = over(lambda one, y=y: np.log(np.maximum(one.each("pdf", y), 1e-300)), frozen)[..., 0]
        got = np.asarray(outcome.log_prob(jnp.full((3, 2, 1), y)))
        near = want > -600  # SciPy's densities end there
        np.testing.assert_allclose(got[near], want[near], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(got, outcome.distribution().log_prob(jnp.full((3, 2, 1), y))[..., 0], rtol=1e-4)


@every_kind
def test_tails_keep_their_digits_on_either_side(kind):
    outcome, frozen = kind()
    for y in (-30.0, -6.0, -0.5, 1.0, 5.0, 40.0):
        for side, name in ((1.0, "cdf"), (-1.0, "sf")):
            want = over(lambda one, name=name, y=y: one.each(name, y), frozen)
            got = np.asarray(outcome.tail(jnp.full((3, 2, 1), y), jnp.asarray(side)))
            np.testing.assert_allclose(got, np.where(want > 1e-35, want, 0), rtol=3e-4, atol=1e-35)


@every_kind
def test_quantiles_have_the_tail_of_their_normal_score(kind):
    outcome, frozen = kind()
    for score in (-8.0, -1.6, 0.0, 0.7, 5.0):
        name = "sf" if score > 0 else "cdf"
        at = np.asarray(jax.jit(lambda outcome, score: outcome.at_score(score))(outcome, jnp.float32(score)), float)
        got = [[frozen(s, i).each(name, at[s, i, 0]) for i in range(2)] for s in range(3)]
        np.testing.assert_allclose(got, np.full((3, 2), scipy.stats.norm.cdf(-abs(score))), rtol=2e-3)


@every_kind
def test_moved_and_scaled_it_is_the_distribution_of_moved_and_scaled_targets(kind):
    outcome, _ = kind()
    shift, scale = jnp.full((3, 2, 1), 100.0), jnp.full((3, 2, 1), 10.0)
    moved = outcome.affine(shift, scale)
    assert type(moved) is type(outcome)
    np.testing.assert_allclose(moved.mean(), 100 + 10 * outcome.mean(), rtol=1e-5)
    np.testing.assert_allclose(moved.variance(), 100 * outcome.variance(), rtol=1e-5)
    y = jnp.full((3, 2, 1), 0.25)
    np.testing.assert_allclose(moved.log_prob(shift + scale * y), outcome.log_prob(y) - np.log(10), rtol=1e-3)


@every_kind
def test_draws_have_its_moments(kind, key):
    outcome, frozen = kind()
    draws = np.asarray(jax.jit(jax.vmap(lambda key: outcome.sample(key=key)))(jr.split(key, 20_000)))
    assert draws.shape == (20_000, 3, 2, 1)
    below = over(lambda one: one.each("cdf", 0.8), frozen)  # shares have narrow spreads, whatever the tails
    np.testing.assert_allclose((draws <= 0.8).mean(0), below, atol=0.02)
    np.testing.assert_allclose(draws.mean(0), outcome.mean(), atol=0.1)


def integral(function: Callable[[float], float], knots: list[float]) -> float:
    """Over all numbers, in pieces."""
    ends = [-np.inf, *sorted(knots), np.inf]
    return sum(scipy.integrate.quad(function, a, b, limit=200)[0] for a, b in pairwise(ends))


@every_kind
def test_distances_are_integrals(kind):
    outcome, frozen = kind()
    for y in (-5.0, 0.4, 12.0):
        # E|Y - y| is what lies below it up to y and above it from there on.
        want = over(
            lambda one, y=y: (
                scipy.integrate.quad(lambda v: one.each("cdf", v), -np.inf, y, limit=400)[0]
                + scipy.integrate.quad(lambda v: one.each("sf", v), y, np.inf, limit=400)[0]
            ),
            frozen,
        )
        np.testing.assert_allclose(outcome.distance(jnp.full((3, 2, 1), y)), want, rtol=2e-3)


@every_kind
def test_distances_between_outcomes_are_integrals(kind):
    """E|Y - Y'| is the integral of F (1 - G) + G (1 - F)."""
    outcome, frozen = kind()
    for first, second in ((0, 1), (1, 2), (2, 2)):
        a, b = (jax.tree.map(lambda leaf, s=s: leaf[s], outcome) for s in (first, second))
        got = np.asarray(a.mean_distance(b))
        np.testing.assert_allclose(got, b.mean_distance(a), rtol=1e-5)
        for i in range(2):
            f, g = frozen(first, i), frozen(second, i)

            def apart(v: float, f=f, g=g) -> float:
                return f.each("cdf", v) * g.each("sf", v) + g.each("cdf", v) * f.each("sf", v)

            want = integral(apart, [LOC[first, i], LOC[second, i], -6.0, 7.0])
            np.testing.assert_allclose(got[i, 0], want, rtol=1e-3)


@every_kind
def test_the_mixture_over_predictors_is_the_mean_of_their_distributions(kind, key):
    outcome, frozen = kind()
    prediction = Prediction(outcome)

    def mean(name: str, y: float, i: int) -> float:
        return float(np.mean([frozen(s, i).each(name, y) for s in range(3)]))

    y = jnp.array([[0.3], [-2.0]])
    np.testing.assert_allclose(prediction.cdf(y)[:, 0], [mean("cdf", 0.3, 0), mean("cdf", -2.0, 1)], rtol=1e-4)
    levels = [0.01, 0.3, 0.5, 0.95]
    found = np.asarray(jax.jit(lambda p: p.quantiles(jnp.array(levels)))(prediction), dtype=float)
    got = [[mean("cdf", found[k, i, 0], i) for i in range(2)] for k in range(4)]
    np.testing.assert_allclose(got, np.repeat(np.array(levels)[:, None], 2, axis=1), rtol=1e-3)
    crps = np.asarray(prediction.crps(y))
    for i, truth in enumerate((0.3, -2.0)):
        want = integral(
            lambda v, i=i, truth=truth: (mean("cdf", v, i) if v < truth else mean("sf", v, i)) ** 2,
            [truth, *LOC[:, i], -6.0, 7.0],
        )
        np.testing.assert_allclose(crps[i, 0], want, rtol=2e-3)
    draws = np.asarray(prediction.sample(4000, key=key), dtype=float)[:, :, 0]
    by_draws = np.abs(draws - np.asarray(y)[:, 0]).mean(0) - np.abs(draws[::2] - draws[1::2]).mean(0) / 2
    np.testing.assert_allclose(crps[:, 0], by_draws, rtol=0.1, atol=0.03)


@every_kind
def test_normal_scores_and_values_undo_each_other(kind):
    prediction = Prediction(kind()[0])
    scores = jnp.array([-9.0, -3.0, -0.2, 0.0, 1.0, 6.0])
    values = jax.jit(lambda p: p.at_scores(scores))(prediction)
    back = jax.jit(jax.vmap(prediction.normal_scores))(values)
    np.testing.assert_allclose(back, np.broadcast_to(scores[:, None, None], (6, 2, 1)), rtol=1e-3, atol=1e-4)


@every_kind
def test_a_temperature_stretches_the_mixture_about_its_mean(kind):
    prediction = Prediction(kind()[0])
    wide = prediction.tempered(jnp.float32(3.0))
    np.testing.assert_allclose(wide.mean, prediction.mean, rtol=1e-5)
    np.testing.assert_allclose(wide.task_std, 3 * prediction.task_std, rtol=1e-5)
    np.testing.assert_allclose(wide.noise_std, 3 * prediction.noise_std, rtol=1e-5)


@every_kind
def test_a_recalibrated_mixture_asks_at_other_scores_and_its_cdf_undoes_its_quantiles(kind):
    prediction = Prediction(kind()[0])
    plain, found = jnp.array([-1.0, 0.0, 1.0]), jnp.array([-2.0, 0.5, 1.2])
    better = Recalibrated(prediction.components, plain, found)
    scores = np.array([-3.0, -1.0, -0.5, 0.0, 1.0, 2.5])
    levels = jnp.asarray(scipy.stats.norm.cdf(scores), dtype=jnp.float32)
    asked = jnp.array([-4.0, -2.0, -0.75, 0.5, 1.2, 2.7])
    values = better.quantiles(levels)
    np.testing.assert_allclose(values, prediction.at_scores(asked), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(jax.vmap(better.cdf)(values)[:, 0, 0], levels, rtol=1e-3)
    np.testing.assert_array_equal(better.mean, prediction.mean)
    np.testing.assert_array_equal(better.crps(values[0]), prediction.crps(values[0]))


def test_averaged_probabilities_are_softened():
    p = jnp.array([[[0.9, 0.1]], [[0.7, 0.3]]])
    for outcome in (CategoricalOutcome(jnp.log(p)), BernoulliOutcome(jnp.log(p / (1 - p)))):
        soft = Prediction(outcome).tempered(jnp.float32(2.0))
        assert soft.num_samples == 1
        np.testing.assert_allclose(jnp.log(soft.mean / (1 - soft.mean))[0, 0], np.log(4) / 2, rtol=1e-5)
        np.testing.assert_allclose(Prediction(outcome).pooled().mean, [[0.8, 0.2]], rtol=1e-5)


def test_outcomes_say_what_their_targets_are():
    assert [kind()[0].target for kind in (normals, students, mixtures)] == ["real"] * 3
    assert BernoulliOutcome(jnp.zeros((1, 1))).target == "binary"
    assert CategoricalOutcome(jnp.zeros((1, 2))).target == "class"


@pytest.mark.parametrize("freedom", [1.0, 2.1, 7.0, 100.0, 1000.0])
def test_students_distribution_is_scipys_near_the_middle_and_far_out(freedom):
    t = np.array([-1e4, -300.0, -12.0, -1.8, -0.3, -1e-4, 0.0, 0.5, 3.0], dtype=np.float32)
    same = jnp.full(t.shape, freedom)
    want = scipy.stats.t.cdf(t.astype(float), freedom)
    got = np.asarray(student_tail(jnp.asarray(t), same))
    np.testing.assert_allclose(got, np.where(want > 1e-35, want, 0), rtol=3e-5, atol=1e-35)
    np.testing.assert_allclose(
        student_density(jnp.asarray(t), same), scipy.stats.t.pdf(t.astype(float), freedom), rtol=3e-5, atol=1e-35
    )
    tails = np.array([1e-8, 0.005, 0.025, 0.4, 0.5], dtype=np.float32)
    found = student_at(jnp.asarray(tails), jnp.full(5, freedom))
    np.testing.assert_allclose(found, scipy.stats.t.ppf(tails.astype(float), freedom), rtol=1e-4, atol=1e-6)


class Heavy(AbstractPredictor):
    """Student's distribution about 0 everywhere."""

    freedom: jax.Array

    def __call__(self, x):
        zero = jnp.zeros((x.shape[0], 1))
        return StudentOutcome(zero, zero + 1, zero + self.freedom)


class HeavyLearner(AbstractMetaLearner):
    def loss(self, task, *, key):
        raise NotImplementedError

    def adapt(self, support, *, num_samples, key):
        return Heavy(jnp.full(num_samples, 5.0))


def test_a_student_comes_out_of_standardisation_in_the_targets_units(key):
    learner = Standardised(HeavyLearner(), Scaling((0.0,), (1.0,), (100.0,), (10.0,)), scale_targets=True)
    support = Examples.of(jnp.zeros((2, 1)), jnp.zeros((2, 1)))
    prediction = predict(learner, support, jnp.zeros((3, 1)), num_samples=2, key=key)
    np.testing.assert_allclose(prediction.mean, np.full((3, 1), 100.0))
    np.testing.assert_allclose(prediction.std, np.full((3, 1), 10 * (5 / 3) ** 0.5), rtol=1e-5)
    want = scipy.stats.t.ppf([0.05, 0.95], 5, 100, 10)
    np.testing.assert_allclose(prediction.quantiles(jnp.array([0.05, 0.95]))[:, 0, 0], want, rtol=1e-4)


MEAN = np.array([[[0.5, -1.0], [2.0, 0.0]], [[3.0, 1.0], [-2.0, 4.0]]])  # two predictors, two inputs, two targets


def raw_rest(kind: type[AbstractRealOutcome], key) -> np.ndarray:
    return np.asarray(jr.normal(key, (*MEAN.shape, kind.rest_size)), dtype=float)


@pytest.mark.parametrize("kind", [NormalOutcome, StudentOutcome])
def test_a_spread_is_a_softplus_in_units(kind, key):
    rest, shared = raw_rest(kind, key), jnp.array(kind.shared_start)
    made = kind.from_raw(jnp.asarray(MEAN), jnp.asarray(rest), shared, 0.4)
    np.testing.assert_allclose(made.mean(), MEAN)
    np.testing.assert_allclose(made.scale, 0.4 * np.log1p(np.exp(rest[..., 0])) / np.log(2), rtol=1e-5)
    assert rest.shape[-1] == 1


def test_students_degrees_of_freedom_start_at_nine_and_a_half_and_stay_above_two():
    rest = jnp.zeros((*MEAN.shape, 1))
    for shared, freedom in ((StudentOutcome.shared_start, 2.1 + np.exp(2)), ((-50.0,), 2.1)):
        made = StudentOutcome.from_raw(jnp.asarray(MEAN), rest, jnp.array(shared), 1.0)
        np.testing.assert_allclose(made.freedom, np.full(MEAN.shape, freedom), rtol=1e-6)


def test_a_mixture_has_five_normals_about_its_mean(key):
    rest = raw_rest(NormalMixtureOutcome, key)
    assert rest.shape[-1] == 15
    made = NormalMixtureOutcome.from_raw(jnp.asarray(MEAN), jnp.asarray(rest), jnp.zeros(0), 0.4)
    weight = scipy.special.softmax(rest[..., :5], axis=-1)
    places = 0.4 * (rest[..., 5:10] + np.linspace(-1, 1, 5))
    want = MEAN[..., None] + places - (weight * places).sum(-1, keepdims=True)
    np.testing.assert_allclose(made.loc, want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(made.mean(), MEAN, rtol=1e-5, atol=1e-5)
    spread = 0.4 * 0.5**0.5 * np.log1p(np.exp(rest[..., 10:])) / np.log(2)
    np.testing.assert_allclose(made.scale, spread, rtol=1e-5)


@pytest.mark.parametrize("freedom", [2.1, 2.5, 5.0, 60.0])
def test_the_mean_distance_of_students_is_right_to_four_digits(freedom):
    """Of one about 0 and one, narrower, that lies apart: by the closed form of one's distance, integrated."""
    wide, narrow = (
        StudentOutcome(*(jnp.full((1,), value) for value in (loc, scale, freedom)))
        for loc, scale in ((0.0, 2.0), (1.5, 0.5))
    )

    def apart(v: float) -> float:
        ends = ((0.0, 2.0), (1.5, 0.5))
        wide_cdf, narrow_cdf = (float(scipy.stats.t.cdf(v, freedom, loc, scale)) for loc, scale in ends)
        return wide_cdf * (1 - narrow_cdf) + narrow_cdf * (1 - wide_cdf)

    want = integral(apart, [0.0, 1.5, -6.0, 7.0])
    np.testing.assert_allclose(wide.mean_distance(narrow), [want], rtol=3e-4)
    np.testing.assert_allclose(narrow.mean_distance(wide), [want], rtol=3e-4)


def test_classes_and_ones_have_the_variance_of_an_indicator():
    p = np.array([[0.9, 0.1], [0.5, 0.5]])
    for outcome in (CategoricalOutcome(jnp.log(p)), BernoulliOutcome(jnp.log(p / (1 - p)))):
        np.testing.assert_allclose(outcome.mean(), p, rtol=1e-5)
        np.testing.assert_allclose(outcome.variance(), p * (1 - p), rtol=1e-5)


def test_probabilities_of_nothing_keep_a_logarithm():
    sure = CategoricalOutcome(jnp.array([[[0.0, -1e4]]])).pooled()
    np.testing.assert_allclose(sure.logits, [[[0.0, np.log(1e-12)]]], rtol=1e-5)


def test_the_class_of_each_row_is_looked_up_in_its_own_probabilities(key):
    """Two predictors, three rows, four classes, as many rows as none of the other axes has."""
    logits, y = jr.normal(key, (2, 3, 4)), jnp.array([[0, 3, 1], [2, 2, 0]])
    log_p = scipy.special.log_softmax(np.asarray(logits, dtype=float), axis=-1)
    want = [[log_p[s, i, y[s, i]] for i in range(3)] for s in range(2)]
    np.testing.assert_allclose(CategoricalOutcome(logits).log_prob(y), want, rtol=1e-5)


def test_ones_and_zeros_have_the_cross_entropy_of_all_their_targets(key):
    """Three predictors, four rows, two targets, some of them grey."""
    logits, y = 3 * jr.normal(key, (3, 4, 2)), jr.uniform(jr.fold_in(key, 1), (3, 4, 2))
    p = scipy.special.expit(np.asarray(logits, dtype=float))
    want = (y * np.log(p) + (1 - y) * np.log1p(-p)).sum(-1)
    np.testing.assert_allclose(BernoulliOutcome(logits).log_prob(y), want, rtol=1e-4)


def test_a_mixture_of_several_targets_has_the_tails_and_distances_of_each(key):
    """Two targets with three normals each, beside each target alone."""
    logits, loc, scale = jr.normal(key, (3, 4, 2, 3))
    both = NormalMixtureOutcome(logits, loc, jnp.exp(scale))
    y = jr.normal(jr.fold_in(key, 1), (4, 2))
    for i in range(2):
        part = slice(i, i + 1)
        one = NormalMixtureOutcome(logits[:, part], loc[:, part], jnp.exp(scale[:, part]))
        side = jnp.asarray(1.0)
        np.testing.assert_allclose(both.tail(y, side)[:, part], one.tail(y[:, part], side), rtol=1e-6)
        np.testing.assert_allclose(both.distance(y)[:, part], one.distance(y[:, part]), rtol=1e-6)
