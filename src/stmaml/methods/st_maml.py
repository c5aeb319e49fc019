"""ST-MAML: Wang, Grigsby, Sekhon, Qi, "ST-MAML: A Stochastic-Task based Method for Task-Heterogeneous Meta-Learning".

The defaults follow the paper's equations; the switches reach the authors' released code, which differs from the paper
and from one benchmark to the next (docs/methods/st-maml.md lists how).

Departures: sigma is read as a standard deviation with floor 0.1, as in the released code; the log-likelihood of
eq. 15 is a mean over the query set, and the KL is divided by its size accordingly; the inner gradient is clamped."""

import math
from dataclasses import dataclass, replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.draws import standard_normal
from stmaml.inner import bound
from stmaml.likelihoods import AbstractLikelihood, likelihood_for
from stmaml.methods import base
from stmaml.methods.base import AbstractMetaLearner, Metrics, NetPredictor, outputs, pairs, sample_predictors, settle
from stmaml.methods.st_maml_settings import Adapting, Gating, Settings
from stmaml.nets.backbone import BaseLearner, base_learner
from stmaml.nets.conv import ConvBody, ConvLearner, feature_shape
from stmaml.nets.layers import MLP
from stmaml.nets.set_encoder import DiagonalNormal, Encoding, TaskEncoder
from stmaml.outcomes import AbstractOutcome
from stmaml.prediction import Prediction
from stmaml.tasks import Examples, Scalar, Task, TaskSpec, Weight, weighted_mean

__all__ = ["STMAML", "Adapting", "Codes", "Config", "Encoding", "Gating", "Knowledge"]

PROTO_SCALE = 0.03  # squared distances add up hundreds of features: this brings logits to a few units
ENCODER_CHANNELS, ENCODER_BLOCKS = 6, 2  # the paper's task encoder for images


@dataclass(frozen=True)
class Config(Settings):
    """Settings of ST-MAML."""

    def build(self, spec: TaskSpec, *, key: PRNGKeyArray) -> "STMAML":
        """A fresh ST-MAML for tasks like `spec`."""
        self.check(spec)
        theta_key, phi_key, w_key, beta_key = jr.split(key, 4)
        likelihood = likelihood_for(spec)
        image, pair_size = self._image(spec, likelihood.code_size, key=jr.fold_in(key, 5))
        h_size, z_size = self.h_size if self.augment else 0, self.encoder.z_size
        fresh = partial(base_learner, spec, self.hidden, self.conv, likelihood.raw_size, key=theta_key)
        theta = fresh(h_size=h_size, h_layer=self.h_layer, h_form=self.h_form, head_bias=self.head_bias)
        gate_in = z_size + (pair_size if self.gate.gate == "set-mlp" else 0)
        gate_sizes = (gate_in, *self.gate.widths, theta.head.weight.shape[0])
        return STMAML(
            theta=theta,
            phi=self.encoder.build(pair_size, stochastic=self.stochastic, key=phi_key),
            w=MLP(gate_sizes, init="glorot", key=w_key) if self.tailor else None,
            beta=MLP((z_size, h_size), init="glorot", key=beta_key) if self.augment else None,
            likelihood=likelihood,
            settings=self,
            image=image,
            log_proto_scale=jnp.log(jnp.array(PROTO_SCALE)) if self.proto_head else None,
            found=spec.found,
        )

    def _image(self, spec: TaskSpec, code_size: int, *, key: PRNGKeyArray) -> tuple[ConvBody | None, int]:
        """The task encoder's own blocks for images, and how many numbers there are in a row that it reads."""
        if not spec.is_image:
            return None, spec.x_size - spec.found + code_size
        if self.encoder.reads == "prototypes":
            return None, math.prod(feature_shape(spec.x_shape, self.conv))
        small = replace(self.conv, channels=ENCODER_CHANNELS, conv_blocks=ENCODER_BLOCKS)
        features = math.prod(feature_shape(spec.x_shape, small))
        return ConvBody(spec.x_shape, small, key=key), features + code_size


class Knowledge(eqx.Module):
    """Theta_T = [theta_T, h_T]: what a task is solved with (eq. 13, biggoal)."""

    theta: BaseLearner
    h: Float[Array, " h"] | None

    def __call__(self, x: Float[Array, "n *dx"], *, weight: Weight | None = None) -> Float[Array, "n r"]:
        """Raw outputs of the base learner on the augmented inputs."""
        return self.theta(x, self.h, weight=weight)

    def settle(self, x: Float[Array, "n *dx"], weight: Weight) -> "Knowledge":
        """The same, with what the base learner remembers of a support set."""
        return replace(self, theta=self.theta.settle(x, weight, self.h))


class Codes(eqx.Module):
    """What z is turned into before it meets the base learner: the feature h and the gate's logits c."""

    h: Float[Array, " h"] | None
    c: Float[Array, " c"] | None


