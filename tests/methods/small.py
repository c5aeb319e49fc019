"""Small versions of every method, and small tasks to try them on."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from stmaml.inner import InnerLoop
from stmaml.methods import arml, bmaml, hsml, maml, meta_sgd, mmaml, neural_processes, platipus, protonet, st_maml, tnp
from stmaml.methods.base import AbstractMetaLearner
from stmaml.tasks import Examples, Task, TaskSpec
from tests.changed import changed

INNER = InnerLoop(inner_lr=0.05, inner_steps=2)
ONE_STEP = InnerLoop(inner_lr=0.05, inner_steps=1)
SMALL = {
    "anp": neural_processes.ANPConfig(encoder=(8, 8), keys=(8, 8), num_heads=2, decoder=(8, 8), z_size=4),
    "arml": arml.Config(hidden=(8, 8), sample_size=8, code_size=8, inner=INNER),
    "bmaml": bmaml.Config(hidden=(8, 8), num_particles=3, inner=INNER),
    "cnp": neural_processes.CNPConfig(encoder=(8, 8), decoder=(8, 8)),
    "hsml": hsml.Config(hidden=(8, 8), sample_size=8, code_size=8, inner=INNER),
    "maml": maml.Config(hidden=(8, 8), inner=INNER),
    "meta-sgd": meta_sgd.Config(hidden=(8, 8), inner=INNER),
    "mmaml": mmaml.Config(hidden=(8, 8), encoder=(8, 8), inner=INNER),
    "np": neural_processes.NPConfig(encoder=(8, 8), decoder=(8, 8), z_size=4, deterministic=True),
    "platipus": platipus.Config(hidden=(8, 8), inner=INNER),
    "protonet": protonet.Config(hidden=(8, 8)),
    "st-maml": changed(st_maml.Config(), hidden=(8, 8), encoder=(8, 8), z_size=4, h_size=3, inner=INNER),
    "tnp": tnp.Config(width=8, layers=2, num_heads=2),
}
VARIANTS = {
    "st-maml-attention": changed(
        st_maml.Config(),
        hidden=(8,),
        encoder=(8, 8),
        attention=1,
        num_heads=2,
        z_hidden=(),
        z_size=4,
        h_size=3,
        inner=ONE_STEP,
    ),
    "st-maml-mixture": changed(
        st_maml.Config(), hidden=(8,), encoder=(8, 8), prior_draws=2, z_hidden=(), z_size=4, h_size=3, inner=ONE_STEP
    ),
}
"""Settings that change what a method computes from sets."""


_BUILT: dict[tuple, AbstractMetaLearner] = {}


def small_learner(name: str, spec: TaskSpec, *, key) -> AbstractMetaLearner:
    """Built once for each version, spec and key, as one compiled program: operation by operation it takes seconds."""
    which = (name, spec, jr.key_data(key).tobytes())
    if which not in _BUILT:
        _BUILT[which] = eqx.filter_jit((SMALL | VARIANTS)[name].build)(spec, key=key)
    return _BUILT[which]


@partial(jax.jit, static_argnames=("spec", "shots", "queries"))
def small_task(spec: TaskSpec, *, shots: int = 5, queries: int = 6, key) -> Task:
    def examples(n: int, key) -> Examples:
        x_key, y_key = jr.split(key)
        x = jr.normal(x_key, (n, *spec.x_shape))
        if spec.target == "class":
            return Examples.of(x, jr.randint(y_key, (n,), 0, spec.y_size))
        y = jnp.sin(x.sum(axis=1, keepdims=True)) + 0.1 * jr.normal(y_key, (n, spec.y_size))
        return Examples.of(x, (y > 0).astype(float) if spec.target == "binary" else y)

    support_key, query_key = jr.split(key)
    return Task(examples(shots, support_key), examples(queries, query_key))


def gradients(learner: AbstractMetaLearner, tasks: Task, *, key) -> AbstractMetaLearner:
    """Of the losses of some tasks, summed."""
    keys = jr.split(key, tasks.support.weight.shape[0])

    @eqx.filter_jit
    @eqx.filter_grad
    def of(learner):
        return jax.vmap(lambda task, key: learner.loss(task, key=key)[0])(tasks, keys).sum()

    return of(learner)


def untouched(grads: AbstractMetaLearner) -> list[str]:
    """Names of the parameters whose gradient is zero throughout."""
    leaves = jax.tree_util.tree_leaves_with_path(grads)
    return [jax.tree_util.keystr(path) for path, leaf in leaves if not np.any(np.asarray(leaf) != 0)]
