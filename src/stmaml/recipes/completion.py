"""Settings of the methods on image completion."""

from dataclasses import replace

from stmaml.benchmarks import completion
from stmaml.inner import InnerLoop
from stmaml.methods import maml, neural_processes, st_maml, tnp
from stmaml.methods.base import MethodConfig
from stmaml.methods.looks_up import LookUp
from stmaml.methods.st_maml import Adapting, Encoding, Gating
from stmaml.recipes.base import Experiment, Modelling
from stmaml.training import TrainConfig

_WIDTHS = (64, 128, 256, 128)
_ENCODER = (20, 40, 64)
_TRAINING = TrainConfig(val_samples=8, val_metric="bce")


def _completion(
    method: str,
    learner: MethodConfig,
    *,
    preset: str = "paper",
    steps: int = 50_000,
    outer_lr: float = 1e-3,
    warmup: int = 1_000,
    query_size: int | None = 200,
    standardise: bool = True,
) -> Experiment:
    """Images of the three sets, 24 of each in a batch, 40 pixels of each seen and 200 of all asked. Asking all 784 in
    training is the same loss on average for three times the work. Coordinates around 0 halve the steps that ST-MAML
    needs with coordinates from 0 to 1 (docs/log/completion.md)."""
    training = replace(_TRAINING, steps=steps, tasks_per_batch=72, outer_lr=outer_lr, warmup=warmup)
    tasks, modelling = completion.Config(query_size=query_size), Modelling(standardise=standardise)
    return Experiment("completion", method, preset, tasks, learner, modelling, training)


# Step sizes, KL weight, where sigma starts and the layer before z: searches on validation images, which
# docs/log/completion.md has.
_STMAML = st_maml.Config(
    hidden=_WIDTHS,
    h_size=64,
    kl_weight=3e-3,
    encoder=Encoding(_ENCODER, z_hidden=(128,), z_size=64, std_start=0.101),
    # The clamps, seldom reached with 40 pixels, keep adaptation to a few pixels from running away.
    codes=Adapting(code_lr=1.0, code_clamp=1.0),
    inner=InnerLoop(inner_lr=0.1, inner_steps=3, inner_clamp=1.0),
)
_RELEASED = replace(
    _STMAML,
    kl_weight=0.1,
    kl_mean=True,
    asked_twice=True,
    head_bias=False,
    encoder=Encoding(_ENCODER, z_hidden=(), z_size=64),
    gate=Gating("set-mlp", (80,)),
    codes=Adapting("codes", code_lr=1.0, code_clamp=None),
    inner=InnerLoop(inner_lr=5e-3, inner_steps=3),
)
# Waves beside the coordinates, pixels that look up those observed as a picture, larger networks and batches. Training
# images are moved and bent, as KMNIST has few. The loss is the density of all asked pixels together under a mixture of
# draws, so that draws stand for different pictures, and beside it that of single pixels (docs/log/completion.md).
_BEST = Experiment(
    "completion",
    "st-maml",
    "best",
    completion.Config(inputs="waves", shift=1, distort=0.1, query_size=256),
    st_maml.Config(
        hidden=(128, 128),
        h_size=64,
        prior_draws=6,
        point_weight=0.5,
        encoder=Encoding((256, 256), z_hidden=(), z_size=64),
        inner=InnerLoop(inner_lr=0.1, inner_steps=3),
    ),
    Modelling(lookup=LookUp("lattice", 64, lookup_precision="bfloat16")),
    replace(_TRAINING, steps=20_000, tasks_per_batch=96, outer_lr=2e-3, warmup=500),
)
# The same, a seventh of its size: to ship, and for a page that answers at once.
_SMALL = replace(
    _BEST,
    preset="small",
    method_settings=replace(
        _BEST.method_settings,
        hidden=(64, 64),
        h_size=32,
        prior_draws=10,
        encoder=Encoding((128, 128), z_hidden=(), z_size=32),
    ),
    modelling=Modelling(lookup=LookUp("lattice", 24)),
    training=replace(_BEST.training, steps=10_000),
)
_MAML = maml.Config(hidden=_WIDTHS, inner=InnerLoop(inner_lr=0.1, inner_steps=3))
RECIPES = (
    _completion("st-maml", _STMAML, steps=60_000, outer_lr=4e-3),
    _completion("maml", _MAML, steps=30_000, warmup=500),
    _completion("cnp", neural_processes.CNPConfig(), outer_lr=3e-3),
    _completion("np", neural_processes.NPConfig(kl_weight=1e-3), outer_lr=3e-3),
    _completion("anp", neural_processes.ANPConfig(kl_weight=1e-2)),
    _completion("tnp", tnp.Config()),
    _completion("st-maml", _RELEASED, preset="released", warmup=0, query_size=None, standardise=False),
    _BEST,
    _SMALL,
)
