"""Factors and solutions of linear systems, of which ONNX has none, as loops over rows."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

Matrix = Float[Array, "n n"]


def cholesky(matrix: Matrix) -> Matrix:
    """The lower factor: a column at a time, each taken out of what is left."""
    places = jnp.arange(matrix.shape[0])

    def column(left: Matrix, j: Int[Array, ""]) -> tuple[Matrix, Float[Array, " n"]]:
        at = (places == j).astype(matrix.dtype)
        own = (left @ at) * (places >= j) / jnp.sqrt(at @ left @ at)
        return left - jnp.outer(own, own), own

    return jax.lax.scan(column, matrix, places)[1].T


def solve_lower(factor: Matrix, right: Float[Array, "n c"]) -> Float[Array, "n c"]:
    """The solution for a lower factor: a row at a time, by those before it."""
    places = jnp.arange(factor.shape[0])

    def row(found: Float[Array, "n c"], j: Int[Array, ""]) -> tuple[Float[Array, "n c"], None]:
        at = (places == j).astype(factor.dtype)
        own = (at @ right - (at @ factor) @ found) / (at @ factor @ at)
        return found + jnp.outer(at, own), None

    return jax.lax.scan(row, jnp.zeros_like(right), places)[0]


def _cholesky(matrix: Array, **_: Any) -> Array:
    return _over_stacks(cholesky, 2)(matrix)


def _triangular_solve(
    factor: Array, right: Array, *, left_side: bool, lower: bool, transpose_a: bool, unit_diagonal: bool, **_: Any
) -> Array:
    """Every other system is one of a lower factor, seen from behind or turned."""

    def solve(factor: Matrix, right: Float[Array, "a b"]) -> Float[Array, "a b"]:
        if unit_diagonal:
            places = jnp.arange(factor.shape[0])
            factor = jnp.where(places[:, None] == places[None, :], 1.0, factor)
        turned = transpose_a == left_side  # x a = b is a^T x^T = b^T
        factor, right = factor.T if turned else factor, right if left_side else right.T
        is_lower = lower != turned
        found = solve_lower(factor, right) if is_lower else solve_lower(factor[::-1, ::-1], right[::-1])[::-1]
        return found if left_side else found.T

    return _over_stacks(solve, 2)(factor, right)


def _over_stacks(function: Callable, rank: int) -> Callable:
    """The function for each of stacked matrices."""

    def mapped(*operands: Array) -> Array:
        return function(*operands) if operands[0].ndim == rank else jax.vmap(mapped)(*operands)

    return mapped


LINEAR: dict[str, Callable[..., Array]] = {"cholesky": _cholesky, "triangular_solve": _triangular_solve}
