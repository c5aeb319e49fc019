"""ST-MAML against the one-file reference, and each of its switches on its own."""

import dataclasses
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.integrate
import scipy.special
import scipy.stats

from stmaml.errors import SettingError
from stmaml.inner import InnerLoop
from stmaml.likelihoods import Gaussian
from stmaml.methods import st_maml
from stmaml.methods.base import predict, predict_with
from stmaml.methods.st_maml import STMAML, Codes, Knowledge, _gate, from_prototypes
from stmaml.nets.layers import Linear
from stmaml.nets.learner import Learner
from stmaml.nets.set_encoder import DiagonalNormal
from stmaml.outcomes import BernoulliOutcome, CategoricalOutcome, NormalOutcome
from stmaml.prediction import Prediction
from stmaml.tasks import Examples, Task, TaskSpec
from tests.changed import changed
from tests.methods.small import small_task
from tests.reference import stmaml_reference as reference

SPEC = TaskSpec((2,), 1)
PAPER = changed(
    st_maml.Config(),
    hidden=(8, 8),
    encoder=(8, 8),
    z_hidden=(6,),
    z_size=4,
    h_size=3,
    kl_weight=0.7,
    code_clamp=0.5,
    inner=InnerLoop(inner_lr=0.2, inner_steps=3, inner_clamp=0.5),
)
RELEASED = changed(
    st_maml.Config(),
    hidden=(6, 8),
    encoder=(6, 6, 6),
    z_hidden=(),
    z_size=4,
    h_size=5,
    h_layer=1,
    gate="set-mlp",
    gate_hidden=(7, 7),
    adapted="redrawn-mean",
    code_lr=0.3,
    code_clamp=None,
    kl_weight=2.0,
    kl_mean=True,
    inner=InnerLoop(inner_lr=0.1, inner_steps=3, inner_clamp=0.5),
)
PAPER_INNER = {"steps": 3, "lr": 0.2, "limit": 0.5}
RELEASED_INNER = {"steps": 3, "lr": 0.1, "z_lr": 0.3, "limit": 0.5}


def build(config: st_maml.Config, key, spec: TaskSpec = SPEC) -> STMAML:
    """A learner away from its start, so that no bias hides at zero."""
    leaves, structure = jax.tree.flatten(config.build(spec, key=key))
    moved = [a + 0.2 * jr.normal(k, a.shape) for a, k in zip(leaves, jr.split(key, len(leaves)), strict=True)]
    return jax.tree.unflatten(structure, moved)


def as_dict(learner: STMAML) -> dict:
    def layer(linear: Linear):
        return linear.weight, linear.bias

    assert learner.w is not None
    assert learner.beta is not None
    assert learner.phi.sigma is not None
    assert isinstance(learner.theta, Learner)
    return {
        "theta": [layer(one) for one in (*learner.theta.body, learner.theta.head)],
        "phi": [layer(one) for one in learner.phi.pair.layers],
        "rho": [layer(one) for one in learner.phi.post],
        "mu": layer(learner.phi.mu),
        "sigma": layer(learner.phi.sigma),
        "w": [layer(one) for one in learner.w.layers],
        "beta": [layer(one) for one in learner.beta.layers],
    }


@eqx.filter_jit
def loss_of(learner: STMAML, task: Task, key):
    return learner.loss(task, key=key)


@eqx.filter_jit
def predict_query(learner: STMAML, task: Task, num_samples: int, key):
    return predict(learner, task.support, task.query.x, num_samples=num_samples, key=key)


def knowledge_of(learner: STMAML, task: Task, key) -> Knowledge:
    """What two draws of z are solved with."""
    knowledge = eqx.filter_jit(lambda m: m.adapt(task.support, num_samples=2, key=key))(learner).net
    assert isinstance(knowledge, Knowledge)
    return knowledge


def arrays(task: Task):
    return task.support.x, task.support.y, task.query.x, task.query.y


@pytest.fixture
def task(key) -> Task:
    return small_task(SPEC, key=jr.fold_in(key, 1))


def paper_reference(params, task, key):
    return reference.paper_loss(params, *arrays(task), jr.normal(key, (4,)), **PAPER_INNER, kl_weight=0.7)


def released_reference(params, task, key):
    return reference.released_loss(params, *arrays(task), jr.normal(key, (4, 4)), **RELEASED_INNER, kl_weight=2.0)


