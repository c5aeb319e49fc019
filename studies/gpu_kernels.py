"""Whether the kernels that a GPU runs give what lax's own convolutions give, values and derivatives of two orders, at
the sizes of four blocks on 84x84 images. Prints the distance over the length of the right answer, and fails beyond what
rounding explains: products of float32 are TF32's there, of 10 bits, those of bfloat16 have 8. Images and weights are
such that both hold them as they are. What is rounded all the same are results of bfloat16, and weights that have moved:
another number of a square may then be its largest, which moves gradients by a percent or some.

python studies/gpu_kernels.py [--images 25] [--size 84] [--tasks 2]
"""

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr

from stmaml.nets.convolution import conv3x3, has_kernels, pooled
from stmaml.nets.patches import largest, pick, square_matrix, square_patches, squares_of

TOLERANCE = {"float32": 2e-2, "bfloat16": 1e-1}
CHANNELS = 32


def lax_conv(x: jax.Array, weight: jax.Array) -> jax.Array:
    dimensions = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, weight, (1, 1), "SAME", dimension_numbers=dimensions, precision="highest")


def lax_pooled(x: jax.Array, weight: jax.Array) -> jax.Array:
    squares = squares_of(lax_conv(x, weight))
    return pick(squares, largest(squares))


def own_pooled(precision: Any) -> Callable[..., jax.Array]:
    def first_block(x: jax.Array, weight: jax.Array) -> jax.Array:
        rows, matrix = square_patches(x.astype(precision)), square_matrix(weight).astype(precision)
        values, _ = pooled(rows, matrix.reshape(rows.shape[-1], 4, -1), jnp.ones(weight.shape[-1]))
        return values.astype(jnp.float32).reshape(x.shape[0], x.shape[1] // 2, x.shape[2] // 2, -1)

    return first_block


def own_conv(precision: Any) -> Callable[..., jax.Array]:
    return lambda x, weight: conv3x3(x, weight, precision)


def derivatives(conv: Callable[..., jax.Array], x: jax.Array, weight: jax.Array, target: jax.Array) -> dict[str, Any]:
    """Outputs, the gradient of the weights, and that of the loss after a step of descent, for tasks side by side."""

    def loss(weight: jax.Array, x: jax.Array) -> jax.Array:
        return (jnp.sin(conv(x, weight)) * target).mean()

    def after(weight: jax.Array, x: jax.Array) -> jax.Array:
        return loss(weight - 20 * jax.grad(loss)(weight, x), x)

    def each(weight: jax.Array, x: jax.Array) -> dict[str, Any]:
        second = jax.grad(after)(weight, x)
        return {"values": conv(x, weight), "gradient": jax.grad(loss)(weight, x), "of second order": second}

    return jax.jit(jax.vmap(each))(weight, x)


def short(x: jax.Array) -> jax.Array:
    """Numbers of few bits."""
    return x.astype(jnp.bfloat16).astype(jnp.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description="Kernels of a GPU against lax.")
    parser.add_argument("--images", type=int, default=25)
    parser.add_argument("--size", type=int, default=84)
    parser.add_argument("--tasks", type=int, default=2)
    options = parser.parse_args()
    print(f"{jax.devices()[0].device_kind}, JAX {jax.__version__}, kernels {'used' if has_kernels() else 'not used'}")
    worst = 0.0
    for block, own, right, inputs in (("first", own_pooled, lax_pooled, 3), ("second", own_conv, lax_conv, CHANNELS)):
        side = options.size if block == "first" else options.size // 2
        x = short(jr.uniform(jr.key(0), (options.tasks, options.images, side, side, inputs)))
        weight = short((2 / (9 * inputs)) ** 0.5 * jr.normal(jr.key(1), (options.tasks, 3, 3, inputs, CHANNELS)))
        target = jr.normal(jr.key(2), jax.eval_shape(right, x[0], weight[0]).shape)
        want = derivatives(right, x, weight, target)
        for precision, tolerance in TOLERANCE.items():
            found = derivatives(own(precision), x, weight, target)
            for name, exact in want.items():
                error = float(jnp.linalg.norm((found[name] - exact).ravel()) / jnp.linalg.norm(exact.ravel()))
                worst = max(worst, error / tolerance)
                print(f"{block} block, {precision}, {name}: {error:.1e} (at most {tolerance:.0e})", flush=True)
    if not worst <= 1:
        raise SystemExit("further off than rounding explains")


if __name__ == "__main__":
    main()
