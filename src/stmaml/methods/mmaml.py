"""MMAML: Vuorio, Sun, Hu, Lim, "Multimodal Model-Agnostic Meta-Learning via Task-Aware Modulation", NeurIPS 2019.

Departures: every hidden layer is modulated, and head i serves layer i (the released code may modulate one and counts
them backwards); one optimizer trains all parameters instead of one each for encoder and network; weights start from
He's variance instead of a normal of 0.01. For classes the encoder reads one-hot labels beside the inputs.

On images the encoder reads no labels: it is a convolutional network of its own, averaged over positions and over the
support, as released. The networks are those of the other methods (3x3 convolutions with pooling, all of one width)
where the released ones have strides and growing widths; normalisation keeps its own scale and shift before modulation.
"""

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.errors import need_widths
from stmaml.likelihoods import AbstractLikelihood, likelihood_for
from stmaml.methods.base import AbstractOneNet, FineTuning, pairs, settle
from stmaml.nets.backbone import base_learner
from stmaml.nets.images import ImageReader
from stmaml.nets.layers import Linear
from stmaml.nets.modulated import ModulatedLearner, Modulation, ModulationForm, modulation_of, modulation_size
from stmaml.nets.recurrent import BiLSTM
from stmaml.tasks import Examples, Scalar, TaskSpec, Weight

IMAGE_START = 0.1  # factor on the modulation heads' first weights where images are read


@dataclass(frozen=True)
class Config(FineTuning):
    """Settings of MMAML."""

    encoder: tuple[int, ...] = (40, 40)
    """Widths of the task encoder's bidirectional LSTM layers, each in one direction. For images the last is half the
    size of the task's code."""
    modulation: ModulationForm = "film"
    """How a hidden layer is modulated: `film` scales and shifts it, `gate` multiplies it by a sigmoid."""

    def __post_init__(self):
        need_widths(encoder=self.encoder)

    def build(self, spec: TaskSpec, *, key: PRNGKeyArray) -> "MMAML":
        """A fresh MMAML for tasks like `spec`."""
        theta_key, h_key, g_key = jr.split(key, 3)
        likelihood = likelihood_for(spec)
        theta = ModulatedLearner(base_learner(spec, self.hidden, self.conv, likelihood.raw_size, key=theta_key))
        if spec.is_image:
            omega_h = ImageReader(spec.x_shape, self.conv, 2 * self.encoder[-1], key=h_key)
        else:
            omega_h = BiLSTM(spec.x_size + likelihood.code_size, self.encoder, key=h_key)
        omega_g = tuple(
            Linear(2 * self.encoder[-1], modulation_size(self.modulation, width), init="glorot", key=k)
            for width, k in zip(theta.block_sizes, jr.split(g_key, len(theta.block_sizes)), strict=True)
        )
        if spec.is_image:  # whose embedding is large: nearly no modulation at first, or many channels would change sign
            omega_g = jax.tree.map(lambda leaf: IMAGE_START * leaf, omega_g)
        return MMAML(theta=theta, omega_h=omega_h, omega_g=omega_g, likelihood=likelihood, settings=self)


class Modulated(eqx.Module):
    """A task network under the modulation of its task."""

    theta: ModulatedLearner
    tau: tuple[Modulation, ...]

    def __call__(self, x: Float[Array, "n *dx"], *, weight: Weight | None = None) -> Float[Array, "n r"]:
        """Raw outputs."""
        return self.theta(x, self.tau, weight=weight)

    def settle(self, x: Float[Array, "n *dx"], weight: Weight) -> "Modulated":
        """The same, with what the network remembers of a support set."""
        return Modulated(self.theta.settle(x, self.tau, weight), self.tau)


class MMAML(AbstractOneNet):
    """MAML whose hidden layers are modulated by what an encoder reads in the support set. theta is the task network,
    omega_h the task encoder, omega_g the modulation heads."""

    theta: ModulatedLearner
    omega_h: BiLSTM | ImageReader
    omega_g: tuple[Linear, ...]
    likelihood: AbstractLikelihood
    settings: Config = eqx.field(static=True)

    def _modulation(self, support: Examples) -> tuple[Modulation, ...]:
        """tau_i = g_i(h(support)), one for each hidden layer."""
        if isinstance(self.omega_h, ImageReader):
            embedding = self.omega_h(support.x, support.weight)
        else:
            embedding = self.omega_h(pairs(support, self.likelihood), support.weight)
        return tuple(modulation_of(self.settings.modulation, head(embedding)) for head in self.omega_g)

    def network(self, support: Examples) -> Modulated:
        """The inner loop moves theta alone: the modulation is found once and kept."""
        tau = self._modulation(support)

        def inner_loss(theta: ModulatedLearner) -> Scalar:
            return self.likelihood.mean_inner_objective(theta(support.x, tau, weight=support.weight), support)

        return settle(Modulated(self.settings.inner(inner_loss, self.theta), tau), support)
