"""Meta-train on tasks of your own, then predict for a new one from five labelled points."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr

import stmaml


class Waves(eqx.Module):
    """Ten labelled points of a wave of unknown height and shift, and twenty to predict."""

    spec = stmaml.TaskSpec(x_shape=(1,), y_size=1)

    def sample(self, num_tasks, *, key):
        height, shift = jr.uniform(key, (2, num_tasks, 1, 1), minval=0.5, maxval=3.0)
        x = jr.uniform(jr.fold_in(key, 1), (num_tasks, 30, 1), maxval=6.0)
        y = height * jnp.sin(x + shift) + 0.1 * jr.normal(jr.fold_in(key, 2), x.shape)
        return stmaml.TaskBatch.of(x[:, :10], y[:, :10], x[:, 10:], y[:, 10:])


learner = stmaml.meta_train("st-maml", Waves(), training=stmaml.TrainConfig(steps=3000, outer_lr=3e-3))

x = jnp.array([[0.5], [1.0], [2.0], [3.5], [5.0]])  # a new task: five points of 2 sin(x + 1)
support = stmaml.Examples.of(x, 2 * jnp.sin(x + 1))
prediction = stmaml.predict(learner, support, jnp.linspace(0, 6, 7)[:, None], num_samples=50, key=jr.key(0))
for mean, std, task_std in zip(prediction.mean, prediction.std, prediction.task_std, strict=True):
    print(f"{mean[0]:6.2f} ± {std[0]:.2f}  (of it {task_std[0]:.2f} from not knowing the task)")
