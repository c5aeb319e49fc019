"""Neural processes: a support set is read by an encoder, never by a gradient.

- CNP: Garnelo et al., "Conditional Neural Processes", ICML 2018.
- NP: Garnelo et al., "Neural Processes", ICML 2018 workshop.
- ANP: Kim et al., "Attentive Neural Processes", ICLR 2019.

Departures: the loss is taken on the query set alone, a mean over its examples, so a source that wants the support
scored as well puts it in the query; the mean code goes straight to mu and sigma, without a hidden layer between; NP has
no deterministic path unless asked; ANP attends from query to support but not within the support. The spread of targets
is the likelihood's affair: under the `residual` noise model the fit is a squared error, not a log-density. Images are
read by one convolutional network, whose features stand in the place of x everywhere. CNP's paper joins the codes of all
classes and decodes them at once; with `pooled="class"`, ours decodes each class by itself with one decoder, so that the
numbers of the classes cannot matter."""

import math
from dataclasses import dataclass, field, replace
from typing import Literal

import equinox as eqx
import jax
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.errors import SettingError, at_least, need_widths
from stmaml.likelihoods import AbstractLikelihood, likelihood_for
from stmaml.methods import base
from stmaml.methods.base import AbstractMetaLearner, AbstractOneNet, Metrics, NetPredictor, Variational, pairs, settle
from stmaml.nets.attention import MultiHeadAttention
from stmaml.nets.conv import Conv, ConvBody, feature_shape
from stmaml.nets.layers import MLP
from stmaml.nets.set_encoder import DiagonalNormal, Encoding, TaskEncoder
from stmaml.tasks import Examples, Scalar, Task, TaskSpec, Weight, weighted_mean


@dataclass(frozen=True)
class Coding:
    """Settings of every neural process."""

    encoder: tuple[int, ...] = (128, 128, 128, 128)
    """Widths of the pair encoder, of each path its own; the last one is the size of r."""
    decoder: tuple[int, ...] = (128, 128)
    """Widths of the decoder's hidden layers."""
    conv: Conv = field(default_factory=Conv)


@dataclass(frozen=True)
class CNPConfig(Coding):
    """Settings of the conditional neural process."""

    pooled: Literal["all", "class"] = "all"
    """One mean code for the whole support, or one for each class, from which the decoder tells the score of that class:
    for tasks in which the numbers of the classes mean nothing."""

    def __post_init__(self):
        need_widths(encoder=self.encoder)

    def build(self, spec: TaskSpec, *, key: PRNGKeyArray) -> "CNP":
        """A fresh CNP for tasks like `spec`."""
        if self.pooled == "class" and spec.target != "class":
            raise SettingError(f"--pooled class needs class targets; these are {spec.target}. Choose --pooled all.")
        path_key, decoder_key = jr.split(key)
        likelihood = likelihood_for(spec)
        image, spec = _image_features(spec, self.conv, key=jr.fold_in(key, 2))
        outputs = likelihood.raw_size
        if self.pooled == "class":
            path, outputs = ClassPath(MLP((spec.x_size, *self.encoder), init="glorot", key=path_key)), 1
        else:
            path = MeanPath(_pair_encoder(spec, likelihood, self.encoder, key=path_key))
        sizes = (self.encoder[-1] + spec.x_size, *self.decoder, outputs)
        decoder = MLP(sizes, key=decoder_key)
        return CNP(deterministic=path, decoder=decoder, likelihood=likelihood, settings=self, image=image)


@dataclass(frozen=True)
class Latent(Variational, Coding):
    """Settings of the neural processes that have a latent variable z."""

    z_size: int = 128
    """Numbers in the latent variable z."""

    def beside(
        self, path: "MeanPath | AttentionPath | None", spec: TaskSpec, image: ConvBody | None, *, key: PRNGKeyArray
    ) -> "NeuralProcess":
        """The learner with `path` beside a fresh latent path, and a decoder that reads both."""
        base.check_kl_weight(self.kl_weight)
        latent_key, decoder_key = jr.split(key)
        likelihood = likelihood_for(spec)
        pair_size = spec.x_size + likelihood.code_size
        encoding = Encoding(self.encoder, z_hidden=(), z_size=self.z_size, std_form="sigmoid")
        latent = TaskEncoder(pair_size, encoding, key=latent_key)
        r_size = 0 if path is None else self.encoder[-1]
        sizes = (r_size + self.z_size + spec.x_size, *self.decoder, likelihood.raw_size)
        return NeuralProcess(latent, path, MLP(sizes, key=decoder_key), likelihood, self, image)


