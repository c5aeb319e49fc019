"""MAML on the small network by other libraries, each as its own documentation has it: plain torch, torch.func as it is
and compiled, TorchOpt, learn2learn, jax_meta. Whichever is not installed is left out. Torch has one thread here, with
which it is faster.

learn2learn 0.2.0 no longer installs as a whole; its `algorithms/maml.py`, `algorithms/base_learner.py` and `utils.py`,
put on the path as a package of that name, run with today's torch. jax_meta 1.0.3 runs without its pins, and measures
errors of classes alone, so that its loss is replaced."""

import importlib.util
import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

Advance = Callable[[], np.ndarray]
Maker = Callable[[], Advance]


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def mlp_makers(
    inner_steps: int, weights: list, batches: tuple, *, inner_lr: float, outer_lr: float | None
) -> Iterator[tuple[str, Maker]]:
    """Names, and what makes the call that takes one step and gives its loss; without an outer rate it adapts to the
    tasks, gives the error of their queries, and learns nothing."""
    given = (inner_steps, weights, batches, inner_lr, outer_lr)
    if installed("torch"):
        yield "torch, loop over tasks", partial(_torch, *given, mapped=False)
        yield "torch.func, vmap over tasks", partial(_torch, *given, mapped=True)
        yield "torch.func, vmap over tasks, torch.compile", partial(_compiled, *given)
        if installed("torchopt"):
            yield "TorchOpt", partial(_torchopt, *given)
        if installed("learn2learn"):
            yield "learn2learn", partial(_learn2learn, *given)
    if installed("jax_meta"):
        yield "jax_meta", partial(_jax_meta, *given)


def _batches(batches: tuple) -> Iterator[list]:
    """One step's tasks after the other's, on torch's device."""
    import torch

    device, count = on_torch(), batches[0].shape[0]
    return itertools.cycle([[torch.tensor(array[i], device=device) for array in batches] for i in range(count)])


def on_torch() -> str:
    """The device that torch is to take."""
    import torch

    return "cuda" if jax.default_backend() != "cpu" and torch.cuda.is_available() else "cpu"


def _error(weights: list, x: Any, y: Any) -> Any:
    w1, b1, w2, b2, w3, b3 = weights
    return ((((x @ w1 + b1).relu() @ w2 + b2).relu() @ w3 + b3 - y) ** 2).mean()


def _torch(
    inner_steps: int, weights: list, batches: tuple, inner_lr: float, outer_lr: float | None, *, mapped: bool
) -> Advance:
    """A loop over tasks, which is what torch libraries do inside, or a vectorising map over them."""
    import torch

    torch.set_num_threads(1)
    stream = _batches(batches)
    own = [torch.tensor(array, device=on_torch()).requires_grad_() for pair in weights for array in pair]
    learn = _learning(own, outer_lr)

    def task_loss(weights: list, xs: Any, ys: Any, xq: Any, yq: Any) -> Any:
        for _ in range(inner_steps):
            if mapped:
                grads = torch.func.grad(_error)(weights, xs, ys)
            else:
                grads = torch.autograd.grad(_error(weights, xs, ys), weights, create_graph=outer_lr is not None)
            weights = [w - inner_lr * g for w, g in zip(weights, grads, strict=True)]
        return _error(weights, xq, yq)

    def advance() -> np.ndarray:
        batch, loss_of = next(stream), partial(task_loss, own)
        if mapped:
            each = torch.func.vmap(loss_of)(*batch)
        else:
            each = torch.stack([loss_of(*task) for task in zip(*batch, strict=True)])
        return learn(each.mean())

    return advance


def _learning(parameters: Iterable, outer_lr: float | None) -> Callable[[Any], np.ndarray]:
    """What is done with a loss: a step of Adam where there is a rate; its value."""
    import torch

    if outer_lr is None:
        return lambda loss: np.array([loss.item()])
    optimizer = torch.optim.Adam(parameters, lr=outer_lr)

    def learn(loss: Any) -> np.ndarray:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return np.array([loss.item()])

    return learn


def _network(weights: list, device: Any) -> Any:
    """The network as a torch module with these weights."""
    import torch

    layers: list[Any] = []
    for weight, bias in weights:
        layer = torch.nn.Linear(*weight.shape)
        layer.weight.data, layer.bias.data = torch.tensor(weight.T.copy()), torch.tensor(bias)
        layers += [layer, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1]).to(device)


