"""ST-MAML: Wang, Grigsby, Sekhon, Qi, "ST-MAML: A Stochastic-Task based Method for Task-Heterogeneous Meta-Learning".

The defaults follow the paper's equations; the switches reach the authors' released code, which differs from the paper
and from one benchmark to the next (docs/methods/st-maml.md lists how).

Departures: sigma is read as a standard deviation with floor 0.1, as in the released code; the log-likelihood of
eq. 15 is a mean over the query set, and the KL is divided by its size accordingly; the inner gradient is clamped.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.errors import SettingError
from stmaml.inner import InnerLoop, bound, check_descent
from stmaml.likelihoods import AbstractLikelihood, likelihood_for
from stmaml.methods.base import (
    AbstractMetaLearner,
    Metrics,
    NetPredictor,
    check_kl_weight,
    class_means,
    kl_weight,
    outputs,
    pairs,
    sample_predictors,
    settle,
)
from stmaml.nets.backbone import BaseLearner, base_learner, reads_images
from stmaml.nets.conv import Conv, ConvBody, ConvLearner, feature_shape
from stmaml.nets.cross import Lookup, Memory
from stmaml.nets.lattice import LatticeReader, Surroundings
from stmaml.nets.layers import MLP
from stmaml.nets.set_encoder import DiagonalNormal, StdForm, TaskEncoder
from stmaml.tasks import Examples, Task, TaskSpec, weighted_mean

Adapted = Literal["knowledge", "codes", "mean"]
GateForm = Literal["affine", "relu-affine", "mlp", "set-mlp"]
Reads = Literal["pairs", "prototypes"]
ENCODER_CHANNELS, ENCODER_BLOCKS = 6, 2  # the paper's task encoder for images
PROTO_SCALE = 0.03  # squared distances add up hundreds of features: this brings logits to a few units


@dataclass(frozen=True)
class Config:
    """Settings of ST-MAML."""

    hidden: tuple[int, ...] = (40, 40)
    """Widths of the base learner's hidden layers; images are read by convolutions instead."""
    encoder: tuple[int, ...] = (80, 80)
    """Widths of the pair encoder; the last one is the size of r."""
    attention: int = 0
    """Layers of self-attention over the encoded pairs, beyond the paper: 0 is its plain mean."""
    cross_attention: int = 0
    """Layers in which each input looks at the support, beyond the paper; what it finds there, as many numbers as r has,
    joins the base learner's inputs. 0 is none."""
    cross_waves: int = 0
    """Octaves of waves in which cross-attention reads each number, beside the number itself; their rates are learnt.
    For standardised inputs of which small differences matter, 9 is worth a trial. 0 is none."""
    lattice_channels: int = 0
    """For inputs on a lattice, such as pixels, beyond the paper: channels of a convolutional network that reads the
    support as a picture with gaps; as many numbers, read where an input lies, join the base learner's inputs. 0 is
    none."""
    num_heads: int = 8
    """Heads of either attention."""
    z_hidden: tuple[int, ...] = (80,)
    """Widths of the ReLU layers between r and the mean and spread of z."""
    z_size: int = 20
    """Numbers in the task variable z."""
    h_size: int = 20
    """Numbers in the augmented feature h."""
    h_layer: int = 0
    """Layer whose inputs h joins: 0 is the raw input, 1 the first hidden layer. On images, always the last layer."""
    stochastic: bool = True
    """Off: the deterministic form, z is a function of the support set and there is no KL."""
    augment: bool = True
    """Off: the ablation without augmented feature."""
    tailor: bool = True
    """Off: the ablation without gate."""
    gate: GateForm = "affine"
    """How z becomes the gate's logits; `set-mlp` also reads the support examples."""
    gate_hidden: tuple[int, ...] = (80,)
    """Hidden widths of an `mlp` or `set-mlp` gate."""
    adapted: Adapted = "knowledge"
    """What the inner loop moves: the gated weights and h; or the plain weights, h and the gate's logits (`codes`);
    or the plain weights and the mean of z (`mean`)."""
    redraw: bool = False
    """Draw z anew in each inner step (for `mean`, where h and the gate follow z)."""
    code_lr: float | None = None
    """Inner step size of h, gate logits or the mean of z; that of the weights if not given."""
    code_clamp: float | None = 10.0
    """Bound on each element of their inner gradient; none if not given."""
    std_form: StdForm = "softplus"
    """How sigma is made positive."""
    std_start: float | None = None
    """What sigma is near when training starts: 0.7 if not given (0.55 for sigmoid), which drowns z until its mean has
    grown. Worth a trial just above its floor of 0.1."""
    kl_weight: float | None = None
    """Weight of KL(q || p) beside the mean loss of the query; if not given, one over the number of query examples,
    which makes the loss minus the ELBO of one example."""
    prior_draws: int | None = None
    """Beyond the paper: train on the mixture of this many predictors, with z from the prior as at test time, instead of
    on the ELBO. There is no KL then; needs a noise model other than residual."""
    kl_mean: bool = False
    """Average the KL over the coordinates of z instead of summing it."""
    head_bias: bool = True
    """Whether the base learner's last layer has a bias."""
    reads: Reads = "pairs"
    """What the task encoder reads of images: each with its label, as in the paper, or the mean of each class under the
    base learner's features, which is beyond it."""
    proto_head: bool = False
    """Beyond the paper: on images, start the last layer from the class means of the support's features."""
    inner: InnerLoop = field(default_factory=InnerLoop)
    conv: Conv = field(default_factory=Conv)

    def build(self, spec: TaskSpec, *, key: PRNGKeyArray) -> "STMAML":
        """A fresh ST-MAML for tasks like `spec`."""
        self._check(spec)
        theta_key, phi_key, w_key, beta_key = jr.split(key, 4)
        likelihood = likelihood_for(spec)
        image, pair_size = self._reader(spec, likelihood, key=jr.fold_in(key, 5))
        cross, found = self._lookup(spec, pair_size, key=jr.fold_in(key, 4))
        theta = base_learner(
            replace(spec, x_shape=(spec.x_size + found,)) if found else spec,
            self.hidden,
            self.conv,
            likelihood.raw_size,
            h_size=self.h_size if self.augment else 0,
            h_layer=self.h_layer,
            head_bias=self.head_bias,
            key=theta_key,
        )
        phi = TaskEncoder(
            pair_size,
            self.encoder,
            self.z_size,
            post=self.z_hidden,
            attention=self.attention,
            num_heads=self.num_heads,
            stochastic=self.stochastic,
            std_form=self.std_form,
            std_start=self.std_start,
            key=phi_key,
        )
        gate_in = self.z_size + (pair_size if self.gate == "set-mlp" else 0)
        gate_hidden = self.gate_hidden if self.gate in ("mlp", "set-mlp") else ()
        w = MLP((gate_in, *gate_hidden, theta.head.weight.shape[0]), init="glorot", key=w_key)
        beta = MLP((self.z_size, self.h_size), init="glorot", key=beta_key)
        return STMAML(
            theta,
            phi,
            w if self.tailor else None,
            beta if self.augment else None,
            likelihood,
            self,
            cross,
            image,
            jnp.log(jnp.array(PROTO_SCALE)) if self.proto_head else None,
        )

    def _lookup(
        self, spec: TaskSpec, pair_size: int, *, key: PRNGKeyArray
    ) -> tuple[Lookup | LatticeReader | None, int]:
        """Where inputs look the support up, and how many numbers each finds there."""
        if self.cross_attention:
            size = self.encoder[-1]
            lookup = Lookup(
                spec.x_size,
                pair_size,
                size,
                layers=self.cross_attention,
                num_heads=self.num_heads,
                octaves=self.cross_waves,
                key=key,
            )
            return lookup, size
        if self.lattice_channels:
            assert spec.lattice is not None
            code_size = pair_size - spec.x_size
            size, precision = self.lattice_channels, self.conv.precision
            return LatticeReader(spec.lattice, spec.x_size, code_size, size, precision=precision, key=key), size
        return None, 0

    def _reader(
        self, spec: TaskSpec, likelihood: AbstractLikelihood, *, key: PRNGKeyArray
    ) -> tuple[ConvBody | None, int]:
        """The task encoder's own blocks for images, and how many numbers there are in a row that it reads."""
        if not reads_images(spec):
            return None, spec.x_size + likelihood.code_size
        if self.reads == "prototypes":
            return None, math.prod(feature_shape(spec.x_shape, self.conv))
        small = replace(self.conv, channels=ENCODER_CHANNELS, conv_blocks=ENCODER_BLOCKS)
        features = math.prod(feature_shape(spec.x_shape, small))
        return ConvBody(spec.x_shape, small, key=key), features + likelihood.code_size

    def _check(self, spec: TaskSpec) -> None:
        self._check_images(spec)
        self._check_lattice(spec)
        if self.cross_waves and not self.cross_attention:
            raise SettingError("--cross-waves are read by cross-attention: add --cross-attention 3, or leave them out.")
        check_descent("code", self.inner.inner_lr if self.code_lr is None else self.code_lr, self.code_clamp)
        check_kl_weight(self.kl_weight)
        if self.prior_draws is None:
            return
        if self.prior_draws < 1:
            raise SettingError(f"--prior-draws must be at least 1; got {self.prior_draws}.")
        if not self.stochastic:
            raise SettingError("--prior-draws needs a stochastic z; leave it out for the deterministic form.")
        if spec.target == "real" and spec.noise == "residual":
            raise SettingError(
                "--prior-draws weighs predictors by their likelihood: choose --noise-model learned, predicted or fixed."
            )

    def _check_lattice(self, spec: TaskSpec) -> None:
        if self.lattice_channels and self.cross_attention:
            raise SettingError("--lattice-channels and --cross-attention are two ways to read the support; take one.")
        if self.lattice_channels and spec.lattice is None:
            raise SettingError(
                "--lattice-channels needs inputs on a lattice, such as pixels, that are not standardised: leave out "
                "--lattice-channels, or add --no-standardise."
            )

    def _check_images(self, spec: TaskSpec) -> None:
        if (self.proto_head or self.reads == "prototypes") and not (reads_images(spec) and spec.target == "class"):
            raise SettingError(
                "--proto-head and --reads prototypes need images with class labels; leave them out for other tasks."
            )
        if self.proto_head and self.adapted != "knowledge":
            raise SettingError(f"--proto-head needs --adapted knowledge, since it starts gated; got {self.adapted}.")
        if self.reads == "prototypes" and self.gate == "set-mlp":
            raise SettingError("a set-mlp gate reads labelled examples; choose another --gate for --reads prototypes.")
        if self.cross_attention and reads_images(spec):
            raise SettingError("--cross-attention looks up vectors, not images; leave it out for images.")