both_modes = pytest.mark.parametrize(
    ("config", "reference_loss"), [(PAPER, paper_reference), (RELEASED, released_reference)], ids=["paper", "released"]
)


@both_modes
def test_loss_and_gradients_agree_with_the_reference(config, reference_loss, task, key):
    learner = build(config, key)
    got, grads = eqx.filter_jit(eqx.filter_value_and_grad(lambda m: m.loss(task, key=key)[0]))(learner)
    want, want_grads = jax.jit(jax.value_and_grad(lambda p: reference_loss(p, task, key)))(as_dict(learner))
    np.testing.assert_allclose(got, want, rtol=1e-5)
    got_leaves, want_leaves = jax.tree.leaves(as_dict(grads)), jax.tree.leaves(want_grads)
    for got_leaf, want_leaf in zip(got_leaves, want_leaves, strict=True):
        np.testing.assert_allclose(got_leaf, want_leaf, rtol=1e-3, atol=1e-5)


def test_the_clamps_of_the_comparison_bind(task, key):
    """Otherwise the reference would say nothing about them."""
    for config, reference_loss, inner in (
        (PAPER, paper_reference, PAPER_INNER),
        (RELEASED, released_reference, RELEASED_INNER),
    ):
        learner = build(config, key)
        loose = changed(config, code_clamp=None, inner=changed(config.inner, inner_clamp=None))
        unclamped = eqx.tree_at(lambda m: m.theta, build(loose, key), learner.theta)
        assert inner["limit"] == config.inner.inner_clamp
        assert not np.allclose(
            loss_of(unclamped, task, key)[0], jax.jit(reference_loss)(as_dict(learner), task, key), rtol=1e-3
        )


def test_adapted_knowledge_agrees_with_the_paper(task, key):
    learner = build(PAPER, key)
    knowledge = knowledge_of(learner, task, key)
    assert knowledge.h is not None
    for i, sample_key in enumerate(jr.split(key, 2)):
        params, eps = as_dict(learner), jr.normal(sample_key, (4,))
        prior = reference.encode(params, task.support.x, task.support.y)
        theta, h = reference.paper_fine_tune(params, prior, task.support.x, task.support.y, eps, **PAPER_INNER)
        np.testing.assert_allclose(knowledge.h[i], h, rtol=1e-4, atol=1e-5)
        assert isinstance(knowledge.theta, Learner)
        for linear, (weight, bias) in zip((*knowledge.theta.body, knowledge.theta.head), theta, strict=True):
            np.testing.assert_allclose(linear.weight[i], weight, rtol=1e-4, atol=1e-5)
            assert linear.bias is not None
            np.testing.assert_allclose(linear.bias[i], bias, rtol=1e-4, atol=1e-5)


def test_predictions_agree_with_the_released_code(task, key):
    learner = build(RELEASED, key)
    loc = predict_query(learner, task, 2, key).components
    for i, sample_key in enumerate(jr.split(key, 2)):
        eps = jr.normal(sample_key, (4, 4))
        x_s, y_s, x_q, _ = arrays(task)
        want = reference.released_predict(as_dict(learner), x_s, y_s, x_q, eps, **RELEASED_INNER)
        np.testing.assert_allclose(loc.mean()[i], want, rtol=1e-4, atol=1e-5)


def test_kl_agrees_with_numpyro_and_with_integration():
    q = DiagonalNormal(jnp.array([0.3, -1.0]), jnp.array([0.5, 1.5]))
    p = DiagonalNormal(jnp.array([-0.2, 0.4]), jnp.array([0.9, 0.7]))
    got = q.kl(p)
    want = dist.kl_divergence(dist.Normal(q.mu, q.sigma), dist.Normal(p.mu, p.sigma))
    np.testing.assert_allclose(got, want, rtol=1e-5)
    for i in range(2):
        z = np.linspace(-15, 15, 30_001)
        log_q, log_p = (scipy.stats.norm.logpdf(z, float(d.mu[i]), float(d.sigma[i])) for d in (q, p))
        area = scipy.integrate.trapezoid(np.exp(log_q) * (log_q - log_p), z)
        np.testing.assert_allclose(got[i], area, rtol=1e-5)


