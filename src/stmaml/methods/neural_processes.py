"""Neural processes: a support set is read by an encoder, never by a gradient.

- CNP: Garnelo et al., "Conditional Neural Processes", ICML 2018.
- NP: Garnelo et al., "Neural Processes", ICML 2018 workshop.
- ANP: Kim et al., "Attentive Neural Processes", ICLR 2019.

Departures: the loss is taken on the query set alone, a mean over its examples, so a source that wants the support
scored as well puts it in the query; the mean code goes straight to mu and sigma, without a hidden layer between; NP has
no deterministic path unless asked; ANP attends from query to support but not within the support. The spread of targets
is the likelihood's affair: under the `residual` noise model the fit is a squared error, not a log-density.
"""

from dataclasses import dataclass

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.likelihoods import AbstractLikelihood, likelihood_for
from stmaml.methods.base import (
    AbstractMetaLearner,
    Metrics,
    NetPredictor,
    kl_weight,
    pairs,
    sample_predictors,
    stack_one,
)
from stmaml.nets.attention import MultiHeadAttention
from stmaml.nets.layers import MLP
from stmaml.nets.set_encoder import DiagonalNormal, TaskEncoder
from stmaml.tasks import Examples, Task, TaskSpec, weighted_mean


@dataclass(frozen=True)
class CNPConfig:
    """Settings of the conditional neural process."""

    encoder: tuple[int, ...] = (128, 128, 128, 128)
    """Widths of the pair encoder; the last one is the size of r."""
    decoder: tuple[int, ...] = (128, 128)
    """Widths of the decoder's hidden layers."""

    def build(self, spec: TaskSpec, *, key: PRNGKeyArray) -> "CNP":
        """A fresh CNP for tasks like `spec`."""
        path_key, decoder_key = jr.split(key)
        likelihood = likelihood_for(spec)
        deterministic = MeanPath(_pair_encoder(spec, likelihood, self.encoder, key=path_key))
        sizes = (self.encoder[-1] + spec.x_size, *self.decoder, likelihood.raw_size)
        return CNP(deterministic, MLP(sizes, key=decoder_key), likelihood, self)


@dataclass(frozen=True)
class NPConfig:
    """Settings of the neural process."""

    encoder: tuple[int, ...] = (128, 128, 128, 128)
    """Widths of the pair encoder, of each path its own; the last one is the size of r."""
    decoder: tuple[int, ...] = (128, 128)
    """Widths of the decoder's hidden layers."""
    z_size: int = 128
    """Numbers in the latent variable z."""
    deterministic: bool = False
    """Whether the decoder also sees r, the mean of the support's codes, beside z."""
    kl_weight: float | None = None
    """Weight of KL(q || p) beside the loss of one query example; if not given, one over the number of query examples,
    which makes the loss minus the ELBO of an example."""
    kl_mean: bool = False
    """Average the KL over the coordinates of z instead of summing it."""

    def build(self, spec: TaskSpec, *, key: PRNGKeyArray) -> "NeuralProcess":
        """A fresh NP for tasks like `spec`."""
        path_key, rest_key = jr.split(key)
        path = None
        if self.deterministic:
            path = MeanPath(_pair_encoder(spec, likelihood_for(spec), self.encoder, key=path_key))
        return _with_latent_path(self, path, spec, key=rest_key)


@dataclass(frozen=True)
class ANPConfig:
    """Settings of the attentive neural process."""

    encoder: tuple[int, ...] = (128, 128, 128, 128)
    """Widths of the pair encoder, of each path its own; the last one is the size of r and is shared among the heads."""
    keys: tuple[int, ...] = (128, 128)
    """Widths of the network that makes keys and queries of inputs; the last one is shared among the heads."""
    num_heads: int = 8
    """Heads of the attention from query inputs to support examples."""
    decoder: tuple[int, ...] = (128, 128)
    """Widths of the decoder's hidden layers."""
    z_size: int = 128
    """Numbers in the latent variable z."""
    kl_weight: float | None = None
    """Weight of KL(q || p) beside the loss of one query example; if not given, one over the number of query examples,
    which makes the loss minus the ELBO of an example."""
    kl_mean: bool = False
    """Average the KL over the coordinates of z instead of summing it."""

    def build(self, spec: TaskSpec, *, key: PRNGKeyArray) -> "NeuralProcess":
        """A fresh ANP for tasks like `spec`."""
        pair_key, embed_key, attention_key, rest_key = jr.split(key, 4)
        path = AttentionPath(
            _pair_encoder(spec, likelihood_for(spec), self.encoder, key=pair_key),
            MLP((spec.x_size, *self.keys), init="glorot", key=embed_key),
            MultiHeadAttention(self.keys[-1], self.encoder[-1], num_heads=self.num_heads, key=attention_key),
        )
        return _with_latent_path(self, path, spec, key=rest_key)


def _pair_encoder(spec: TaskSpec, likelihood: AbstractLikelihood, widths: tuple[int, ...], *, key: PRNGKeyArray) -> MLP:
    return MLP((spec.x_size + likelihood.code_size, *widths), init="glorot", key=key)


