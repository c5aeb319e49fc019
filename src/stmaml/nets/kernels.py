"""Convolutions on a GPU that read images in place, written with Pallas for Triton.

A product of patches and a matrix writes each input nine times before it reads it again, and memory is what bounds a
convolution of few channels. Here a program gathers the patches of some positions itself: inputs are read, outputs
written, and nothing else. The first block, whose outputs are many times its inputs, writes only what pooling keeps.
Weights differ between tasks: mapped over tasks, a kernel gets one more axis of programs. Nothing here is
differentiable; `convolution.py` has the rules."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float, Int8, Shaped

LEAST = 16  # channels that a product of matrix units takes
TAPS = 3  # of the nine places around a position that one program of the gradient takes


@dataclass(frozen=True)
class Tile:
    """How a program works: positions in one product, groups of 32 threads, products that are loaded ahead."""

    rows: int
    warps: int
    stages: int


TILES = {  # chosen by their time on an H200, with 32 channels
    "conv3x3": Tile(128, 4, 3),
    "weight_gradient": Tile(32, 2, 2),
    "pooled": Tile(128, 4, 2),
    "picked": Tile(128, 4, 2),
    "pooled_gradient": Tile(128, 4, 2),
}
Images = Shaped[Array, "n rows cols i"]
Kernel = Shaped[Array, "3 3 i o"]


def conv3x3(x: Images, weight: Kernel) -> Shaped[Array, "n rows cols o"]:
    """The convolution with zeros around the image; sums in float32, rounded to the type of `x` once."""
    wanted, (x, weight) = weight.shape[-1], (_widened(x, -1), _widened(weight, -2, -1))
    n, height, width, channels = x.shape
    total, out = n * height * width, weight.shape[-1]
    run = _call(
        partial(_conv_kernel, shape=x.shape, out=out),
        grid=(pl.cdiv(total, TILES["conv3x3"].rows),),
        out_shape=jax.ShapeDtypeStruct((total * out,), x.dtype),
        name="conv3x3",
    )
    return run(x.reshape(-1), weight.reshape(9, channels, out)).reshape(n, height, width, out)[..., :wanted]


def weight_gradient(x: Images, g: Shaped[Array, "n rows cols o"]) -> Kernel:
    """The sum over images and positions of what lies at each of the nine places around a position, times `g` there."""
    wanted, (x, g) = (x.shape[-1], g.shape[-1]), (_widened(x, -1), _widened(g, -1))
    channels, out = x.shape[-1], g.shape[-1]
    run = _call(
        partial(_weight_kernel, shape=x.shape, out=out),
        grid=(x.shape[0], 9 // TAPS),
        out_shape=jax.ShapeDtypeStruct((x.shape[0], 9, channels, out), jnp.float32),
        name="weight_gradient",
    )
    sums = run(x.reshape(-1), g.reshape(-1)).sum(0).reshape(3, 3, channels, out).astype(x.dtype)
    return sums[:, :, : wanted[0], : wanted[1]]


def _widened(x: Array, *axes: int) -> Array:
    """The array with zeros added until these axes have a power of two."""
    sizes = {axis % x.ndim: max(LEAST, pl.next_power_of_2(x.shape[axis])) for axis in axes}
    return jnp.pad(x, [(0, sizes.get(axis, size) - size) for axis, size in enumerate(x.shape)])


def _conv_kernel(x_ref: Any, w_ref: Any, o_ref: Any, *, shape: tuple[int, ...], out: int, tile: int) -> None:
    total = shape[0] * shape[1] * shape[2]
    at = pl.program_id(0) * tile + jnp.arange(tile)

    def add(tap: Array, sums: Array) -> Array:
        return sums + _dot(_beside(x_ref, at, tap, total, shape), w_ref[tap])

    # a loop, not nine products written out: the compiler then loads ahead of the products
    sums = jax.lax.fori_loop(0, 9, add, jnp.zeros((tile, out), jnp.float32))
    triton.store(o_ref.at[_places(at, out)], sums.astype(o_ref.dtype), mask=(at < total)[:, None])


def _weight_kernel(x_ref: Any, g_ref: Any, o_ref: Any, *, shape: tuple[int, ...], out: int, tile: int) -> None:
    image, part, size = pl.program_id(0), pl.program_id(1), shape[1] * shape[2]
    end = (image + 1) * size

    def add(step: Array, sums: tuple[Array, ...]) -> tuple[Array, ...]:
        at = image * size + step * tile + jnp.arange(tile)
        g = triton.load(g_ref.at[_places(at, out)], mask=(at < end)[:, None], other=0.0)
        each = (_beside(x_ref, at, part * TAPS + tap, end, shape) for tap in range(TAPS))
        return tuple(total + _dot(x.T, g) for total, x in zip(sums, each, strict=True))

    zeros = tuple(jnp.zeros((shape[3], out), jnp.float32) for _ in range(TAPS))
    sums = jax.lax.fori_loop(0, pl.cdiv(size, tile), add, zeros)
    for tap in range(TAPS):
        o_ref[image, part * TAPS + tap] = sums[tap]


def _beside(x_ref: Any, at: Array, tap: Any, end: Any, shape: tuple[int, ...]) -> Shaped[Array, "p i"]:
    """What lies at one of the nine places around each position; zeros outside the image."""
    _, height, width, channels = shape
    row, column = _divided(tap, 3)
    down, right = row - 1, column - 1
    line, x = _divided(at, width)
    y, x = _divided(line, height)[1] + down, x + right
    inside = (at < end) & (y >= 0) & (y < height) & (x >= 0) & (x < width)
    return triton.load(x_ref.at[_places(at + down * width + right, channels)], mask=inside[:, None], other=0.0)


# The first block. `rows` holds a patch for each 2x2 square, `matrix` maps it to the four numbers there (patches.py).


def pooled(
    rows: Shaped[Array, "n p k"], matrix: Shaped[Array, "k 4 o"], sign: Float[Array, " o"]
) -> tuple[Shaped[Array, "n p o"], Int8[Array, "n p o"]]:
    """Of the four numbers of each square the one that is largest, times `sign`, and which it is; of equal ones the
    first."""
    shape = (*rows.shape[:2], matrix.shape[-1])
    parts = _by_place(matrix)
    size = rows.shape[0] * rows.shape[1] * parts.shape[-1]
    run = _call(
        partial(_pooled_kernel, total=rows.shape[0] * rows.shape[1], depth=rows.shape[2]),
        grid=(pl.cdiv(rows.shape[0] * rows.shape[1], TILES["pooled"].rows),),
        out_shape=[jax.ShapeDtypeStruct((size,), rows.dtype), jax.ShapeDtypeStruct((size,), jnp.int8)],
        name="pooled",
    )
    found = run(rows.reshape(-1), parts, _widened(sign, -1))
    values, winner = (each.reshape(*shape[:2], -1)[..., : shape[2]] for each in found)
    return values, winner


def picked(
    rows: Shaped[Array, "n p k"], matrix: Shaped[Array, "k 4 o"], winner: Int8[Array, "n p o"]
) -> Shaped[Array, "n p o"]:
    """The chosen number of each square."""
    parts, chosen = _by_place(matrix), _widened(winner, -1)
    run = _call(
        partial(_picked_kernel, total=rows.shape[0] * rows.shape[1], depth=rows.shape[2]),
        grid=(pl.cdiv(rows.shape[0] * rows.shape[1], TILES["picked"].rows),),
        out_shape=jax.ShapeDtypeStruct((chosen.size,), rows.dtype),
        name="picked",
    )
    values = run(rows.reshape(-1), parts, chosen.reshape(-1)).reshape(chosen.shape)
    return values[..., : winner.shape[-1]]


def pooled_gradient(
    rows: Shaped[Array, "n p k"], g: Shaped[Array, "n p o"], winner: Int8[Array, "n p o"]
) -> Shaped[Array, "k 4 o"]:
    """The sum over squares of their patch times `g`, at the chosen of the four places."""
    (n, size, depth), wanted = rows.shape, g.shape[-1]
    g, winner = _widened(g, -1), _widened(winner, -1)
    run = _call(
        partial(_pooled_gradient_kernel, size=size, depth=depth),
        grid=(n,),
        out_shape=jax.ShapeDtypeStruct((n, 4, _power(depth), g.shape[-1]), jnp.float32),
        name="pooled_gradient",
    )
    sums = run(rows.reshape(-1), g.reshape(-1), winner.reshape(-1)).sum(0)
    return sums[:, :depth, :wanted].swapaxes(0, 1).astype(rows.dtype)


def _by_place(matrix: Shaped[Array, "k 4 o"]) -> Shaped[Array, "4 k2 o2"]:
    """One matrix for each place of a square, widened."""
    return _widened(matrix.swapaxes(0, 1), -2, -1)


def _pooled_kernel(
    r_ref: Any, w_ref: Any, sign_ref: Any, o_ref: Any, winner_ref: Any, *, total: int, depth: int, tile: int
) -> None:
    at = pl.program_id(0) * tile + jnp.arange(tile)
    rows, sign, out = _patches(r_ref, at, total, depth), sign_ref[...][None], w_ref.shape[-1]
    # compared as they are stored, so that what is equal there counts as equal
    each = [_dot(rows, w_ref[place]).astype(o_ref.dtype).astype(jnp.float32) for place in range(4)]
    best, winner = each[0], jnp.zeros((tile, out), jnp.int32)
    for place in range(1, 4):
        larger = each[place] * sign > best * sign
        best, winner = jnp.where(larger, each[place], best), jnp.where(larger, place, winner)
    places, mask = _places(at, out), (at < total)[:, None]
    triton.store(o_ref.at[places], best.astype(o_ref.dtype), mask=mask)
    triton.store(winner_ref.at[places], winner.astype(jnp.int8), mask=mask)


def _picked_kernel(r_ref: Any, w_ref: Any, winner_ref: Any, o_ref: Any, *, total: int, depth: int, tile: int) -> None:
    at, out = pl.program_id(0) * tile + jnp.arange(tile), w_ref.shape[-1]
    places, mask = _places(at, out), (at < total)[:, None]
    rows, winner = _patches(r_ref, at, total, depth), triton.load(winner_ref.at[places], mask=mask, other=0)
    values = jnp.zeros((tile, out), jnp.float32)
    for place in range(4):
        values = jnp.where(winner.astype(jnp.int32) == place, _dot(rows, w_ref[place]), values)
    triton.store(o_ref.at[places], values.astype(o_ref.dtype), mask=mask)


def _pooled_gradient_kernel(
    r_ref: Any, g_ref: Any, winner_ref: Any, o_ref: Any, *, size: int, depth: int, tile: int
) -> None:
    image, out = pl.program_id(0), o_ref.shape[-1]
    end = (image + 1) * size

    def add(step: Array, sums: tuple[Array, ...]) -> tuple[Array, ...]:
        at = image * size + step * tile + jnp.arange(tile)
        places, mask = _places(at, out), (at < end)[:, None]
        rows, g = _patches(r_ref, at, end, depth).T, triton.load(g_ref.at[places], mask=mask, other=0.0)
        winner = triton.load(winner_ref.at[places], mask=mask, other=0).astype(jnp.int32)
        chosen = (jnp.where(winner == place, g, jnp.zeros_like(g)) for place in range(4))
        return tuple(total + _dot(rows, each) for total, each in zip(sums, chosen, strict=True))

    zeros = tuple(jnp.zeros((_power(depth), out), jnp.float32) for _ in range(4))
    sums = jax.lax.fori_loop(0, pl.cdiv(size, tile), add, zeros)
    for place in range(4):
        o_ref[image, place] = sums[place]


def _patches(r_ref: Any, at: Array, end: Any, depth: int) -> Shaped[Array, "p k2"]:
    """Patches of these squares, with zeros to a power of two."""
    column = jnp.arange(_power(depth))[None]
    return triton.load(r_ref.at[at[:, None] * depth + column], mask=(at < end)[:, None] & (column < depth), other=0.0)


def _divided(number: Any, by: int) -> tuple[Any, Any]:
    """Quotient and rest of what is not negative, without the care that jnp takes of signs."""
    whole = number.astype(jnp.int32)
    divisor = jnp.full_like(whole, by)
    return jax.lax.div(whole, divisor), jax.lax.rem(whole, divisor)


def _power(size: int) -> int:
    return max(LEAST, pl.next_power_of_2(size))


def _places(at: Array, channels: int) -> Array:
    return at[:, None] * channels + jnp.arange(channels)[None]


def _dot(a: Array, b: Array) -> Array:
    return jnp.dot(a, b, preferred_element_type=jnp.float32)


def _call(kernel: Callable[..., None], name: str, **settings: Any) -> Callable[..., Any]:
    """The compiled kernel; where there is no GPU, which is in tests, it is run step by step."""
    tile, absent = TILES[name], jax.default_backend() != "gpu"
    parameters = triton.CompilerParams(num_warps=tile.warps, num_stages=tile.stages)
    run = partial(kernel, tile=tile.rows)
    return pl.pallas_call(run, compiler_params=parameters, interpret=absent, name=name, **settings)
