"""The meta-learned member of a pool: the one of its members that a graph can hold."""

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, PRNGKeyArray

from stmaml.exporting.columns import columns_of
from stmaml.exporting.noise import drawn
from stmaml.exporting.programs import Answers, Exportable, Wanted, about_task, query_like, support_like
from stmaml.methods.base import predict_with
from stmaml.pool.meta import FittedMeta
from stmaml.prediction import Prediction
from stmaml.tables.benchmark import task_spec
from stmaml.tables.schema import Schema
from stmaml.tasks import Examples

NOT_CALIBRATED = "the member answers alone: without the other members' say, and without the pool's calibration"


def of_member(fitted: FittedMeta, schema: Schema, wanted: Wanted) -> Exportable:
    """A member's learner for rows of the pool's table, in units of the target. Its noise is that of the pool."""
    plan, spec, levels = fitted.plan, task_spec(schema), jnp.array(wanted.levels)
    weights = jax.tree.map(lambda leaf: leaf[0], fitted.weights)
    learner = plan.learner(weights.vector, weights.prior)
    mean, std = (0.0, 1.0) if plan.num_classes else (schema.target.mean, schema.target.std)

    def wide(x: Array) -> Array:
        return jnp.pad(x, ((0, 0), (0, plan.num_inputs - x.shape[1])))

    def program(
        *, key: PRNGKeyArray, query_x: Array, support_x: Array, support_y: Array, support_weight: Array
    ) -> Answers:
        del key  # the same draws for every group
        y = support_y if plan.num_classes else (support_y - mean) / std
        support = Examples(wide(support_x), y, support_weight)
        predictors = learner.adapt(support, num_samples=plan.num_samples, key=jr.key(plan.seed))
        prediction = predict_with(predictors, wide(query_x))
        if plan.num_classes:
            return {"probabilities": prediction.mean, "task_std": prediction.task_std}
        real = prediction.components.as_real()
        shift, scale = (jnp.full(real.mean().shape, value) for value in (mean, std))
        told = Prediction(real.affine(shift, scale))
        values = {"mean": told.mean, "std": told.std, "task_std": told.task_std}
        return {**{n: v[:, 0] for n, v in values.items()}, "quantiles": told.quantiles(levels)[..., 0]}

    examples = {**support_like(spec, wanted), **query_like(spec, wanted)}
    about = {**about_task(spec, wanted), "draws": plan.num_samples, "schema": schema.to_json(), **columns_of(schema)}
    return Exportable(program, examples, about, noise=drawn(program, examples, jr.key(0)), notes=(NOT_CALIBRATED,))
