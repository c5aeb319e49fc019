"""The one training loop and what it needs: settings, optimizers, memory, who keeps what it does."""

from stmaml.training.config import TrainConfig
from stmaml.training.loop import Diverged, Interrupted, train_learners
from stmaml.training.observers import Observer, Recorder
from stmaml.training.state import State, initial_state, unbundle
from stmaml.training.steps import meta_step, run_steps

__all__ = [
    "Diverged",
    "Interrupted",
    "Observer",
    "Recorder",
    "State",
    "TrainConfig",
    "initial_state",
    "meta_step",
    "run_steps",
    "train_learners",
    "unbundle",
]