def test_draws_of_z_have_their_mean_and_spread(key):
    d = DiagonalNormal(jnp.array([2.0, -1.0]), jnp.array([0.5, 3.0]))
    z = jax.vmap(lambda k: d.sample(key=k))(jr.split(key, 20_000))
    np.testing.assert_allclose(z.mean(0), d.mu, atol=0.08)
    np.testing.assert_allclose(z.std(0), d.sigma, rtol=0.03)


def test_training_sees_the_query_labels_and_adapt_does_not(task, key):
    learner = build(PAPER, key)
    other = eqx.tree_at(lambda t: t.query.y, task, task.query.y + 1.0)
    first, second = loss_of(learner, task, key), loss_of(learner, other, key)
    assert first[1]["kl"] != second[1]["kl"]
    prior, again = (learner.task_distribution(t.support) for t in (task, other))
    np.testing.assert_array_equal(prior.mu, again.mu)


def test_no_inner_steps_and_no_noise_predict_with_the_prior_mean(task, key):
    """The prior's own z, gate and h, pieced together by hand."""
    still = changed(PAPER, inner=InnerLoop(inner_steps=0))
    learner = build(still, key)
    p_z = learner.task_distribution(task.support)
    eps = jr.normal(jr.split(key, 1)[0], (4,))
    z = p_z.mu + p_z.sigma * eps
    params = as_dict(learner)
    theta = reference.gate(params["theta"], reference.mlp(params["w"], z))
    want = reference.f(theta, reference.mlp(params["beta"], z), task.query.x, 0)
    got = predict_query(learner, task, 1, key).mean
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_the_kl_is_added_with_its_weight(task, key):
    light, heavy = (loss_of(build(changed(PAPER, kl_weight=weight), key), task, key) for weight in (0.0, 3.0))
    assert heavy[1]["kl"] > 0
    np.testing.assert_allclose(light[0], light[1]["fit"], rtol=1e-6)
    np.testing.assert_allclose(heavy[0], heavy[1]["fit"] + 3 * heavy[1]["kl"], rtol=1e-6)


def test_a_mean_kl_is_the_sum_over_the_size_of_z(task, key):
    summed, averaged = (loss_of(build(changed(PAPER, kl_mean=m), key), task, key)[1] for m in (False, True))
    np.testing.assert_allclose(summed["kl"], 4 * averaged["kl"], rtol=1e-5)


def test_the_deterministic_form_has_no_kl_and_no_noise(task, key):
    learner = build(changed(PAPER, stochastic=False), key)
    assert learner.phi.sigma is None
    loss, metrics = loss_of(learner, task, key)
    assert metrics == {}
    assert loss == loss_of(learner, task, jr.key(9))[0]
    predictions = [predict_query(learner, task, 5, jr.key(k)) for k in (1, 2)]
    assert predictions[0].num_samples == 1
    np.testing.assert_array_equal(predictions[0].mean, predictions[1].mean)


def test_the_deterministic_form_encodes_the_support_alone(task, key):
    learner = build(changed(PAPER, stochastic=False), key)
    fitted = predict_query(learner, task, 1, key).mean
    np.testing.assert_allclose(loss_of(learner, task, key)[0], jnp.square(fitted - task.query.y).mean(), rtol=1e-5)


def test_without_augmented_feature_the_inputs_are_plain(task, key):
    learner = build(changed(PAPER, augment=False), key)
    assert learner.beta is None
    assert learner.theta.body[0].weight.shape == (2, 8)
    assert knowledge_of(learner, task, key).h is None
    assert build(PAPER, key).theta.body[0].weight.shape == (2 + 3, 8)


def test_without_gate_the_head_starts_whole(task, key):
    config = changed(PAPER, tailor=False, inner=InnerLoop(inner_steps=0))
    learner = build(config, key)
    assert learner.w is None
    head = knowledge_of(learner, task, key).theta.head.weight
    np.testing.assert_array_equal(head[0], learner.theta.head.weight)


def test_a_gate_of_zero_logits_halves_the_head_and_nothing_else(key):
    theta = Learner(2, (8,), 1, key=key)
    theta = eqx.tree_at(lambda t: t.head.bias, theta, jnp.array([0.7]))
    gated = _gate(theta, jnp.zeros(8))
    np.testing.assert_allclose(gated.head.weight, theta.head.weight / 2, rtol=1e-6)
    assert gated.head.bias is theta.head.bias
    np.testing.assert_array_equal(gated.body[0].weight, theta.body[0].weight)


