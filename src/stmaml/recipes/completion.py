"""Settings of the methods on image completion."""

from dataclasses import replace

from stmaml.benchmarks import completion
from stmaml.inner import InnerLoop
from stmaml.methods import maml, neural_processes, stmaml
from stmaml.methods.base import MethodConfig
from stmaml.recipes.base import Experiment
from stmaml.training import TrainConfig

_WIDTHS = (64, 128, 256, 128)
_ENCODER = (20, 40, 64)


def _completion(method: str, learner: MethodConfig, *, preset: str = "paper", outer_lr: float = 1e-3) -> Experiment:
    """Images of the three sets, 12 of each in a batch, 40 pixels of each seen."""
    return Experiment(
        benchmark="completion",
        method=method,
        preset=preset,
        task=completion.Config(),
        learner=learner,
        training=TrainConfig(steps=50_000, tasks_per_batch=36, outer_lr=outer_lr, val_metric="bce"),
    )


_INNER = InnerLoop(inner_lr=1e-2, inner_steps=3)
_STMAML = stmaml.Config(hidden=_WIDTHS, encoder=_ENCODER, z_hidden=(), z_size=64, h_size=64, inner=_INNER)
_RELEASED = replace(
    _STMAML,
    gate="set-mlp",
    gate_hidden=(80,),
    adapted="codes",
    code_lr=1.0,
    code_clamp=None,
    kl_weight=0.1,
    kl_mean=True,
    head_bias=False,
    inner=InnerLoop(inner_lr=5e-3, inner_steps=3),
)
RECIPES = (
    _completion("st-maml", _STMAML),
    _completion("maml", maml.Config(hidden=_WIDTHS, inner=_INNER)),
    _completion("cnp", neural_processes.CNPConfig()),
    _completion("np", neural_processes.NPConfig()),
    _completion("anp", neural_processes.ANPConfig()),
    _completion("st-maml", _RELEASED, preset="released"),
)