class Knowledge(eqx.Module):
    """Theta_T = [theta_T, h_T]: what a task is solved with (eq. 13, biggoal)."""

    theta: BaseLearner
    h: Float[Array, " h"] | None
    memory: Memory | Surroundings | None = None
    """The support for inputs to look up, under `cross_attention` or `lattice_channels`."""

    def __call__(self, x: Float[Array, "n *dx"], *, weight: Float[Array, " n"] | None = None) -> Float[Array, "n r"]:
        """Raw outputs of the base learner on the augmented inputs."""
        return self.theta(_look_up(x, self.memory), self.h, weight=weight)

    def settle(self, x: Float[Array, "n *dx"], weight: Float[Array, " n"]) -> "Knowledge":
        """The same, with what the base learner remembers of a support set."""
        return replace(self, theta=self.theta.settle(x, weight))


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
    cross: Lookup | LatticeReader | None = None
    image: ConvBody | None = None
    """The part of phi that reads images."""
    log_proto_scale: Float[Array, ""] | None = None

    def loss(self, task: Task, *, key: PRNGKeyArray) -> tuple[Float[Array, ""], Metrics]:
        """Minus the ELBO (eq. 15, LIB), with z from the posterior q(z | support, query)."""
        if self.settings.prior_draws is not None:
            return self._mixture_loss(task, self.settings.prior_draws, key=key)
        p_z = self._encode(task.support)
        q_z = self._encode(task.support + task.query) if self.settings.stochastic else p_z  # eq. 10 (postz)
        knowledge, q_z = self._fine_tune(q_z, task.support, key=key)
        fit = self.likelihood.mean_objective(outputs(knowledge, task.query), task.query)
        if not self.settings.stochastic:
            return fit, {}
        each = q_z.kl(p_z)
        kl = each.mean() if self.settings.kl_mean else each.sum()
        return fit + kl_weight(self.settings.kl_weight, task.query) * kl, {"fit": fit, "kl": kl}

    def _mixture_loss(self, task: Task, draws: int, *, key: PRNGKeyArray) -> tuple[Float[Array, ""], Metrics]:
        """Minus the log-density, for one example, of the query set as a whole under a mixture of predictors."""
        predictors = self.adapt(task.support, num_samples=draws, key=key)
        outcomes = jax.vmap(lambda predictor: predictor.padded(task.query.x, task.query.weight))(predictors)
        log_prob = jax.vmap(lambda outcome: outcome.log_prob(task.query.y))(outcomes)
        each = log_prob @ task.query.weight  # of the set as a whole, under each predictor
        count = jnp.maximum(task.query.weight.sum(), 1.0)
        joint = jax.nn.logsumexp(each) - jnp.log(draws)
        return -joint / count, {"fit": -each.mean() / count}

    def adapt(self, support: Examples, *, num_samples: int, key: PRNGKeyArray) -> NetPredictor:
        """One predictor for each draw of z from the prior p(z | support)."""
        p_z = self._encode(support)

        def adapt_one(key: PRNGKeyArray) -> NetPredictor:
            return NetPredictor(self._fine_tune(p_z, support, key=key)[0], self.likelihood)

        return sample_predictors(adapt_one, num_samples=num_samples if self.settings.stochastic else 1, key=key)

    def task_distribution(self, support: Examples) -> DiagonalNormal:
        """The prior p(z | support): what the support says about which task this is."""
        return self._encode(support)

    def _encode(self, examples: Examples) -> DiagonalNormal:
        if self.settings.reads == "prototypes":
            return self.phi(*self._prototypes(examples))
        return self.phi(pairs(examples, self.likelihood, self.image), examples.weight)

    def _prototypes(self, examples: Examples) -> tuple[Float[Array, "k f"], Float[Array, " k"]]:
        """The mean of each class under the base learner's features, and which classes there are."""
        assert isinstance(self.theta, ConvLearner)
        features = self.theta.body(examples.x, examples.weight)
        return class_means(features, self.likelihood.encode(examples.y), examples.weight)

    def _fine_tune(
        self, d_z: DiagonalNormal, support: Examples, *, key: PRNGKeyArray
    ) -> tuple[Knowledge, DiagonalNormal]:
        """The knowledge Theta^K after the inner loop (eq. 17, inner_update), and d_z where the loop moves it."""
        eps = self._noise(d_z, key=key)
        rate = self.settings.inner.inner_lr if self.settings.code_lr is None else self.settings.code_lr
        rates = (self.settings.inner.inner_lr, rate)
        clamps = (bound(self.settings.inner.inner_clamp), bound(self.settings.code_clamp))
        start = self._start(d_z, eps[0], support)
        memory = None if self.cross is None else self.cross(pairs(support, self.likelihood), support.weight)
        inputs = _look_up(support.x, memory)  # once: the inner loop does not move what is found

        def knowledge(params: tuple, eps: Float[Array, " z"]) -> Knowledge:
            return self._knowledge(params, d_z, eps, support)

        def inner_loss(params: tuple, eps: Float[Array, " z"]) -> Float[Array, ""]:
            raw = knowledge(params, eps)(inputs, weight=support.weight)
            return self.likelihood.mean_inner_objective(raw, support)  # eq. 16 (inner_loss)

        end = self.settings.inner(inner_loss, start, lr=rates, clamp=clamps, per_step=eps[:-1])
        moved = DiagonalNormal(end[1], d_z.sigma) if self.settings.adapted == "mean" else d_z
        return settle(replace(knowledge(end, eps[-1]), memory=memory), support), moved

    def _noise(self, d_z: DiagonalNormal, *, key: PRNGKeyArray) -> Float[Array, "k z"]:
        """The standard normal noise of z: a row for each inner step and one for the prediction."""
        draws = self.settings.inner.inner_steps + 1
        if self.settings.redraw:
            return jr.normal(key, (draws, *d_z.mu.shape))
        return jnp.tile(jr.normal(key, d_z.mu.shape), (draws, 1))

    def _start(self, d_z: DiagonalNormal, eps: Float[Array, " z"], support: Examples) -> tuple:
        """(weights, codes) where the inner loop starts."""
        if self.settings.adapted == "mean":
            return self.theta, d_z.mu
        codes = self._codes(d_z.mu + d_z.sigma * eps, support)
        if self.settings.adapted == "codes":
            return self.theta, codes
        return self._tailor(codes.c, support), codes.h

    def _knowledge(self, params: tuple, d_z: DiagonalNormal, eps: Float[Array, " z"], support: Examples) -> Knowledge:
        """The base learner that the inner loop's current parameters stand for."""
        theta, rest = params
        if self.settings.adapted == "knowledge":
            return Knowledge(theta, rest)
        codes = self._codes(rest + d_z.sigma * eps, support) if self.settings.adapted == "mean" else rest
        return Knowledge(_gate(theta, codes.c), codes.h)

    def _codes(self, z: Float[Array, " z"], support: Examples) -> Codes:
        return Codes(
            h=None if self.beta is None else self.beta(z),  # eq. 12 (trans2)
            c=None if self.w is None else self._gate_logits(self.w, z, support),
        )

    def _gate_logits(self, w: MLP, z: Float[Array, " z"], support: Examples) -> Float[Array, " c"]:
        if self.settings.gate == "set-mlp":
            xy = pairs(support, self.likelihood, self.image)
            xyz = jnp.concatenate([xy, jnp.broadcast_to(z, (xy.shape[0], z.shape[0]))], axis=1)
            return weighted_mean(w(xyz), support.weight)
        return jax.nn.relu(w(z)) if self.settings.gate == "relu-affine" else w(z)

    def _tailor(self, c: Float[Array, " c"] | None, support: Examples) -> BaseLearner:
        """theta^0 = [theta_b, sigmoid(c) * theta_c] (eq. 11, trans1)."""
        if self.log_proto_scale is None:
            return _gate(self.theta, c)
        means, _ = self._prototypes(support)
        return _with_prototypes(self.theta, c, means, jnp.exp(self.log_proto_scale))