def test_each_logit_gates_its_own_row(key):
    theta = Learner(2, (3,), 2, key=key)
    gated = _gate(theta, jnp.array([50.0, 0.0, -50.0])).head.weight
    np.testing.assert_allclose(gated / theta.head.weight, [[1, 1], [0.5, 0.5], [0, 0]], atol=1e-6)


def test_a_relu_gate_never_closes_below_a_half(task, key):
    learner = build(changed(PAPER, gate="relu-affine"), key)
    z = 3 * jr.normal(key, (20, 4))
    assert learner.w is not None
    plain = jax.vmap(learner.w)(z)
    logits = jax.vmap(lambda z: learner._codes(z, task.support).c)(z)
    assert logits is not None
    assert (plain < 0).any()
    np.testing.assert_allclose(logits, np.maximum(plain, 0), rtol=1e-5)


@pytest.mark.parametrize("adapted", ["codes", "mean"])
def test_without_inner_steps_it_is_irrelevant_what_they_would_move(adapted, task, key):
    still = changed(PAPER, inner=InnerLoop(inner_steps=0))
    want, got = (
        predict_query(build(config, key), task, 3, key).components.mean()
        for config in (still, changed(still, adapted=adapted))
    )
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_codes_are_moved_beside_ungated_weights(task, key):
    """One step by hand: weights with their rate and clamp, h and the gate's logits with their own."""
    config = changed(PAPER, adapted="codes", code_lr=0.4, code_clamp=0.02, inner=InnerLoop(inner_lr=0.1, inner_steps=1))
    learner = build(config, key)
    p_z = learner.task_distribution(task.support)
    codes = learner._codes(p_z.mu + p_z.sigma * jr.normal(jr.split(key, 1)[0], (4,)), task.support)

    def inner_loss(theta: Learner, codes: Codes):
        return jnp.square(_gate(theta, codes.c)(task.support.x, codes.h) - task.support.y).mean()

    g_theta, g_codes = jax.grad(inner_loss, argnums=(0, 1))(learner.theta, codes)
    theta = jax.tree.map(lambda p, g: p - 0.1 * jnp.clip(g, -10, 10), learner.theta, g_theta)
    codes = jax.tree.map(lambda p, g: p - 0.4 * jnp.clip(g, -0.02, 0.02), codes, g_codes)
    assert np.abs(g_codes.h).max() > 0.02
    got = predict_query(learner, task, 1, key).mean
    np.testing.assert_allclose(got, _gate(theta, codes.c)(task.query.x, codes.h), rtol=1e-4, atol=1e-5)


def test_redraw_has_its_own_noise_in_each_step(key):
    d_z = DiagonalNormal(jnp.zeros(4), jnp.ones(4))
    fresh = np.asarray(build(RELEASED, key)._noise(d_z, key=key))
    assert fresh.shape == (RELEASED.inner.inner_steps + 1, 4)
    assert len(np.unique(fresh)) == fresh.size
    kept = np.asarray(build(PAPER, key)._noise(d_z, key=key))
    np.testing.assert_array_equal(kept, np.broadcast_to(kept[0], kept.shape))


@pytest.mark.parametrize(("form", "top"), [("softplus", np.inf), ("sigmoid", 1.0)])
def test_sigma_has_its_floor_and_form(form, top, task, key):
    learner = build(changed(PAPER, std_form=form, z_hidden=()), key)
    assert learner.phi.sigma is not None
    raw = np.asarray(learner.phi.sigma(learner.phi.embed(_pairs(task), task.support.weight)), dtype=float)
    squashed = np.log1p(np.exp(raw)) if form == "softplus" else 1 / (1 + np.exp(-raw))
    sigma = np.asarray(learner.task_distribution(task.support).sigma)
    np.testing.assert_allclose(sigma, 0.1 + 0.9 * squashed, rtol=1e-5)
    assert (sigma > 0.1).all()
    assert (sigma < top).all()


