"""Any method, with inputs that look the support up.

A reader makes a memory of the labelled examples; each input, labelled or asked about, is followed by what it finds
there. Which comparisons this makes fair: every method may have it, and none is told more than another."""

from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.errors import SettingError
from stmaml.methods.base import AbstractMetaLearner, AbstractPredictor, MethodConfig, Metrics
from stmaml.methods.wrapper import AbstractWrapper, beside_each
from stmaml.nets.cross import Lookup, Memory
from stmaml.nets.lattice import LatticeReader, Surroundings
from stmaml.nets.patches import Precision
from stmaml.prediction import AbstractOutcome
from stmaml.tasks import Examples, Scalar, Task, TaskSpec, Weight

LookupForm = Literal["none", "attention", "lattice"]
OWNERS = dict.fromkeys(("lookup_layers", "lookup_heads", "lookup_waves"), "attention") | {"lookup_precision": "lattice"}
"""Settings that say something about one way of reading alone."""


@dataclass(frozen=True)
class LookUp:
    """Whether and how inputs look the support up, the same for every method."""

    lookup: LookupForm = "none"
    """What reads the support for inputs to look up: nothing; layers of attention; or, for inputs on a lattice such as
    pixels, a convolutional network that sees it as a picture with gaps. What an input finds joins it."""
    lookup_size: int = 64
    """Numbers that an input finds: the width of the attention, or the channels of the convolutions."""
    lookup_layers: int = 3
    """Layers of attention in which inputs look at the support."""
    lookup_heads: int = 8
    """Heads of that attention; they divide its size."""
    lookup_waves: int = 0
    """Octaves of waves in which attention reads each number, beside the number itself; their rates are learnt. For
    standardised inputs of which small differences matter, 9 is worth a trial. 0 is none."""
    lookup_precision: Precision = "float32"
    """Numbers in which the lattice's convolutions are computed."""

    def __post_init__(self):
        for field in fields(self):
            value, flag = getattr(self, field.name), "--" + field.name.replace("_", "-")
            owner = OWNERS.get(field.name, "attention" if self.lookup == "none" else self.lookup)
            if value != field.default and field.name != "lookup" and owner != self.lookup:
                raise SettingError(f"{flag} is for --lookup {owner}, not {self.lookup}; set it to {field.default}.")
            least = 0 if field.name == "lookup_waves" else 1
            if isinstance(value, int) and value < least:
                raise SettingError(f"{flag} must be at least {least}; got {value}.")

    def build(self, method: MethodConfig, spec: TaskSpec, *, key: PRNGKeyArray) -> AbstractMetaLearner:
        """A fresh learner of the method for tasks like `spec`, with inputs that look the support up if asked for."""
        if self.lookup == "none":
            return method.build(spec, key=key)
        reader = self._reader(spec, key=jr.fold_in(key, 4))
        wider = replace(spec, x_shape=(spec.x_size + self.lookup_size,), found=self.lookup_size)
        return LooksUp(method.build(wider, key=key), reader, spec.y_size if spec.target == "class" else 0)

    def _reader(self, spec: TaskSpec, *, key: PRNGKeyArray) -> "Lookup | LatticeReader":
        if self.lookup == "lattice":
            if spec.lattice is None:
                needs = "--lookup lattice needs inputs on a lattice, such as pixels, that are not standardised"
                raise SettingError(f"{needs}: choose another --lookup, or add --no-standardise.")
            size, precision = self.lookup_size, self.lookup_precision
            return LatticeReader(spec.lattice, spec.x_size, spec.y_size, size, precision=precision, key=key)
        if spec.is_image:
            raise SettingError("--lookup attention looks up vectors, not images; leave it out for images.")
        reader = partial(Lookup, layers=self.lookup_layers, num_heads=self.lookup_heads, octaves=self.lookup_waves)
        return reader(spec.x_size, spec.x_size + spec.y_size, self.lookup_size, key=key)


class LooksUp(AbstractWrapper):
    """A learner whose inputs are followed by what they find in the support."""

    learner: AbstractMetaLearner
    reader: Lookup | LatticeReader
    num_classes: int = eqx.field(static=True)
    """0 for targets that are numbers."""

    def loss(self, task: Task, *, key: PRNGKeyArray) -> tuple[Scalar, Metrics]:
        """The wrapped learner's loss, with query inputs that look up the support too."""
        memory = self._remember(task.support)
        return self.learner.loss(Task(_with_found(task.support, memory), _with_found(task.query, memory)), key=key)

    def adapt(self, support: Examples, *, num_samples: int, key: PRNGKeyArray) -> "LookupPredictor":
        """The wrapped learner's predictors, each with the memory of the support."""
        memory = self._remember(support)
        predictors = self.learner.adapt(_with_found(support, memory), num_samples=num_samples, key=key)
        return LookupPredictor(predictors, beside_each(predictors, memory))

    def seen(self, support: Examples) -> Examples:
        """Each example with what its input finds among all."""
        return _with_found(support, self._remember(support))

    def _remember(self, support: Examples) -> Memory | Surroundings:
        x, y = support.x.reshape(support.x.shape[0], -1), support.y
        code = jax.nn.one_hot(y, self.num_classes) if self.num_classes else y
        return self.reader(jnp.concatenate([x, code], axis=1), support.weight)


class LookupPredictor(AbstractPredictor):
    """A predictor for inputs with what they find, and the memory they find it in."""

    predictor: AbstractPredictor
    memory: Memory | Surroundings

    def __call__(self, x: Float[Array, "n *dx"]) -> AbstractOutcome:
        """The outcome at each input."""
        return self.predictor(look_up(x, self.memory))

    def padded(self, x: Float[Array, "n *dx"], weight: Weight) -> AbstractOutcome:
        """The same for a padded set."""
        return self.predictor.padded(look_up(x, self.memory), weight)

    def together(self, x: Float[Array, "n *dx"], weight: Weight | None) -> AbstractOutcome:
        """Stacked predictors have the same memory: each input looks it up once, however many they are."""
        memory = jax.tree.map(lambda leaf: leaf[0], self.memory)
        return self.predictor.together(look_up(x, memory), weight)


def look_up(x: Float[Array, "n *dx"], memory: Memory | Surroundings) -> Float[Array, "n d"]:
    """The inputs, each followed by what it finds."""
    return jnp.concatenate([x.reshape(x.shape[0], -1), memory(x)], axis=1)


def _with_found(examples: Examples, memory: Memory | Surroundings) -> Examples:
    return Examples(look_up(examples.x, memory), examples.y, examples.weight)