def _look_up(x: Float[Array, "n *dx"], memory: Memory | Surroundings | None) -> Float[Array, "n *d"]:
    """The inputs, each with what it finds in the support."""
    return x if memory is None else jnp.concatenate([x.reshape(x.shape[0], -1), memory(x)], axis=1)


def _with_prototypes(
    theta: BaseLearner, c: Float[Array, " c"] | None, means: Float[Array, "k f"], scale: Float[Array, ""]
) -> BaseLearner:
    """theta gated, its last layer moved so that a class's logit gains -scale |x - mean|^2 under the gate's metric.

    The squared length of x is the same for all classes and left out.
    """
    metric = scale * (jnp.ones(means.shape[1]) if c is None else jax.nn.sigmoid(c)[: means.shape[1]])
    weighted = means * jnp.broadcast_to(metric, means.shape)
    rows = jnp.pad(2 * weighted.T, ((0, theta.head.weight.shape[0] - means.shape[1]), (0, 0)))  # h is no part of x
    gated = _gate(theta, c)
    shift = -(means * weighted).sum(1)
    return eqx.tree_at(
        lambda t: (t.head.weight, t.head.bias),
        gated,
        (gated.head.weight + rows, shift if gated.head.bias is None else gated.head.bias + shift),
        is_leaf=lambda leaf: leaf is None,
    )


def _gate(theta: BaseLearner, c: Float[Array, " c"] | None) -> BaseLearner:
    """theta with the rows of its last weight matrix gated; the bias is not."""
    if c is None:
        return theta
    return eqx.tree_at(lambda t: t.head.weight, theta, jax.nn.sigmoid(c)[:, None] * theta.head.weight)
