"""ARML: Yao, Wu, Tao, Li, Ding, Li, Li, "Automated Relational Meta-learning", ICLR 2020.

The defaults are those of the paper's 2D regression.

Departures:
- For real and binary targets the task embedding q pools the support, so that its order is irrelevant; the recurrent
  one of the paper and of the authors' released code, which depends on that order, is `embedding="rnn"`. For classes
  both read the prototypes, which have an order of their own, and so does the recurrent embedding t in either case.
- The links among the vertices of the meta-knowledge graph are left out: with one graph layer, of which only the
  prototypes' rows are read, they have no influence on anything and would never get a gradient.
- A class without examples in the support has a prototype of zeros.
- The graph layer starts from Glorot's variance; a standard deviation of 1, as released, saturates its tanh.
- The loss of a set is a mean over its examples, where the released code sums the cross-entropy over the ways.
- The inner gradient is clamped, as in MAML, and testing takes as many inner steps as training.
- Other weights start from He's (base learner) or Glorot's variance, normal; noise of 0.01 is added to the base
  learner's weights and biases, since a gate on a zero bias would get no gradient.
- On images the embedding has 3x3 convolutions and no response normalisation where the paper has 5x5 with it. The scale
  and shift of the base learner's normalisation are not gated, as in the released code, but fine-tuned like the rest."""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.likelihoods import AbstractLikelihood, likelihood_for
from stmaml.methods.base import class_means
from stmaml.methods.gated import AbstractGated, GatedSettings
from stmaml.nets.autoencoder import RecurrentAutoEncoder, SetAutoEncoder, set_autoencoder
from stmaml.nets.backbone import BaseLearner, base_learner
from stmaml.nets.gate import Gate, perturb
from stmaml.nets.images import ExampleEmbedding, example_embedding
from stmaml.nets.layers import Linear
from stmaml.tasks import Examples, Scalar, TaskSpec, Weight


@dataclass(frozen=True)
class Config(GatedSettings):
    """Settings of ARML."""

    sample_size: int = 40
    """Numbers in the embedding of an example, in a prototype and in a vertex of the graph."""
    num_prototypes: int = 2
    """Soft clusters of the support; for class targets the prototypes are the class means instead."""
    num_vertices: int = 6
    """Vertices of the meta-knowledge graph."""

    def __post_init__(self):
        self.check(num_prototypes=self.num_prototypes, num_vertices=self.num_vertices)

    def build(self, spec: TaskSpec, *, key: PRNGKeyArray) -> "ARML":
        """A fresh ARML for tasks like `spec`."""
        theta_key, noise_key, embed_key, clusters_key, graph_key, q_key, t_key, gate_key = jr.split(key, 8)
        likelihood = likelihood_for(spec)
        classes = spec.target == "class"
        theta = perturb(base_learner(spec, self.hidden, self.conv, likelihood.raw_size, key=theta_key), key=noise_key)
        embed, size = example_embedding(spec, self.conv, self.sample_size, reads_targets=not classes, key=embed_key)
        q_row_size = size + (spec.y_size if classes else 0)
        return ARML(
            theta=theta,
            embed=embed,
            clusters=None if classes else Linear(size, self.num_prototypes, init="glorot", key=clusters_key),
            graph=KnowledgeGraph(size, self.num_vertices, self.sigma, key=graph_key),
            q_encoder=set_autoencoder(self.embedding, q_row_size, self.code_size, key=q_key),
            t_encoder=RecurrentAutoEncoder(size, self.code_size, key=t_key),
            gate=Gate(2 * self.code_size, theta, key=gate_key),
            likelihood=likelihood,
            settings=self,
        )


class KnowledgeGraph(eqx.Module):
    """The meta-knowledge graph: learned vertices from which the prototypes of a task draw what they need."""

    vertices: Float[Array, "v d"]
    link: Linear
    layer: Linear
    sigma: float = eqx.field(static=True)

    def __init__(self, size: int, num_vertices: int, sigma: float, *, key: PRNGKeyArray):
        vertices_key, link_key, layer_key = jr.split(key, 3)
        self.vertices = (2 / (1 + size)) ** 0.5 * jr.normal(vertices_key, (num_vertices, size))
        self.link = Linear(size, 1, init="glorot", key=link_key)
        self.layer = Linear(size, size, init="glorot", key=layer_key)
        self.sigma = sigma

    def link_prototypes(self, c: Float[Array, "k d"]) -> Float[Array, "k k"]:
        """A_R: how close two prototypes are, a learned function of |c_i - c_j|; none is linked to itself."""
        strength = jax.nn.sigmoid(self.link(jnp.abs(c[:, None] - c[None])))[..., 0]
        return strength * (1 - jnp.eye(c.shape[0]))

    def link_vertices(self, c: Float[Array, "k d"]) -> Float[Array, "k v"]:
        """A_S: each prototype's links to the vertices, a softmax of -||c - h||^2 / (2 sigma)."""
        return jax.nn.softmax(-jnp.square(c[:, None] - self.vertices[None]).sum(2) / (2 * self.sigma), axis=1)

    def __call__(self, c: Float[Array, "k d"]) -> Float[Array, "k d"]:
        """C-hat: the prototypes after one layer of graph convolution over prototypes and vertices."""
        own = self.link_prototypes(c) + jnp.eye(c.shape[0])
        links = jnp.concatenate([own, self.link_vertices(c)], axis=1)  # the prototypes' rows of A + I
        links = links / links.sum(1, keepdims=True)
        return jnp.tanh(self.layer(links @ jnp.concatenate([c, self.vertices])))


class ARML(AbstractGated):
    """MAML whose initialisation is gated, weight by weight, by what a task finds in a graph of meta-knowledge."""

    theta: BaseLearner
    embed: ExampleEmbedding
    clusters: Linear | None
    graph: KnowledgeGraph
    q_encoder: SetAutoEncoder
    t_encoder: RecurrentAutoEncoder
    gate: Gate
    likelihood: AbstractLikelihood
    settings: GatedSettings = eqx.field(static=True)

    def _tailor(self, support: Examples) -> tuple[BaseLearner, Scalar]:
        code = self.likelihood.encode(support.y)
        e = self.embed(support.x, code)
        c = self._prototypes(e, code, support.weight)
        q, q_loss = self._embed_task(e, c, support.weight)
        t, t_loss = self.t_encoder(self.graph(c), jnp.ones(c.shape[0]))
        return self.gate(self.theta, jnp.concatenate([q, t])), q_loss + t_loss

    def _prototypes(self, e: Float[Array, "n e"], code: Float[Array, "n c"], weight: Weight) -> Float[Array, "k e"]:
        """C: the class means, or the sums of the embeddings shared out among soft clusters."""
        if self.clusters is None:
            return class_means(e, code, weight)[0]
        return (jax.nn.softmax(self.clusters(e), axis=1) * weight[:, None]).T @ e

    def _embed_task(
        self, e: Float[Array, "n e"], c: Float[Array, "k e"], weight: Weight
    ) -> tuple[Float[Array, " q"], Scalar]:
        """q from the examples, or from the class prototypes, each marked with its class; and its loss."""
        if self.clusters is not None:
            return self.q_encoder(e, weight)
        num_classes = c.shape[0]
        return self.q_encoder(jnp.concatenate([c, jnp.eye(num_classes)], axis=1), jnp.ones(num_classes))