@dataclass(frozen=True)
class NPConfig(Latent):
    """Settings of the neural process."""

    deterministic: bool = False
    """Whether the decoder also sees r, the mean of the support's codes, beside z."""

    def __post_init__(self):
        need_widths(encoder=self.encoder)
        at_least(1, z_size=self.z_size)

    def build(self, spec: TaskSpec, *, key: PRNGKeyArray) -> "NeuralProcess":
        """A fresh NP for tasks like `spec`."""
        path_key, rest_key = jr.split(key)
        image, spec = _image_features(spec, self.conv, key=jr.fold_in(key, 2))
        path = None
        if self.deterministic:
            path = MeanPath(_pair_encoder(spec, likelihood_for(spec), self.encoder, key=path_key))
        return self.beside(path, spec, image, key=rest_key)


@dataclass(frozen=True)
class ANPConfig(Latent):
    """Settings of the attentive neural process, whose heads share the last widths of encoder and keys."""

    keys: tuple[int, ...] = (128, 128)
    """Widths of the network that makes keys and queries of inputs."""
    num_heads: int = 8
    """Heads of the attention from query inputs to support examples."""

    def __post_init__(self):
        need_widths(encoder=self.encoder, keys=self.keys)
        at_least(1, z_size=self.z_size, num_heads=self.num_heads)

    def build(self, spec: TaskSpec, *, key: PRNGKeyArray) -> "NeuralProcess":
        """A fresh ANP for tasks like `spec`."""
        pair_key, embed_key, attention_key, rest_key = jr.split(key, 4)
        image, spec = _image_features(spec, self.conv, key=jr.fold_in(key, 4))
        path = AttentionPath(
            _pair_encoder(spec, likelihood_for(spec), self.encoder, key=pair_key),
            MLP((spec.x_size, *self.keys), init="glorot", key=embed_key),
            MultiHeadAttention(self.keys[-1], self.encoder[-1], num_heads=self.num_heads, key=attention_key),
        )
        return self.beside(path, spec, image, key=rest_key)


def _image_features(spec: TaskSpec, conv: Conv, *, key: PRNGKeyArray) -> tuple[ConvBody | None, TaskSpec]:
    """Blocks that make features of images, and what tasks look like behind them; other inputs stay as they are."""
    if not spec.is_image:
        return None, spec
    features = math.prod(feature_shape(spec.x_shape, conv))
    return ConvBody(spec.x_shape, conv, key=key), replace(spec, x_shape=(features,))


def _pair_encoder(spec: TaskSpec, likelihood: AbstractLikelihood, widths: tuple[int, ...], *, key: PRNGKeyArray) -> MLP:
    return MLP((spec.x_size + likelihood.code_size, *widths), init="glorot", key=key)


class Shared(eqx.Module):
    """A support remembered as one code r, the same for every input."""

    r: Float[Array, " r"]

    def __call__(self, x: Float[Array, "n dx"]) -> Float[Array, " r"]:
        """r, whatever the inputs."""
        del x
        return self.r


class ByClass(eqx.Module):
    """A support remembered as one code for each class."""

    codes: Float[Array, "k r"]


class Attended(eqx.Module):
    """A support remembered example by example, to be looked up at each input."""

    embed: MLP
    attention: MultiHeadAttention
    keys: Float[Array, "n k"]
    codes: Float[Array, "n r"]
    weight: Weight

    def __call__(self, x: Float[Array, "q dx"]) -> Float[Array, "q r"]:
        """r* for each input: a mean of the codes of the examples that are like it."""
        return self.attention(self.embed(x), self.keys, self.codes, self.weight)


class MeanPath(eqx.Module):
    """The deterministic path of CNP and NP: the mean of the pairs' codes."""

    pair: MLP

    def __call__(self, support: Examples, likelihood: AbstractLikelihood) -> Shared:
        """What is remembered of a support set."""
        return Shared(weighted_mean(self.pair(pairs(support, likelihood)), support.weight))


class ClassPath(eqx.Module):
    """The path of CNP by classes: the mean code of each class's inputs, zeros for a class without any."""

    code: MLP

    def __call__(self, support: Examples, likelihood: AbstractLikelihood) -> ByClass:
        """What is remembered of a support set."""
        codes = self.code(support.x.reshape(support.x.shape[0], -1))
        return ByClass(base.class_means(codes, likelihood.encode(support.y), support.weight)[0])