def _compiled(inner_steps: int, weights: list, batches: tuple, inner_lr: float, outer_lr: float | None) -> Advance:
    import torch

    stream = _batches(batches)
    first = next(stream)
    own = [torch.tensor(array, device=first[0].device) for pair in weights for array in pair]
    optimizer = torch.optim.Adam(own, lr=outer_lr or 0.0)

    def task_loss(weights: list, xs: Any, ys: Any, xq: Any, yq: Any) -> Any:
        for _ in range(inner_steps):
            grads = torch.func.grad(_error)(weights, xs, ys)
            weights = [w - inner_lr * g for w, g in zip(weights, grads, strict=True)]
        return _error(weights, xq, yq)

    def mean_loss(weights: list, batch: list) -> Any:
        return torch.func.vmap(partial(task_loss, weights))(*batch).mean()

    stream = itertools.chain([first], stream)
    if outer_lr is None:
        alone = torch.compile(mean_loss)
        return lambda: np.array([alone(own, next(stream)).item()])
    both = torch.compile(torch.func.grad_and_value(mean_loss))

    def advance() -> np.ndarray:
        grads, loss = both(own, next(stream))
        for weight, grad in zip(own, grads, strict=True):
            weight.grad = grad
        optimizer.step()
        return np.array([loss.item()])

    return advance


def _torch_loop(network: Any, batches: tuple, outer_lr: float | None, task_loss: Callable[[list], Any]) -> Advance:
    """A step over tasks in turn, as libraries that change a module in place take it."""
    import torch

    stream, learn = _batches(batches), _learning(network.parameters(), outer_lr)
    return lambda: learn(torch.stack([task_loss(task) for task in zip(*next(stream), strict=True)]).mean())


def _torchopt(inner_steps: int, weights: list, batches: tuple, inner_lr: float, outer_lr: float | None) -> Advance:
    import torchopt
    from torch.nn.functional import mse_loss

    network = _network(weights, next(_batches(batches))[0].device)
    inner = torchopt.MetaSGD(network, lr=inner_lr)
    start = (torchopt.extract_state_dict(network), torchopt.extract_state_dict(inner))

    def task_loss(task: list) -> Any:
        xs, ys, xq, yq = task
        for _ in range(inner_steps):
            inner.step(mse_loss(network(xs), ys))
        loss = mse_loss(network(xq), yq)
        torchopt.recover_state_dict(network, start[0])
        torchopt.recover_state_dict(inner, start[1])
        return loss

    return _torch_loop(network, batches, outer_lr, task_loss)


def _learn2learn(inner_steps: int, weights: list, batches: tuple, inner_lr: float, outer_lr: float | None) -> Advance:
    from learn2learn.algorithms.maml import MAML
    from torch.nn.functional import mse_loss

    maml = MAML(_network(weights, next(_batches(batches))[0].device), lr=inner_lr)

    def task_loss(task: list) -> Any:
        xs, ys, xq, yq = task
        learner = maml.clone()
        for _ in range(inner_steps):
            learner.adapt(mse_loss(learner(xs), ys))
        return mse_loss(learner(xq), yq)

    return _torch_loop(maml, batches, outer_lr, task_loss)


class Labelled(NamedTuple):
    """A set of examples as jax_meta reads it."""

    inputs: jax.Array
    targets: jax.Array


class _Plain:
    """The network as jax_meta asks for one."""

    def apply(self, params: list, state: Any, x: jax.Array) -> tuple[jax.Array, Any]:
        for weight, bias in params[:-1]:
            x = jax.nn.relu(x @ weight + bias)
        return x @ params[-1][0] + params[-1][1], state


def _jax_meta(inner_steps: int, weights: list, batches: tuple, inner_lr: float, outer_lr: float | None) -> Advance:
    from jax_meta.metalearners import MAML
    from jax_meta.metalearners.base import MetaLearnerState

    class Regression(MAML):
        def loss(self, params: Any, state: Any, inputs: Any, targets: Any, args: Any) -> Any:
            predicted, state = self.model.apply(params, state, inputs)
            error = jnp.mean((predicted - targets) ** 2)
            return error, (state, {"loss": error})

    learner = Regression(_Plain(), num_steps=inner_steps, alpha=inner_lr)
    learner._optimizer = optax.adam(outer_lr or 0.0)
    params = jax.tree.map(jnp.asarray, weights)
    state = MetaLearnerState(model=jnp.zeros(()), optimizer=learner.optimizer.init(params), key=None)
    count = batches[0].shape[0]
    stream = itertools.cycle([[jnp.asarray(array[i]) for array in batches] for i in range(count)])

    def advance() -> np.ndarray:
        nonlocal params, state
        xs, ys, xq, yq = next(stream)
        support, query = Labelled(xs, ys), Labelled(xq, yq)
        if outer_lr is None:  # as its `evaluate` has it
            return np.atleast_1d(np.asarray(learner._batch_outer_loss(params, state.model, support, query, ())[0]))
        params, state, logs = learner.step(params, state, support, query)
        return np.atleast_1d(np.asarray(logs["outer/loss"]).mean())

    return advance
