"""Settings of a training run."""

from dataclasses import dataclass
from typing import Literal

import optax

from stmaml.errors import SettingError, above, at_least
from stmaml.nets.patches import Precision
from stmaml.training.memory import parse_size
from stmaml.training.optimizers import OptimizerName, optimizer


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a training run."""

    steps: int = 60_000
    """Meta-steps."""
    tasks_per_batch: int = 25
    """Tasks m in a meta-step."""
    outer_lr: float = 1e-3
    """The optimizer's step size (gamma_2)."""
    optimizer: OptimizerName = "adam"
    """Adam, or Muon, whose steps turn weight matrices by orthogonal ones: worth a trial with attention, at a rate three
    to six times as high."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """How the step size goes on: down to zero along a half cosine, or level."""
    warmup: int = 0
    """Steps over which the step size first rises from zero; a quarter of all steps at most."""
    attention_precision: Precision = "float32"
    """Numbers in which layers of attention are computed in training: bfloat16 halves the memory that a GPU moves. Their
    weights, and all that is computed after training, are in float32."""
    weight_decay: float = 0.0
    """Share of each weight matrix that a step of size 1 takes away: keeps large networks from learning by heart."""
    clip_norm: float = 10.0
    """Bound on the norm of the outer gradient."""
    noise_rate: float | None = 0.02
    """Share of a batch in the running mean of squared residuals that is the noise level under `--noise-model residual`,
    whatever the step size. If not given, the noise level takes the optimizer's steps like all else."""
    val_every: int = 1000
    """Steps between validations; the learner with the best score is kept."""
    val_tasks: int = 300
    """Held-out tasks in a validation."""
    val_samples: int = 1
    """Predictors sampled for each of them."""
    val_metric: str = "mse"
    """The score that chooses."""
    checkpoint_every: int = 2000
    """Steps between checkpoints."""
    steps_per_call: int = 100
    """Steps in one compiled call; validations and checkpoints fall on its multiples."""
    on_divergence: Literal["stop", "rollback"] = "stop"
    """When a loss is not finite: stop, or go back to the last checkpoint and halve the step size."""
    task_chunk: int | None = None
    """Tasks whose gradients are taken at once, the others waiting their turn: less memory, the same result but for
    rounding. If not given: all, or one image task on a CPU, where that is faster."""
    memory: str | None = None
    """Memory that a step may take, such as 8GB, or auto for what is free: takes tasks in turns and recomputes inner
    steps as far as needed. If not given: auto for images, else not looked at."""

    def __post_init__(self):
        at_least(1, steps=self.steps, tasks_per_batch=self.tasks_per_batch, steps_per_call=self.steps_per_call)
        at_least(1, val_every=self.val_every, val_tasks=self.val_tasks, val_samples=self.val_samples)
        at_least(1, checkpoint_every=self.checkpoint_every)
        at_least(0, warmup=self.warmup, weight_decay=self.weight_decay)
        above(0, outer_lr=self.outer_lr, clip_norm=self.clip_norm)
        if self.noise_rate is not None and not 0 < self.noise_rate < 1:
            raise SettingError(f"--noise-rate must lie between 0 and 1, or be none; got {self.noise_rate}.")
        chunk = self.task_chunk
        if chunk is not None and (chunk < 1 or self.tasks_per_batch % chunk):
            tasks = f"--tasks-per-batch, which is {self.tasks_per_batch}"
            raise SettingError(f"--task-chunk must divide {tasks}; got {chunk}.")
        if self.memory is not None:
            parse_size(self.memory)

    @property
    def rise(self) -> int:
        """Steps of warm-up: `warmup`, or a quarter of all steps if that is less."""
        return min(self.warmup, self.steps // 4)

    def optimizer_of(self) -> optax.GradientTransformationExtraArgs:
        """What turns outer gradients into steps, its step size on schedule."""
        start = 0.0 if self.rise else self.outer_lr
        if self.schedule == "cosine":
            schedule = optax.warmup_cosine_decay_schedule(start, self.outer_lr, self.rise, self.steps)
        else:
            schedule = optax.warmup_constant_schedule(start, self.outer_lr, self.rise)
        return optimizer(self.optimizer, schedule, clip_norm=self.clip_norm, weight_decay=self.weight_decay)