@pytest.mark.parametrize(("form", "start"), [("softplus", 0.25), ("sigmoid", 0.25), ("softplus", 900.0)])
def test_sigma_starts_where_it_is_told(form, start, task, key):
    """Where the codes of the pairs are 0, sigma is the start; the mean of z does not know of it."""
    settings = changed(PAPER, std_form=form, z_hidden=())
    far, near = (c.build(SPEC, key=key) for c in (settings, changed(settings, std_start=start)))
    nothing = jnp.zeros((3, _pairs(task).shape[1])), jnp.ones(3)  # the pair encoder has no bias at the start
    np.testing.assert_allclose(near.phi(*nothing).sigma, start, rtol=1e-5)
    np.testing.assert_allclose(
        far.phi(*nothing).sigma, 0.1 + 0.9 * (np.log(2) if form == "softplus" else 0.5), rtol=1e-5
    )
    np.testing.assert_array_equal(near.task_distribution(task.support).mu, far.task_distribution(task.support).mu)


@pytest.mark.parametrize(
    ("form", "start", "message"),
    [
        ("softplus", 0.1, "--std-start must be above 0.1; got 0.1."),
        ("sigmoid", 1.0, "--std-start must be above 0.1 and below 1; got 1."),
        ("softplus", float("nan"), "--std-start must be above 0.1; got nan."),
        ("softplus", float("inf"), "--std-start must be above 0.1; got inf."),
    ],
)
def test_a_start_of_sigma_that_it_cannot_have_is_refused(form, start, message, key):
    with pytest.raises(SettingError, match=re.escape(message)):
        build(changed(PAPER, std_form=form, std_start=start), key)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"code_lr": -1.0}, "--code-lr must be a number of at least 0; got -1.0."),
        ({"code_lr": float("nan")}, "--code-lr must be a number of at least 0; got nan."),
        ({"code_clamp": 0.0}, "--code-clamp must be above 0, or none; got 0.0."),
    ],
)
def test_rates_and_bounds_that_make_no_sense_are_refused(changes, message, key):
    with pytest.raises(SettingError, match=re.escape(message)):
        changed(PAPER, **changes).build(SPEC, key=key)


def test_the_deterministic_form_has_no_sigma_to_start(key):
    settings = changed(PAPER, stochastic=False)
    assert build(changed(settings, std_start=0.2), key).phi.sigma is None
    with pytest.raises(SettingError, match=re.escape("--std-start must be above 0.1; got 0.05")):
        build(changed(settings, std_start=0.05), key)


def _pairs(task: Task):
    return jnp.concatenate([task.support.x, task.support.y], axis=1)


def test_h_joins_the_layer_it_is_told_to(key):
    x, h = jr.normal(key, (5, 2)), jnp.array([0.5, -1.0])
    theta = Learner(2, (4,), 1, h_size=2, h_layer=1, key=key)
    hidden = jnp.maximum(theta.body[0](x), 0)
    want = theta.head(jnp.concatenate([hidden, jnp.broadcast_to(h, (5, 2))], axis=1))
    np.testing.assert_allclose(theta(x, h), want, rtol=1e-5)


def test_h_cannot_join_a_layer_that_is_not_there(key):
    with pytest.raises(ValueError, match="layers 0 to 1 of this network, not layer 2"):
        Learner(2, (4,), 1, h_size=2, h_layer=2, key=key)


QUICK = changed(PAPER, hidden=(8,), inner=InnerLoop(inner_lr=0.1, inner_steps=1))
MIXTURE = changed(QUICK, prior_draws=3)
LEARNED = TaskSpec((2,), 1, noise="learned", noise_std=0.5)
PREDICTED = TaskSpec((2,), 1, noise="predicted", noise_std=0.5)
MIXTURE_SPECS = {
    "learned": LEARNED,
    "predicted": PREDICTED,
    "class": TaskSpec((2,), 3, target="class"),
    "binary": TaskSpec((2,), 1, target="binary"),
    "several binary": TaskSpec((2,), 2, target="binary"),
}


@eqx.filter_jit
def loss_and_prediction(learner: STMAML, task: Task, num_samples: int, key):
    """The training loss and its parts, and the prediction for the same query inputs under the same key."""
    prediction = predict(learner, task.support, task.query.x, num_samples=num_samples, key=key)
    return *learner.loss(task, key=key), prediction