class STMAML(AbstractMetaLearner):
    """MAML whose initialisation and inputs are revised by a stochastic task variable z."""

    theta: BaseLearner
    phi: TaskEncoder
    w: MLP | None
    beta: MLP | None
    likelihood: AbstractLikelihood
    settings: Config = eqx.field(static=True)
    image: ConvBody | None = None
    """The part of phi that reads images."""
    log_proto_scale: Scalar | None = None
    found: int = eqx.field(default=0, static=True)
    """Numbers at the end of each input that it found in the support: the base learner's alone, phi leaves them out."""

    def loss(self, task: Task, *, key: PRNGKeyArray) -> tuple[Scalar, Metrics]:
        """Minus the ELBO, or what the settings have in its place or beside it."""
        if self.settings.prior_draws is None:
            return self._elbo_loss(task, key=key)
        loss, parts = self._mixture_loss(task, self.settings.prior_draws, key=key)
        if not self.settings.elbo_weight:
            return loss, parts
        beside, elbo_parts = self._elbo_loss(task, key=jr.fold_in(key, 1))
        return loss + self.settings.elbo_weight * beside, parts | {"kl": elbo_parts["kl"]}

    def _elbo_loss(self, task: Task, *, key: PRNGKeyArray) -> tuple[Scalar, Metrics]:
        """Minus the ELBO (eq. 15, LIB), with z from the posterior q(z | support, query)."""
        p_z = self.task_distribution(task.support)
        q_z = self.task_distribution(self.settings.known(task)) if self.settings.stochastic else p_z  # eq. 10 (postz)
        knowledge, q_z = self._fine_tune(q_z, task.support, key=key)
        fit = self.likelihood.mean_objective(outputs(knowledge, task.query), task.query)
        return self.settings.weigh(fit, q_z, p_z, task.query) if self.settings.stochastic else (fit, {})

    def _mixture_loss(self, task: Task, draws: int, *, key: PRNGKeyArray) -> tuple[Scalar, Metrics]:
        """Minus the log-density, for one example, of the query set as a whole under a mixture of predictors."""
        p_z = self.task_distribution(task.support)

        def of_draw(key: PRNGKeyArray) -> tuple[AbstractOutcome, Float[Array, " q"]]:
            # Within one vmap, weights that no inner step has moved are multiplied once for all draws.
            predictor = NetPredictor(self._fine_tune(p_z, task.support, key=key)[0], self.likelihood)
            outcome = predictor.padded(task.query.x, task.query.weight)
            return outcome, outcome.log_prob(task.query.y)

        outcomes, log_prob = jax.vmap(of_draw)(jr.split(key, draws))
        each = log_prob @ task.query.weight  # of the set as a whole, under each predictor
        count = jnp.maximum(task.query.weight.sum(), 1.0)
        loss, parts = -(jax.nn.logsumexp(each) - jnp.log(draws)) / count, {"fit": -each.mean() / count}
        if not self.settings.point_weight:
            return loss, parts
        points = -weighted_mean(Prediction(outcomes).pooled().log_prob(task.query.y), task.query.weight)
        return loss + self.settings.point_weight * points, parts | {"points": points}

    def adapt(self, support: Examples, *, num_samples: int, key: PRNGKeyArray) -> NetPredictor:
        """One predictor for each draw of z from the prior p(z | support)."""
        p_z = self.task_distribution(support)

        def adapt_one(key: PRNGKeyArray) -> NetPredictor:
            return NetPredictor(self._fine_tune(p_z, support, key=key)[0], self.likelihood)

        return sample_predictors(adapt_one, num_samples=num_samples if self.settings.stochastic else 1, key=key)

    def task_distribution(self, support: Examples) -> DiagonalNormal:
        """The prior p(z | support) (eq. 6, zmu): what the support says about which task this is."""
        if self.settings.encoder.reads == "prototypes":
            return self.phi(*prototypes(self.theta, self.likelihood, support))
        return self.phi(pairs(support, self.likelihood, self.image, found=self.found), support.weight)

    def _fine_tune(self, d_z: DiagonalNormal, support: Examples, key: PRNGKeyArray) -> tuple[Knowledge, DiagonalNormal]:
        """The knowledge Theta^K after the inner loop (eq. 17, inner_update), and d_z where the loop moves it."""
        eps = self._noise(d_z, key=key)
        inner, codes = self.settings.inner, self.settings.codes
        rates = (inner.inner_lr, inner.inner_lr if codes.code_lr is None else codes.code_lr)
        clamps = (bound(inner.inner_clamp), bound(codes.code_clamp))

        def knowledge(params: tuple, eps: Float[Array, " z"]) -> Knowledge:
            return self._knowledge(params, d_z, eps, support)

        def inner_loss(params: tuple, eps: Float[Array, " z"]) -> Scalar:
            raw = outputs(knowledge(params, eps), support)
            return self.likelihood.mean_inner_objective(raw, support)  # eq. 16 (inner_loss)

        end = inner(inner_loss, self._start(d_z, eps[0], support), lr=rates, clamp=clamps, per_step=eps[:-1])
        moved = DiagonalNormal(end[1], d_z.sigma) if codes.moves_mean else d_z
        return settle(knowledge(end, eps[-1]), support), moved

    def _noise(self, d_z: DiagonalNormal, *, key: PRNGKeyArray) -> Float[Array, "k z"]:
        """The standard normal noise of z: a row for each inner step and one for the prediction."""
        draws = self.settings.inner.inner_steps + 1
        if self.settings.codes.adapted == "redrawn-mean":
            return standard_normal(key, (draws, *d_z.mu.shape))
        return jnp.tile(standard_normal(key, d_z.mu.shape), (draws, 1))

    def _start(self, d_z: DiagonalNormal, eps: Float[Array, " z"], support: Examples) -> tuple:
        if self.settings.codes.moves_mean:
            return self.theta, d_z.mu
        codes = self._codes(d_z.mu + d_z.sigma * eps, support)
        if self.settings.codes.adapted == "codes":
            return self.theta, codes
        return self._tailor(codes, support), codes.h

    def _knowledge(self, params: tuple, d_z: DiagonalNormal, eps: Float[Array, " z"], support: Examples) -> Knowledge:
        """The base learner that the inner loop's current parameters stand for."""
        theta, rest = params
        if self.settings.codes.adapted == "knowledge":
            return Knowledge(theta, rest)
        codes = self._codes(rest + d_z.sigma * eps, support) if self.settings.codes.moves_mean else rest
        return Knowledge(_gate(theta, codes.c), codes.h)

    def _codes(self, z: Float[Array, " z"], support: Examples) -> Codes:
        return Codes(
            h=None if self.beta is None else self.beta(z),  # eq. 12 (trans2)
            c=None if self.w is None else self._gate_logits(self.w, z, support),
        )

    def _gate_logits(self, w: MLP, z: Float[Array, " z"], support: Examples) -> Float[Array, " c"]:
        if self.settings.gate.gate == "set-mlp":
            xy = pairs(support, self.likelihood, self.image, found=self.found)
            return weighted_mean(w.joined([xy, z]), support.weight)
        return jax.nn.relu(w(z)) if self.settings.gate.gate == "relu-affine" else w(z)

    def _tailor(self, codes: Codes, support: Examples) -> BaseLearner:
        """theta^0 = [theta_b, sigmoid(c) * theta_c] (eq. 11, trans1)."""
        gated = _gate(self.theta, codes.c)
        if self.log_proto_scale is None:
            return gated
        means, _ = prototypes(self.theta, self.likelihood, support, codes.h)
        return from_prototypes(gated, codes.c, means, jnp.exp(self.log_proto_scale))


