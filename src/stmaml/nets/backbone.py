"""Which network reads which inputs: a perceptron for vectors, convolutions for images."""

from jaxtyping import PRNGKeyArray

from stmaml.nets.conv import Conv, ConvBody, ConvLearner, FeatureForm
from stmaml.nets.learner import Learner
from stmaml.tasks import TaskSpec

BaseLearner = Learner | ConvLearner


def base_learner(
    spec: TaskSpec,
    hidden: tuple[int, ...],
    conv: Conv,
    out_size: int,
    *,
    h_size: int = 0,
    h_layer: int = 0,
    h_form: FeatureForm = "shift",
    head_bias: bool = True,
    key: PRNGKeyArray,
) -> BaseLearner:
    """A `ConvLearner` for images, where h enters as `h_form` says; else a `Learner` with these hidden widths."""
    if spec.is_image:
        return ConvLearner(spec.x_shape, conv, out_size, h_size=h_size, h_form=h_form, head_bias=head_bias, key=key)
    return Learner(spec.x_size, hidden, out_size, h_size=h_size, h_layer=h_layer, head_bias=head_bias, key=key)


def image_body(spec: TaskSpec, conv: Conv, *, key: PRNGKeyArray) -> ConvBody | None:
    """Blocks that make features of images; None for other inputs, which are features already."""
    return ConvBody(spec.x_shape, conv, key=key) if spec.is_image else None
