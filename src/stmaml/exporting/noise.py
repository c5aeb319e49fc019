"""The noise behind an answer of the package, as an exported graph wants it: to compare the two."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from stmaml.exporting.convert import CALLS, NOISE, Program, live, traced_program


def drawn(program: Program, examples: dict[str, Any], key: PRNGKeyArray) -> Float[np.ndarray, " k"]:
    """All standard normal numbers that `program(key=key, **examples)` draws, in the order in which a graph reads them.

    They depend on the key alone: nothing else is computed."""
    traced, _ = traced_program(program, examples, key)
    found: list[np.ndarray] = []
    _collect(traced.jaxpr, traced.consts, [*[None] * len(examples), key], found)
    return np.concatenate([np.zeros(0, np.float32), *(one.reshape(-1) for one in found)])


def _collect(jaxpr: Any, constants: Sequence[Any], given: Sequence[Any], found: list[np.ndarray]) -> list[Any]:
    """What is known of the results where only some operands are; None for the others."""
    known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *given), strict=True))

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, jax.extend.core.Literal) else known[variable]

    for equation in live(jaxpr):
        name, params = equation.primitive.name, equation.params
        values = [read(variable) for variable in equation.invars]
        if name in CALLS and params.get("name") != NOISE:
            inside = params[CALLS[name]]
            results = _collect(inside.jaxpr, inside.consts, values, found)
        elif any(value is None for value in values) or (name not in CALLS and not _of_keys(equation)):
            results = [None] * len(equation.outvars)
        else:
            results = equation.primitive.bind(*values, **params)
            results = results if equation.primitive.multiple_results else [results]
        if params.get("name") == NOISE:
            found.append(np.asarray(results[0]))
        known.update(zip(equation.outvars, results, strict=True))
    return [read(variable) for variable in jaxpr.outvars]


def _of_keys(equation: Any) -> bool:
    """Whether an equation makes keys of keys."""
    return jnp.issubdtype(equation.outvars[0].aval.dtype, jax.dtypes.prng_key)