def with_garbage(task: Task) -> Task:
    """The same task, with two rows of weight 0 in the middle of its query set."""

    def insert(real, garbage):
        return jnp.concatenate([real[:2], jnp.full_like(real[:2], garbage), real[2:]])

    query = task.query
    return Task(task.support, Examples(insert(query.x, 9), insert(query.y, 1), insert(query.weight, 0)))


REAL = np.array([0, 1, 4, 5, 6, 7])  # the rows that are not garbage


def log_densities(prediction: Prediction, y) -> np.ndarray:
    """log p(y_i | predictor_l) of the real rows in SciPy's double precision, a row for each predictor."""
    outcome, y = prediction.components, np.asarray(y)
    if isinstance(outcome, NormalOutcome):
        loc, scale = (np.asarray(a, dtype=float) for a in (outcome.loc, outcome.scale))
        return scipy.stats.norm.logpdf(y, loc, scale).sum(2)[:, REAL]
    if isinstance(outcome, CategoricalOutcome):
        log_p = scipy.special.log_softmax(np.asarray(outcome.logits, dtype=float), axis=2)
        return log_p[:, REAL, y[REAL]]
    assert isinstance(outcome, BernoulliOutcome)
    p = scipy.special.expit(np.asarray(outcome.logits, dtype=float))
    return scipy.stats.bernoulli.logpmf(y, p).sum(2)[:, REAL]


@pytest.mark.parametrize("name", MIXTURE_SPECS)
def test_a_mixture_is_scored_by_the_density_of_the_whole_query_set(name, key):
    """-1/n log(1/L sum_l prod_i p(y_i | predictor_l)), over the predictors that `adapt` draws with the same key."""
    spec = MIXTURE_SPECS[name]
    learner, task = build(MIXTURE, key, spec), with_garbage(small_task(spec, key=jr.fold_in(key, 1)))
    loss, metrics, prediction = loss_and_prediction(learner, task, 3, key)
    each = log_densities(prediction, task.query.y)
    assert each.shape == (3, 6)
    np.testing.assert_allclose(loss, -np.log(np.mean(np.exp(each.sum(1)))) / 6, rtol=1e-5)
    np.testing.assert_allclose(metrics["fit"], -each.mean(), rtol=1e-5)
    assert sorted(metrics) == ["fit"]
    assert np.ptp(each.sum(1)) > 0.1  # else any mean of the three would do


@pytest.mark.parametrize("name", ["predicted", "class", "binary"])
def test_points_beside_a_mixture_are_scored_by_averaged_predictors(name, key):
    """The mean over real rows of -log(1/L sum_l p(y_i | predictor_l)), of which targets are hard here."""
    spec = MIXTURE_SPECS[name]
    learner = build(changed(MIXTURE, point_weight=0.4), key, spec)
    task = with_garbage(small_task(spec, key=jr.fold_in(key, 1)))
    loss, metrics, prediction = loss_and_prediction(learner, task, 3, key)
    each = log_densities(prediction, task.query.y)
    whole, points = -np.log(np.mean(np.exp(each.sum(1)))) / 6, -np.log(np.mean(np.exp(each), 0)).mean()
    np.testing.assert_allclose(metrics["points"], points, rtol=1e-5)
    np.testing.assert_allclose(loss, whole + 0.4 * points, rtol=1e-5)
    assert abs(points - metrics["fit"]) > 1e-3  # else one predictor, or their mean loss, would do