def _gate(theta: BaseLearner, c: Float[Array, " c"] | None) -> BaseLearner:
    """theta with the rows of its last weight matrix gated; the bias is not."""
    if c is None:
        return theta
    return eqx.tree_at(lambda t: t.head.weight, theta, jax.nn.sigmoid(c)[:, None] * theta.head.weight)


def prototypes(
    theta: BaseLearner, likelihood: AbstractLikelihood, examples: Examples, h: Float[Array, " h"] | None = None
) -> tuple[Float[Array, "k f"], Float[Array, " k"]]:
    """The mean of each class under the base learner's features, given h, and which classes there are."""
    assert isinstance(theta, ConvLearner)
    features = theta.features(examples.x, h, weight=examples.weight)
    return base.class_means(features, likelihood.encode(examples.y), examples.weight)


def from_prototypes(
    gated: BaseLearner, c: Float[Array, " c"] | None, means: Float[Array, "k f"], scale: Scalar
) -> BaseLearner:
    """A gated learner, its last layer moved so that a class's logit gains -scale |x - mean|^2 under the gate's metric.
    The squared length of x is the same for all classes and left out."""
    metric = scale * (jnp.ones(means.shape[1]) if c is None else jax.nn.sigmoid(c)[: means.shape[1]])
    weighted = means * jnp.broadcast_to(metric, means.shape)
    rows = jnp.pad(2 * weighted.T, ((0, gated.head.weight.shape[0] - means.shape[1]), (0, 0)))  # h is no part of x
    shift = -(means * weighted).sum(1)
    return eqx.tree_at(
        lambda t: (t.head.weight, t.head.bias),
        gated,
        (gated.head.weight + rows, shift if gated.head.bias is None else gated.head.bias + shift),
        is_leaf=lambda leaf: leaf is None,
    )
