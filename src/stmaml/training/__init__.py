"""The one training loop and what it needs: optimizers, memory, who is told."""

from stmaml.training.loop import (
    Diverged,
    Interrupted,
    Observer,
    Silent,
    State,
    TrainConfig,
    initial_state,
    meta_step,
    run_steps,
    train_learners,
    unbundle,
)

__all__ = [
    "Diverged",
    "Interrupted",
    "Observer",
    "Silent",
    "State",
    "TrainConfig",
    "initial_state",
    "meta_step",
    "run_steps",
    "train_learners",
    "unbundle",
]
