"""Learners of an experiment: with first weights, trained without a folder, or read from a run."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import equinox as eqx
import jax.random as jr
from jaxtyping import PRNGKeyArray

from stmaml.benchmarks.base import VAL_SEED, Benchmark
from stmaml.benchmarks.sources import TaskSource, freeze
from stmaml.border.typed import RESTORE
from stmaml.errors import RunError, SettingError, StmamlError
from stmaml.experiments.settings import EvaluateConfig, load_experiment
from stmaml.legacy.settings import OLD_KEYS
from stmaml.methods import METHODS
from stmaml.methods.base import AbstractMetaLearner, MethodConfig
from stmaml.methods.wrapper import in_use, inner_loop, method_of, with_inner
from stmaml.recipes import Experiment, InputScale, Modelling, build_learner, measured_scaling
from stmaml.runs import Run, from_dict
from stmaml.tasks import Scaling, TaskSpec
from stmaml.training import Observer, TrainConfig, train_learners

RUN_WORD = 0x72756E73  # "runs", folded into a run's key: small words are the places of a split, where tasks' keys are


def run_keys(seed: int, *, as_in: str | None = None) -> tuple[PRNGKeyArray, PRNGKeyArray]:
    """The keys of a run's first weights and of its training.

    They are a run's own; `as_in` 0.1.0, those of seeds 1 and 2 are also the first that validation and test tasks use.
    """
    root = jr.key(seed)
    init_key, train_key = jr.split(root if as_in == OLD_KEYS else jr.fold_in(root, RUN_WORD))
    return init_key, train_key


def fresh(
    experiment: Experiment, spec: TaskSpec, scaling: Scaling | None, *, key: PRNGKeyArray | None = None
) -> AbstractMetaLearner:
    """A learner of the experiment with first weights; without a key, any will do."""
    key = jr.key(0) if key is None else key
    return build_learner(experiment.method_settings, spec, experiment.modelling, key=key, scaling=scaling)


def scaling_for(experiment: Experiment, benchmark: Benchmark) -> Scaling | None:
    """How the experiment's learner is to scale its tasks, if at all."""
    modelling = experiment.modelling
    return (benchmark.own_scaling or measured_scaling(modelling, benchmark.train)) if modelling.standardise else None


def scaling_of(run: Run, own: Scaling | None) -> Scaling | None:
    """The scaling a run was trained with: measured anew, it might differ where files have changed since."""
    stored = run.config().get("scaling")
    if stored is None:
        return own
    try:
        return _checked_scaling(from_dict(Scaling, stored, "scaling."))
    except RunError as error:
        raise RunError(f"{run.config_path}: {error}") from error


def _checked_scaling(scaling: Scaling) -> Scaling:
    """The scaling, if it can be divided by, and its quantiles rise."""
    finite = [*scaling.x_mean, *scaling.y_mean, *(knot for knots in scaling.x_knots for knot in knots)]
    rising = all(low <= high for row in (*scaling.x_knots, *scaling.x_ranks) for low, high in pairwise(row))
    if not all(map(math.isfinite, finite)) or not rising:
        raise RunError(f"'scaling' must have finite means and rising quantiles. {RESTORE}")
    if not all(0 < std < math.inf for std in (*scaling.x_std, *scaling.y_std)):
        raise RunError(f"'scaling' must have spreads above 0; one is not. {RESTORE}")
    return scaling


def meta_train(
    method: str | MethodConfig,
    source: TaskSource,
    *,
    val: TaskSource | None = None,
    standardise: bool = True,
    noise_model: str = "learned",
    input_scale: InputScale = "moments",
    training: TrainConfig | None = None,
    observers: Sequence[Observer] = (),
    seed: int = 0,
) -> AbstractMetaLearner:
    """A learner meta-trained on the tasks of `source`, the one that did best on held-out tasks.

    Args:
        method: a name of METHODS, for its default settings, or the settings themselves.
        val: where held-out tasks come from; by default `source` too, under another key.
        standardise: scale inputs (see `input_scale`) and real targets by their means and spreads over the tasks.
        noise_model: how the spread of real targets is modelled: a name of likelihoods.NOISE_MODELS.
        input_scale: `quantiles` scales inputs by their ranks, which suits heavy tails and gaps coded as numbers.
    """
    if isinstance(method, str) and method not in METHODS:
        raise SettingError(f"there is no method '{method}'; choose one of: {', '.join(METHODS)}.")
    config = METHODS[method]() if isinstance(method, str) else method
    training = training or TrainConfig(steps=5000, val_metric="nll")
    modelling = Modelling(standardise, noise_model, input_scale)
    scaling = measured_scaling(modelling, source) if standardise else None
    held_out = freeze(val or source, training.val_tasks, seed=VAL_SEED)
    init_key, train_key = run_keys(seed)
    learner = build_learner(config, source.spec, modelling, key=init_key, scaling=scaling)
    return train_learners([learner], source, held_out, training, keys=[train_key], observers=observers)[0]


def train_once(experiment: Experiment, benchmark: Benchmark, *, seed: int = 0) -> AbstractMetaLearner:
    """The learner that did best on validation tasks; no run folder keeps it."""
    init_key, train_key = run_keys(seed)
    learner = fresh(experiment, benchmark.train.spec, scaling_for(experiment, benchmark), key=init_key)
    held_out = benchmark.val_set(experiment.training.val_tasks)
    return train_learners([learner], benchmark.train, held_out, experiment.training, keys=[train_key])[0]


def load_run(folder: Path | str, *, data: str | None = None) -> tuple[Experiment, AbstractMetaLearner]:
    """A run's settings and its best learner; `data` says where its benchmark's files lie now."""
    run = Run(Path(folder))
    experiment = load_experiment(run)
    benchmark = EvaluateConfig(data=data).of(experiment).open()
    return experiment, load_learner(run, experiment, benchmark.train.spec, benchmark.own_scaling)


def load_learner(
    run: Run, experiment: Experiment, spec: TaskSpec, own_scaling: Scaling | None = None
) -> AbstractMetaLearner:
    """The best learner of a run whose tasks look like `spec`; `own_scaling` is the benchmark's, where it has one."""
    return in_use(run.load_learner(_shapes(run, experiment, spec, scaling_of(run, own_scaling))))


def _shapes(run: Run, experiment: Experiment, spec: TaskSpec, scaling: Scaling | None) -> AbstractMetaLearner:
    """A learner of shapes alone: settings that ask for a trillion weights are refused without making them."""
    try:
        return eqx.filter_eval_shape(lambda: fresh(experiment, spec, scaling))
    except StmamlError:
        raise
    except (TypeError, ValueError, OverflowError, ZeroDivisionError, IndexError) as error:
        why = str(error).partition("\n")[0]
        raise RunError(f"{run.config_path} describes a learner that cannot be ({why}). {RESTORE}") from error


def with_inner_steps(learner: AbstractMetaLearner, steps: int) -> AbstractMetaLearner:
    """The same learner with another number of inner steps."""
    if inner_loop(learner) is None:
        raise SettingError(f"{type(method_of(learner)).__name__} has no inner loop, so --inner-steps cannot change it.")
    return with_inner(learner, lambda inner: replace(inner, inner_steps=steps))