class AttentionPath(eqx.Module):
    """The deterministic path of ANP: codes of pairs, found again by the likeness of their inputs."""

    pair: MLP
    embed: MLP
    attention: MultiHeadAttention

    def __call__(self, support: Examples, likelihood: AbstractLikelihood) -> Attended:
        """What is remembered of a support set."""
        keys = self.embed(support.x.reshape(support.x.shape[0], -1))
        return Attended(self.embed, self.attention, keys, self.pair(pairs(support, likelihood)), support.weight)


class Decoding(eqx.Module):
    """The decoder with all it knows of a task: `memory` from the deterministic path, z from the latent one."""

    decoder: MLP
    memory: Shared | ByClass | Attended | None
    z: Float[Array, " z"] | None
    image: ConvBody | None

    def __call__(self, x: Float[Array, "n *dx"], *, weight: Weight | None = None) -> Float[Array, "n o"]:
        """Raw outputs of the decoder at [r, z, x]; by classes, at [r, x] of each class in turn."""
        x = x.reshape(x.shape[0], -1) if self.image is None else base.image_features(self.image, x, weight)
        if isinstance(self.memory, ByClass):
            return jax.vmap(lambda r: self.decoder.joined([r, x])[:, 0], out_axes=1)(self.memory.codes)
        r = [] if self.memory is None else [self.memory(x)]
        z = [] if self.z is None else [self.z]
        return self.decoder.joined([*r, *z, x])

    def settle(self, x: Float[Array, "n *dx"], weight: Weight) -> "Decoding":
        """The same, with what the convolutions remember of a support set."""
        return self if self.image is None else replace(self, image=self.image.settle(x, weight))


def _seen(examples: Examples, image: ConvBody | None) -> Examples:
    return Examples(base.features_of(examples, image), examples.y, examples.weight)


class CNP(AbstractOneNet):
    """A decoder conditioned on the mean code of the support, or of each of its classes."""

    deterministic: MeanPath | ClassPath
    decoder: MLP
    likelihood: AbstractLikelihood
    settings: CNPConfig = eqx.field(static=True)
    image: ConvBody | None = None

    def network(self, support: Examples) -> Decoding:
        """The decoder that has seen the support."""
        memory = self.deterministic(_seen(support, self.image), self.likelihood)
        return settle(Decoding(self.decoder, memory, None, self.image), support)


class NeuralProcess(AbstractMetaLearner):
    """NP and ANP: a decoder conditioned on a latent z and, beside it, on what a deterministic path remembers."""

    latent: TaskEncoder
    deterministic: MeanPath | AttentionPath | None
    decoder: MLP
    likelihood: AbstractLikelihood
    settings: Latent = eqx.field(static=True)
    image: ConvBody | None = None

    def loss(self, task: Task, *, key: PRNGKeyArray) -> tuple[Scalar, Metrics]:
        """Minus the ELBO, with z from q(z | support, query); its KL is to p(z | support), made by the same encoder."""
        p_z, q_z = self.task_distribution(task.support), self.task_distribution(self.settings.known(task))
        net = settle(self._condition(q_z, self._remember(task.support), key=key), task.support)
        fit = self.likelihood.mean_objective(base.outputs(net, task.query), task.query)
        return self.settings.weigh(fit, q_z, p_z, task.query)

    def adapt(self, support: Examples, *, num_samples: int, key: PRNGKeyArray) -> NetPredictor:
        """One conditioned decoder for each draw of z from p(z | support)."""
        p_z, memory = self.task_distribution(support), self._remember(support)

        def adapt_one(key: PRNGKeyArray) -> NetPredictor:
            return NetPredictor(settle(self._condition(p_z, memory, key=key), support), self.likelihood)

        return base.sample_predictors(adapt_one, num_samples=num_samples, key=key)

    def task_distribution(self, support: Examples) -> DiagonalNormal:
        """The distribution of z that a set of examples speaks for."""
        return self.latent(pairs(support, self.likelihood, self.image), support.weight)

    def _remember(self, support: Examples) -> Shared | Attended | None:
        if self.deterministic is None:
            return None
        return self.deterministic(_seen(support, self.image), self.likelihood)

    def _condition(self, d_z: DiagonalNormal, memory: Shared | Attended | None, *, key: PRNGKeyArray) -> Decoding:
        return Decoding(self.decoder, memory, d_z.sample(key=key), self.image)
