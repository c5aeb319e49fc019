"""Settings of the methods on temperature prediction."""

from dataclasses import replace

from stmaml.benchmarks import weather
from stmaml.inner import InnerLoop
from stmaml.methods import maml, meta_sgd, neural_processes, st_maml
from stmaml.methods.base import MethodConfig
from stmaml.recipes.base import Experiment, Modelling
from stmaml.training import TrainConfig

_WIDTHS = (100, 100)


def _paper(method: str, learner: MethodConfig, *, outer_lr: float = 3e-3) -> Experiment:
    """The paper's sixteen inputs in their own units, and its networks."""
    return Experiment(
        benchmark="weather",
        method=method,
        preset="paper",
        benchmark_settings=weather.Config(),
        method_settings=learner,
        training=TrainConfig(steps=20_000, tasks_per_batch=50, outer_lr=outer_lr),
    )


def _tuned(method: str, learner: MethodConfig, *, steps: int, modelling: Modelling) -> Experiment:
    """The paper's sixteen inputs, standardised, and its base learner; how it is trained and what reads the support is
    free."""
    return Experiment(
        benchmark="weather",
        method=method,
        preset="tuned",
        benchmark_settings=weather.Config(),
        method_settings=learner,
        modelling=modelling,
        training=TrainConfig(steps=steps, tasks_per_batch=192, outer_lr=4e-3, optimizer="muon", warmup=300),
    )


def _best(method: str, learner: MethodConfig) -> Experiment:
    """Standardised inputs with gaps marked and seasons as waves, larger networks and batches, predicted noise."""
    return Experiment(
        benchmark="weather",
        method=method,
        preset="best",
        benchmark_settings=weather.Config(inputs="rich", query_size=100),
        method_settings=learner,
        modelling=Modelling(standardise=True, noise_model="predicted"),
        training=TrainConfig(steps=10_000, tasks_per_batch=64, val_metric="nll", val_samples=8),
    )


_STMAML = st_maml.Config(
    hidden=_WIDTHS,
    encoder=(40, 80, 200),
    z_hidden=(),
    z_size=200,
    h_size=20,
    kl_weight=0.03,
    inner=InnerLoop(inner_lr=1e-4, inner_steps=5),
)
_RELEASED = Experiment(
    benchmark="weather",
    method="st-maml",
    preset="released",
    benchmark_settings=weather.Config(split="file", handling="released"),
    method_settings=st_maml.Config(
        hidden=_WIDTHS,
        encoder=(40, 80, 200),
        z_hidden=(),
        z_size=200,
        h_size=20,
        gate="relu-affine",
        adapted="codes",
        code_lr=1e-3,
        code_clamp=1.0,
        kl_weight=0.1,
        kl_mean=True,
        head_bias=False,
        inner=InnerLoop(inner_lr=1e-3, inner_steps=5, inner_clamp=3.0),
    ),
    training=TrainConfig(steps=20_000, tasks_per_batch=20, schedule="constant"),
)
RECIPES = (
    _paper("st-maml", _STMAML),
    _paper("maml", maml.Config(hidden=_WIDTHS, inner=InnerLoop(inner_lr=1e-4, inner_steps=10)), outer_lr=1e-2),
    _paper("meta-sgd", meta_sgd.Config(hidden=_WIDTHS, inner=InnerLoop(inner_lr=1e-5, inner_steps=5)), outer_lr=1e-4),
    _paper("np", neural_processes.NPConfig(kl_weight=0.03)),
    _RELEASED,
    _tuned(
        "st-maml",
        replace(
            _STMAML,
            encoder=(256, 256),
            cross_attention=3,
            cross_waves=9,
            inner=InnerLoop(inner_lr=1e-3, inner_steps=5),
        ),
        steps=10_000,
        modelling=Modelling(standardise=True, noise_model="predicted"),
    ),
    _tuned(
        "maml",
        maml.Config(hidden=_WIDTHS, inner=InnerLoop(inner_lr=1e-3, inner_steps=10)),
        steps=20_000,
        modelling=Modelling(standardise=True),
    ),
    _best(
        "st-maml",
        st_maml.Config(
            hidden=(256, 256),
            encoder=(256, 256),
            attention=2,
            z_hidden=(256,),
            z_size=64,
            h_size=64,
            prior_draws=4,
            inner=InnerLoop(inner_lr=1e-3, inner_steps=5),
        ),
    ),
)
