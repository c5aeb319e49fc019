"""Differentiable gradient descent: how a support set changes parameters."""

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from stmaml.errors import SettingError, at_least
from stmaml.tasks import Scalar

Order = Literal["second", "first"]
Params = TypeVar("Params")
Loss = Callable[..., Scalar]


def descend(
    loss: Loss,
    params: Params,
    *,
    lr: PyTree,
    steps: int,
    clamp: PyTree = math.inf,
    order: Order = "second",
    remat: bool = False,
    per_step: PyTree = None,
) -> Params:
    """`params` after `steps` of gradient descent on `loss`, differentiable in all that `loss` and `params` hold.

    Args:
        lr: one rate, or a tree of rates whose structure is that of `params` or a prefix of it.
        clamp: bound on each gradient element, likewise one or a prefix; infinite for none.
        order: `first` treats the inner gradients as constants in the outer derivative.
        remat: recompute each step in the backward pass: memory of one step instead of all, for more time.
        per_step: arrays with a leading axis of length `steps`; `loss` is then called with the step's slice as well."""
    rates, clamps = jax.tree.broadcast(lr, params), jax.tree.broadcast(clamp, params)

    def step(params: Params, extra: PyTree) -> Params:
        grads = jax.grad(loss)(params) if per_step is None else jax.grad(loss)(params, extra)
        if order == "first":
            grads = jax.lax.stop_gradient(grads)
        return jax.tree.map(lambda p, g, rate, limit: p - rate * _clip(g, limit), params, grads, rates, clamps)

    if remat:  # saves memory only inside a scan: an unrolled loop is scheduled as one piece
        body = jax.checkpoint(step)
        return jax.lax.scan(lambda p, extra: (body(p, extra), None), params, per_step, length=steps)[0]
    for i in range(steps):  # unrolled: faster than a scan on small networks, on CPU and GPU
        params = step(params, jax.tree.map(operator.itemgetter(i), per_step))
    return params


def _clip(gradient: Array, limit: float) -> Array:
    if math.isinf(limit):
        return gradient
    typed = jnp.asarray(limit, dtype=gradient.dtype)
    return jax.lax.clamp(-typed, gradient, typed)  # jnp.clip splits ties in its derivative, at 5-10 % of a meta-step


def check_descent(name: str, lr: float, clamp: float | None) -> None:
    """Refuses a rate `--NAME-lr` or a bound `--NAME-clamp` that no descent can have."""
    if not 0 <= lr < math.inf:
        raise SettingError(f"--{name}-lr must be a number of at least 0; got {lr}.")
    if clamp is not None and not clamp > 0:
        raise SettingError(f"--{name}-clamp must be above 0, or none; got {clamp}.")


def bound(clamp: float | None) -> float:
    """A clamp as a number: infinite for none."""
    return math.inf if clamp is None else clamp


@dataclass(frozen=True)
class InnerLoop:
    """Settings of the inner loop, the same for every method that has one."""

    inner_lr: float = 1e-3
    """Step size of the inner loop (alpha, gamma_1)."""
    inner_steps: int = 5
    """Gradient steps K on the support set."""
    inner_clamp: float | None = 10.0
    """Bound on each element of an inner gradient; none if not given."""
    order: Order = "second"
    """Whether the outer gradient passes through the inner gradients."""
    remat: bool = False
    """Recompute inner steps in the backward pass: less memory, more time."""
    test_steps: int | None = None
    """Gradient steps on the support set of a validation or test task; as in training if not given."""

    def __post_init__(self):
        at_least(0, inner_steps=self.inner_steps, test_steps=self.test_steps)
        check_descent("inner", self.inner_lr, self.inner_clamp)

    def __call__(
        self, loss: Loss, params: Params, *, lr: PyTree = None, clamp: PyTree = None, per_step: PyTree = None
    ) -> Params:
        """`descend` with these settings; `lr` and `clamp` may be given by leaf instead."""
        lr = self.inner_lr if lr is None else lr
        clamp = bound(self.inner_clamp) if clamp is None else clamp
        run = partial(descend, order=self.order, remat=self.remat, per_step=per_step)
        return run(loss, params, lr=lr, steps=self.inner_steps, clamp=clamp)
