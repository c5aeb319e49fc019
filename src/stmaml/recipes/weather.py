"""Settings of the methods on temperature prediction."""

from dataclasses import replace

from stmaml.benchmarks import weather
from stmaml.inner import InnerLoop
from stmaml.methods import maml, meta_sgd, neural_processes, st_maml, tnp
from stmaml.methods.base import MethodConfig
from stmaml.methods.looks_up import LookUp
from stmaml.methods.st_maml import Adapting, Encoding, Gating
from stmaml.recipes.base import Experiment, Modelling
from stmaml.training import TrainConfig

_WIDTHS = (100, 100)


def _paper(method: str, learner: MethodConfig, *, outer_lr: float = 3e-3) -> Experiment:
    """The paper's sixteen inputs in their own units, and its networks."""
    training = TrainConfig(steps=20_000, tasks_per_batch=50, outer_lr=outer_lr)
    return Experiment("weather", method, "paper", weather.Config(), learner, training=training)


def _tuned(method: str, learner: MethodConfig, *, steps: int, modelling: Modelling) -> Experiment:
    """The paper's sixteen inputs, standardised, and its base learner; training and what reads the support are free."""
    training = TrainConfig(steps=steps, tasks_per_batch=192, outer_lr=4e-3, optimizer="muon", warmup=300)
    return Experiment("weather", method, "tuned", weather.Config(), learner, modelling, training)


_ENCODING = Encoding((40, 80, 200), z_hidden=(), z_size=200)
_STMAML = st_maml.Config(hidden=_WIDTHS, h_size=20, kl_weight=0.03, encoder=_ENCODING, inner=InnerLoop(1e-4, 5))
_RELEASED = Experiment(
    "weather",
    "st-maml",
    "released",
    weather.Config(split="file", handling="released"),
    replace(
        _STMAML,
        kl_weight=0.1,
        kl_mean=True,
        head_bias=False,
        gate=Gating("relu-affine"),
        codes=Adapting("codes", code_lr=1e-3, code_clamp=1.0),
        inner=InnerLoop(inner_lr=1e-3, inner_steps=5, inner_clamp=3.0),
    ),
    training=TrainConfig(steps=20_000, tasks_per_batch=20, schedule="constant"),
)
_MAML = maml.Config(hidden=_WIDTHS, inner=InnerLoop(inner_lr=1e-4, inner_steps=10))
_PREDICTED = Modelling(standardise=True, noise_model="predicted")
_LOOKUP = LookUp("attention", 256, lookup_layers=3, lookup_waves=9)
_INNER = InnerLoop(inner_lr=1e-3, inner_steps=5)
_LOOKING = replace(_STMAML, encoder=replace(_ENCODING, encoder=(256, 256)), inner=_INNER)
_WIDER = Encoding((256, 256), attention=2, z_hidden=(256,), z_size=64)
# Standardised inputs with gaps marked and seasons as waves, larger networks and batches, predicted noise.
_BEST = Experiment(
    "weather",
    "st-maml",
    "best",
    weather.Config(inputs="rich", query_size=100),
    st_maml.Config(hidden=(256, 256), h_size=64, prior_draws=4, encoder=_WIDER, inner=_INNER),
    _PREDICTED,
    TrainConfig(steps=10_000, tasks_per_batch=64, val_metric="nll", val_samples=8),
)
# The same with attention over the labelled days, by which it learns the weather of each day of its years as if from a
# map: for gaps and new stations in years that other stations cover, and for no other year.
_SAME_YEAR = replace(
    _BEST,
    preset="same-year",
    benchmark_settings=weather.Config(inputs="rich"),
    modelling=replace(_PREDICTED, lookup=_LOOKUP),
    training=replace(_BEST.training, steps=8_000, tasks_per_batch=96, optimizer="muon", outer_lr=4e-3, warmup=300),
)
# For years that nobody trained on: told the season, how many days lie between two days and what changes around a day,
# but no date. Small enough to ship. Settings: docs/log/weather.md.
_YEARS = Experiment(
    "weather",
    "st-maml",
    "years",
    weather.Config(
        inputs="seasons-around",
        query_size=40,
        min_shots=2,
        most_shots=40,
        date_shift=10,
        date_mirror=True,
        val_shift=10,
        anomaly=2.0,
    ),
    st_maml.Config(
        hidden=(128, 128),
        h_size=32,
        prior_draws=2,
        encoder=Encoding((128, 128), attention=1, z_hidden=(128,), z_size=32),
        inner=replace(_INNER, inner_steps=3),
    ),
    Modelling(standardise=True, noise_model="mixture", lookup=LookUp("attention", 128, lookup_layers=3)),
    replace(
        _BEST.training, steps=6_000, tasks_per_batch=128, optimizer="muon", outer_lr=3e-3, warmup=300, weight_decay=0.1
    ),
)
# The control: what attention does without task variable and inner loop, on the same inputs and tasks.
_YEARS_TNP = replace(
    _YEARS,
    method="tnp",
    method_settings=tnp.Config(width=128, layers=4, num_heads=8),
    modelling=replace(_YEARS.modelling, lookup=LookUp()),
    training=replace(_YEARS.training, steps=12_000, val_samples=1),
)
RECIPES = (
    _paper("st-maml", _STMAML),
    _paper("maml", _MAML, outer_lr=1e-2),
    _paper("meta-sgd", meta_sgd.Config(hidden=_WIDTHS, inner=InnerLoop(inner_lr=1e-5, inner_steps=5)), outer_lr=1e-4),
    _paper("np", neural_processes.NPConfig(kl_weight=0.03)),
    # The paper has no such row: inputs standardised, since layers of attention start from numbers of size 1.
    replace(_paper("tnp", tnp.Config(), outer_lr=1e-3), modelling=_PREDICTED),
    _RELEASED,
    _tuned("st-maml", _LOOKING, steps=10_000, modelling=replace(_PREDICTED, lookup=_LOOKUP)),
    _tuned(
        "maml",
        replace(_MAML, inner=replace(_INNER, inner_steps=10)),
        steps=20_000,
        modelling=Modelling(standardise=True),
    ),
    _BEST,
    _YEARS,
    _YEARS_TNP,
    _SAME_YEAR,
)