def _with_latent_path(
    settings: NPConfig | ANPConfig, path: "MeanPath | AttentionPath | None", spec: TaskSpec, *, key: PRNGKeyArray
) -> "NeuralProcess":
    """The learner with `path` beside a fresh latent path, and a decoder that reads both."""
    latent_key, decoder_key = jr.split(key)
    likelihood = likelihood_for(spec)
    pair_size = spec.x_size + likelihood.code_size
    latent = TaskEncoder(pair_size, settings.encoder, settings.z_size, std_form="sigmoid", key=latent_key)
    r_size = 0 if path is None else settings.encoder[-1]
    sizes = (r_size + settings.z_size + spec.x_size, *settings.decoder, likelihood.raw_size)
    return NeuralProcess(latent, path, MLP(sizes, key=decoder_key), likelihood, settings)


class Shared(eqx.Module):
    """A support remembered as one code r, the same for every input."""

    r: Float[Array, " r"]

    def __call__(self, x: Float[Array, "n dx"]) -> Float[Array, "n r"]:
        """r for each input."""
        return jnp.broadcast_to(self.r, (x.shape[0], *self.r.shape))


class Attended(eqx.Module):
    """A support remembered example by example, to be looked up at each input."""

    embed: MLP
    attention: MultiHeadAttention
    keys: Float[Array, "n k"]
    codes: Float[Array, "n r"]
    weight: Float[Array, " n"]

    def __call__(self, x: Float[Array, "q dx"]) -> Float[Array, "q r"]:
        """r* for each input: a mean of the codes of the examples that are like it."""
        return self.attention(self.embed(x), self.keys, self.codes, self.weight)


class MeanPath(eqx.Module):
    """The deterministic path of CNP and NP: the mean of the pairs' codes."""

    pair: MLP

    def __call__(self, support: Examples, likelihood: AbstractLikelihood) -> Shared:
        """What is remembered of a support set."""
        return Shared(weighted_mean(self.pair(pairs(support, likelihood)), support.weight))


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
    memory: Shared | Attended | None
    z: Float[Array, " z"] | None

    def __call__(self, x: Float[Array, "n *dx"]) -> Float[Array, "n o"]:
        """Raw outputs of the decoder at [r, z, x]."""
        x = x.reshape(x.shape[0], -1)
        r = [] if self.memory is None else [self.memory(x)]
        z = [] if self.z is None else [jnp.broadcast_to(self.z, (x.shape[0], *self.z.shape))]
        return self.decoder(jnp.concatenate([*r, *z, x], axis=1))


class CNP(AbstractMetaLearner):
    """A decoder conditioned on the mean code of the support."""

    deterministic: MeanPath
    decoder: MLP
    likelihood: AbstractLikelihood
    settings: CNPConfig = eqx.field(static=True)

    def loss(self, task: Task, *, key: PRNGKeyArray) -> tuple[Float[Array, ""], Metrics]:
        """The query loss of the decoder that has seen the support."""
        del key
        return self.likelihood.mean_objective(self._condition(task.support)(task.query.x), task.query), {}

    def adapt(self, support: Examples, *, num_samples: int, key: PRNGKeyArray) -> NetPredictor:
        """The conditioned decoder."""
        del num_samples, key
        return stack_one(NetPredictor(self._condition(support), self.likelihood))

    def _condition(self, support: Examples) -> Decoding:
        return Decoding(self.decoder, self.deterministic(support, self.likelihood), None)


class NeuralProcess(AbstractMetaLearner):
    """NP and ANP: a decoder conditioned on a latent z and, beside it, on what a deterministic path remembers."""

    latent: TaskEncoder
    deterministic: MeanPath | AttentionPath | None
    decoder: MLP
    likelihood: AbstractLikelihood
    settings: NPConfig | ANPConfig = eqx.field(static=True)

    def loss(self, task: Task, *, key: PRNGKeyArray) -> tuple[Float[Array, ""], Metrics]:
        """Minus the ELBO, with z from q(z | support, query); its KL is to p(z | support), made by the same encoder."""
        p_z, q_z = self.task_distribution(task.support), self.task_distribution(task.support + task.query)
        net = self._condition(q_z, self._remember(task.support), key=key)
        fit = self.likelihood.mean_objective(net(task.query.x), task.query)
        each = q_z.kl(p_z)
        kl = each.mean() if self.settings.kl_mean else each.sum()
        return fit + kl_weight(self.settings.kl_weight, task.query) * kl, {"fit": fit, "kl": kl}

    def adapt(self, support: Examples, *, num_samples: int, key: PRNGKeyArray) -> NetPredictor:
        """One conditioned decoder for each draw of z from p(z | support)."""
        p_z, memory = self.task_distribution(support), self._remember(support)

        def adapt_one(key: PRNGKeyArray) -> NetPredictor:
            return NetPredictor(self._condition(p_z, memory, key=key), self.likelihood)

        return sample_predictors(adapt_one, num_samples=num_samples, key=key)

    def task_distribution(self, examples: Examples) -> DiagonalNormal:
        """The distribution of z that a set of examples speaks for."""
        return self.latent(pairs(examples, self.likelihood), examples.weight)

    def _remember(self, support: Examples) -> Shared | Attended | None:
        return None if self.deterministic is None else self.deterministic(support, self.likelihood)

    def _condition(self, d_z: DiagonalNormal, memory: Shared | Attended | None, *, key: PRNGKeyArray) -> Decoding:
        return Decoding(self.decoder, memory, d_z.sample(key=key))