def test_query_targets_only_score_a_mixture(key):
    """The slopes in targets and noise level are those of the score alone, each predictor weighed by its share.

    Neither reaches the predictors: z comes from the support, and the inner loop knows no noise.
    """
    learner, task = build(MIXTURE, key, LEARNED), with_garbage(small_task(LEARNED, key=jr.fold_in(key, 1)))
    assert isinstance(learner.likelihood, Gaussian)

    @eqx.filter_jit
    def slopes(y, log_noise):
        def loss(y, log_noise):
            noisy = eqx.tree_at(lambda m: m.likelihood.log_noise, learner, log_noise)
            return noisy.loss(eqx.tree_at(lambda t: t.query.y, task, y), key=key)[0]

        return jax.grad(loss, argnums=(0, 1))(y, log_noise)

    prediction = predict_query(learner, task, 3, key)
    assert isinstance(prediction.components, NormalOutcome)
    loc, scale = (np.asarray(a, dtype=float) for a in (prediction.components.loc, prediction.components.scale))
    y = np.asarray(task.query.y, dtype=float)
    share = scipy.special.softmax(log_densities(prediction, y).sum(1))
    by_target = np.zeros_like(y)
    by_target[REAL] = np.einsum("l,lnd->nd", share, (y - loc) / scale**2)[REAL] / 6
    by_noise = share @ (1 - np.square((y - loc) / scale))[:, REAL].mean((1, 2))
    got = slopes(task.query.y, learner.likelihood.log_noise)
    np.testing.assert_allclose(got[0], by_target, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(got[1], by_noise, rtol=1e-4)


def test_a_mixture_of_one_is_the_plain_log_likelihood(key):
    learner = build(changed(QUICK, prior_draws=1), key, PREDICTED)
    task = with_garbage(small_task(PREDICTED, key=jr.fold_in(key, 1)))
    loss, metrics, prediction = loss_and_prediction(learner, task, 1, key)
    np.testing.assert_allclose(loss, -log_densities(prediction, task.query.y).mean(), rtol=1e-5)
    np.testing.assert_allclose(loss, metrics["fit"], rtol=1e-6)


def test_the_elbo_beside_a_mixture_is_that_of_the_plain_method(key):
    task = with_garbage(small_task(PREDICTED, key=jr.fold_in(key, 1)))
    both, mixture, elbo = (
        eqx.filter_jit(build(changed(QUICK, **changes), key, PREDICTED).loss)(task, key=own)
        for changes, own in (
            ({"prior_draws": 2, "elbo_weight": 0.3}, key),
            ({"prior_draws": 2}, key),
            ({}, jr.fold_in(key, 1)),
        )
    )
    np.testing.assert_allclose(both[0], mixture[0] + 0.3 * elbo[0], rtol=1e-5)
    np.testing.assert_allclose(both[1]["kl"], elbo[1]["kl"], rtol=1e-5)


def test_points_beside_a_mixture_are_scored_one_by_one(key):
    """-1/n sum_i log(1/L sum_l p(y_i | predictor_l)), which is what predictions are scored by."""
    task = with_garbage(small_task(PREDICTED, key=jr.fold_in(key, 1)))
    plain, pointed = (
        loss_and_prediction(build(changed(MIXTURE, point_weight=weight), key, PREDICTED), task, 3, key)
        for weight in (0.0, 0.7)
    )
    each = log_densities(pointed[2], task.query.y)
    points = -np.log(np.exp(each).mean(0)).mean()
    np.testing.assert_allclose(pointed[1]["points"], points, rtol=1e-5)
    np.testing.assert_allclose(pointed[0], plain[0] + 0.7 * points, rtol=1e-5)
    assert abs(points - plain[0]) > 1e-3


@pytest.mark.parametrize(
    ("changes", "spec", "message"),
    [
        ({"elbo_weight": 0.1}, LEARNED, "--elbo-weight goes with --prior-draws"),
        ({"prior_draws": 2, "elbo_weight": -1.0}, LEARNED, "--elbo-weight must be a number of at least 0; got -1"),
        ({"point_weight": 0.5}, LEARNED, "--point-weight goes with --prior-draws"),
        ({"prior_draws": 0}, LEARNED, "--prior-draws must be at least 1; got 0"),
        ({"prior_draws": 2, "stochastic": False}, LEARNED, "--prior-draws needs a stochastic z"),
        ({"prior_draws": 2}, SPEC, "choose --noise-model fixed, learned, predicted, student, mixture"),
    ],
    ids=["alone", "negative", "points alone", "none", "deterministic", "residual"],
)
def test_a_mixture_that_cannot_be_is_refused(changes, spec, message, key):
    with pytest.raises(SettingError, match=message):
        changed(QUICK, **changes).build(spec, key=key)


@pytest.mark.parametrize("adapted", ["knowledge", "mean"])
def test_predicted_noise_has_no_say_in_the_adapted_mean(adapted, key):
    """The support moves what the means need; the weights of the noise are never moved themselves."""
    learner = build(changed(QUICK, adapted=adapted), key, PREDICTED)
    task = small_task(PREDICTED, key=jr.fold_in(key, 1))

    @eqx.filter_jit
    def adapt(weight, bias):
        theta = eqx.tree_at(lambda t: (t.head.weight, t.head.bias), learner.theta, (weight, bias))
        predictors = dataclasses.replace(learner, theta=theta).adapt(task.support, num_samples=2, key=key)
        outcome = predict_with(predictors, task.query.x).components
        assert isinstance(predictors.net, Knowledge)
        assert isinstance(outcome, NormalOutcome)
        return outcome, predictors.net.theta.head.bias

    weight, bias = learner.theta.head.weight, learner.theta.head.bias
    assert bias is not None
    shift = jr.normal(jr.fold_in(key, 2), (9,))
    first, moved = adapt(weight, bias)
    assert moved is not None
    second, _ = adapt(weight.at[:, 1].add(shift[:8]), bias.at[1].add(shift[8]))
    np.testing.assert_array_equal(first.loc, second.loc)
    assert not np.allclose(first.scale, second.scale, rtol=0.01)
    np.testing.assert_array_equal(moved[:, 1], np.full(2, bias[1]))
    assert (np.abs(moved[:, 0] - bias[0]) > 1e-3).all()


@pytest.mark.parametrize("gate", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_prototypes_add_minus_squared_distances_to_logits(gate, bias, key):
    """Under the gate's metric, but for the squared length of the features; h, the last two rows, has no prototype."""
    features, h_size, classes = 4, 2, 3
    config = changed(st_maml.Config(), hidden=(features,), h_size=h_size, h_layer=1, head_bias=bias)
    theta = config.build(TaskSpec((2,), classes, target="class"), key=key).theta
    x, means = jr.normal(key, (5, features + h_size)), jr.normal(jr.fold_in(key, 1), (classes, features))
    c = jr.normal(jr.fold_in(key, 2), (features + h_size,)) if gate else None
    moved = from_prototypes(theta, c, means, jnp.array(0.3))
    shifts = [0.0 if one.head.bias is None else np.asarray(one.head.bias) for one in (moved, theta)]
    gain = np.asarray(x @ moved.head.weight - x @ theta.head.weight) + shifts[0] - shifts[1]
    seen = np.asarray(x, dtype=float)[:, None, :features]
    away = np.square(seen - np.asarray(means, dtype=float)) - np.square(seen)
    metric = 0.3 * scipy.special.expit(np.asarray(c, dtype=float)[:features]) if gate else 0.3
    np.testing.assert_allclose(gain, -(metric * away).sum(-1), rtol=1e-4, atol=1e-5)


def test_numbers_that_an_input_found_in_the_support_are_none_of_the_encoders_business(key):
    """The last two of four inputs are the base learner's alone."""
    spec = TaskSpec((4,), 1, found=2)
    learner, task = build(QUICK, key, spec), small_task(spec, key=jr.fold_in(key, 1))
    assert learner.phi.pair.layers[0].weight.shape[0] == 2 + 1
    assert learner.theta.body[0].weight.shape[0] == 4 + 3
    found = eqx.tree_at(lambda t: t.support.x, task, task.support.x.at[:, 2:].add(1.0))
    prior, again = (learner.task_distribution(one.support) for one in (task, found))
    np.testing.assert_array_equal(prior.mu, again.mu)
    before = eqx.tree_at(lambda t: t.support.x, task, task.support.x.at[:, 1].add(1.0))
    assert not np.allclose(prior.mu, learner.task_distribution(before.support).mu)
    assert STMAML.__dataclass_fields__["found"].default == 0


def test_a_mixture_counts_a_single_row_once_and_none_not_at_all(key):
    learner = build(changed(QUICK, prior_draws=1), key, PREDICTED)
    task = small_task(PREDICTED, key=jr.fold_in(key, 1))
    weights = (jnp.zeros_like(task.query.weight).at[0].set(1.0), jnp.zeros_like(task.query.weight))
    one, none = (eqx.tree_at(lambda t: t.query.weight, task, weight) for weight in weights)
    loss, _, prediction = loss_and_prediction(learner, one, 1, key)
    np.testing.assert_allclose(loss, -prediction.log_prob(task.query.y)[0], rtol=1e-5)
    assert loss_of(learner, none, key)[0] == 0


def test_settings_can_be_part_of_what_a_program_is_compiled_for():
    assert hash(st_maml.Config()) == hash(st_maml.Config())
