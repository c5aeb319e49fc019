"""Settings of the methods on ambiguous faces."""

from stmaml.benchmarks import celeba
from stmaml.inner import InnerLoop
from stmaml.methods import bmaml, maml, platipus, stmaml
from stmaml.methods.base import MethodConfig
from stmaml.nets.conv import Conv
from stmaml.recipes.base import Experiment
from stmaml.training import TrainConfig


def _celeba(method: str, learner: MethodConfig) -> Experiment:
    """Pairs of attributes, 5 pictures with and 5 without, asked about as many; 64,000 tasks.

    The paper does not say how it was trained here: network, inner loop and Adam's step are those of Plain-Multi.
    Validation looks at log-probabilities of mixtures, since it is mixtures of models that tests look at.
    """
    return Experiment(
        benchmark="celeba",
        method=method,
        preset="paper",
        task=celeba.Config(),
        learner=learner,
        training=TrainConfig(
            steps=4_000,
            tasks_per_batch=16,
            val_every=200,
            val_tasks=200,
            val_samples=4,
            val_metric="nll",
            checkpoint_every=400,
        ),
    )


_CONV = Conv(channels=32, norm="batch", precision="bfloat16")
_INNER = InnerLoop(inner_lr=1e-2, inner_steps=5)
RECIPES = (
    _celeba(
        "st-maml",
        stmaml.Config(
            conv=_CONV,
            encoder=(128, 128),
            z_hidden=(),
            z_size=128,
            h_size=32,
            kl_weight=0.1,
            kl_mean=True,
            inner=_INNER,
        ),
    ),
    _celeba("maml", maml.Config(conv=_CONV, inner=_INNER)),
    # Below the ELBO's one over 10 queries. PLATIPUS is said to have had 0.15 here, beside what is not told.
    _celeba("platipus", platipus.Config(conv=_CONV, kl_weight=0.015, inner=_INNER)),
    # Where the kernel keeps five particles apart, each moves by a fifth of the step: so it moves by 0.01 too.
    _celeba(
        "bmaml",
        bmaml.Config(conv=_CONV, num_particles=5, meta_loss="query", inner=InnerLoop(inner_lr=5e-2, inner_steps=5)),
    ),
)
