"""HSML: Yao, Wei, Huang, Li, "Hierarchically Structured Meta-learning", ICML 2019.

The defaults are those of the paper's toy regression.

Departures:
- The task embedding is the paper's pooling auto-encoder, which ignores the order of the support; the recurrent one,
  which the authors' released code runs by default and which depends on that order, is `embedding="rnn"`.
- Assignments divide by 2 sigma, as in the released code, where the paper has 2 sigma^2.
- Targets enter as they are, or one-hot (the released code has the one-hot vector's complement); the embedding always
  reads the whole support.
- The loss of a set is a mean over its examples, where the released code sums the cross-entropy over the ways.
- The inner gradient is clamped, as in MAML, and testing takes as many inner steps as training.
- Weights start from He's (base learner) or Glorot's variance, normal; noise of 0.01 is added to the base learner's
  weights and biases, since a gate on a zero bias would get no gradient.
- On images the embedding has 3x3 convolutions and no response normalisation where the paper has 5x5 with it. The scale
  and shift of the base learner's normalisation are not gated, as in the released code, but fine-tuned like the rest.
"""

from dataclasses import dataclass, field

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.inner import InnerLoop
from stmaml.likelihoods import AbstractLikelihood, likelihood_for
from stmaml.methods.base import AbstractMetaLearner, Metrics, NetPredictor, outputs, settle, stack_one
from stmaml.nets.autoencoder import Embedding, SetAutoEncoder, set_autoencoder
from stmaml.nets.backbone import BaseLearner, base_learner
from stmaml.nets.conv import Conv
from stmaml.nets.gate import Gate, perturb
from stmaml.nets.images import ExampleEmbedding, example_embedding
from stmaml.nets.layers import Linear
from stmaml.tasks import Examples, Task, TaskSpec


@dataclass(frozen=True)
class Config:
    """Settings of HSML."""

    hidden: tuple[int, ...] = (40, 40)
    """Widths of the base learner's hidden layers; images are read by convolutions instead."""
    embedding: Embedding = "mean"
    """How the support becomes a task embedding: by pooling, or by a recurrent network that heeds the order."""
    sample_size: int = 20
    """Numbers each support example is embedded in."""
    code_size: int = 40
    """Numbers in the task embedding g, and in every node of the tree."""
    num_leaves: int = 4
    """Clusters at the bottom of the tree."""
    num_nodes: int = 2
    """Clusters between the leaves and the root."""
    sigma: float = 2.0
    """Softness of the assignment to leaves: larger is softer."""
    reconstruction_weight: float = 0.01
    """Weight of the auto-encoder's loss (mu)."""
    inner: InnerLoop = field(default_factory=InnerLoop)
    conv: Conv = field(default_factory=Conv)

    def build(self, spec: TaskSpec, *, key: PRNGKeyArray) -> "HSML":
        """A fresh HSML for tasks like `spec`."""
        theta_key, noise_key, embed_key, encoder_key, tree_key, gate_key = jr.split(key, 6)
        likelihood = likelihood_for(spec)
        theta = base_learner(spec, self.hidden, self.conv, likelihood.raw_size, key=theta_key)
        theta = perturb(theta, key=noise_key)
        embed, row_size = example_embedding(spec, self.conv, self.sample_size, key=embed_key)
        return HSML(
            theta,
            embed,
            set_autoencoder(self.embedding, row_size, self.code_size, key=encoder_key),
            ClusterTree(self.code_size, self.num_leaves, self.num_nodes, self.sigma, key=tree_key),
            Gate(2 * self.code_size, theta, key=gate_key),
            likelihood,
            self,
        )


class ClusterTree(eqx.Module):
    """Soft hierarchical clustering of tasks: leaves, the nodes above them, a root."""

    centres: Float[Array, "k d"]
    leaves: Linear
    """One layer a leaf, stacked."""
    edges: Linear
    nodes: Linear
    """One layer a node, stacked."""
    root: Linear
    sigma: float = eqx.field(static=True)

    def __init__(self, size: int, num_leaves: int, num_nodes: int, sigma: float, *, key: PRNGKeyArray):
        """Centres and all node values have `size` numbers."""
        centres_key, leaves_key, edges_key, nodes_key, root_key = jr.split(key, 5)

        def layer(key: PRNGKeyArray) -> Linear:
            return Linear(size, size, init="glorot", key=key)

        self.centres = (2 / (1 + size)) ** 0.5 * jr.normal(centres_key, (num_leaves, size))
        self.leaves = eqx.filter_vmap(layer)(jr.split(leaves_key, num_leaves))
        self.edges = Linear(size, num_nodes, init="glorot", key=edges_key)
        self.nodes = eqx.filter_vmap(layer)(jr.split(nodes_key, num_nodes))
        self.root = layer(root_key)
        self.sigma = sigma

    def assign(self, g: Float[Array, " d"]) -> Float[Array, " k"]:
        """How far the task belongs to each leaf: a softmax of -||g - c||^2 / (2 sigma)."""
        distance = jnp.square(g[None] - self.centres).sum(1)
        return jax.nn.softmax(-distance / (2 * self.sigma))

    def __call__(self, g: Float[Array, " d"]) -> Float[Array, " d"]:
        """H, the value at the root for a task embedded as `g`."""
        u = self.assign(g)[:, None] * jnp.tanh(jax.vmap(lambda leaf: leaf(g))(self.leaves))
        a = jax.nn.softmax(self.edges(u), axis=1)  # each leaf shares itself out among the nodes
        sent = jnp.tanh(jax.vmap(lambda node: node(u))(self.nodes))
        v = (a.T[:, :, None] * sent).sum(1)
        return jnp.tanh(self.root(v)).sum(0)


class HSML(AbstractMetaLearner):
    """MAML whose initialisation is gated, weight by weight, by where the task falls in a tree of clusters."""

    theta: BaseLearner
    embed: ExampleEmbedding
    encoder: SetAutoEncoder
    tree: ClusterTree
    gate: Gate
    likelihood: AbstractLikelihood
    settings: Config = eqx.field(static=True)

    def loss(self, task: Task, *, key: PRNGKeyArray) -> tuple[Float[Array, ""], Metrics]:
        """The query loss after the last inner step, and the reconstruction loss of the support."""
        del key
        theta_k, reconstruction = self._fine_tune(task.support)
        fit = self.likelihood.mean_objective(outputs(theta_k, task.query), task.query)
        total = fit + self.settings.reconstruction_weight * reconstruction
        return total, {"fit": fit, "reconstruction": reconstruction}

    def adapt(self, support: Examples, *, num_samples: int, key: PRNGKeyArray) -> NetPredictor:
        """The gated and fine-tuned network."""
        del num_samples, key
        return stack_one(NetPredictor(self._fine_tune(support)[0], self.likelihood))

    def _fine_tune(self, support: Examples) -> tuple[BaseLearner, Float[Array, ""]]:
        """theta^K from the task's own start, and the reconstruction loss on the way to it."""

        def inner_loss(theta: BaseLearner) -> Float[Array, ""]:
            return self.likelihood.mean_inner_objective(outputs(theta, support), support)

        theta0, reconstruction = self._tailor(support)
        return settle(self.settings.inner(inner_loss, theta0), support), reconstruction

    def _tailor(self, support: Examples) -> tuple[BaseLearner, Float[Array, ""]]:
        """theta^0, gated by [g, H], and the reconstruction loss."""
        rows = self.embed(support.x, self.likelihood.encode(support.y))
        g, reconstruction = self.encoder(rows, support.weight)
        return self.gate(self.theta, jnp.concatenate([g, self.tree(g)])), reconstruction
