"""From settings to a run folder and back: create, train, resume, load, evaluate. One way, wherever tasks come from."""

from stmaml.experiments.learners import (
    RUN_WORD,
    fresh,
    load_learner,
    load_run,
    meta_train,
    run_keys,
    scaling_for,
    scaling_of,
    train_once,
    with_inner_steps,
)
from stmaml.experiments.scoring import Scored, Test, evaluate_run, save_scores, score_run, summarise_scores, tests_of
from stmaml.experiments.settings import EvaluateConfig, describe, experiment_of, load_experiment
from stmaml.experiments.together import score_together
from stmaml.experiments.training import create_runs, run_folders, train_runs

__all__ = [
    "RUN_WORD",
    "EvaluateConfig",
    "Scored",
    "Test",
    "create_runs",
    "describe",
    "evaluate_run",
    "experiment_of",
    "fresh",
    "load_experiment",
    "load_learner",
    "load_run",
    "meta_train",
    "run_folders",
    "run_keys",
    "save_scores",
    "scaling_for",
    "scaling_of",
    "score_run",
    "score_together",
    "summarise_scores",
    "tests_of",
    "train_once",
    "train_runs",
    "with_inner_steps",
]
