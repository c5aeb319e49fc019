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
  and shift of the base learner's normalisation are not gated, as in the released code, but fine-tuned like the rest."""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.likelihoods import AbstractLikelihood, likelihood_for
from stmaml.methods.gated import AbstractGated, GatedSettings
from stmaml.nets.autoencoder import SetAutoEncoder, set_autoencoder
from stmaml.nets.backbone import BaseLearner, base_learner
from stmaml.nets.gate import Gate, perturb
from stmaml.nets.images import ExampleEmbedding, example_embedding
from stmaml.nets.layers import Linear
from stmaml.tasks import Examples, Scalar, TaskSpec


@dataclass(frozen=True)
class Config(GatedSettings):
    """Settings of HSML."""

    num_leaves: int = 4
    """Clusters at the bottom of the tree."""
    num_nodes: int = 2
    """Clusters between the leaves and the root."""

    def __post_init__(self):
        self.check(num_leaves=self.num_leaves, num_nodes=self.num_nodes)

    def build(self, spec: TaskSpec, *, key: PRNGKeyArray) -> "HSML":
        """A fresh HSML for tasks like `spec`."""
        theta_key, noise_key, embed_key, encoder_key, tree_key, gate_key = jr.split(key, 6)
        likelihood = likelihood_for(spec)
        theta = perturb(base_learner(spec, self.hidden, self.conv, likelihood.raw_size, key=theta_key), key=noise_key)
        embed, row_size = example_embedding(spec, self.conv, self.sample_size, key=embed_key)
        return HSML(
            theta=theta,
            embed=embed,
            encoder=set_autoencoder(self.embedding, row_size, self.code_size, key=encoder_key),
            tree=ClusterTree(self.code_size, self.num_leaves, self.num_nodes, self.sigma, key=tree_key),
            gate=Gate(2 * self.code_size, theta, key=gate_key),
            likelihood=likelihood,
            settings=self,
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
        return jax.nn.softmax(-jnp.square(g[None] - self.centres).sum(1) / (2 * self.sigma))

    def __call__(self, g: Float[Array, " d"]) -> Float[Array, " d"]:
        """H, the value at the root for a task embedded as `g`."""
        u = self.assign(g)[:, None] * jnp.tanh(jax.vmap(lambda leaf: leaf(g))(self.leaves))
        a = jax.nn.softmax(self.edges(u), axis=1)  # each leaf shares itself out among the nodes
        sent = jnp.tanh(jax.vmap(lambda node: node(u))(self.nodes))
        v = (a.T[:, :, None] * sent).sum(1)
        return jnp.tanh(self.root(v)).sum(0)


class HSML(AbstractGated):
    """MAML whose initialisation is gated, weight by weight, by where the task falls in a tree of clusters."""

    theta: BaseLearner
    embed: ExampleEmbedding
    encoder: SetAutoEncoder
    tree: ClusterTree
    gate: Gate
    likelihood: AbstractLikelihood
    settings: GatedSettings = eqx.field(static=True)

    def _tailor(self, support: Examples) -> tuple[BaseLearner, Scalar]:
        rows = self.embed(support.x, self.likelihood.encode(support.y))
        g, reconstruction = self.encoder(rows, support.weight)
        return self.gate(self.theta, jnp.concatenate([g, self.tree(g)])), reconstruction
