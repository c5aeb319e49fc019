"""The base learner f: a body theta_b that makes features and a head theta_c that reads them."""

import equinox as eqx
import jax
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from stmaml.errors import SettingError
from stmaml.nets.layers import Linear
from stmaml.tasks import Weight


class Learner(eqx.Module):
    """A multi-layer perceptron split as the paper splits it: theta = [theta_b, theta_c]. A task's augmented feature h,
    where there is one, joins the inputs of layer `h_layer` for every example."""

    body: tuple[Linear, ...]
    head: Linear
    h_layer: int = eqx.field(static=True)

    def __init__(
        self,
        in_size: int,
        hidden: tuple[int, ...],
        out_size: int,
        *,
        h_size: int = 0,
        h_layer: int = 0,
        head_bias: bool = True,
        key: PRNGKeyArray,
    ):
        if not 0 <= h_layer <= len(hidden):
            raise SettingError(f"h can enter layers 0 to {len(hidden)} of this network, not layer {h_layer}.")
        widths_in = [width + h_size * (i == h_layer) for i, width in enumerate((in_size, *hidden))]
        keys = jr.split(key, len(widths_in))
        self.body = tuple(Linear(i, o, key=k) for i, o, k in zip(widths_in[:-1], hidden, keys[:-1], strict=True))
        self.head = Linear(widths_in[-1], out_size, use_bias=head_bias, key=keys[-1])
        self.h_layer = h_layer

    def __call__(
        self, x: Float[Array, "n *dx"], h: Float[Array, " h"] | None = None, *, weight: Weight | None = None
    ) -> Float[Array, "n o"]:
        """Raw outputs for a set of inputs. Each row is read on its own, so weights make no difference."""
        del weight
        x = x.reshape(x.shape[0], -1)
        for i, layer in enumerate(self.body):
            x = jax.nn.relu(self._read(layer, x, h, i))
        return self._read(self.head, x, h, len(self.body))

    def settle(self, x: Float[Array, "n *dx"], weight: Weight, h: Float[Array, " h"] | None = None) -> "Learner":
        """The same learner: it keeps no statistics of the support set it is to answer for."""
        del x, weight, h
        return self

    def _read(
        self, layer: Linear, x: Float[Array, "n i"], h: Float[Array, " h"] | None, place: int
    ) -> Float[Array, "n o"]:
        return layer(x) if h is None or place != self.h_layer else layer.joined([x, h])
