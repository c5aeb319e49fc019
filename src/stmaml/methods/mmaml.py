"""MMAML: Vuorio, Sun, Hu, Lim, "Multimodal Model-Agnostic Meta-Learning via Task-Aware Modulation", NeurIPS 2019.

Departures: every hidden layer is modulated, and head i serves layer i (the released code may modulate one and counts
them backwards); one optimizer trains all parameters instead of one each for encoder and network; weights start from
He's variance instead of a normal of 0.01. For classes the encoder reads one-hot labels beside the inputs.
"""

from dataclasses import dataclass, field

import equinox as eqx
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.inner import InnerLoop
from stmaml.likelihoods import AbstractLikelihood, likelihood_for
from stmaml.methods.base import AbstractMetaLearner, Metrics, NetPredictor, pairs, stack_one
from stmaml.nets.layers import Linear
from stmaml.nets.learner import Learner
from stmaml.nets.modulated import ModulatedLearner, Modulation, ModulationForm, modulation_of, modulation_size
from stmaml.nets.recurrent import BiLSTM
from stmaml.tasks import Examples, Task, TaskSpec


@dataclass(frozen=True)
class Config:
    """Settings of MMAML."""

    hidden: tuple[int, ...] = (40, 40)
    """Widths of the task network's hidden layers."""
    encoder: tuple[int, ...] = (40, 40)
    """Widths of the task encoder's bidirectional LSTM layers, each in one direction."""
    modulation: ModulationForm = "film"
    """How a hidden layer is modulated: `film` scales and shifts it, `gate` multiplies it by a sigmoid."""
    inner: InnerLoop = field(default_factory=InnerLoop)

    def build(self, spec: TaskSpec, *, key: PRNGKeyArray) -> "MMAML":
        """A fresh MMAML for tasks like `spec`."""
        theta_key, h_key, g_key = jr.split(key, 3)
        likelihood = likelihood_for(spec)
        theta = ModulatedLearner(Learner(spec.x_size, self.hidden, likelihood.raw_size, key=theta_key))
        omega_h = BiLSTM(spec.x_size + likelihood.code_size, self.encoder, key=h_key)
        omega_g = tuple(
            Linear(2 * self.encoder[-1], modulation_size(self.modulation, width), init="glorot", key=k)
            for width, k in zip(theta.block_sizes, jr.split(g_key, len(self.hidden)), strict=True)
        )
        return MMAML(theta, omega_h, omega_g, likelihood, self)


class Modulated(eqx.Module):
    """A task network under the modulation of its task."""

    theta: ModulatedLearner
    tau: tuple[Modulation, ...]

    def __call__(self, x: Float[Array, "n *dx"]) -> Float[Array, "n r"]:
        """Raw outputs."""
        return self.theta(x, self.tau)


class MMAML(AbstractMetaLearner):
    """MAML whose hidden layers are modulated by what an encoder reads in the support set.

    theta is the task network, omega_h the task encoder, omega_g the modulation heads.
    """

    theta: ModulatedLearner
    omega_h: BiLSTM
    omega_g: tuple[Linear, ...]
    likelihood: AbstractLikelihood
    settings: Config = eqx.field(static=True)

    def loss(self, task: Task, *, key: PRNGKeyArray) -> tuple[Float[Array, ""], Metrics]:
        """The query loss after the last inner step."""
        del key
        net = self._fine_tune(task.support)
        return self.likelihood.mean_objective(net(task.query.x), task.query), {}

    def adapt(self, support: Examples, *, num_samples: int, key: PRNGKeyArray) -> NetPredictor:
        """The modulated and fine-tuned network."""
        del num_samples, key
        return stack_one(NetPredictor(self._fine_tune(support), self.likelihood))

    def _modulation(self, support: Examples) -> tuple[Modulation, ...]:
        """tau_i = g_i(h(support)), one for each hidden layer."""
        embedding = self.omega_h(pairs(support, self.likelihood), support.weight)
        return tuple(modulation_of(self.settings.modulation, head(embedding)) for head in self.omega_g)

    def _fine_tune(self, support: Examples) -> Modulated:
        """The inner loop moves theta alone: the modulation is found once and kept."""
        tau = self._modulation(support)

        def inner_loss(theta: ModulatedLearner) -> Float[Array, ""]:
            return self.likelihood.mean_inner_objective(theta(support.x, tau), support)

        return Modulated(self.settings.inner(inner_loss, self.theta), tau)
